//! Softmax cross-entropy with label smoothing and an ignore index.

use std::sync::Arc;

use candle_core::{D, Result, Shape, Tensor};
use rayon::prelude::*;

use super::math::{exp, max, sum};
use super::operation::{Gradient, Input, Kernel, Output, Pass, apply};
use crate::compute::full_precision;

/// The targets and options of a cross-entropy loss.
#[derive(Debug, Clone)]
pub struct CrossEntropy {
    /// One class index per row `[N]`.
    pub targets: Arc<[u32]>,
    /// The ignore index: rows with this target have zero loss and zero gradient. `None` ignores no
    /// row.
    pub ignore_index: Option<u32>,
    /// The label smoothing `ε`: this share of the target's weight is spread evenly over all
    /// classes. 0 disables it.
    pub label_smoothing: f32,
}

/// Computes `-Σ_v t_v log softmax(logits)_v` in nats for each row, where `t` is the smoothed target
/// distribution; 0 for ignored rows. `logits` `[N, V]` → `[N]`. A row whose logits are all minus
/// infinity has infinite loss and zero gradient.
///
/// # Errors
/// If the number of targets is not `N`, or a target is `V` or more.
pub fn cross_entropy(logits: &Tensor, options: CrossEntropy) -> Result<Tensor> {
    apply(options, &[logits])
}

impl CrossEntropy {
    /// Checks the logits' shape and the targets, and returns the number of classes `V`.
    fn check(&self, dims: &[usize]) -> Result<usize> {
        let &[rows, width] = dims else {
            candle_core::bail!("cross-entropy: logits of shape {dims:?}, expected [N, V]");
        };
        if rows != self.targets.len() {
            candle_core::bail!("cross-entropy: {rows} rows but {} targets", self.targets.len());
        }
        let is_out_of_range = |t: &&u32| Some(**t) != self.ignore_index && **t as usize >= width;
        if let Some(target) = self.targets.iter().find(is_out_of_range) {
            candle_core::bail!(
                "cross-entropy: target {target} is out of range for {width} classes"
            );
        }
        Ok(width)
    }

    fn is_ignored(&self, row: usize) -> bool {
        Some(self.targets[row]) == self.ignore_index
    }
}

impl Kernel for CrossEntropy {
    fn name(&self) -> &'static str {
        "cross-entropy"
    }

    fn forward(&self, inputs: &[Input<'_>]) -> Result<Output> {
        let width = self.check(inputs[0].dims)?;
        let rows = inputs[0].data.par_chunks(width.max(1)).enumerate();
        let losses = rows.map(|(row, logits)| {
            if self.is_ignored(row) {
                return 0.0;
            }
            row_loss(logits, self.targets[row] as usize, self.label_smoothing)
        });
        Ok((losses.collect(), Shape::from(self.targets.len()), Box::new(())))
    }

    fn backward(&self, pass: &Pass<'_>, input_gradients: &mut [Option<Gradient>]) -> Result<()> {
        let (inputs, gradient) = (pass.inputs, pass.gradient);
        let width = self.check(inputs[0].dims)?.max(1);
        if let Some(dx) = &mut input_gradients[0] {
            let rows = inputs[0].data.par_chunks(width).zip(gradient);
            let rows = dx.as_sum().par_chunks_mut(width).zip(rows).enumerate();
            rows.for_each(|(row, (dx, (logits, dy)))| {
                if !self.is_ignored(row) {
                    row_gradient(logits, self.targets[row] as usize, self.label_smoothing, *dy, dx);
                }
            });
        }
        Ok(())
    }

    fn composite(&self, inputs: &[Tensor]) -> Result<Tensor> {
        let given = &full_precision(&inputs[0])?;
        self.check(given.dims())?;
        let (rows, device) = (self.targets.len(), given.device());
        let counted: Vec<u8> = (0..rows).map(|row| u8::from(!self.is_ignored(row))).collect();
        let target = |row: usize| if self.is_ignored(row) { 0 } else { self.targets[row] };
        let targets = Tensor::from_iter((0..rows).map(target), device)?.reshape((rows, 1))?;
        let counted = Tensor::from_vec(counted, (rows, 1), device)?;
        let is_masked = given.detach().max_keepdim(D::Minus1)?.eq(f64::NEG_INFINITY)?;
        // Ignored and masked rows are set to 0: an infinite or NaN logit times 0 would be NaN.
        let kept = (&counted * is_masked.eq(0u8)?)?;
        let kept = kept.broadcast_as(given.shape())?.contiguous()?;
        let logits = kept.where_cond(given, &given.zeros_like()?)?;
        let shifted = logits.broadcast_sub(&logits.detach().max_keepdim(D::Minus1)?)?;
        let total = shifted.exp()?.sum_keepdim(D::Minus1)?.log()?;
        let of_target = (shifted.gather(&targets, 1)? - &total)?;
        let log_probability = if self.label_smoothing == 0.0 {
            of_target
        } else {
            let smoothing = f64::from(self.label_smoothing);
            let of_all = shifted.broadcast_sub(&total)?.mean_keepdim(1)?;
            ((of_target * (1.0 - smoothing))? + (of_all * smoothing)?)?
        };
        let zeros = log_probability.zeros_like()?;
        let infinity = (&zeros + f64::NEG_INFINITY)?;
        let log_probability = is_masked.where_cond(&infinity, &log_probability)?;
        counted.where_cond(&log_probability, &zeros)?.squeeze(1)?.neg()
    }
}

vectorised! {
    /// Returns the loss of a row in nats.
    fn row_loss(logits: &[f32], target: usize, smoothing: f32) -> f32 {
        let top = max(logits);
        if is_masked(logits, top) {
            return f32::INFINITY;
        }
        let log_sum_exp = sum(logits, |v| exp(v - top)).ln() + top;
        if smoothing == 0.0 {
            // A masked class (minus infinity) does not affect the loss.
            return log_sum_exp - logits[target];
        }
        let mean_logit = sum(logits, |v| v) / logits.len() as f32;
        log_sum_exp - (1.0 - smoothing) * logits[target] - smoothing * mean_logit
    }

    /// Adds the gradient of a row's logits to `dx`. `dy` is the gradient of the row's loss.
    fn row_gradient(logits: &[f32], target: usize, smoothing: f32, dy: f32, dx: &mut [f32]) {
        let top = max(logits);
        if is_masked(logits, top) {
            return;
        }
        let scale = dy / sum(logits, |v| exp(v - top));
        let smoothing_share = dy * smoothing / logits.len() as f32;
        for (dx, v) in dx.iter_mut().zip(logits) {
            *dx += scale * exp(v - top) - smoothing_share;
        }
        dx[target] -= dy * (1.0 - smoothing);
    }
}

/// Whether all logits are minus infinity, given their maximum without NaN.
#[inline(always)]
fn is_masked(logits: &[f32], top: f32) -> bool {
    top == f32::NEG_INFINITY && logits.iter().all(|logit| *logit == top)
}
