//! MobileNetV2 (arXiv 1801.04381, table 2) as a frozen image feature extractor.
//!
//! The weights are the published network of TensorFlow Lite, with folded batch norms. Tensors are
//! named after their operation's index in that network (`op00`, `op01`, …). The embedding is the
//! output of the average pool; the classifier after it is omitted. A feature map keeps the places:
//! it joins the outputs of two groups of blocks. Activations have the layout `[H, W, C]`, so a
//! 1 x 1 convolution is a matrix product. No gradient is computed.

use std::path::Path;

use candle_core::{DType, Device, Tensor};
use rayon::prelude::*;

use crate::error::{Result, bail};
use crate::kernels::{Matrix, matmul};
use crate::weights::Weights;

/// The file with the weights, in a model's folder.
pub const WEIGHTS_FILE: &str = "mobilenet_v2_1.0_224.safetensors";
/// The side length of an image, in pixels.
pub const IMAGE_SIZE: usize = 224;
/// The width `D` of an embedding.
pub const EMBEDDING_SIZE: usize = 1280;
/// The side length of a feature map, in cells.
pub const MAP_SIZE: usize = 7;
/// The number of channels `C` of a feature map: those of the last block, and those of the four
/// finer cells at the same place.
pub const MAP_CHANNELS: usize = 320 + 4 * FINER_CHANNELS;

/// The number of blocks before the finer cells, and their channels.
const FINER_BLOCKS: usize = 13;
const FINER_CHANNELS: usize = 96;
/// Added to the variance of a cell.
const EPSILON: f32 = 1e-6;

/// The groups of blocks: expansion factor, output channels, number of blocks, and stride of the
/// first block.
const GROUPS: [(usize, usize, usize, usize); 7] = [
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
];
/// The output channels of the first convolution.
const FIRST_CHANNELS: usize = 32;
/// Number of channels that are summed together, for vector instructions.
const LANES: usize = 16;

/// The network, frozen.
#[derive(Debug, Clone)]
pub struct MobileNet {
    first: Convolution,
    blocks: Vec<Block>,
    last: Convolution,
}

/// An inverted residual block: expansion, depthwise convolution, projection.
#[derive(Debug, Clone)]
struct Block {
    layers: Vec<Convolution>,
    /// Whether the block's input is added to its output.
    is_residual: bool,
}

/// A convolution with zero padding, its bias, and ReLU6.
#[derive(Debug, Clone)]
struct Convolution {
    shape: Shape,
    /// `[C_out, rows, columns, C_in]`, or `[rows, columns, C]` if depthwise.
    weight: Vec<f32>,
    bias: Vec<f32>,
}

/// The shape of a convolution.
#[derive(Debug, Clone, Copy)]
struct Shape {
    /// The side length of a window.
    kernel: usize,
    stride: usize,
    channels: [usize; 2],
    is_depthwise: bool,
    relu6: bool,
}

/// Reads the tensors of operations one after the other.
struct Reader<'a> {
    weights: &'a Weights,
    next: usize,
}

impl Reader<'_> {
    fn convolution(&mut self, shape: Shape) -> Result<Convolution> {
        let Shape { kernel, channels: [c_in, c_out], is_depthwise, .. } = shape;
        let name = format!("op{:02}", self.next);
        self.next += 1;
        let get = |part: &str, shape: &[usize]| {
            self.weights.get(&format!("{name}.{part}"), shape, DType::F32, &Device::Cpu)
        };
        let c_weight = if is_depthwise { 1 } else { c_in };
        let weight = get("weight", &[c_out, c_weight, kernel, kernel])?;
        let order = if is_depthwise { [2, 3, 0, 1] } else { [0, 2, 3, 1] };
        let weight = weight.permute(&order[..])?.flatten_all()?.to_vec1()?;
        Ok(Convolution { shape, weight, bias: get("bias", &[c_out])?.to_vec1()? })
    }

    fn block(&mut self, expansion: usize, channels: [usize; 2], stride: usize) -> Result<Block> {
        let [c_in, c_out] = channels;
        let width = expansion * c_in;
        let pointwise = |channels: [usize; 2], relu6: bool| Shape {
            kernel: 1,
            stride: 1,
            channels,
            is_depthwise: false,
            relu6,
        };
        let depthwise =
            Shape { kernel: 3, stride, channels: [width; 2], is_depthwise: true, relu6: true };
        let expanded = (expansion > 1).then(|| pointwise([c_in, width], true));
        let shapes = expanded.into_iter().chain([depthwise, pointwise([width, c_out], false)]);
        let layers = shapes.map(|shape| self.convolution(shape)).collect::<Result<_>>()?;
        let is_residual = stride == 1 && c_in == c_out;
        // The sum is an operation of its own.
        self.next += usize::from(is_residual);
        Ok(Block { layers, is_residual })
    }
}

