//! Linear layers, `x Wᵀ + b`, with an optional low-rank branch, and several linear layers of one
//! input in one operation.

use std::borrow::Cow;

mod device;

use candle_core::{Result, Tensor};

use super::device::DeviceKernel;
use super::dropout::{Dropout, add_masked, masked};
use super::matmul::{Factor, Matrix, matmul, products};
use super::nf4::QuantisedMatrix;
use super::operation::{BufferState, Gradient, Input, Kernel, Output, Pass, apply, dims_of};
use super::rows::add_column_sums;

/// A linear layer: `x` `[.., D_in]`, `weight` `[D_out, D_in]`, `bias` `[D_out]` → `[.., D_out]`.
pub fn linear(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
    stacked_linear(x, &[LinearParameters::new(weight, bias)])
}

/// Applies several linear layers to one input and concatenates the outputs: `x` `[.., D_in]`,
/// weights `[D_i, D_in]` → `[.., ΣD_i]`. The parameters stay separate tensors, as published.
pub fn stacked_linear(x: &Tensor, layers: &[LinearParameters<'_>]) -> Result<Tensor> {
    let mut inputs = vec![x];
    inputs.extend(layers.iter().flat_map(LinearParameters::tensors));
    apply(StackedLinear::new(layers), &inputs)
}

/// The parameters of a linear layer.
#[derive(Debug, Clone, Copy)]
pub struct LinearParameters<'a> {
    /// `[D_out, D_in]`.
    pub weight: Weight<'a>,
    /// `[D_out]`; `None` for a layer without a bias.
    pub bias: Option<&'a Tensor>,
    /// The low-rank branch that is added to the layer's output, if any.
    pub low_rank: Option<LowRankParameters<'a>>,
}

/// The weight of a linear layer.
#[derive(Debug, Clone, Copy)]
pub enum Weight<'a> {
    /// A tensor.
    Dense(&'a Tensor),
    /// A frozen matrix in 4 bits. Each pass dequantises it.
    Quantised(&'a QuantisedMatrix),
}

/// The parameters of a low-rank branch, `scale dropout(x) Aᵀ Bᵀ` (LoRA, arXiv 2106.09685).
#[derive(Debug, Clone, Copy)]
pub struct LowRankParameters<'a> {
    /// `A` `[R, D_in]`.
    pub down: &'a Tensor,
    /// `B` `[D_out, R]`.
    pub up: &'a Tensor,
    /// The factor on the branch.
    pub scale: f32,
    /// The dropout mask of the branch's input.
    pub dropout: Option<Dropout>,
}

impl<'a> LinearParameters<'a> {
    /// A layer with a dense weight, without a low-rank branch.
    pub fn new(weight: &'a Tensor, bias: Option<&'a Tensor>) -> Self {
        Self { weight: Weight::Dense(weight), bias, low_rank: None }
    }

    /// Returns the weight and the bias of a layer that has only a dense weight and a bias.
    pub(super) fn weight_and_bias(&self) -> Option<(&'a Tensor, &'a Tensor)> {
        match (self.weight, self.bias, &self.low_rank) {
            (Weight::Dense(weight), Some(bias), None) => Some((weight, bias)),
            _ => None,
        }
    }

    /// The tensors in the order of the kernel's inputs: weight (if dense), bias, `A`, `B`.
    pub(super) fn tensors(&self) -> impl Iterator<Item = &'a Tensor> + use<'a> {
        let weight = match self.weight {
            Weight::Dense(weight) => Some(weight),
            Weight::Quantised(_) => None,
        };
        let branch = self.low_rank.map(|branch| [branch.down, branch.up]);
        [weight, self.bias].into_iter().flatten().chain(branch.into_iter().flatten())
    }
}

pub(super) struct StackedLinear {
    plans: Vec<LayerPlan>,
}

/// The properties of a layer that are not tensors.
struct LayerPlan {
    /// The quantised weight; `None` if the weight is an input.
    quantised: Option<QuantisedMatrix>,
    /// Whether a bias follows in the inputs.
    has_bias: bool,
    /// The low-rank branch, whose matrices follow in the inputs.
    low_rank: Option<BranchPlan>,
}

#[derive(Clone, Copy)]
struct BranchPlan {
    scale: f32,
    dropout: Option<Dropout>,
}

/// One layer: the indices of its parameters in the inputs, and its columns in the output.
struct Layer<'a> {
    weight: WeightSource<'a>,
    bias: Option<usize>,
    low_rank: Option<Branch>,
    column: usize,
    width: usize,
}

/// The index of a weight in the inputs, or a quantised weight.
#[derive(Clone, Copy)]
enum WeightSource<'a> {
    Input(usize),
    Quantised(&'a QuantisedMatrix),
}

