//! The device path of linear layers.

use candle_core::{DType, Tensor};

use super::super::composite::product;
use super::super::device::primitives::{add_bias, column_sums, stacked};
use super::super::device::{BackwardPass, DeviceKernel, Saved};
use super::StackedLinear;

impl DeviceKernel for StackedLinear {
    fn forward(&self, inputs: &[Tensor], _: &[bool]) -> candle_core::Result<(Tensor, Saved)> {
        let dims: Vec<_> = inputs.iter().map(Tensor::dims).collect();
        let (layers, d_in, d_out) = self.layers(&dims)?;
        let x = inputs[0].reshape(((), d_in))?;
        let weights: Vec<Tensor> =
            layers.iter().map(|layer| inputs[layer.weight].clone()).collect();
        let weight = stacked(&weights, x.dtype())?;
        let bias = if layers.iter().any(|layer| layer.bias.is_some()) {
            let bias = |layer: &super::Layer| match layer.bias {
                Some(bias) => Ok(inputs[bias].clone()),
                None => Tensor::zeros(layer.width, DType::F32, x.device()),
            };
            let biases: Vec<Tensor> = layers.iter().map(bias).collect::<Result<_, _>>()?;
            Some(stacked(&biases, DType::F32)?)
        } else {
            None
        };
        let y = add_bias(product(&x, &weight.t()?)?, bias.as_ref())?;
        let mut shape = dims[0].to_vec();
        if let Some(last) = shape.last_mut() {
            *last = d_out;
        }
        Ok((y.reshape(shape)?, Saved::tensors([weight])))
    }

    fn backward(&self, pass: &BackwardPass<'_>) -> candle_core::Result<Vec<Option<Tensor>>> {
        let dims: Vec<_> = pass.inputs.iter().map(Tensor::dims).collect();
        let (layers, d_in, d_out) = self.layers(&dims)?;
        let mut gradients = vec![None; dims.len()];
        let dy = pass.gradient.reshape(((), d_out))?;
        if pass.wanted[0] {
            let dx = product(&dy, &pass.saved.tensors[0])?;
            gradients[0] = Some(dx.reshape(pass.inputs[0].shape())?);
        }
        if layers.iter().any(|layer| pass.wanted[layer.weight]) {
            let x = pass.inputs[0].reshape(((), d_in))?;
            let dw = product(&dy.t()?, &x)?.to_dtype(DType::F32)?;
            for layer in layers.iter().filter(|layer| pass.wanted[layer.weight]) {
                gradients[layer.weight] = Some(dw.narrow(0, layer.column, layer.width)?);
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
