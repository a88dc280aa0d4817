//! Softmax over the last dimension.

mod device;

use candle_core::{D, Shape, Tensor};
use rayon::prelude::*;

use super::device::DeviceKernel;
use super::math::{exp, max, sum2};
use super::operation::{CompositePrecision, Gradient, Input, Kernel, apply};

/// Computes the softmax over the last dimension: `x` `[.., N]` → `[.., N]`. A row of minus
/// infinities becomes zeros.
pub fn softmax(x: &Tensor) -> candle_core::Result<Tensor> {
    apply(Softmax, &[x])
}

struct Softmax;

impl Kernel for Softmax {
    type Saved = ();

    fn name(&self) -> &'static str {
        "softmax"
    }

    fn forward(&self, inputs: &[Input<'_>]) -> candle_core::Result<(Vec<f32>, Shape, Self::Saved)> {
        let width = inputs[0].dims.last().copied().unwrap_or(1).max(1);
        let mut output = inputs[0].data.to_vec();
        output.par_chunks_mut(width).for_each(|row| {
            softmax_row(row);
        });
        Ok((output, Shape::from(inputs[0].dims), ()))
    }

    fn backward(
        &self,
        inputs: &[Input<'_>],
        output: &[f32],
        gradient: &[f32],
        _: &Self::Saved,
        input_gradients: &mut [Option<Gradient>],
    ) -> candle_core::Result<()> {
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

    fn precision(&self) -> CompositePrecision {
        CompositePrecision::Full
    }

    fn device(&self) -> Option<&dyn DeviceKernel> {
        Some(self)
    }

    fn composite(&self, inputs: &[Tensor]) -> candle_core::Result<Tensor> {
        let x = &inputs[0];
        // As in the kernel, a row of minus infinities gives zeros.
        let top = x.detach().max_keepdim(D::Minus1)?.maximum(f64::from(f32::MIN))?;
        let shifted = x.broadcast_sub(&top)?.exp()?;
        // The largest entry adds 1, so a sum other than 0 is at least 1.
        shifted.broadcast_div(&shifted.sum_keepdim(D::Minus1)?.maximum(0.5)?)
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
