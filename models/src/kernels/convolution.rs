//! Two-dimensional convolution with an optional ReLU, channels last.
//!
//! The windows (receptive fields) are unfolded into rows and multiplied with the weight. A few
//! images are unfolded at a time, so the rows stay in the CPU cache.

use candle_core::{Result, Shape, Tensor};
use rayon::prelude::*;

use super::activation::{Activation, activation};
use super::composite::rows_product;
use super::matmul::{Matrix, matmul_on_this_thread};
use super::operation::{Gradient, Input, Kernel, Output, Pass, apply, dims_of, tensor_dims};
use super::rows::{ELEMENTS, add, add_column_sums};

/// Images unfolded at a time.
const IMAGES_AT_ONCE: usize = 4;

/// The number of parts of the batch whose weight gradients are summed separately. It is the same
/// for any number of threads.
const PARTS: usize = 16;

/// The stride, padding and activation of a convolution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Convolution {
    /// Pixels from one window to the next.
    pub stride: usize,
    /// Zero pixels on each side of the image.
    pub padding: usize,
    /// Whether a ReLU follows.
    pub relu: bool,
}

/// Computes a convolution: `x` `[B, H, W, C]`, `weight` `[C_out, k, k, C]`, `bias` `[C_out]` →
/// `[B, H', W', C_out]` with `H' = (H + 2 padding - k) / stride + 1`.
///
/// # Errors
/// If the shapes do not match, or the window is larger than the padded image.
pub fn convolution(
    x: &Tensor,
    weight: &Tensor,
    bias: &Tensor,
    options: Convolution,
) -> Result<Tensor> {
    apply(options, &[x, weight, bias])
}

/// The sizes of one convolution.
#[derive(Clone, Copy)]
struct Sizes {
    batch: usize,
    height: usize,
    width: usize,
    channels: usize,
    /// The kernel size `k`, in pixels.
    kernel_size: usize,
    out_height: usize,
    out_width: usize,
    out_channels: usize,
}

impl Sizes {
    /// Elements per image.
    fn image_size(&self) -> usize {
        self.height * self.width * self.channels
    }

    /// Windows per image.
    fn num_windows(&self) -> usize {
        self.out_height * self.out_width
    }

    /// Elements per window.
    fn window_size(&self) -> usize {
        self.kernel_size * self.kernel_size * self.channels
    }

    /// Output elements per image.
    fn output_size(&self) -> usize {
        self.num_windows() * self.out_channels
    }
}

impl Convolution {
    /// Checks the shapes of `x`, `weight` and `bias`, and returns the sizes.
    fn sizes(&self, dims: &[&[usize]]) -> Result<Sizes> {
        let (
            &[batch, height, width, channels],
            &[out_channels, kernel_size, kernel_width, kernel_channels],
            &[bias_size],
        ) = (dims[0], dims[1], dims[2])
        else {
            candle_core::bail!("convolution: shapes {dims:?} do not match");
        };
        let fits =
            kernel_size == kernel_width && kernel_channels == channels && bias_size == out_channels;
        let shortest_side = height.min(width) + 2 * self.padding;
        let empty = dims.iter().any(|dims| dims.contains(&0)) || self.stride == 0;
        if !fits || empty || kernel_size > shortest_side {
            candle_core::bail!("convolution: shapes {dims:?} do not fit {self:?}");
        }
        let num_windows =
            |pixels: usize| (pixels + 2 * self.padding - kernel_size) / self.stride + 1;
        let (out_height, out_width) = (num_windows(height), num_windows(width));
        Ok(Sizes {
            batch,
            height,
            width,
            channels,
            kernel_size,
            out_height,
            out_width,
            out_channels,
        })
    }

    /// Calls `f` for each row of pixels in a window that is not padding. The arguments are the
    /// first element's index in the window, its index in the image, and the number of elements.
    #[inline(always)]
    fn for_each_row(
        &self,
        sizes: &Sizes,
        (y, x): (usize, usize),
        mut f: impl FnMut(usize, usize, usize),
    ) {
        let Sizes { height, width, channels, kernel_size, .. } = *sizes;
        let (top, left) = (y * self.stride, x * self.stride);
        // Coordinates in the padded image.
        let first = left.max(self.padding);
        let last = (left + kernel_size).min(width + self.padding);
        if first >= last {
            return;
        }
        for row in 0..kernel_size {
            let Some(y) = (top + row).checked_sub(self.padding).filter(|y| *y < height) else {
                continue;
            };
            let in_window = (row * kernel_size + first - left) * channels;
            let in_image = (y * width + first - self.padding) * channels;
            f(in_window, in_image, (last - first) * channels);
        }
    }

