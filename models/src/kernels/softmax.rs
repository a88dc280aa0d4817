//! Softmax over the last dimension.

use candle_core::{D, Result, Shape, Tensor};
use rayon::prelude::*;

use super::device::{BackwardPass, DeviceKernel, Saved};
use super::math::{exp, max, sum2};
use super::operation::{Gradient, Input, Kernel, Output, Pass, apply};
use crate::compute::full_precision;

/// Computes the softmax over the last dimension: `x` `[.., N]` → `[.., N]`. A row of minus
/// infinities becomes zeros.
pub fn softmax(x: &Tensor) -> Result<Tensor> {
    apply(Softmax, &[x])
}

struct Softmax;

impl Kernel for Softmax {
    fn name(&self) -> &'static str {
        "softmax"
    }

    fn forward(&self, inputs: &[Input<'_>]) -> Result<Output> {
        let width = inputs[0].dims.last().copied().unwrap_or(1).max(1);
        let mut output = inputs[0].data.to_vec();
        output.par_chunks_mut(width).for_each(|row| {
            softmax_row(row);
        });
        Ok((output, Shape::from(inputs[0].dims), Box::new(())))
    }

    fn backward(&self, pass: &Pass<'_>, input_gradients: &mut [Option<Gradient>]) -> Result<()> {
        let (inputs, output, gradient) = (pass.inputs, pass.output, pass.gradient);
        let width = inputs[0].dims.last().copied().unwrap_or(1).max(1);
        if let Some(dx) = &mut input_gradients[0] {
            let rows = output.par_chunks(width).zip(gradient.par_chunks(width));
            dx.as_sum()
                .par_chunks_mut(width)
                .zip(rows)
                .for_each(|(dx, (y, dy))| row_gradient(y, dy, dx));
        }
        Ok(())
    }

    fn device(&self) -> Option<&dyn DeviceKernel> {
        Some(self)
    }
}

/// Computes in f32.
impl DeviceKernel for Softmax {
    fn forward(&self, inputs: &[Tensor], _: &[bool]) -> Result<(Tensor, Saved)> {
        let (x, dtype) = (full_precision(&inputs[0])?, inputs[0].dtype());
        #[cfg(feature = "cuda")]
        if x.device().is_cuda() {
            return Ok((crate::cuda::softmax(&x)?.to_dtype(dtype)?, Saved::default()));
        }
        // As in the kernel, a row of minus infinities gives zeros.
        let top = x.max_keepdim(D::Minus1)?.maximum(f64::from(f32::MIN))?;
        let shifted = x.broadcast_sub(&top)?.exp()?;
        // The largest entry adds 1, so a sum other than 0 is at least 1.
        let y = shifted.broadcast_div(&shifted.sum_keepdim(D::Minus1)?.maximum(0.5)?)?;
        Ok((y.to_dtype(dtype)?, Saved::default()))
    }

    fn backward(&self, pass: &BackwardPass<'_>) -> Result<Vec<Option<Tensor>>> {
        let (y, dy) = (full_precision(pass.output)?, full_precision(pass.gradient)?);
        #[cfg(feature = "cuda")]
        if y.device().is_cuda() {
            return Ok(vec![Some(crate::cuda::softmax_backward(&y, &dy)?)]);
        }
        let mean = (&y * &dy)?.sum_keepdim(D::Minus1)?;
        Ok(vec![Some((y * dy.broadcast_sub(&mean)?)?)])
    }
}

vectorised! {
    /// Replaces a row by its softmax and returns its log-sum-exp. A row of minus infinities becomes
    /// zeros and returns minus infinity.
    pub(crate) fn softmax_row(row: &mut [f32]) -> f32 {
        let top = max(row);
        if top == f32::NEG_INFINITY && row.iter().all(|v| *v == top) {
            row.fill(0.0);
            return top;
        }
        for v in row.iter_mut() {
            *v = exp(*v - top);
        }
        let total = super::math::sum(row, |v| v);
        let scale = 1.0 / total;
        for v in row.iter_mut() {
            *v *= scale;
        }
        top + total.ln()
    }

    /// Returns the log-sum-exp of a row; NaN if all values are minus infinity.
    pub(crate) fn log_sum_exp(row: &[f32]) -> f32 {
        let top = max(row);
        super::math::sum(row, |v| exp(v - top)).ln() + top
    }

    /// Adds the gradient of a row's input to `dx`, given the softmax `y` and its gradient `dy`.
    fn row_gradient(y: &[f32], dy: &[f32], dx: &mut [f32]) {
        let mean_gradient = sum2(y, dy, |y, dy| y * dy);
        for ((dx, y), dy) in dx.iter_mut().zip(y).zip(dy) {
            *dx = y.mul_add(dy - mean_gradient, *dx);
        }
    }
}
