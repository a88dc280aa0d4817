//! Means over spans of tokens.

mod device;

use std::sync::Arc;

use candle_core::{Shape, Tensor};
use rayon::prelude::*;

use super::device::DeviceKernel;
use super::operation::{CompositePrecision, Gradient, Input, Kernel, apply};
use super::rows::add;
use super::segments::Span;

/// Returns the mean row of each span (spans may overlap): `x` `[T, D]`, `S` spans → `[S, D]`.
///
/// # Errors
/// If a span is empty or extends beyond the rows.
pub fn span_mean(x: &Tensor, spans: Arc<[Span]>) -> candle_core::Result<Tensor> {
    apply(SpanMean { spans }, &[x])
}

struct SpanMean {
    spans: Arc<[Span]>,
}

impl SpanMean {
    /// Checks the spans and returns the width `D`.
    fn check(&self, dims: &[usize]) -> candle_core::Result<usize> {
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
    type Saved = ();

    fn name(&self) -> &'static str {
        "span mean"
    }

    fn forward(&self, inputs: &[Input<'_>]) -> candle_core::Result<(Vec<f32>, Shape, Self::Saved)> {
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
        Ok((output, Shape::from((self.spans.len(), width)), ()))
    }

    fn backward(
        &self,
        inputs: &[Input<'_>],
        _: &[f32],
        gradient: &[f32],
        _: &Self::Saved,
        input_gradients: &mut [Option<Gradient>],
    ) -> candle_core::Result<()> {
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

    fn precision(&self) -> CompositePrecision {
        CompositePrecision::Full
    }

    fn device(&self) -> Option<&dyn DeviceKernel> {
        Some(self)
    }

    fn composite(&self, inputs: &[Tensor]) -> candle_core::Result<Tensor> {
        self.check(inputs[0].dims())?;
        let means: Vec<Tensor> = self
            .spans
            .iter()
            .map(|span| inputs[0].narrow(0, span.start, span.length)?.mean(0))
            .collect::<candle_core::Result<_>>()?;
        Tensor::stack(&means, 0)
    }
}
