//! Depthwise convolution over packed sequences.

use candle_core::{Result, Shape, Tensor};
use rayon::prelude::*;

use super::operation::{Gradient, Input, Kernel, Output, Pass, apply, dims_of, tensor_dims};
use super::rows::{ROWS, add, add_column_sums};
use super::windows::{Geometry, Windows, transposed};

/// The number of parts of the windows whose weight gradients are summed separately. It is the same
/// for any number of threads.
const PARTS: usize = 16;

/// Computes a depthwise convolution over packed sequences of `lengths` rows. Shapes: `x` `[T, C]`
/// or `[T, W, C]`, `weight` `[C, p]` for windows of `p` positions, `bias` `[C]` → `[T', C]` or
/// `[T', W', C]`, where `T'` and `W'` count the windows. A window never crosses a sequence
/// boundary.
///
/// # Errors
/// If the lengths do not sum to the number of rows, or the shapes do not match.
pub fn depthwise(
    x: &Tensor,
    weight: &Tensor,
    bias: &Tensor,
    lengths: &[usize],
    windows: Windows,
) -> Result<Tensor> {
    apply(Depthwise { windows, lengths: lengths.to_vec() }, &[x, weight, bias])
}

pub(super) struct Depthwise {
    pub(super) windows: Windows,
    pub(super) lengths: Vec<usize>,
}

impl Depthwise {
    /// Checks the shapes and returns the layout of the windows.
    fn geometry(&self, dims: &[&[usize]]) -> Result<Geometry> {
        let geometry = self.windows.geometry(dims[0], &self.lengths)?;
        let (channels, positions) = (geometry.channels, self.windows.kernel_positions());
        if dims[1] != [channels, positions] || dims[2] != [channels] {
            candle_core::bail!(
                "depthwise convolution: shapes {dims:?} do not fit {:?}",
                self.windows
            );
        }
        Ok(geometry)
    }
}

impl Kernel for Depthwise {
    fn name(&self) -> &'static str {
        "depthwise convolution"
    }

    fn forward(&self, inputs: &[Input<'_>]) -> Result<Output> {
        let geometry = self.geometry(&dims_of(inputs))?;
        let weight = transpose(inputs[1].data, self.windows.kernel_positions());
        let mut output = vec![0.0; geometry.num_windows() * geometry.channels];
        output.par_chunks_mut(ROWS * geometry.channels).enumerate().for_each(|(block, y)| {
            forward_block(&geometry, inputs[0].data, (&weight, inputs[2].data), block * ROWS, y);
        });
        Ok((output, Shape::from(geometry.output_dims(inputs[0].dims)), Box::new(())))
    }

    fn backward(&self, pass: &Pass<'_>, input_gradients: &mut [Option<Gradient>]) -> Result<()> {
        let (inputs, gradient) = (pass.inputs, pass.gradient);
        let geometry = self.geometry(&dims_of(inputs))?;
        let (channels, positions) = (geometry.channels, self.windows.kernel_positions());
        if let Some(db) = &mut input_gradients[2] {
            add_column_sums(gradient, channels, channels, db.as_sum());
        }
        if let Some(dw) = &mut input_gradients[1] {
            let part_size = geometry.num_windows().div_ceil(PARTS).max(1);
            let parts: Vec<Vec<f32>> = gradient
                .par_chunks(part_size * channels)
                .enumerate()
                .map(|(i, dy)| {
                    let mut sums = vec![0.0; positions * channels];
                    weight_gradient(&geometry, inputs[0].data, i * part_size, dy, &mut sums);
                    sums
                })
                .collect();
            let mut sums = vec![0.0; positions * channels];
            parts.iter().for_each(|part| add(part, &mut sums));
            add(&transpose(&sums, channels), dw.as_sum());
        }
        if let Some(dx) = &mut input_gradients[0] {
            let weight = transpose(inputs[1].data, positions);
            dx.as_sum().par_chunks_mut(ROWS * channels).enumerate().for_each(|(block, dx)| {
                input_gradient(&geometry, gradient, &weight, block * ROWS, dx);
            });
        }
        Ok(())
    }

    fn composite(&self, inputs: &[Tensor]) -> Result<Tensor> {
        let dims = tensor_dims(inputs);
        let geometry = self.geometry(&dims)?;
        let products =
            geometry.gather_elements(&inputs[0])?.broadcast_mul(&transposed(&inputs[1])?)?;
        let output = products.sum(1)?.broadcast_add(&inputs[2])?;
        output.reshape(geometry.output_dims(dims[0]))
    }
}

/// Transposes a row-major matrix with `width` columns.
fn transpose(matrix: &[f32], width: usize) -> Vec<f32> {
    (0..width).flat_map(|column| matrix[column..].iter().step_by(width).copied()).collect()
}

vectorised! {
    /// Computes the outputs of consecutive windows, starting at window `first`.
    fn forward_block(
        geometry: &Geometry,
        x: &[f32],
        (weight, bias): (&[f32], &[f32]),
        first: usize,
        y: &mut [f32],
    ) {
        let channels = geometry.channels;
        for (i, y) in y.chunks_mut(channels).enumerate() {
            y.copy_from_slice(bias);
            geometry.for_each_covered_element(first + i, |position, element| {
                let (w, x) = (&weight[position * channels..][..channels], &x[element * channels..]);
                for ((y, w), x) in y.iter_mut().zip(w).zip(x) {
                    *y = w.mul_add(*x, *y);
                }
            });
        }
    }

    /// Adds the gradients of consecutive elements to `dx`, starting at element `first`.
    fn input_gradient(
        geometry: &Geometry,
        dy: &[f32],
        weight: &[f32],
        first: usize,
        dx: &mut [f32],
    ) {
        let channels = geometry.channels;
        for (i, dx) in dx.chunks_mut(channels).enumerate() {
            geometry.for_each_covering_window(first + i, |position, window| {
                let w = &weight[position * channels..][..channels];
                let dy = &dy[window * channels..];
                for ((dx, w), dy) in dx.iter_mut().zip(w).zip(dy) {
                    *dx = w.mul_add(*dy, *dx);
                }
            });
        }
    }

    /// Adds the weight gradient of consecutive windows to `dw`, starting at window `first`.
    fn weight_gradient(geometry: &Geometry, x: &[f32], first: usize, dy: &[f32], dw: &mut [f32]) {
        let channels = geometry.channels;
        for (i, dy) in dy.chunks(channels).enumerate() {
            geometry.for_each_covered_element(first + i, |position, element| {
                let dw = &mut dw[position * channels..][..channels];
                let x = &x[element * channels..];
                for ((dw, dy), x) in dw.iter_mut().zip(dy).zip(x) {
                    *dw = dy.mul_add(*x, *dw);
                }
            });
        }
    }
}
