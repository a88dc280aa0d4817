//! Convolutions over `[H, W, C]`, with the bias and ReLU6 in the same step.

use candle_core::{DType, Device};
use rayon::prelude::*;

use super::graph::Window;
use crate::error::Result;
use crate::kernels::{Matrix, matmul};
use crate::weights::Weights;

/// Number of channels that are summed together, for vector instructions.
const LANES: usize = 16;

/// A dense convolution, computed as a matrix product.
#[derive(Debug, Clone)]
pub(super) struct Convolution {
    window: Window,
    /// `[C_out, rows, columns, C_in]`.
    weight: Vec<f32>,
    bias: Vec<f32>,
}

impl Convolution {
    pub(super) fn load(window: &Window, tensor: &str, weights: &Weights) -> Result<Self> {
        let (rows, columns) = window.kernel;
        let shape = [window.output.channels, window.input.channels, rows, columns];
        let weight = load_tensor(weights, &format!("{tensor}.weight"), &shape)?;
        let weight = weight.permute((0, 2, 3, 1))?.flatten_all()?.to_vec1()?;
        let bias = load_tensor(weights, &format!("{tensor}.bias"), &shape[..1])?.to_vec1()?;
        Ok(Self { window: window.clone(), weight, bias })
    }

    /// Applies the convolution: `[H, W, C_in]` → `[H_out, W_out, C_out]`.
    pub(super) fn run(&self, input: &[f32]) -> Vec<f32> {
        let Window { kernel, stride, output, .. } = self.window;
        let (positions, channels) = (output.height * output.width, output.channels);
        let window_size = self.weight.len() / channels;
        let mut output_values = Vec::with_capacity(positions * channels);
        for _ in 0..positions {
            output_values.extend_from_slice(&self.bias);
        }
        let unfolded;
        let rows = if kernel == (1, 1) && stride == 1 {
            input
        } else {
            unfolded = self.unfold_windows(input);
            &unfolded
        };
        let weight = Matrix::new(&self.weight, channels, window_size).t();
        matmul(
            1.0,
            Matrix::new(rows, positions, window_size),
            weight,
            1.0,
            &mut output_values,
            channels,
        );
        if self.window.relu6 {
            output_values.par_chunks_mut(1 << 14).for_each(apply_relu6);
        }
        output_values
    }

    /// Returns the kernel's input window at each output position,
    /// `[H_out W_out, rows * columns * C_in]`.
    fn unfold_windows(&self, input: &[f32]) -> Vec<f32> {
        let Window { input: input_shape, output, kernel, stride, padding, .. } = self.window;
        let mut unfolded =
            vec![0.0; output.height * output.width * kernel.0 * kernel.1 * input_shape.channels];
        let mut patches = unfolded.chunks_exact_mut(input_shape.channels);
        for y in 0..output.height {
            for x in 0..output.width {
                for (dy, dx) in (0..kernel.0).flat_map(|dy| (0..kernel.1).map(move |dx| (dy, dx))) {
                    let position = (y * stride + dy).checked_sub(padding.0);
                    let position = position.zip((x * stride + dx).checked_sub(padding.1));
                    let inside =
                        position.filter(|(y, x)| *y < input_shape.height && *x < input_shape.width);
                    if let (Some(patch), Some((y, x))) = (patches.next(), inside) {
                        let start = (y * input_shape.width + x) * input_shape.channels;
                        patch.copy_from_slice(&input[start..start + input_shape.channels]);
                    }
                }
            }
        }
        unfolded
    }
}

/// A depthwise convolution.
#[derive(Debug, Clone)]
pub(super) struct Depthwise {
    window: Window,
    /// `[rows, columns, C]`.
    weight: Vec<f32>,
    bias: Vec<f32>,
}

