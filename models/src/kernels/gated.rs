//! The element-wise product of gated linear units (arXiv 1612.08083, 2002.05202). Each input row
//! has two halves: the gate, which passes through the activation, and the value.

use candle_core::{D, Result, Tensor};
use rayon::prelude::*;

use super::activation::{Activation, activation, specialised};
use super::operation::{Gradient, Input, Kernel, Output, Pass, apply};
use super::rows::{ROWS, zeros};
use crate::compute::full_precision;

/// Computes `f(a) ⊙ b`: `x` `[.., 2 M]` holds `a` then `b` in each row → `[.., M]`.
///
/// # Errors
/// If the last dimension is odd or 0.
pub fn gated(x: &Tensor, f: Activation) -> Result<Tensor> {
    apply(Gated { f, gate: Half::First }, &[x])
}

/// Computes `a ⊙ σ(b)`, the original gated linear unit: `x` `[.., 2 M]` as in [`gated`] →
/// `[.., M]`.
///
/// # Errors
/// The same as for [`gated`].
pub fn glu(x: &Tensor) -> Result<Tensor> {
    apply(Gated::GLU, &[x])
}

/// A gated unit: the activation `f` of one half, times the other half.
pub(super) struct Gated {
    pub(super) f: Activation,
    pub(super) gate: Half,
}

/// The half that passes through the activation.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Half {
    First,
    Second,
}

impl Gated {
    pub(super) const GLU: Self = Self { f: Activation::Sigmoid, gate: Half::Second };
}

impl Half {
    /// Returns the gate and the other half of a row.
    #[inline(always)]
    fn gate_and_other<T>(self, (first, second): (T, T)) -> (T, T) {
        if self == Self::First { (first, second) } else { (second, first) }
    }
}

/// Returns the width `M` of a half.
fn half_width(dims: &[usize]) -> Result<usize> {
    match dims.last() {
        Some(width) if *width > 0 && width % 2 == 0 => Ok(width / 2),
        _ => candle_core::bail!("gated: the last dimension of {dims:?} must be even and positive"),
    }
}

impl Kernel for Gated {
    fn name(&self) -> &'static str {
        "gated"
    }

    fn forward(&self, inputs: &[Input<'_>]) -> Result<Output> {
        let width = half_width(inputs[0].dims)?;
        let mut output = zeros(inputs[0].data.len() / 2);
        output
            .par_chunks_mut(ROWS * width)
            .zip(inputs[0].data.par_chunks(2 * ROWS * width))
            .for_each(|(y, x)| products(self.f, self.gate, x, width, y));
        Ok((output, inputs[0].shape_with_width(width), Box::new(())))
    }

    fn backward(&self, pass: &Pass<'_>, input_gradients: &mut [Option<Gradient>]) -> Result<()> {
        let (inputs, gradient) = (pass.inputs, pass.gradient);
        let width = half_width(inputs[0].dims)?;
        let Some(buffer) = &mut input_gradients[0] else { return Ok(()) };
        let mut dx = zeros(inputs[0].data.len());
        dx.par_chunks_mut(2 * ROWS * width)
            .zip(inputs[0].data.par_chunks(2 * ROWS * width))
            .zip(gradient.par_chunks(ROWS * width))
            .for_each(|((dx, x), dy)| input_gradient(self.f, self.gate, x, width, dy, dx));
        buffer.add(dx);
        Ok(())
    }

    fn is_cheap(&self) -> bool {
        true
    }

    fn composite(&self, inputs: &[Tensor]) -> Result<Tensor> {
        let width = half_width(inputs[0].dims())?;
        let (gate, other) = self.gate.gate_and_other((0, width));
        let x = full_precision(&inputs[0])?;
        let gate = activation(&x.narrow(D::Minus1, gate, width)?, self.f)?;
        (gate * x.narrow(D::Minus1, other, width)?)?.to_dtype(inputs[0].dtype())
    }
}

vectorised! {
    /// Computes `y = f(a) b`, where `a` is the gate and `b` the other half.
    fn products(f: Activation, gate: Half, x: &[f32], width: usize, y: &mut [f32]) {
        specialised!(f, [GeluTanh, Sigmoid], gated_rows(gate, x, width, y, |a| f.at(a).0));
    }

    /// Writes the gradients of both halves to `dx`.
    fn input_gradient(
        f: Activation,
        gate: Half,
        x: &[f32],
        width: usize,
        dy: &[f32],
        dx: &mut [f32],
    ) {
        specialised!(f, [GeluTanh, Sigmoid], row_gradients(gate, x, width, dy, dx, |a| f.at(a)));
    }
}

#[inline(always)]
fn gated_rows(gate: Half, x: &[f32], width: usize, y: &mut [f32], f: impl Fn(f32) -> f32) {
    for (x, y) in x.chunks_exact(2 * width).zip(y.chunks_exact_mut(width)) {
        let (a, b) = gate.gate_and_other(x.split_at(width));
        for ((a, b), y) in a.iter().zip(b).zip(y) {
            *y = f(*a) * b;
        }
    }
}

#[inline(always)]
fn row_gradients(
    gate: Half,
    x: &[f32],
    width: usize,
    dy: &[f32],
    dx: &mut [f32],
    f: impl Fn(f32) -> (f32, f32),
) {
    let rows = x.chunks_exact(2 * width).zip(dy.chunks_exact(width));
    for ((x, dy), dx) in rows.zip(dx.chunks_exact_mut(2 * width)) {
        let ((a, b), (da, db)) =
            (gate.gate_and_other(x.split_at(width)), gate.gate_and_other(dx.split_at_mut(width)));
        for ((((a, b), dy), da), db) in a.iter().zip(b).zip(dy).zip(da).zip(db) {
            let (value, derivative) = f(*a);
            *da = dy * b * derivative;
            *db = dy * value;
        }
    }
}
