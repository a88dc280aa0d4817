//! The device path of dropout.

use candle_core::Tensor;

use super::super::device::{BackwardPass, DeviceKernel, Saved};
use super::{Dropout, DropoutKernel};

impl DeviceKernel for DropoutKernel {
    fn forward(&self, inputs: &[Tensor], _: &[bool]) -> candle_core::Result<(Tensor, Saved)> {
        Ok((self.0.masked_sum(&inputs[0], None)?, Saved::default()))
    }

    fn backward(&self, pass: &BackwardPass<'_>) -> candle_core::Result<Vec<Option<Tensor>>> {
        Ok(vec![Some(self.0.masked_sum(pass.gradient, None)?)])
    }
}

impl Dropout {
    /// Computes `residual + dropout(x)` without a graph, for tensors of one shape and dtype.
    pub(in super::super) fn masked_sum(
        self,
        x: &Tensor,
        residual: Option<&Tensor>,
    ) -> candle_core::Result<Tensor> {
        #[cfg(feature = "cuda")]
        if x.device().is_cuda() {
            return crate::cuda::masked(x, residual, self, None);
        }
        let masked = self.masked_on_host(x)?;
        match residual {
            Some(residual) => residual + masked,
            None => Ok(masked),
        }
    }
}