impl WeightSource<'_> {
    fn values<'i>(&self, inputs: &[Input<'i>]) -> Cow<'i, [f32]> {
        match self {
            Self::Input(index) => Cow::Borrowed(inputs[*index].data),
            Self::Quantised(matrix) => Cow::Owned(matrix.dequantise()),
        }
    }
}

/// A low-rank branch: the indices of `A` and `B` in the inputs, and the rank.
#[derive(Clone, Copy)]
struct Branch {
    down: usize,
    up: usize,
    rank: usize,
    plan: BranchPlan,
}

impl StackedLinear {
    /// Creates the kernel of these layers. Its inputs are `x`, then each layer's
    /// [tensors](LinearParameters::tensors).
    pub(super) fn new(layers: &[LinearParameters<'_>]) -> Self {
        let plan = |layer: &LinearParameters<'_>| LayerPlan {
            quantised: match layer.weight {
                Weight::Dense(_) => None,
                Weight::Quantised(matrix) => Some(matrix.clone()),
            },
            has_bias: layer.bias.is_some(),
            low_rank: layer
                .low_rank
                .map(|branch| BranchPlan { scale: branch.scale, dropout: branch.dropout }),
        };
        Self { plans: layers.iter().map(plan).collect() }
    }

    /// Returns the layers, the input width and the output width.
    fn layers(&self, dims: &[&[usize]]) -> Result<(Vec<Layer<'_>>, usize, usize)> {
        let Some(&d_in) = dims[0].last() else {
            candle_core::bail!("linear: the input is a scalar, expected [.., D_in]");
        };
        let (mut layers, mut index, mut column) = (Vec::new(), 1, 0);
        // Takes the next inputs.
        let mut take = |count: usize| {
            index += count;
            index - count
        };
        for plan in &self.plans {
            let (weight, weight_dims) = match &plan.quantised {
                Some(matrix) => (WeightSource::Quantised(matrix), matrix.dims().to_vec()),
                None => {
                    let index = take(1);
                    (WeightSource::Input(index), dims[index].to_vec())
                }
            };
            let &[width, weight_columns] = weight_dims.as_slice() else {
                candle_core::bail!(
                    "linear: a weight of shape {weight_dims:?}, expected [D_out, D_in]"
                );
            };
            let bias = plan.has_bias.then(|| take(1));
            if weight_columns != d_in || bias.is_some_and(|bias| dims[bias] != [width]) {
                candle_core::bail!(
                    "linear: weight {weight_dims:?} does not fit input {:?}",
                    dims[0]
                );
            }
            let low_rank = match plan.low_rank {
                Some(plan) => Some(Branch::new(take(2), plan, dims, [width, d_in])?),
                None => None,
            };
            layers.push(Layer { weight, bias, low_rank, column, width });
            column += width;
        }
        if layers.is_empty() || dims[0].contains(&0) {
            candle_core::bail!("linear: {} weights do not fit input {:?}", layers.len(), dims[0]);
        }
        Ok((layers, d_in, column))
    }
}

impl Branch {
    /// Checks the shapes of `A`, input `down`, and `B`, the next input.
    fn new(
        down: usize,
        plan: BranchPlan,
        dims: &[&[usize]],
        [width, d_in]: [usize; 2],
    ) -> Result<Self> {
        match (dims[down], dims[down + 1]) {
            (&[rank, down_width], &[up_height, up_rank])
                if rank > 0 && [down_width, up_height, up_rank] == [d_in, width, rank] =>
            {
                Ok(Self { down, up: down + 1, rank, plan })
            }
            (a, b) => candle_core::bail!(
                "linear: a low-rank branch of {a:?} and {b:?} does not fit weight \
                 [{width}, {d_in}]"
            ),
        }
    }

