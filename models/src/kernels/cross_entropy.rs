//! Softmax cross-entropy with label smoothing and an ignore index.

use std::sync::Arc;

use candle_core::{D, Shape, Tensor};
use rayon::prelude::*;

use super::math::{exp, max, sum};
use super::operation::{Gradient, Input, Kernel, apply};
use super::softmax::at_least_f32;

/// The targets and options of a cross-entropy loss.
#[derive(Debug, Clone)]
pub struct CrossEntropy {
    /// One class index per row `[N]`.
    pub targets: Arc<[u32]>,
    /// The ignore index: rows with this target have zero loss and zero gradient. `None` ignores no
    /// row.
    pub ignored: Option<u32>,
    /// The label smoothing `ε`: this share of the target's weight is spread evenly over all
    /// classes. 0 disables it.
    pub label_smoothing: f32,
}

/// Computes `-Σ_v t_v log softmax(logits)_v` in nats for each row, where `t` is the smoothed target
/// distribution; 0 for ignored rows. `logits` `[N, V]` → `[N]`.
///
/// # Errors
/// If the number of targets is not `N`, or a target is `V` or more.
pub fn cross_entropy(logits: &Tensor, options: CrossEntropy) -> candle_core::Result<Tensor> {
    apply(options, &[logits])
}

impl CrossEntropy {
    /// Checks the logits' shape and the targets, and returns the number of classes `V`.
    fn check(&self, dims: &[usize]) -> candle_core::Result<usize> {
        let &[rows, width] = dims else {
            candle_core::bail!("cross-entropy: logits of shape {dims:?}, expected [N, V]");
        };
        if rows != self.targets.len() {
            candle_core::bail!("cross-entropy: {rows} rows but {} targets", self.targets.len());
        }
        let is_out_of_range = |t: &&u32| Some(**t) != self.ignored && **t as usize >= width;
        if let Some(target) = self.targets.iter().find(is_out_of_range) {
            candle_core::bail!(
                "cross-entropy: target {target} is out of range for {width} classes"
            );
        }
        Ok(width)
    }

    fn is_ignored(&self, row: usize) -> bool {
        Some(self.targets[row]) == self.ignored
    }
}

impl Kernel for CrossEntropy {
    fn name(&self) -> &'static str {
        "cross-entropy"
    }

    fn forward(&mut self, inputs: &[Input<'_>]) -> candle_core::Result<(Vec<f32>, Shape)> {
        let width = self.check(inputs[0].dims)?;
        let rows = inputs[0].data.par_chunks(width.max(1)).enumerate();
        let losses = rows.map(|(row, logits)| {
            if self.is_ignored(row) {
                return 0.0;
            }
            row_loss(logits, self.targets[row] as usize, self.label_smoothing)
        });
        Ok((losses.collect(), Shape::from(self.targets.len())))
    }

    fn backward(
        &self,
        inputs: &[Input<'_>],
        _: &[f32],
        gradient: &[f32],
        input_gradients: &mut [Option<Gradient>],
    ) -> candle_core::Result<()> {
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

    fn composite(&self, inputs: &[Tensor]) -> candle_core::Result<Tensor> {
        let logits = at_least_f32(&inputs[0])?;
        let width = self.check(logits.dims())?;
        let (shape, device) = (logits.shape(), logits.device());
        let smoothing_share = f64::from(self.label_smoothing) / width as f64;
        let mut weights = vec![0f64; self.targets.len() * width];
        let mut is_counted = vec![0u8; weights.len()];
        for (row, target) in self.targets.iter().enumerate().filter(|(r, _)| !self.is_ignored(*r)) {
            let row = row * width..(row + 1) * width;
            is_counted[row.clone()].fill(1);
            weights[row.clone()].fill(smoothing_share);
            weights[row][*target as usize] += 1.0 - f64::from(self.label_smoothing);
        }
        let has_weight = weights.iter().map(|weight| u8::from(*weight != 0.0)).collect::<Vec<_>>();
        let mask = |values: Vec<u8>| Tensor::from_vec(values, shape, device);
        // Ignored rows and classes without weight are set to 0: an infinite or NaN logit times 0
        // would be NaN.
        let zeros = logits.zeros_like()?;
        let logits = mask(is_counted)?.where_cond(&logits, &zeros)?;
        let shifted = logits.broadcast_sub(&logits.detach().max_keepdim(D::Minus1)?)?;
        let log_sum = shifted.exp()?.sum_keepdim(D::Minus1)?.log()?;
        let log_probability = shifted.broadcast_sub(&log_sum)?;
        let log_probability = mask(has_weight)?.where_cond(&log_probability, &zeros)?;
        let weights = Tensor::from_vec(weights, shape, device)?.to_dtype(logits.dtype())?;
        let losses = (log_probability * weights)?.sum(D::Minus1)?.neg()?;
        losses.to_dtype(inputs[0].dtype())
    }
}

vectorised! {
    /// Returns the loss of a row in nats.
    fn row_loss(logits: &[f32], target: usize, smoothing: f32) -> f32 {
        let top = max(logits);
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
        let scale = dy / sum(logits, |v| exp(v - top));
        let smoothing_share = dy * smoothing / logits.len() as f32;
        for (dx, v) in dx.iter_mut().zip(logits) {
            *dx += scale * exp(v - top) - smoothing_share;
        }
        dx[target] -= dy * (1.0 - smoothing);
    }
}
