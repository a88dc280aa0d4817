//! Rotary positions (RoFormer, arXiv 2104.09864) of queries and keys.

use candle_core::{Device, Result, Shape, Tensor};
use rayon::prelude::*;

use super::operation::{Gradient, Input, Kernel, Output, Pass, apply};
use super::rows::ROWS;
use crate::compute::full_precision;

/// Rotates the queries and keys of self-attention: `qkv` `[T, 3 D]` → `[T, 3 D]`. `angles` `[T, d]`
/// holds the cosines of each row, then the sines; `d` is the width of a head. Element `i` of a head
/// is rotated with element `i + d / 2`. The angles get no gradient.
///
/// # Errors
/// If the shapes do not match.
pub fn rotary(qkv: &Tensor, angles: &Tensor) -> Result<Tensor> {
    apply(Rotary, &[qkv, &angles.detach()])
}

/// Returns the angles of positions `[T]` for heads of width `size`, as [`rotary`] takes them. `theta`
/// is the base of the frequencies. The products are in f32, like those of the published models.
pub(crate) fn rotary_angles(
    positions: &[u32],
    theta: f64,
    size: usize,
    device: &Device,
) -> Result<Tensor> {
    let exponents = (0..size).step_by(2).map(|i| i as f32 / size as f32);
    let frequencies: Vec<f32> = exponents.map(|it| 1.0 / (theta as f32).powf(it)).collect();
    let of_position = |position: &u32| {
        let angles = frequencies.iter().map(|frequency| *position as f32 * frequency);
        angles.clone().map(f32::cos).chain(angles.map(f32::sin)).collect::<Vec<_>>()
    };
    let angles = positions.iter().flat_map(of_position).collect();
    Tensor::from_vec(angles, (positions.len(), size), device)
}

pub(super) struct Rotary;

/// Checks the shapes and returns the widths of a row and of a head.
fn check(qkv: &[usize], angles: &[usize]) -> Result<(usize, usize)> {
    match (qkv, angles) {
        (&[rows, width], &[angles, size])
            if rows == angles
                && size > 0
                && size % 2 == 0
                && width > 0
                && width % (3 * size) == 0 =>
        {
            Ok((width, size))
        }
        _ => candle_core::bail!("rotary: input {qkv:?} does not match angles {angles:?}"),
    }
}

/// Returns the rotated rows. With `sign` -1, the rotation is the inverse.
fn rotated(rows: &[f32], inputs: &[Input<'_>], sign: f32) -> Result<Vec<f32>> {
    let (width, size) = check(inputs[0].dims, inputs[1].dims)?;
    let mut output = rows.to_vec();
    let angles = inputs[1].data.par_chunks(ROWS * size);
    let blocks = output.par_chunks_mut(ROWS * width).zip(angles);
    blocks.for_each(|(rows, angles)| rotate(rows, angles, width, size, sign));
    Ok(output)
}

impl Kernel for Rotary {
    fn name(&self) -> &'static str {
        "rotary"
    }

    fn forward(&self, inputs: &[Input<'_>]) -> Result<Output> {
        let output = rotated(inputs[0].data, inputs, 1.0)?;
        Ok((output, Shape::from(inputs[0].dims), Box::new(())))
    }

    fn backward(&self, pass: &Pass<'_>, input_gradients: &mut [Option<Gradient>]) -> Result<()> {
        if let Some(buffer) = &mut input_gradients[0] {
            buffer.add(rotated(pass.gradient, pass.inputs, -1.0)?);
        }
        Ok(())
    }

    fn is_full_precision(&self) -> bool {
        true
    }

    fn is_cheap(&self) -> bool {
        true
    }

    fn composite(&self, inputs: &[Tensor]) -> Result<Tensor> {
        let (width, size) = check(inputs[0].dims(), inputs[1].dims())?;
        let x = full_precision(&inputs[0])?;
        let (rows, half, values) = (x.dim(0)?, size / 2, width / 3 * 2);
        let angle = |start| inputs[1].narrow(1, start, half)?.unsqueeze(1);
        let (cos, sin) = (angle(0)?, angle(half)?);
        let heads = x.narrow(1, 0, values)?.reshape((rows, values / size, size))?;
        let (a, b) = (heads.narrow(2, 0, half)?, heads.narrow(2, half, half)?);
        let first = (a.broadcast_mul(&cos)? - b.broadcast_mul(&sin)?)?;
        let second = (b.broadcast_mul(&cos)? + a.broadcast_mul(&sin)?)?;
        let heads = Tensor::cat(&[first, second], 2)?.flatten_from(1)?;
        let output = Tensor::cat(&[heads, x.narrow(1, values, width - values)?], 1)?;
        output.to_dtype(inputs[0].dtype())
    }
}

vectorised! {
    /// Rotates the heads of queries and keys in place.
    fn rotate(rows: &mut [f32], angles: &[f32], width: usize, size: usize, sign: f32) {
        for (row, angles) in rows.chunks_exact_mut(width).zip(angles.chunks_exact(size)) {
            let (cosines, sines) = angles.split_at(size / 2);
            for head in row[..width / 3 * 2].chunks_exact_mut(size) {
                let (first, second) = head.split_at_mut(size / 2);
                for (((a, b), cos), sin) in first.iter_mut().zip(second).zip(cosines).zip(sines) {
                    let sin = sign * sin;
                    (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
                }
            }
        }
    }
}