impl MobileNet {
    /// Reads the weights.
    ///
    /// # Errors
    /// The errors of [`Weights::open`] and [`Weights::get`].
    pub fn read(weights: &Path) -> Result<Self> {
        let weights = Weights::open(weights)?;
        let mut reader = Reader { weights: &weights, next: 0 };
        let mut width = FIRST_CHANNELS;
        let dense = |kernel: usize, stride: usize, channels: [usize; 2]| Shape {
            kernel,
            stride,
            channels,
            is_depthwise: false,
            relu6: true,
        };
        let first = reader.convolution(dense(3, 2, [3, width]))?;
        let mut blocks = Vec::new();
        for (expansion, channels, count, stride) in GROUPS {
            for i in 0..count {
                let stride = if i == 0 { stride } else { 1 };
                blocks.push(reader.block(expansion, [width, channels], stride)?);
                width = channels;
            }
        }
        let last = reader.convolution(dense(1, 1, [width, EMBEDDING_SIZE]))?;
        Ok(Self { first, blocks, last })
    }

    /// Returns the embeddings of images with values from -1 to 1: `[B, 3, S, S]` → `[B, D]`. The
    /// embedding of an image is bit-identical in every batch.
    ///
    /// # Errors
    /// [`crate::ModelError::BadInput`] for images of another shape.
    pub fn embed(&self, images: &Tensor) -> Result<Tensor> {
        let embed = |image: &[f32]| {
            let [_, last] = self.blocks(image);
            mean_of_rows(&self.last.run(&last, MAP_SIZE).0, EMBEDDING_SIZE)
        };
        Ok(self.each(images, embed)?.reshape(((), EMBEDDING_SIZE))?)
    }

    /// Returns the feature maps of images with values from -1 to 1: `[B, 3, S, S]` →
    /// `[B, C, 7, 7]`. In each cell, the values of the last block and those of the four finer cells
    /// have mean 0 and variance 1. The map of an image is bit-identical in every batch.
    ///
    /// # Errors
    /// [`crate::ModelError::BadInput`] for images of another shape.
    pub fn maps(&self, images: &Tensor) -> Result<Tensor> {
        let maps = self.each(images, |image| self.cells(image))?;
        let maps = maps.reshape(((), MAP_SIZE, MAP_SIZE, MAP_CHANNELS))?;
        Ok(maps.permute((0, 3, 1, 2))?.contiguous()?)
    }

    /// Applies a function to each image `[S, S, 3]`, and joins the results.
    fn each(
        &self,
        images: &Tensor,
        f: impl Fn(&[f32]) -> Vec<f32> + Sync + Send,
    ) -> Result<Tensor> {
        match images.dims() {
            [_, image @ ..] if *image == [3, IMAGE_SIZE, IMAGE_SIZE] => {}
            other => {
                bail!("images of shape {other:?}; MobileNetV2 takes [B, 3, 224, 224]");
            }
        }
        let values = images.permute((0, 2, 3, 1))?.flatten_all()?.to_vec1::<f32>()?;
        let images = values.par_chunks(3 * IMAGE_SIZE * IMAGE_SIZE);
        let results: Vec<f32> = images.flat_map_iter(f).collect();
        let count = results.len();
        Ok(Tensor::from_vec(results, count, &Device::Cpu)?)
    }

    /// Runs the blocks on an image: the finer cells `[14, 14, 96]`, and the last ones
    /// `[7, 7, 320]`.
    fn blocks(&self, image: &[f32]) -> [Vec<f32>; 2] {
        let (mut x, mut side) = self.first.run(image, IMAGE_SIZE);
        let mut finer = Vec::new();
        for (index, block) in self.blocks.iter().enumerate() {
            if index == FINER_BLOCKS {
                finer.clone_from(&x);
            }
            let input = block.is_residual.then(|| x.clone());
            for layer in &block.layers {
                (x, side) = layer.run(&x, side);
            }
            if let Some(input) = input {
                x.iter_mut().zip(input).for_each(|(value, input)| *value += input);
            }
        }
        [finer, x]
    }