    /// Unfolds images into rows, one per window: `[n, H, W, C]` → `[n H' W', k k C]`.
    fn unfold_images(&self, sizes: &Sizes, images: &[f32], rows: &mut [f32]) {
        rows.fill(0.0);
        let rows_per_image = rows.chunks_mut(sizes.num_windows() * sizes.window_size());
        for (image, rows) in images.chunks(sizes.image_size()).zip(rows_per_image) {
            for (window_index, row) in rows.chunks_mut(sizes.window_size()).enumerate() {
                let position = (window_index / sizes.out_width, window_index % sizes.out_width);
                self.for_each_row(sizes, position, |to, from, count| {
                    row[to..to + count].copy_from_slice(&image[from..from + count]);
                });
            }
        }
    }

    /// Adds rows of windows to their source pixels (the transpose of unfolding).
    fn fold_and_add(&self, sizes: &Sizes, rows: &[f32], images: &mut [f32]) {
        let rows_per_image = rows.chunks(sizes.num_windows() * sizes.window_size());
        for (image, rows) in images.chunks_mut(sizes.image_size()).zip(rows_per_image) {
            for (window_index, row) in rows.chunks(sizes.window_size()).enumerate() {
                let position = (window_index / sizes.out_width, window_index % sizes.out_width);
                self.for_each_row(sizes, position, |from, to, count| {
                    add(&row[from..from + count], &mut image[to..to + count]);
                });
            }
        }
    }
}

