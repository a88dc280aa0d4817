//! Means over spans of tokens.

use std::sync::Arc;

use candle_core::{Result, Shape, Tensor};
use rayon::prelude::*;

use super::composite::product;
use super::device::{BackwardPass, DeviceKernel, Saved};
use super::operation::{Gradient, Input, Kernel, Output, Pass, apply};
use super::rows::add;
use super::segments::Span;
use crate::compute::full_precision;

/// Returns the mean row of each span (spans may overlap): `x` `[T, D]`, `S` spans → `[S, D]`.
///
/// # Errors
/// If a span is empty or extends beyond the rows.
pub fn span_mean(x: &Tensor, spans: Arc<[Span]>) -> Result<Tensor> {
    apply(SpanMean { spans }, &[x])
}

struct SpanMean {
    spans: Arc<[Span]>,
}

impl SpanMean {
    /// Checks the spans and returns the width `D`.
    fn check(&self, dims: &[usize]) -> Result<usize> {
        let &[rows, width] = dims else {
            candle_core::bail!("span mean: an input of shape {dims:?}, expected [T, D]");
        };
        let is_invalid = |s: &&Span| s.length == 0 || s.start.saturating_add(s.length) > rows;
        if let Some(span) = self.spans.iter().find(is_invalid) {
            candle_core::bail!("span mean: {span:?} is empty or beyond {rows} rows");
        }
        Ok(width)
    }
}

impl Kernel for SpanMean {
    fn name(&self) -> &'static str {
        "span mean"
    }

    fn forward(&self, inputs: &[Input<'_>]) -> Result<Output> {
        let width = self.check(inputs[0].dims)?;
        let mut output = vec![0.0; self.spans.len() * width];
        output.par_chunks_mut(width.max(1)).zip(&*self.spans).for_each(|(mean, span)| {
            let rows = &inputs[0].data[span.start * width..(span.start + span.length) * width];
            for row in rows.chunks(width) {
                add(row, mean);
            }
            let scale = 1.0 / span.length as f32;
            mean.iter_mut().for_each(|v| *v *= scale);
        });
        Ok((output, Shape::from((self.spans.len(), width)), Box::new(())))
    }

    fn backward(&self, pass: &Pass<'_>, input_gradients: &mut [Option<Gradient>]) -> Result<()> {
        let (inputs, gradient) = (pass.inputs, pass.gradient);
        let width = self.check(inputs[0].dims)?;
        if let Some(dx) = &mut input_gradients[0] {
            let dx = dx.as_sum();
            for (span, mean) in self.spans.iter().zip(gradient.chunks(width.max(1))) {
                let scale = 1.0 / span.length as f32;
                let row_gradient: Vec<f32> = mean.iter().map(|v| v * scale).collect();
                for row in dx[span.start * width..].chunks_mut(width).take(span.length) {
                    add(&row_gradient, row);
                }
            }
        }
        Ok(())
    }

    fn device(&self) -> Option<&dyn DeviceKernel> {
        Some(self)
    }
}

impl SpanMean {
    /// The matrix `[S, T]` whose product with the rows gives the means.
    fn matrix(&self, x: &Tensor) -> Result<Tensor> {
        let rows = x.dim(0)?;
        let mut matrix = vec![0.0f32; self.spans.len() * rows];
        for (row, span) in matrix.chunks_mut(rows).zip(&*self.spans) {
            row[span.start..span.start + span.length].fill(1.0 / span.length as f32);
        }
        let matrix = Tensor::from_vec(matrix, (self.spans.len(), rows), x.device())?;
        matrix.to_dtype(full_precision(x)?.dtype())
    }
}

impl DeviceKernel for SpanMean {
    fn forward(&self, inputs: &[Tensor], _: &[bool]) -> Result<(Tensor, Saved)> {
        let x = &inputs[0];
        self.check(x.dims())?;
        #[cfg(feature = "cuda")]
        if x.device().is_cuda() && !self.spans.is_empty() {
            let (y, spans) = crate::cuda::span_means(x, &self.spans)?;
            return Ok((y, Saved::tensors([spans])));
        }
        let means = product(&self.matrix(x)?, &full_precision(x)?)?;
        Ok((means.to_dtype(x.dtype())?, Saved::default()))
    }

    fn backward(&self, pass: &BackwardPass<'_>) -> Result<Vec<Option<Tensor>>> {
        let x = &pass.inputs[0];
        #[cfg(feature = "cuda")]
        if let [spans] = &pass.saved.tensors[..] {
            return Ok(vec![Some(crate::cuda::span_means_backward(pass.gradient, spans, x)?)]);
        }
        let gradient = full_precision(pass.gradient)?;
        Ok(vec![Some(product(&self.matrix(x)?.t()?, &gradient)?)])
    }
}