    /// Returns the branch's input after dropout, and its product with `Aᵀ` `[rows, R]`.
    fn hidden<'a>(&self, inputs: &[Input<'a>], rows: usize) -> (Cow<'a, [f32]>, Vec<f32>) {
        let x = match self.plan.dropout {
            Some(mask) => Cow::Owned(masked(mask, inputs[0].data)),
            None => Cow::Borrowed(inputs[0].data),
        };
        let d_in = x.len() / rows;
        let mut hidden = vec![0.0; rows * self.rank];
        let down = Matrix::new(inputs[self.down].data, self.rank, d_in).t();
        matmul(1.0, Matrix::new(&x, rows, d_in), down, 0.0, &mut hidden, self.rank);
        (x, hidden)
    }

    /// Adds the branch to the layer's output, whose rows are `stride` elements apart.
    fn add_to(&self, inputs: &[Input<'_>], rows: usize, output: &mut [f32], stride: usize) {
        let (_, hidden) = self.hidden(inputs, rows);
        let up = inputs[self.up];
        let up = Matrix::new(up.data, up.dims[0], self.rank).t();
        matmul(self.plan.scale, Matrix::new(&hidden, rows, self.rank), up, 1.0, output, stride);
    }

    /// Writes the gradients of `x`, `A` and `B`, given the gradient `dy` of the layer's output.
    fn backward(
        &self,
        inputs: &[Input<'_>],
        dy: Matrix<'_>,
        input_gradients: &mut [Option<Gradient>],
    ) {
        let (rows, rank, scale) = (dy.rows, self.rank, self.plan.scale);
        let (x, hidden) = self.hidden(inputs, rows);
        let d_in = x.len() / rows;
        if let Some(db) = &mut input_gradients[self.up] {
            let hidden = Matrix::new(&hidden, rows, rank);
            matmul(scale, dy.t(), hidden, db.beta(), &mut db.data, rank);
        }
        let mut d_hidden = vec![0.0; rows * rank];
        let up = Matrix::new(inputs[self.up].data, dy.columns, rank);
        matmul(scale, dy, up, 0.0, &mut d_hidden, rank);
        let d_hidden = Matrix::new(&d_hidden, rows, rank);
        if let Some(da) = &mut input_gradients[self.down] {
            matmul(1.0, d_hidden.t(), Matrix::new(&x, rows, d_in), da.beta(), &mut da.data, d_in);
        }
        if let Some(dx) = &mut input_gradients[0] {
            let down = Matrix::new(inputs[self.down].data, rank, d_in);
            match self.plan.dropout {
                None => matmul(1.0, d_hidden, down, dx.beta(), &mut dx.data, d_in),
                Some(mask) => {
                    let mut branch = vec![0.0; rows * d_in];
                    matmul(1.0, d_hidden, down, 0.0, &mut branch, d_in);
                    add_masked(mask, &branch, dx.as_sum());
                }
            }
            dx.state = BufferState::Sum;
        }
    }
}

impl Kernel for StackedLinear {
    fn name(&self) -> &'static str {
        "linear"
    }

    fn forward(&self, inputs: &[Input<'_>]) -> Result<Output> {
        let (layers, d_in, d_out) = self.layers(&dims_of(inputs))?;
        let rows = inputs[0].data.len() / d_in;
        let weights: Vec<_> = layers.iter().map(|layer| layer.weight.values(inputs)).collect();
        let factors = layers.iter().zip(&weights).map(|(layer, weight)| Factor {
            matrix: Matrix::new(weight, layer.width, d_in).t(),
            bias: layer.bias.map(|bias| inputs[bias].data),
        });
        let x = Matrix::new(inputs[0].data, rows, d_in);
        let mut output = products(x, &factors.collect::<Vec<_>>());
        for layer in &layers {
            if let Some(branch) = &layer.low_rank {
                branch.add_to(inputs, rows, &mut output[layer.column..], d_out);
            }
        }
        Ok((output, inputs[0].shape_with_width(d_out), Box::new(())))
    }

    fn backward(&self, pass: &Pass<'_>, input_gradients: &mut [Option<Gradient>]) -> Result<()> {
        let (inputs, gradient) = (pass.inputs, pass.gradient);
        let (layers, d_in, d_out) = self.layers(&dims_of(inputs))?;
        let rows = inputs[0].data.len() / d_in;
        let x = Matrix::new(inputs[0].data, rows, d_in);
        for layer in &layers {
            let dy = Matrix::strided(&gradient[layer.column..], rows, layer.width, d_out);
            if let Some(dx) = &mut input_gradients[0] {
                let weight = layer.weight.values(inputs);
                let weight = Matrix::new(&weight, layer.width, d_in);
                matmul(1.0, dy, weight, dx.beta(), &mut dx.data, d_in);
                dx.state = BufferState::Sum;
            }
            if let WeightSource::Input(index) = layer.weight
                && let Some(dw) = &mut input_gradients[index]
            {
                matmul(1.0, dy.t(), x, dw.beta(), &mut dw.data, d_in);
            }
            if let Some(Some(db)) = layer.bias.map(|bias| &mut input_gradients[bias]) {
                add_column_sums(&gradient[layer.column..], layer.width, d_out, db.as_sum());
            }
            if let Some(branch) = &layer.low_rank {
                branch.backward(inputs, dy, input_gradients);
            }
        }
        Ok(())
    }

    fn device(&self) -> Option<&dyn DeviceKernel> {
        Some(self)
    }
}
