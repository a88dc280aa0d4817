//! The device path of means over spans. Computes in f32.

use candle_core::{DType, Tensor};

use super::super::composite::product;
use super::super::device::{BackwardPass, DeviceKernel, Saved};
use super::SpanMean;

impl SpanMean {
    /// The matrix `[S, T]` whose product with the rows gives the means.
    fn matrix(&self, x: &Tensor) -> candle_core::Result<Tensor> {
        let rows = x.dim(0)?;
        let mut matrix = vec![0.0f32; self.spans.len() * rows];
        for (row, span) in matrix.chunks_mut(rows).zip(&*self.spans) {
            row[span.start..span.start + span.length].fill(1.0 / span.length as f32);
        }
        Tensor::from_vec(matrix, (self.spans.len(), rows), x.device())
    }
}

impl DeviceKernel for SpanMean {
    fn forward(&self, inputs: &[Tensor], _: &[bool]) -> candle_core::Result<(Tensor, Saved)> {
        let x = &inputs[0];
        self.check(x.dims())?;
        #[cfg(feature = "cuda")]
        if x.device().is_cuda() && !self.spans.is_empty() {
            let (y, spans) = crate::cuda::span_means(x, &self.spans)?;
            return Ok((y, Saved::tensors([spans])));
        }
        let means = product(&self.matrix(x)?, &x.to_dtype(DType::F32)?)?;
        Ok((means.to_dtype(x.dtype())?, Saved::default()))
    }

    fn backward(&self, pass: &BackwardPass<'_>) -> candle_core::Result<Vec<Option<Tensor>>> {
        let x = &pass.inputs[0];
        #[cfg(feature = "cuda")]
        if let [spans] = &pass.saved.tensors[..] {
            return Ok(vec![Some(crate::cuda::span_means_backward(pass.gradient, spans, x)?)]);
        }
        let gradient = pass.gradient.to_dtype(DType::F32)?;
        Ok(vec![Some(product(&self.matrix(x)?.t()?, &gradient)?)])
    }
}
