//! The position-wise feed-forward block, `f(x W₁ᵀ + b₁) W₂ᵀ + b₂`, as one operation.
//!
//! Only the hidden values before the activation are stored. The backward pass recomputes the
//! activation together with its derivative.

use candle_core::{Result, Tensor};
use rayon::prelude::*;

use super::activation::{Activation, activation_values, values_and_derivatives};
use super::composite::product;
use super::device::primitives::{
    activation_backward, add_bias, add_bias_and_activate, column_sums,
};
use super::device::{BackwardPass, DeviceKernel, Saved};
use super::matmul::{Factor, Matrix, matmul, product_and_values, products};
use super::operation::{
    Gradient, Input, Kernel, Output, Pass, apply, dims_of, tensor_dims, with_width,
};
use super::rows::{ELEMENTS, add_column_sums, zeros};
use crate::compute::full_precision;

/// Computes `f(x W₁ᵀ + b₁) W₂ᵀ + b₂`: `x` `[.., D]`, `w1` `[M, D]`, `b1` `[M]`, `w2` `[D_out, M]`,
/// `b2` `[D_out]` → `[.., D_out]`.
pub fn feed_forward(
    x: &Tensor,
    (w1, b1): (&Tensor, &Tensor),
    (w2, b2): (&Tensor, &Tensor),
    f: Activation,
) -> Result<Tensor> {
    apply(FeedForward::new(f), &[x, w1, b1, w2, b2])
}

/// Saves `x W₁ᵀ + b₁`.
pub(super) struct FeedForward {
    f: Activation,
}

impl FeedForward {
    /// Creates the kernel. Its inputs are `x`, `w1`, `b1`, `w2`, `b2`.
    pub(super) fn new(f: Activation) -> Self {
        Self { f }
    }
}

/// The widths of the input (`d_in`), the hidden layer (`mid`) and the output (`d_out`), and the
/// number of rows.
struct Sizes {
    d_in: usize,
    mid: usize,
    d_out: usize,
    rows: usize,
}

/// Returns the sizes, from the shapes of `x`, `w1`, `b1`, `w2` and `b2`.
fn sizes(dims: &[&[usize]]) -> Result<Sizes> {
    let d_in = dims[0].last().copied().unwrap_or(0);
    let elements: usize = dims[0].iter().product();
    match (dims[1], dims[2], dims[3], dims[4]) {
        (&[mid, w1_inner], &[b1_width], &[d_out, w2_inner], &[b2_width])
            if w1_inner == d_in
                && elements > 0
                && b1_width == mid
                && w2_inner == mid
                && b2_width == d_out =>
        {
            Ok(Sizes { d_in, mid, d_out, rows: elements / d_in })
        }
        _ => candle_core::bail!(
            "feed-forward: input {:?}, weights {:?} and {:?}, biases {:?} and {:?} do not fit",
            dims[0],
            dims[1],
            dims[3],
            dims[2],
            dims[4]
        ),
    }
}

impl Kernel for FeedForward {
    fn name(&self) -> &'static str {
        "feed-forward"
    }

    fn forward(&self, inputs: &[Input<'_>]) -> Result<Output> {
        let Sizes { d_in, mid, d_out, rows } = sizes(&dims_of(inputs))?;
        let x = Matrix::new(inputs[0].data, rows, d_in);
        let w1 = Matrix::new(inputs[1].data, mid, d_in).t();
        let factor = Factor { matrix: w1, bias: Some(inputs[2].data) };
        let (hidden, activated) =
            product_and_values(x, factor, |h, g| activation_values(self.f, h, g));
        let g = Matrix::new(&activated, rows, mid);
        let w2 = Matrix::new(inputs[3].data, d_out, mid).t();
        let output = products(g, &[Factor { matrix: w2, bias: Some(inputs[4].data) }]);
        Ok((output, inputs[0].shape_with_width(d_out), Box::new(hidden)))
    }

    fn backward(&self, pass: &Pass<'_>, input_gradients: &mut [Option<Gradient>]) -> Result<()> {
        let (inputs, gradient) = (pass.inputs, pass.gradient);
        let hidden = pass.saved::<Vec<f32>>()?;
        let Sizes { d_in, mid, d_out, rows } = sizes(&dims_of(inputs))?;
        let dy = Matrix::new(gradient, rows, d_out);
        let w2 = Matrix::new(inputs[3].data, d_out, mid);
        let mut dh = products(dy, &[Factor { matrix: w2, bias: None }]);
        let mut activated = zeros(rows * mid);
        activated
            .par_chunks_mut(ELEMENTS)
            .zip(dh.par_chunks_mut(ELEMENTS))
            .zip(hidden.par_chunks(ELEMENTS))
            .for_each(|((g, dg), h)| values_and_derivatives(self.f, h, g, dg));
        if let Some(dw2) = &mut input_gradients[3] {
            let g = Matrix::new(&activated, rows, mid);
            matmul(1.0, dy.t(), g, dw2.beta(), &mut dw2.data, mid);
        }
        drop(activated);
        if let Some(db2) = &mut input_gradients[4] {
            add_column_sums(gradient, d_out, d_out, db2.as_sum());
        }
        let dh_matrix = Matrix::new(&dh, rows, mid);
        if let Some(dw1) = &mut input_gradients[1] {
            let x = Matrix::new(inputs[0].data, rows, d_in);
            matmul(1.0, dh_matrix.t(), x, dw1.beta(), &mut dw1.data, d_in);
        }
        if let Some(db1) = &mut input_gradients[2] {
            add_column_sums(&dh, mid, mid, db1.as_sum());
        }
        if let Some(dx) = &mut input_gradients[0] {
            let w1 = Matrix::new(inputs[1].data, mid, d_in);
            matmul(1.0, dh_matrix, w1, dx.beta(), &mut dx.data, d_in);
        }
        Ok(())
    }

    fn device(&self) -> Option<&dyn DeviceKernel> {
        Some(self)
    }
}

impl DeviceKernel for FeedForward {
    fn forward(&self, inputs: &[Tensor], _: &[bool]) -> Result<(Tensor, Saved)> {
        let dims = tensor_dims(inputs);
        let Sizes { d_in, d_out, .. } = sizes(&dims)?;
        let x = inputs[0].reshape(((), d_in))?;
        let [w1, w2] = [1, 3].map(|i| inputs[i].to_dtype(x.dtype()));
        let [b1, b2] = [2, 4].map(|i| full_precision(&inputs[i]));
        let (w1, w2) = (w1?, w2?);
        let [hidden, active] = add_bias_and_activate(product(&x, &w1.t()?)?, Some(&b1?), self.f)?;
        let y = add_bias(product(&active, &w2.t()?)?, Some(&b2?))?;
        Ok((
            y.reshape(with_width(inputs[0].dims(), d_out))?,
            Saved::tensors([hidden, active, w1, w2]),
        ))
    }

    fn backward(&self, pass: &BackwardPass<'_>) -> Result<Vec<Option<Tensor>>> {
        let Sizes { d_in, d_out, .. } = sizes(&tensor_dims(pass.inputs))?;
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
