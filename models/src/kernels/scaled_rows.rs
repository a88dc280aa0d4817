//! Multiplies each row by its own weight.

use candle_core::{Result, Shape, Tensor};
use rayon::prelude::*;

use super::math::sum2;
use super::operation::{Gradient, Input, Kernel, Output, Pass, apply};
use super::rows::ROWS;

/// Multiplies each row by its weight: `x` `[T, D]`, `weights` `[T, 1]` → `[T, D]`.
///
/// # Errors
/// If the shapes do not match.
pub fn scaled_rows(x: &Tensor, weights: &Tensor) -> Result<Tensor> {
    apply(ScaledRows, &[x, weights])
}

pub(super) struct ScaledRows;

/// Checks the shapes and returns the width `D`.
fn check(x: &[usize], weights: &[usize]) -> Result<usize> {
    match (x, weights) {
        (&[rows, width], &[weights, 1]) if rows == weights && width > 0 => Ok(width),
        _ => candle_core::bail!("scaled rows: input {x:?} does not match weights {weights:?}"),
    }
}

impl Kernel for ScaledRows {
    fn name(&self) -> &'static str {
        "scaled rows"
    }

    fn forward(&self, inputs: &[Input<'_>]) -> Result<Output> {
        let width = check(inputs[0].dims, inputs[1].dims)?;
        let mut output = inputs[0].data.to_vec();
        output.par_chunks_mut(ROWS * width).zip(inputs[1].data.par_chunks(ROWS)).for_each(
            |(rows, weights)| {
                for (row, weight) in rows.chunks_mut(width).zip(weights) {
                    row.iter_mut().for_each(|value| *value *= weight);
                }
            },
        );
        Ok((output, Shape::from(inputs[0].dims), Box::new(())))
    }

    fn backward(&self, pass: &Pass<'_>, input_gradients: &mut [Option<Gradient>]) -> Result<()> {
        let (inputs, gradient) = (pass.inputs, pass.gradient);
        let width = check(inputs[0].dims, inputs[1].dims)?;
        let (x_gradient, weight_gradient) = input_gradients.split_at_mut(1);
        if let Some(dx) = &mut x_gradient[0] {
            let blocks = dx.as_sum().par_chunks_mut(ROWS * width);
            blocks
                .zip(gradient.par_chunks(ROWS * width))
                .zip(inputs[1].data.par_chunks(ROWS))
                .for_each(|((dx, dy), weights)| add_scaled(dy, weights, width, dx));
        }
        if let Some(dw) = &mut weight_gradient[0] {
            let blocks = dw.as_sum().par_chunks_mut(ROWS);
            blocks
                .zip(gradient.par_chunks(ROWS * width))
                .zip(inputs[0].data.par_chunks(ROWS * width))
                .for_each(|((dw, dy), x)| add_products(dy, x, width, dw));
        }
        Ok(())
    }

    fn is_cheap(&self) -> bool {
        true
    }

    fn composite(&self, inputs: &[Tensor]) -> Result<Tensor> {
        check(inputs[0].dims(), inputs[1].dims())?;
        inputs[0].broadcast_mul(&inputs[1])
    }
}

vectorised! {
    /// Adds each row of `dy`, times its weight, to `dx`.
    fn add_scaled(dy: &[f32], weights: &[f32], width: usize, dx: &mut [f32]) {
        for ((dx, dy), weight) in dx.chunks_mut(width).zip(dy.chunks(width)).zip(weights) {
            for (dx, dy) in dx.iter_mut().zip(dy) {
                *dx = dy.mul_add(*weight, *dx);
            }
        }
    }

    /// Adds `Σ dy x` of each row to `dw`.
    fn add_products(dy: &[f32], x: &[f32], width: usize, dw: &mut [f32]) {
        for ((dw, dy), x) in dw.iter_mut().zip(dy.chunks(width)).zip(x.chunks(width)) {
            *dw += sum2(dy, x, |dy, x| dy * x);
        }
    }
}