    /// The cells of an image's feature map, `[7, 7, C]`.
    fn cells(&self, image: &[f32]) -> Vec<f32> {
        let [finer, last] = self.blocks(image);
        let mut map = Vec::with_capacity(MAP_SIZE * MAP_SIZE * MAP_CHANNELS);
        for (cell, values) in last.chunks_exact(MAP_CHANNELS - 4 * FINER_CHANNELS).enumerate() {
            map.extend(normalised(values));
            // The finer cells of two rows.
            let (row, column) = (2 * (cell / MAP_SIZE), 2 * (cell % MAP_SIZE));
            let pair = |row: usize| {
                let start = (row * 2 * MAP_SIZE + column) * FINER_CHANNELS;
                &finer[start..start + 2 * FINER_CHANNELS]
            };
            map.extend(normalised(&[pair(row), pair(row + 1)].concat()));
        }
        map
    }
}

/// Shifts and scales values to mean 0 and variance 1.
fn normalised(values: &[f32]) -> impl Iterator<Item = f32> {
    let count = values.len() as f32;
    let mean = values.iter().sum::<f32>() / count;
    let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f32>() / count;
    let factor = 1.0 / (variance + EPSILON).sqrt();
    values.iter().map(move |value| (value - mean) * factor)
}

/// Returns the mean of the rows: `[rows, width]` → `[width]`.
fn mean_of_rows(values: &[f32], width: usize) -> Vec<f32> {
    let mut mean = vec![0.0; width];
    for row in values.chunks(width) {
        mean.iter_mut().zip(row).for_each(|(mean, value)| *mean += value);
    }
    let scale = 1.0 / (values.len() / width) as f32;
    mean.iter_mut().for_each(|mean| *mean *= scale);
    mean
}

impl Convolution {
    /// Applies the convolution to a square image: `[S, S, C_in]` → `[S', S', C_out]`, and `S'`.
    fn run(&self, x: &[f32], side: usize) -> (Vec<f32>, usize) {
        let Shape { kernel, stride, channels: [_, channels], is_depthwise, relu6 } = self.shape;
        let out_side = side.div_ceil(stride);
        let mut output = vec![0.0; out_side * out_side * channels];
        if is_depthwise {
            let rows = output.par_chunks_mut(out_side * channels).enumerate();
            rows.for_each(|(row, output)| self.run_depthwise(x, side, row, output));
            return (output, out_side);
        }
        output.chunks_exact_mut(channels).for_each(|pixel| pixel.copy_from_slice(&self.bias));
        let window = self.weight.len() / channels;
        let unfolded = (kernel > 1 || stride > 1).then(|| self.unfold(x, side));
        let rows = unfolded.as_deref().unwrap_or(x);
        let weight = Matrix::new(&self.weight, channels, window).t();
        let rows = Matrix::new(rows, out_side * out_side, window);
        matmul(1.0, rows, weight, 1.0, &mut output, channels);
        if relu6 {
            output.par_chunks_mut(1 << 14).for_each(apply_relu6);
        }
        (output, out_side)
    }

    /// Calls `f` for each element of a window inside the image, with the indices of the element in
    /// the window and in the image. As in TensorFlow, an odd number of zeros is padded after the
    /// image rather than before.
    fn for_each_tap(
        &self,
        side: usize,
        (row, column): (usize, usize),
        mut f: impl FnMut(usize, usize),
    ) {
        let Shape { kernel, stride, .. } = self.shape;
        let padding = ((side.div_ceil(stride) - 1) * stride + kernel).saturating_sub(side) / 2;
        for (dy, dx) in (0..kernel).flat_map(|dy| (0..kernel).map(move |dx| (dy, dx))) {
            let y = (row * stride + dy).checked_sub(padding).filter(|y| *y < side);
            let x = (column * stride + dx).checked_sub(padding).filter(|x| *x < side);
            if let Some((y, x)) = y.zip(x) {
                f(dy * kernel + dx, y * side + x);
            }
        }
    }

