//! The device path of a feed-forward block.

use candle_core::{DType, Tensor};

use super::super::composite::product;
use super::super::device::primitives::{
    activation_backward, add_bias, bias_activation, column_sums,
};
use super::super::device::{BackwardPass, DeviceKernel, Saved};
use super::{FeedForward, Sizes, sizes};

impl DeviceKernel for FeedForward {
    fn forward(&self, inputs: &[Tensor], _: &[bool]) -> candle_core::Result<(Tensor, Saved)> {
        let dims: Vec<_> = inputs.iter().map(Tensor::dims).collect();
        let Sizes { d_in, d_out, .. } = sizes(&dims)?;
        let x = inputs[0].reshape(((), d_in))?;
        let [w1, w2] = [1, 3].map(|i| inputs[i].to_dtype(x.dtype()));
        let [b1, b2] = [2, 4].map(|i| inputs[i].to_dtype(DType::F32));
        let (w1, w2) = (w1?, w2?);
        let [hidden, active] = bias_activation(product(&x, &w1.t()?)?, Some(&b1?), self.f)?;
        let y = add_bias(product(&active, &w2.t()?)?, Some(&b2?))?;
        let mut shape = dims[0].to_vec();
        if let Some(last) = shape.last_mut() {
            *last = d_out;
        }
        Ok((y.reshape(shape)?, Saved::tensors([hidden, active, w1, w2])))
    }

    fn backward(&self, pass: &BackwardPass<'_>) -> candle_core::Result<Vec<Option<Tensor>>> {
        let dims: Vec<_> = pass.inputs.iter().map(Tensor::dims).collect();
        let Sizes { d_in, d_out, .. } = sizes(&dims)?;
        let [hidden, active, w1, w2] = &pass.saved.tensors[..] else {
            candle_core::bail!("feed-forward: no saved values");
        };
        let mut gradients = vec![None; 5];
        let dy = pass.gradient.reshape(((), d_out))?;
        if pass.wanted[3] {
            gradients[3] = Some(product(&dy.t()?, active)?);
        }
        if pass.wanted[4] {
            gradients[4] = Some(column_sums(&dy)?);
        }
        let (dh, sums) = activation_backward(hidden, &product(&dy, w2)?, self.f, pass.wanted[2])?;
        gradients[2] = sums;
        if pass.wanted[1] {
            let x = pass.inputs[0].reshape(((), d_in))?;
            gradients[1] = Some(product(&dh.t()?, &x)?);
        }
        if pass.wanted[0] {
            gradients[0] = Some(product(&dh, w1)?.reshape(pass.inputs[0].shape())?);
        }
        Ok(gradients)
    }
}