impl Kernel for Convolution {
    fn name(&self) -> &'static str {
        "convolution"
    }

    fn forward(&self, inputs: &[Input<'_>]) -> Result<Output> {
        let sizes = self.sizes(&dims_of(inputs))?;
        let (x, bias) = (inputs[0].data, inputs[2].data);
        let weight = Matrix::new(inputs[1].data, sizes.out_channels, sizes.window_size()).t();
        let mut output = vec![0.0; sizes.batch * sizes.output_size()];
        let blocks = output.par_chunks_mut(IMAGES_AT_ONCE * sizes.output_size());
        blocks.zip(x.par_chunks(IMAGES_AT_ONCE * sizes.image_size())).for_each_init(
            Vec::new,
            |rows, (output, images)| {
                let count = output.len() / sizes.out_channels;
                rows.resize(count * sizes.window_size(), 0.0);
                self.unfold_images(&sizes, images, rows);
                let rows = Matrix::new(rows, count, sizes.window_size());
                for pixel in output.chunks_mut(sizes.out_channels) {
                    pixel.copy_from_slice(bias);
                }
                matmul_on_this_thread(rows, weight, 1.0, output, sizes.out_channels);
                if self.relu {
                    apply_relu(output);
                }
            },
        );
        let shape = (sizes.batch, sizes.out_height, sizes.out_width, sizes.out_channels);
        Ok((output, Shape::from(shape), Box::new(())))
    }

    fn backward(&self, pass: &Pass<'_>, input_gradients: &mut [Option<Gradient>]) -> Result<()> {
        let (inputs, output, gradient) = (pass.inputs, pass.output, pass.gradient);
        let sizes = self.sizes(&dims_of(inputs))?;
        let (out, window) = (sizes.out_channels, sizes.window_size());
        let masked_gradient = if self.relu { mask_gradient(output, gradient) } else { Vec::new() };
        let gradient = if self.relu { masked_gradient.as_slice() } else { gradient };
        if let Some(db) = &mut input_gradients[2] {
            add_column_sums(gradient, out, out, db.as_sum());
        }
        let (x_gradient, weight_gradient) = input_gradients.split_at_mut(1);
        let (dx, dw) = (&mut x_gradient[0], &mut weight_gradient[0]);
        let weight = Matrix::new(inputs[1].data, out, window);
        let part_size = sizes.batch.div_ceil(PARTS).next_multiple_of(IMAGES_AT_ONCE);
        // Returns the weight gradient of one part of the batch, and adds the gradient of its images
        // to `dx`.
        let backward_part = |x: &[f32], dy: &[f32], mut dx: Option<&mut [f32]>| {
            let mut sums = if dw.is_some() { vec![0.0; out * window] } else { Vec::new() };
            let mut rows = Vec::new();
            let blocks = x.chunks(IMAGES_AT_ONCE * sizes.image_size());
            for (i, (x, dy)) in
                blocks.zip(dy.chunks(IMAGES_AT_ONCE * sizes.output_size())).enumerate()
            {
                let count = dy.len() / out;
                rows.resize(count * window, 0.0);
                let dy = Matrix::new(dy, count, out);
                if !sums.is_empty() {
                    self.unfold_images(&sizes, x, &mut rows);
                    let rows = Matrix::new(&rows, count, window);
                    matmul_on_this_thread(dy.t(), rows, 1.0, &mut sums, window);
                }
                if let Some(dx) = &mut dx {
                    matmul_on_this_thread(dy, weight, 0.0, &mut rows, window);
                    let start = i * IMAGES_AT_ONCE * sizes.image_size();
                    self.fold_and_add(&sizes, &rows, &mut dx[start..start + x.len()]);
                }
            }
            sums
        };
        let parts = inputs[0].data.par_chunks(part_size * sizes.image_size());
        let parts = parts.zip(gradient.par_chunks(part_size * sizes.output_size()));
        let sums: Vec<Vec<f32>> = match dx {
            Some(dx) => parts
                .zip(dx.as_sum().par_chunks_mut(part_size * sizes.image_size()))
                .map(|((x, dy), dx)| backward_part(x, dy, Some(dx)))
                .collect(),
            None => parts.map(|(x, dy)| backward_part(x, dy, None)).collect(),
        };
        if let Some(dw) = dw {
            let total = dw.as_sum();
            sums.iter().for_each(|sums| add(sums, total));
        }
        Ok(())
    }

    fn composite(&self, inputs: &[Tensor]) -> Result<Tensor> {
        let sizes = self.sizes(&tensor_dims(inputs))?;
        let padding = self.padding;
        let padded = inputs[0].pad_with_zeros(1, padding, padding)?;
        let padded = padded.pad_with_zeros(2, padding, padding)?.contiguous()?;
        let (height, width) = (sizes.height + 2 * padding, sizes.width + 2 * padding);
        let mut pixels = Vec::new();
        for image in 0..sizes.batch {
            for window_index in 0..sizes.num_windows() {
                let top = window_index / sizes.out_width * self.stride;
                let left = window_index % sizes.out_width * self.stride;
                for row in top..top + sizes.kernel_size {
                    let first = (image * height + row) * width + left;
                    pixels.extend((first..first + sizes.kernel_size).map(|pixel| pixel as u32));
                }
            }
        }
        let pixels = Tensor::from_vec(
            pixels,
            sizes.batch * sizes.num_windows() * sizes.kernel_size * sizes.kernel_size,
            inputs[0].device(),
        )?;
        let rows = padded
            .reshape((sizes.batch * height * width, sizes.channels))?
            .index_select(&pixels, 0)?
            .reshape((sizes.batch * sizes.num_windows(), sizes.window_size()))?;
        let weight = inputs[1].reshape((sizes.out_channels, sizes.window_size()))?;
        let output = rows_product(&rows, &weight)?.broadcast_add(&inputs[2])?;
        let output = if self.relu { activation(&output, Activation::Relu)? } else { output };
        output.reshape((sizes.batch, sizes.out_height, sizes.out_width, sizes.out_channels))
    }
}

vectorised! {
    fn apply_relu(values: &mut [f32]) {
        for value in values {
            *value = if *value < 0.0 { 0.0 } else { *value };
        }
    }

    fn mask_gradient_block(output: &[f32], gradient: &[f32], masked: &mut [f32]) {
        for ((masked, y), dy) in masked.iter_mut().zip(output).zip(gradient) {
            *masked = if *y > 0.0 { *dy } else { 0.0 };
        }
    }
}

/// Returns the gradient where the output is positive, and 0 elsewhere.
fn mask_gradient(output: &[f32], gradient: &[f32]) -> Vec<f32> {
    let mut masked = vec![0.0; gradient.len()];
    let blocks = masked.par_chunks_mut(ELEMENTS).zip(output.par_chunks(ELEMENTS));
    blocks
        .zip(gradient.par_chunks(ELEMENTS))
        .for_each(|((masked, y), dy)| mask_gradient_block(y, dy, masked));
    masked
}
