//! Linear layers, `x Wᵀ + b`, and several linear layers of one input in one operation.

mod device;

use candle_core::{Shape, Tensor};
use rayon::prelude::*;

use super::composite::rows_product;
use super::device::DeviceKernel;
use super::matmul::{Matrix, matmul};
use super::operation::{BufferState, Gradient, Input, Kernel, apply};
use super::rows::{ROWS, add_column_sums};

/// A linear layer: `x` `[.., D_in]`, `weight` `[D_out, D_in]`, `bias` `[D_out]` → `[.., D_out]`.
pub fn linear(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> candle_core::Result<Tensor> {
    stacked_linear(x, &[(weight, bias)])
}

/// Applies several linear layers to one input and concatenates the outputs: `x` `[.., D_in]`,
/// weights `[D_i, D_in]` → `[.., ΣD_i]`. The parameters stay separate tensors, as published.
pub fn stacked_linear(
    x: &Tensor,
    layers: &[(&Tensor, Option<&Tensor>)],
) -> candle_core::Result<Tensor> {
    let mut inputs = vec![x];
    for (weight, bias) in layers {
        inputs.push(weight);
        inputs.extend(bias);
    }
    apply(StackedLinear::new(layers), &inputs)
}

pub(super) struct StackedLinear {
    /// For each layer, whether a bias follows its weight in the inputs.
    has_bias: Vec<bool>,
}

/// One layer: the indices of its weight and bias in the inputs, and its columns in the output.
struct Layer {
    weight: usize,
    bias: Option<usize>,
    column: usize,
    width: usize,
}

impl StackedLinear {
    /// Creates the kernel of these layers. Its inputs are `x`, then each layer's weight and bias.
    pub(super) fn new(layers: &[(&Tensor, Option<&Tensor>)]) -> Self {
        Self { has_bias: layers.iter().map(|(_, bias)| bias.is_some()).collect() }
    }

    /// Returns the layers, the input width and the output width.
    fn layers(&self, dims: &[&[usize]]) -> candle_core::Result<(Vec<Layer>, usize, usize)> {
        let Some(&d_in) = dims[0].last() else {
            candle_core::bail!("linear: the input is a scalar, expected [.., D_in]");
        };
        let (mut layers, mut index, mut column) = (Vec::new(), 1, 0);
        for &has_bias in &self.has_bias {
            let &[width, weight_columns] = dims[index] else {
                candle_core::bail!(
                    "linear: a weight of shape {:?}, expected [D_out, D_in]",
                    dims[index]
                );
            };
            let bias = has_bias.then_some(index + 1);
            if weight_columns != d_in || bias.is_some_and(|bias| dims[bias] != [width]) {
                candle_core::bail!(
                    "linear: weight {:?} does not fit input {:?}",
                    dims[index],
                    dims[0]
                );
            }
            layers.push(Layer { weight: index, bias, column, width });
            index += 1 + usize::from(has_bias);
            column += width;
        }
        if layers.is_empty() || dims[0].contains(&0) {
            candle_core::bail!("linear: {} weights do not fit input {:?}", layers.len(), dims[0]);
        }
        Ok((layers, d_in, column))
    }
}

impl Kernel for StackedLinear {
    fn name(&self) -> &'static str {
        "linear"
    }

    fn forward(&mut self, inputs: &[Input<'_>]) -> candle_core::Result<(Vec<f32>, Shape)> {
        let dims: Vec<_> = inputs.iter().map(|input| input.dims).collect();
        let (layers, d_in, d_out) = self.layers(&dims)?;
        let rows = inputs[0].data.len() / d_in;
        let mut output = vec![0.0; rows * d_out];
        for layer in &layers {
            if let Some(bias) = layer.bias {
                fill_rows(&mut output[layer.column..], d_out, inputs[bias].data);
            }
            let weight = Matrix::new(inputs[layer.weight].data, layer.width, d_in).t();
            let beta = if layer.bias.is_some() { 1.0 } else { 0.0 };
            let x = Matrix::new(inputs[0].data, rows, d_in);
            matmul(1.0, x, weight, beta, &mut output[layer.column..], d_out);
        }
        Ok((output, inputs[0].shape_with_width(d_out)))
    }

    fn backward(
        &self,
        inputs: &[Input<'_>],
        _: &[f32],
        gradient: &[f32],
        input_gradients: &mut [Option<Gradient>],
    ) -> candle_core::Result<()> {
        let dims: Vec<_> = inputs.iter().map(|input| input.dims).collect();
        let (layers, d_in, d_out) = self.layers(&dims)?;
        let rows = inputs[0].data.len() / d_in;
        let x = Matrix::new(inputs[0].data, rows, d_in);
        for layer in &layers {
            let dy = Matrix::strided(&gradient[layer.column..], rows, layer.width, d_out);
            if let Some(dx) = &mut input_gradients[0] {
                let weight = Matrix::new(inputs[layer.weight].data, layer.width, d_in);
                matmul(1.0, dy, weight, dx.beta(), &mut dx.data, d_in);
                dx.state = BufferState::Sum;
            }
            if let Some(dw) = &mut input_gradients[layer.weight] {
                matmul(1.0, dy.t(), x, dw.beta(), &mut dw.data, d_in);
            }
            if let Some(Some(db)) = layer.bias.map(|bias| &mut input_gradients[bias]) {
                add_column_sums(&gradient[layer.column..], layer.width, d_out, db.as_sum());
            }
        }
        Ok(())
    }

    fn device(&self) -> Option<&dyn DeviceKernel> {
        Some(self)
    }

    fn composite(&self, inputs: &[Tensor]) -> candle_core::Result<Tensor> {
        let dims: Vec<_> = inputs.iter().map(Tensor::dims).collect();
        let (layers, _, _) = self.layers(&dims)?;
        let mut outputs = Vec::new();
        for layer in layers {
            let y = rows_product(&inputs[0], &inputs[layer.weight])?;
            outputs.push(match layer.bias {
                Some(bias) => y.broadcast_add(&inputs[bias])?,
                None => y,
            });
        }
        match outputs.len() {
            1 => Ok(outputs.swap_remove(0)),
            _ => Tensor::cat(&outputs, candle_core::D::Minus1),
        }
    }
}

/// Writes `values` to the start of each row; rows are `stride` elements apart.
pub(crate) fn fill_rows(rows: &mut [f32], stride: usize, values: &[f32]) {
    rows.par_chunks_mut(ROWS * stride.max(1)).for_each(|block| {
        for row in block.chunks_mut(stride) {
            row[..values.len()].copy_from_slice(values);
        }
    });
}