    /// Returns the window of each output pixel, `[S' S', kernel kernel C_in]`.
    fn unfold(&self, x: &[f32], side: usize) -> Vec<f32> {
        let Shape { kernel, stride, channels: [channels, _], .. } = self.shape;
        let out_side = side.div_ceil(stride);
        let window = kernel * kernel * channels;
        let mut unfolded = vec![0.0; out_side * out_side * window];
        for (i, row) in unfolded.chunks_exact_mut(window).enumerate() {
            self.for_each_tap(side, (i / out_side, i % out_side), |to, from| {
                let pixel = &x[from * channels..][..channels];
                row[to * channels..][..channels].copy_from_slice(pixel);
            });
        }
        unfolded
    }

    /// Computes a row of the output of a depthwise convolution.
    fn run_depthwise(&self, x: &[f32], side: usize, row: usize, output: &mut [f32]) {
        let Shape { channels: [channels, _], relu6, .. } = self.shape;
        let mut taps = Vec::new();
        for (column, pixel) in output.chunks_exact_mut(channels).enumerate() {
            taps.clear();
            self.for_each_tap(side, (row, column), |in_window, in_image| {
                taps.push((in_image * channels, in_window * channels));
            });
            sum_of_taps(x, &self.weight, &self.bias, &taps, relu6, pixel);
        }
    }
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
        // The numbers of channels are multiples of `LANES`.
        for start in (0..sums_of_pixel.len()).step_by(LANES) {
            let mut sums = [0.0f32; LANES];
            sums.copy_from_slice(&bias[start..start + LANES]);
            for (x, w) in taps {
                let x = &input[x + start..x + start + LANES];
                let w = &weight[w + start..w + start + LANES];
                for ((sum, x), w) in sums.iter_mut().zip(x).zip(w) {
                    *sum = x.mul_add(*w, *sum);
                }
            }
            if relu6 {
                sums.iter_mut().for_each(|sum| *sum = sum.clamp(0.0, 6.0));
            }
            sums_of_pixel[start..start + LANES].copy_from_slice(&sums);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Against candle's convolutions, with TensorFlow's zero padding, for even and odd sides.
    #[test]
    fn convolutions_equal_candle() -> Result<()> {
        let wave = |shape: &[usize], phase: f32| {
            let count = shape.iter().product::<usize>();
            let values: Vec<f32> = (0..count).map(|i| (1.7 * i as f32 + phase).sin()).collect();
            Tensor::from_vec(values, shape, &Device::Cpu)
        };
        for (side, stride, is_depthwise) in
            [(6, 2, false), (5, 2, true), (6, 2, true), (5, 1, true), (4, 1, false)]
        {
            let (c_in, c_out) = (16, if is_depthwise { 16 } else { 7 });
            let weight = wave(&[c_out, if is_depthwise { 1 } else { c_in }, 3, 3], 0.1)?;
            let order = if is_depthwise { [2, 3, 0, 1] } else { [0, 2, 3, 1] };
            let bias = wave(&[c_out], 0.2)?;
            let channels = [c_in, c_out];
            let convolution = Convolution {
                shape: Shape { kernel: 3, stride, channels, is_depthwise, relu6: true },
                weight: weight.permute(&order[..])?.flatten_all()?.to_vec1()?,
                bias: bias.to_vec1()?,
            };
            let image = wave(&[1, c_in, side, side], 0.3)?;
            let values = image.permute((0, 2, 3, 1))?.flatten_all()?.to_vec1::<f32>()?;
            let (found, out_side) = convolution.run(&values, side);
            let before = usize::from(stride == 1 || side % 2 == 1);
            let padded = image.pad_with_zeros(2, before, 1)?.pad_with_zeros(3, before, 1)?;
            let groups = if is_depthwise { c_in } else { 1 };
            let expected = padded.conv2d(&weight, 0, stride, 1, groups)?;
            let expected = expected.broadcast_add(&bias.reshape((1, c_out, 1, 1))?)?;
            let expected = expected.clamp(0f32, 6f32)?;
            assert_eq!(expected.dims(), [1, c_out, out_side, out_side]);
            let expected = expected.permute((0, 2, 3, 1))?.flatten_all()?.to_vec1::<f32>()?;
            for (found, expected) in found.iter().zip(expected) {
                assert!((found - expected).abs() < 1e-5, "{found}, {expected}");
            }
        }
        Ok(())
    }
}
