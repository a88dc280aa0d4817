//! The activated sum of all pairs of rows of two packed sequences: the hidden states of a
//! transducer's joint network.

use candle_core::{Result, Shape, Tensor};
use rayon::prelude::*;

use super::activation::{Activation, activation, specialised};
use super::operation::{Gradient, Input, Kernel, Output, Pass, apply};
use super::rows::zeros;
use crate::compute::full_precision;

/// Computes `f(a_t + b_u)` for all pairs of rows of each sequence: `a` `[Σ T_i, D]` and `b`
/// `[Σ U_i, D]` → `[Σ T_i U_i, D]`, where `lengths` holds `(T_i, U_i)`. Row `t U_i + u` of a
/// sequence belongs to the pair `(t, u)`.
///
/// # Errors
/// If the lengths do not match the numbers of rows, or the widths differ.
pub fn pairwise(
    a: &Tensor,
    b: &Tensor,
    f: Activation,
    lengths: &[(usize, usize)],
) -> Result<Tensor> {
    apply(Pairwise { f, lengths: lengths.to_vec() }, &[a, b])
}

struct Pairwise {
    f: Activation,
    lengths: Vec<(usize, usize)>,
}

/// The first rows of a sequence in `a`, in `b` and in the output, and its lengths.
#[derive(Clone, Copy)]
struct Sequence {
    starts: [usize; 3],
    lengths: (usize, usize),
}

impl Pairwise {
    fn sequences(&self) -> Vec<Sequence> {
        let mut starts = [0; 3];
        let sequence = |&(t, u): &(usize, usize)| {
            let sequence = Sequence { starts, lengths: (t, u) };
            starts = [starts[0] + t, starts[1] + u, starts[2] + t * u];
            sequence
        };
        self.lengths.iter().map(sequence).collect()
    }

    /// Checks the dimensions, and returns the width and the number of output rows.
    fn check(&self, a: &[usize], b: &[usize]) -> Result<(usize, usize)> {
        let sum = |f: fn(&(usize, usize)) -> usize| self.lengths.iter().map(f).sum::<usize>();
        let (t, u, rows) = (sum(|n| n.0), sum(|n| n.1), sum(|n| n.0 * n.1));
        let width = a.last().copied().unwrap_or(0);
        if width == 0 || a != [t, width] || b != [u, width] {
            candle_core::bail!(
                "pairwise: inputs of shapes {a:?} and {b:?}, expected {t} and {u} rows of one width"
            );
        }
        Ok((width, rows))
    }
}

impl Kernel for Pairwise {
    fn name(&self) -> &'static str {
        "pairwise"
    }

    fn forward(&self, inputs: &[Input<'_>]) -> Result<Output> {
        let (width, rows) = self.check(inputs[0].dims, inputs[1].dims)?;
        let (a, b) = (inputs[0].data, inputs[1].data);
        let mut output = zeros(rows * width);
        let mut remaining = &mut output[..];
        for Sequence { starts, lengths: (t, u) } in self.sequences() {
            let (output, rest) = remaining.split_at_mut(t * u * width);
            remaining = rest;
            let b = &b[starts[1] * width..][..u * width];
            let a = &a[starts[0] * width..][..t * width];
            output
                .par_chunks_mut((u * width).max(1))
                .zip(a.par_chunks(width))
                .for_each(|(output, a)| activated_sums(self.f, a, b, output));
        }
        Ok((output, Shape::from((rows, width)), Box::new(())))
    }

    fn backward(&self, pass: &Pass<'_>, input_gradients: &mut [Option<Gradient>]) -> Result<()> {
        let (inputs, gradient) = (pass.inputs, pass.gradient);
        let width = inputs[0].dims[1];
        for (side, buffer) in input_gradients.iter_mut().enumerate() {
            let Some(buffer) = buffer else { continue };
            let mut sums = buffer.as_sum();
            for Sequence { starts, lengths: (t, u) } in self.sequences() {
                let a = &inputs[0].data[starts[0] * width..][..t * width];
                let b = &inputs[1].data[starts[1] * width..][..u * width];
                let dy = &gradient[starts[2] * width..][..t * u * width];
                let (own, other, count, strides) =
                    if side == 0 { (a, b, t, [u, 1]) } else { (b, a, u, [1, u]) };
                let (sums_of_sequence, rest) = sums.split_at_mut(count * width);
                sums = rest;
                // The sum of each row is in the order of the other side, for any number of threads.
                sums_of_sequence.par_chunks_mut(width).enumerate().for_each(|(i, sum)| {
                    let row = &own[i * width..][..width];
                    for (j, other) in other.chunks_exact(width).enumerate() {
                        let dy = &dy[(i * strides[0] + j * strides[1]) * width..][..width];
                        add_gradient(self.f, row, other, dy, sum);
                    }
                });
            }
        }
        Ok(())
    }

    fn is_full_precision(&self) -> bool {
        true
    }

    fn composite(&self, inputs: &[Tensor]) -> Result<Tensor> {
        let (width, rows) = self.check(inputs[0].dims(), inputs[1].dims())?;
        let mut outputs = Vec::with_capacity(self.lengths.len());
        for Sequence { starts, lengths: (t, u) } in self.sequences() {
            if t * u > 0 {
                let a = full_precision(&inputs[0].narrow(0, starts[0], t)?)?.unsqueeze(1)?;
                let b = full_precision(&inputs[1].narrow(0, starts[1], u)?)?.unsqueeze(0)?;
                outputs.push(a.broadcast_add(&b)?.reshape((t * u, width))?);
            }
        }
        if outputs.is_empty() {
            return Tensor::zeros((rows, width), inputs[0].dtype(), inputs[0].device());
        }
        activation(&Tensor::cat(&outputs, 0)?, self.f)?.to_dtype(inputs[0].dtype())
    }
}

vectorised! {
    /// Computes `f(a + b)` for each row of `b`.
    fn activated_sums(f: Activation, a: &[f32], b: &[f32], output: &mut [f32]) {
        specialised!(f, [Tanh, Relu], sums_of_rows(a, b, output, |x| f.at(x).0));
    }

    /// Adds the gradient of one pair of rows to `sum`.
    fn add_gradient(f: Activation, a: &[f32], b: &[f32], dy: &[f32], sum: &mut [f32]) {
        specialised!(f, [Tanh, Relu], add_products(a, b, dy, sum, |x| f.at(x).1));
    }
}

#[inline(always)]
fn sums_of_rows(a: &[f32], b: &[f32], output: &mut [f32], f: impl Fn(f32) -> f32) {
    for (output, b) in output.chunks_exact_mut(a.len()).zip(b.chunks_exact(a.len())) {
        for ((output, a), b) in output.iter_mut().zip(a).zip(b) {
            *output = f(a + b);
        }
    }
}

#[inline(always)]
fn add_products(
    a: &[f32],
    b: &[f32],
    dy: &[f32],
    sum: &mut [f32],
    derivative: impl Fn(f32) -> f32,
) {
    for (((sum, a), b), dy) in sum.iter_mut().zip(a).zip(b).zip(dy) {
        *sum += dy * derivative(a + b);
    }
}