impl Depthwise {
    pub(super) fn load(window: &Window, tensor: &str, weights: &Weights) -> Result<Self> {
        let (rows, columns) = window.kernel;
        let shape = [window.output.channels, 1, rows, columns];
        let weight = load_tensor(weights, &format!("{tensor}.weight"), &shape)?;
        let weight = weight.permute((2, 3, 0, 1))?.flatten_all()?.to_vec1()?;
        let bias = load_tensor(weights, &format!("{tensor}.bias"), &shape[..1])?.to_vec1()?;
        Ok(Self { window: window.clone(), weight, bias })
    }

    /// Applies the convolution: `[H, W, C]` → `[H_out, W_out, C]`.
    pub(super) fn run(&self, input: &[f32]) -> Vec<f32> {
        let Window { output, .. } = self.window;
        let mut output_values = vec![0.0; output.height * output.width * output.channels];
        let rows = output_values.par_chunks_mut(output.width * output.channels).enumerate();
        rows.for_each(|(y, row)| self.run_row(input, y, row));
        output_values
    }

    /// Computes row `y` of the output.
    fn run_row(&self, input: &[f32], y: usize, row: &mut [f32]) {
        let Window { input: input_shape, kernel, stride, padding, relu6, .. } = self.window;
        let channels = input_shape.channels;
        // For each kernel element: the offsets of its input and its weight. Elements outside the
        // image are skipped.
        let mut taps: Vec<(usize, usize)> = Vec::with_capacity(kernel.0 * kernel.1);
        for (x, sums_of_pixel) in row.chunks_exact_mut(channels).enumerate() {
            taps.clear();
            for (dy, dx) in (0..kernel.0).flat_map(|dy| (0..kernel.1).map(move |dx| (dy, dx))) {
                let position = (y * stride + dy).checked_sub(padding.0);
                let position = position.zip((x * stride + dx).checked_sub(padding.1));
                if let Some((y, x)) =
                    position.filter(|(y, x)| *y < input_shape.height && *x < input_shape.width)
                {
                    let weight = (dy * kernel.1 + dx) * channels;
                    taps.push(((y * input_shape.width + x) * channels, weight));
                }
            }
            sum_of_taps(input, &self.weight, &self.bias, &taps, relu6, sums_of_pixel);
        }
    }
}

/// Reads a tensor in f32.
fn load_tensor(weights: &Weights, name: &str, shape: &[usize]) -> Result<candle_core::Tensor> {
    weights.get(name, shape, DType::F32, &Device::Cpu)
}

vectorised! {
    /// Clamps each value to the range 0 to 6.
    fn apply_relu6(values: &mut [f32]) {
        for value in values {
            *value = value.clamp(0.0, 6.0);
        }
    }

    /// Adds the bias and, for each tap, the product of input and weight, for all channels of one
    /// position.
    fn sum_of_taps(
        input: &[f32],
        weight: &[f32],
        bias: &[f32],
        taps: &[(usize, usize)],
        relu6: bool,
        sums_of_pixel: &mut [f32],
    ) {
        let vectorised_len = sums_of_pixel.len() / LANES * LANES;
        for start in (0..vectorised_len).step_by(LANES) {
            let mut sums = [0.0f32; LANES];
            sums.copy_from_slice(&bias[start..start + LANES]);
            for (x, w) in taps {
                let x = &input[x + start..x + start + LANES];
                let w = &weight[w + start..w + start + LANES];
                for ((sum, x), w) in sums.iter_mut().zip(x).zip(w) {
                    *sum = x.mul_add(*w, *sum);
                }
            }
            sums_of_pixel[start..start + LANES].copy_from_slice(&sums);
        }
        for channel in vectorised_len..sums_of_pixel.len() {
            let products = taps.iter().map(|(x, w)| (input[x + channel], weight[w + channel]));
            sums_of_pixel[channel] = products.fold(bias[channel], |sum, (x, w)| x.mul_add(w, sum));
        }
        if relu6 {
            for value in sums_of_pixel {
                *value = value.clamp(0.0, 6.0);
            }
        }
    }
}
