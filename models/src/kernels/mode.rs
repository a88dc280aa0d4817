//! The mode of a forward pass.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use candle_core::Tensor;

use super::chain::Chain;
use super::dropout::Dropout;
use crate::error::Result;
use crate::recompute::{Recompute, recompute};

/// The mode of a forward pass: training (dropout on) or evaluation (dropout off, with or without
/// gradients), and the values that the backward pass computes again.
#[derive(Debug)]
pub struct Mode {
    seed: Option<u64>,
    num_masks: Cell<u64>,
    gradients: bool,
    recompute: Recompute,
}

impl Mode {
    /// Evaluation with gradients. Dropout is off.
    pub fn evaluate() -> Self {
        Self { seed: None, num_masks: Cell::new(0), gradients: true, recompute: Recompute::None }
    }

    /// Evaluation without gradients. Dropout is off. An encoder detaches its hidden states after
    /// each block, so that only one block's graph is in memory.
    pub fn inference() -> Self {
        Self { gradients: false, ..Self::evaluate() }
    }

    /// Training mode with the masks of `seed`. Each use of dropout draws the next mask, so create
    /// one `Mode` per forward pass.
    pub fn train(seed: u64) -> Self {
        Self { seed: Some(seed), ..Self::evaluate() }
    }

    /// Sets the values that the backward pass computes again; none by default.
    pub fn recompute(self, recompute: Recompute) -> Self {
        Self { recompute, ..self }
    }

    /// Detaches `x` (of any shape) if no gradients are needed.
    pub fn detach(&self, x: Tensor) -> Tensor {
        if self.gradients { x } else { x.detach() }
    }

    /// Draws the next mask. Returns `None` in evaluation mode or if `probability` is 0.
    pub fn dropout(&self, probability: f64) -> Option<Dropout> {
        let seed = self.seed?;
        let index = self.num_masks.replace(self.num_masks.get() + 1);
        (probability > 0.0).then(|| Dropout::of_mask(probability, seed, index))
    }

    /// Creates an empty chain. With [`Recompute::Selective`], it computes cheap values again.
    pub fn chain(&self) -> Chain {
        Chain::new().selective(self.recompute == Recompute::Selective)
    }

    /// Runs a block of a model on its inputs. With [`Recompute::Block`], the backward pass runs the
    /// block again, with the same dropout masks. An input that the block uses twice is given twice,
    /// the later use first: gradients are then added in the same order for each [`Recompute`].
    pub(crate) fn block<L: Clone + Send + Sync + 'static>(
        &self,
        layer: &L,
        inputs: &[&Tensor],
        run: impl Fn(&L, &[Tensor], &Mode) -> Result<Tensor> + Send + Sync + 'static,
    ) -> Result<Tensor> {
        if self.recompute != Recompute::Block || !self.gradients {
            let inputs: Vec<Tensor> = inputs.iter().map(|&x| x.clone()).collect();
            return run(layer, &inputs, self);
        }
        let (layer, seed, first_mask) = (layer.clone(), self.seed, self.num_masks.get());
        let next_mask = Arc::new(AtomicU64::new(first_mask));
        let next_mask_of_block = next_mask.clone();
        let output = recompute(inputs, move |inputs| {
            let mode = Self { seed, num_masks: Cell::new(first_mask), ..Self::evaluate() };
            let output = run(&layer, inputs, &mode)?;
            next_mask_of_block.store(mode.num_masks.get(), Ordering::Relaxed);
            Ok(output)
        })?;
        self.num_masks.set(next_mask.load(Ordering::Relaxed));
        Ok(output)
    }
}
