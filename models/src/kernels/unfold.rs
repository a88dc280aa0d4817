//! The windows of packed sequences as rows: a convolution over time is a linear map of them.

use candle_core::{Shape, Tensor};
use rayon::prelude::*;

use super::operation::{Gradient, Input, Kernel, apply};
use super::rows::ROWS;

/// How windows lie in a sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unfold {
    /// Rows of a window.
    pub size: usize,
    /// Rows from one window to the next.
    pub stride: usize,
    /// Rows of zeros on both sides of a sequence.
    pub padding: usize,
}

impl Unfold {
    /// Windows of a sequence of `length` rows.
    pub fn windows(&self, length: usize) -> usize {
        let padded = length + 2 * self.padding;
        if padded < self.size || length == 0 { 0 } else { (padded - self.size) / self.stride + 1 }
    }
}

/// `x` `[T, C]`, packed sequences of `lengths` rows → `[T', C size]`: the windows of one sequence
/// after the other. Number `c size + j` of a window is channel `c` of its row `j`, the order of
/// published weights `[C_out, C, size]`.
///
/// # Errors
/// If the lengths are not those of all rows, or a window or a step has no rows.
pub fn unfold(x: &Tensor, lengths: &[usize], windows: Unfold) -> candle_core::Result<Tensor> {
    apply(UnfoldKernel { windows, lengths: lengths.to_vec() }, &[x])
}

struct UnfoldKernel {
    windows: Unfold,
    lengths: Vec<usize>,
}

/// A sequence: its first row and how many it has, and its first window and how many it has.
#[derive(Clone, Copy)]
struct Sequence {
    rows: (usize, usize),
    windows: (usize, usize),
}

impl UnfoldKernel {
    /// The sequences, the number of windows, and the channels.
    fn sequences(&self, dims: &[usize]) -> candle_core::Result<(Vec<Sequence>, usize, usize)> {
        let (&[rows, channels], Unfold { size, stride, .. }) = (dims, self.windows) else {
            candle_core::bail!("unfold: an input of shape {dims:?}, wanted [T, C]");
        };
        if size == 0 || stride == 0 || self.lengths.iter().sum::<usize>() != rows {
            candle_core::bail!("unfold: {:?} of {rows} rows in {:?}", self.windows, self.lengths);
        }
        let (mut row, mut window) = (0, 0);
        let place = |length: &usize| {
            let count = self.windows.windows(*length);
            let sequence = Sequence { rows: (row, *length), windows: (window, count) };
            row += length;
            window += count;
            sequence
        };
        let sequences = self.lengths.iter().map(place).collect();
        Ok((sequences, window, channels))
    }
}

impl Kernel for UnfoldKernel {
    fn name(&self) -> &'static str {
        "unfold"
    }

    fn forward(&mut self, inputs: &[Input<'_>]) -> candle_core::Result<(Vec<f32>, Shape)> {
        let (sequences, count, channels) = self.sequences(inputs[0].dims)?;
        let (x, Unfold { size, stride, padding }) = (inputs[0].data, self.windows);
        let width = channels * size;
        let mut output = vec![0.0; count * width];
        output.par_chunks_mut((ROWS * width).max(1)).enumerate().for_each(|(block, windows)| {
            for (i, window) in windows.chunks_mut(width).enumerate() {
                let index = block * ROWS + i;
                let sequence = sequence_of(&sequences, index, |s| s.windows);
                let first = (index - sequence.windows.0) * stride;
                for j in 0..size {
                    let Some(row) = (first + j).checked_sub(padding) else { continue };
                    if row < sequence.rows.1 {
                        let row = &x[(sequence.rows.0 + row) * channels..][..channels];
                        for (value, place) in row.iter().zip(window[j..].iter_mut().step_by(size)) {
                            *place = *value;
                        }
                    }
                }
            }
        });
        Ok((output, Shape::from((count, width))))
    }

    fn backward(
        &self,
        inputs: &[Input<'_>],
        _: &[f32],
        gradient: &[f32],
        wanted: &mut [Option<Gradient>],
    ) -> candle_core::Result<()> {
        let (sequences, _, channels) = self.sequences(inputs[0].dims)?;
        let Unfold { size, stride, padding } = self.windows;
        let width = channels * size;
        let Some(dx) = &mut wanted[0] else { return Ok(()) };
        let blocks = dx.as_sum().par_chunks_mut((ROWS * channels).max(1));
        blocks.enumerate().for_each(|(block, rows)| {
            for (i, row) in rows.chunks_mut(channels).enumerate() {
                let index = block * ROWS + i;
                let sequence = sequence_of(&sequences, index, |s| s.rows);
                let padded = index - sequence.rows.0 + padding;
                for j in 0..size.min(padded + 1) {
                    let window = (padded - j) / stride;
                    if !(padded - j).is_multiple_of(stride) || window >= sequence.windows.1 {
                        continue;
                    }
                    let dy = &gradient[(sequence.windows.0 + window) * width..][..width];
                    for (sum, value) in row.iter_mut().zip(dy[j..].iter().step_by(size)) {
                        *sum += value;
                    }
                }
            }
        });
        Ok(())
    }

    fn composite(&self, inputs: &[Tensor]) -> candle_core::Result<Tensor> {
        let (sequences, count, channels) = self.sequences(inputs[0].dims())?;
        let Unfold { size, stride, padding } = self.windows;
        let mut parts = Vec::new();
        for Sequence { rows: (start, length), windows: (_, windows) } in sequences {
            if windows == 0 {
                continue;
            }
            let x = inputs[0].narrow(0, start, length)?.pad_with_zeros(0, padding, padding)?;
            let rows: Vec<u32> =
                (0..windows * size).map(|i| (i / size * stride + i % size) as u32).collect();
            let rows = Tensor::from_vec(rows, windows * size, x.device())?;
            let x = x.contiguous()?.index_select(&rows, 0)?.reshape((windows, size, channels))?;
            parts.push(x.transpose(1, 2)?.reshape((windows, channels * size))?);
        }
        match parts.is_empty() {
            true => inputs[0].narrow(0, 0, 0)?.reshape((count, channels * size)),
            false => Tensor::cat(&parts, 0),
        }
    }
}

/// The sequence that a row (or window) belongs to.
fn sequence_of(
    sequences: &[Sequence],
    index: usize,
    span: impl Fn(&Sequence) -> (usize, usize),
) -> Sequence {
    let next = sequences.partition_point(|sequence| {
        let (start, length) = span(sequence);
        start + length <= index
    });
    sequences[next]
}
