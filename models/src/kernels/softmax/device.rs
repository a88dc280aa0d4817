//! The device path of the softmax. Computes in f32.

use candle_core::{D, DType, Tensor};

use super::super::device::{BackwardPass, DeviceKernel, Saved};
use super::super::operation::Kernel;
use super::Softmax;

impl DeviceKernel for Softmax {
    fn forward(&self, inputs: &[Tensor], _: &[bool]) -> candle_core::Result<(Tensor, Saved)> {
        let x = inputs[0].to_dtype(DType::F32)?;
        #[cfg(feature = "cuda")]
        if x.device().is_cuda() {
            let y = crate::cuda::softmax(&x)?;
            return Ok((y.to_dtype(inputs[0].dtype())?, Saved::default()));
        }
        Ok((self.composite(&[x])?.to_dtype(inputs[0].dtype())?, Saved::default()))
    }

    fn backward(&self, pass: &BackwardPass<'_>) -> candle_core::Result<Vec<Option<Tensor>>> {
        let [y, dy] = [pass.output, pass.gradient].map(|x| x.to_dtype(DType::F32));
        let (y, dy) = (y?, dy?);
        #[cfg(feature = "cuda")]
        if y.device().is_cuda() {
            return Ok(vec![Some(crate::cuda::softmax_backward(&y, &dy)?)]);
        }
        let mean = (&y * &dy)?.sum_keepdim(D::Minus1)?;
        Ok(vec![Some((y * dy.broadcast_sub(&mean)?)?)])
    }
}
