//! The device path of linear layers.

use candle_core::{Result, Tensor};

use super::super::composite::product;
use super::super::device::primitives::{add_bias, column_sums, stacked};
use super::super::device::{BackwardPass, DeviceKernel, Saved};
use super::super::operation::{tensor_dims, with_width};
use super::{Branch, Layer, StackedLinear, WeightSource};
use crate::compute::full_precision;

impl DeviceKernel for StackedLinear {
    fn forward(&self, inputs: &[Tensor], _: &[bool]) -> Result<(Tensor, Saved)> {
        let dims = tensor_dims(inputs);
        let (layers, d_in, d_out) = self.layers(&dims)?;
        let x = inputs[0].reshape(((), d_in))?;
        let weights = layers.iter().map(|layer| match layer.weight {
            WeightSource::Input(index) => Ok(inputs[index].clone()),
            WeightSource::Quantised(matrix) => matrix.tensor_like(&x),
        });
        let weight = stacked(&weights.collect::<Result<Vec<_>>>()?, x.dtype())?;
        let bias = if layers.iter().any(|layer| layer.bias.is_some()) {
            let bias = |layer: &Layer<'_>| match layer.bias {
                Some(bias) => Ok(inputs[bias].clone()),
                None => Tensor::zeros(layer.width, full_precision(&x)?.dtype(), x.device()),
            };
            let biases: Vec<Tensor> = layers.iter().map(bias).collect::<Result<_>>()?;
            Some(stacked(&biases, full_precision(&x)?.dtype())?)
        } else {
            None
        };
        let mut y = add_bias(product(&x, &weight.t()?)?, bias.as_ref())?;
        if layers.iter().any(|layer| layer.low_rank.is_some()) {
            let mut branches = Vec::with_capacity(layers.len());
            for layer in &layers {
                branches.push(match &layer.low_rank {
                    Some(branch) => branch.device_forward(inputs)?,
                    None => Tensor::zeros((x.dim(0)?, layer.width), x.dtype(), x.device())?,
                });
            }
            y = (y + Tensor::cat(&branches, 1)?)?;
        }
        Ok((y.reshape(with_width(inputs[0].dims(), d_out))?, Saved::tensors([weight])))
    }

    fn backward(&self, pass: &BackwardPass<'_>) -> Result<Vec<Option<Tensor>>> {
        let dims = tensor_dims(pass.inputs);
        let (layers, d_in, d_out) = self.layers(&dims)?;
        let mut gradients = vec![None; dims.len()];
        let dy = pass.gradient.reshape(((), d_out))?;
        if pass.wanted[0] {
            let dx = product(&dy, &pass.saved.tensors[0])?;
            gradients[0] = Some(dx.reshape(pass.inputs[0].shape())?);
        }
        let weights = layers.iter().filter_map(|layer| match layer.weight {
            WeightSource::Input(index) => Some((layer, index)),
            WeightSource::Quantised(_) => None,
        });
        let weights: Vec<_> = weights.filter(|(_, index)| pass.wanted[*index]).collect();
        if !weights.is_empty() {
            let x = pass.inputs[0].reshape(((), d_in))?;
            let dw = full_precision(&product(&dy.t()?, &x)?)?;
            for (layer, index) in weights {
                gradients[index] = Some(dw.narrow(0, layer.column, layer.width)?);
            }
        }
        for layer in &layers {
            if let Some(branch) = &layer.low_rank {
                let dy = dy.narrow(1, layer.column, layer.width)?.contiguous()?;
                branch.device_backward(pass, &dy, &mut gradients)?;
            }
        }
        let biases = layers.iter().filter_map(|layer| Some((layer, layer.bias?)));
        let biases: Vec<_> = biases.filter(|(_, bias)| pass.wanted[*bias]).collect();
        if !biases.is_empty() {
            let sums = column_sums(&dy)?;
            for (layer, bias) in biases {
                gradients[bias] = Some(sums.narrow(0, layer.column, layer.width)?);
            }
        }
        Ok(gradients)
    }
}

impl Branch {
    /// Returns the input of the branch `[rows, D_in]` after dropout, and `A` and `B` in its dtype.
    fn values(&self, inputs: &[Tensor]) -> Result<[Tensor; 3]> {
        let (x, d_in) = (inputs[0].contiguous()?, inputs[self.down].dim(1)?);
        let x = match self.plan.dropout {
            Some(mask) => mask.masked(&x)?,
            None => x,
        };
        let x = x.reshape(((), d_in))?;
        let (down, up) = (&inputs[self.down], &inputs[self.up]);
        Ok([x.clone(), down.to_dtype(x.dtype())?, up.to_dtype(x.dtype())?])
    }

    /// Returns the output of the branch, `[rows, D_out]`.
    fn device_forward(&self, inputs: &[Tensor]) -> Result<Tensor> {
        let [x, down, up] = self.values(inputs)?;
        product(&product(&x, &down.t()?)?, &up.t()?)? * f64::from(self.plan.scale)
    }

    /// Sets the gradients of `A` and `B`, and adds to the gradient of `x`, given the gradient
    /// `[rows, D_out]` of the layer's output.
    fn device_backward(
        &self,
        pass: &BackwardPass<'_>,
        dy: &Tensor,
        gradients: &mut [Option<Tensor>],
    ) -> Result<()> {
        let ([x, down, up], scale) = (self.values(pass.inputs)?, f64::from(self.plan.scale));
        if pass.wanted[self.up] {
            let hidden = product(&x, &down.t()?)?;
            gradients[self.up] = Some((product(&dy.t()?, &hidden)? * scale)?);
        }
        let d_hidden = (product(dy, &up)? * scale)?;
        if pass.wanted[self.down] {
            gradients[self.down] = Some(product(&d_hidden.t()?, &x)?);
        }
        if pass.wanted[0] {
            let dx = product(&d_hidden, &down)?.reshape(pass.inputs[0].shape())?;
            let dx = match self.plan.dropout {
                Some(mask) => mask.masked(&dx.contiguous()?)?,
                None => dx,
            };
            gradients[0] = Some(match gradients[0].take() {
                Some(sum) => (sum + dx)?,
                None => dx,
            });
        }
        Ok(())
    }
}
