//! The residual sum at the end of a pre-norm block.

mod device;

use candle_core::{Shape, Tensor};
use rayon::prelude::*;

use super::device::DeviceKernel;
use super::dropout::{Dropout, add_masked_block};
use super::operation::{Gradient, Input, Kernel, apply};
use super::rows::{ELEMENTS, add};

/// Computes `x + dropout(y)` for two tensors of the same shape; `x + y` with `dropout` `None`.
///
/// # Errors
/// If the shapes differ.
pub fn residual(x: &Tensor, y: &Tensor, dropout: Option<Dropout>) -> candle_core::Result<Tensor> {
    apply(Residual { scale: 1.0, dropout }, &[x, y])
}

/// `x + scale dropout(y)`.
pub(super) struct Residual {
    pub(super) scale: f32,
    pub(super) dropout: Option<Dropout>,
}

impl Residual {
    /// Adds `scale dropout(from)` to `to`.
    fn add_branch(&self, from: &[f32], to: &mut [f32]) {
        let blocks = to.par_chunks_mut(ELEMENTS).zip(from.par_chunks(ELEMENTS));
        let dropout = self.dropout.map(|dropout| dropout.scaled_by(self.scale));
        blocks.enumerate().for_each(|(block, (to, from))| match dropout {
            None if self.scale == 1.0 => add(from, to),
            None => add_scaled(self.scale, from, to),
            Some(dropout) => add_masked_block(dropout, block * ELEMENTS, from, to),
        });
    }
}

impl Kernel for Residual {
    type Saved = ();

    fn name(&self) -> &'static str {
        "residual"
    }

    fn forward(&self, inputs: &[Input<'_>]) -> candle_core::Result<(Vec<f32>, Shape, Self::Saved)> {
        if inputs[0].dims != inputs[1].dims {
            candle_core::bail!(
                "residual: shapes {:?} and {:?} differ",
                inputs[0].dims,
                inputs[1].dims
            );
        }
        let mut output = inputs[0].data.to_vec();
        self.add_branch(inputs[1].data, &mut output);
        Ok((output, Shape::from(inputs[0].dims), ()))
    }

    fn backward(
        &self,
        _: &[Input<'_>],
        _: &[f32],
        gradient: &[f32],
        _: &Self::Saved,
        input_gradients: &mut [Option<Gradient>],
    ) -> candle_core::Result<()> {
        if let Some(dx) = &mut input_gradients[0] {
            Self { scale: 1.0, dropout: None }.add_branch(gradient, dx.as_sum());
        }
        if let Some(dy) = &mut input_gradients[1] {
            self.add_branch(gradient, dy.as_sum());
        }
        Ok(())
    }

    fn is_cheap(&self) -> bool {
        true
    }

    fn device(&self) -> Option<&dyn DeviceKernel> {
        Some(self)
    }

    fn composite(&self, inputs: &[Tensor]) -> candle_core::Result<Tensor> {
        match self.dropout {
            None => &inputs[0] + (&inputs[1] * f64::from(self.scale))?,
            Some(dropout) => &inputs[0] + dropout.scaled_by(self.scale).masked(&inputs[1])?,
        }
    }
}

vectorised! {
    fn add_scaled(scale: f32, from: &[f32], to: &mut [f32]) {
        for (to, from) in to.iter_mut().zip(from) {
            *to = from.mul_add(scale, *to);
        }
    }
}
