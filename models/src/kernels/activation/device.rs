//! The device path of activations. Computes in f32.

use candle_core::{DType, Tensor};

use super::super::device::primitives::{activation_backward, bias_activation};
use super::super::device::{BackwardPass, DeviceKernel, Saved};
use super::{ActivationKernel, check};

impl DeviceKernel for ActivationKernel {
    fn forward(&self, inputs: &[Tensor], _: &[bool]) -> candle_core::Result<(Tensor, Saved)> {
        let dims: Vec<_> = inputs.iter().map(Tensor::dims).collect();
        check(&dims)?;
        let (x, bias) = match inputs {
            // The bias is added in place.
            [x, bias] => (x.copy()?, Some(bias.to_dtype(DType::F32)?)),
            _ => (inputs[0].clone(), None),
        };
        let [hidden, y] = bias_activation(x, bias.as_ref(), self.0)?;
        Ok((y, Saved::tensors([hidden])))
    }

    fn backward(&self, pass: &BackwardPass<'_>) -> candle_core::Result<Vec<Option<Tensor>>> {
        let (hidden, has_bias) = (&pass.saved.tensors[0], pass.inputs.len() == 2);
        let sums = has_bias && pass.wanted[1];
        let (dx, sums) = activation_backward(hidden, pass.gradient, self.0, sums)?;
        Ok(if has_bias { vec![Some(dx), sums] } else { vec![Some(dx)] })
    }
}
