//! The layout of convolution windows in packed sequences: over rows (time), or over rows and
//! columns (time and width, such as the mel bands of a spectrogram).

use candle_core::{D, Result, Tensor};

use super::segments::Span;

/// The sizes of windows, as `[rows, columns]`: over time, and over width if the input has a width.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Windows {
    /// The kernel size.
    pub size: [usize; 2],
    /// The stride from one window to the next.
    pub stride: [usize; 2],
    /// The zero padding on each side.
    pub padding: [usize; 2],
}

impl Windows {
    /// Creates windows over time only.
    pub fn over_time(size: usize, stride: usize, padding: usize) -> Self {
        Self { size: [size, 1], stride: [stride, 1], padding: [padding, 0] }
    }

    /// Creates windows with the same sizes over time and width.
    pub fn square(size: usize, stride: usize, padding: usize) -> Self {
        Self { size: [size; 2], stride: [stride; 2], padding: [padding; 2] }
    }

    /// Returns the number of windows of a sequence of `length` rows; 0 if no window fits.
    pub fn of_length(&self, length: usize) -> usize {
        self.num_windows_along(0, length)
    }

    /// Returns the number of windows across `width` columns; 0 if no window fits.
    pub fn of_width(&self, width: usize) -> usize {
        self.num_windows_along(1, width)
    }

    /// Returns the number of windows along an axis of this length.
    fn num_windows_along(&self, axis: usize, length: usize) -> usize {
        let padded = length + 2 * self.padding[axis];
        match padded.checked_sub(self.size[axis]) {
            Some(last_start) if length > 0 => {
                last_start.checked_div(self.stride[axis]).map_or(0, |n| n + 1)
            }
            _ => 0,
        }
    }

    /// Returns the number of positions in a window.
    pub(super) fn kernel_positions(&self) -> usize {
        self.size[0] * self.size[1]
    }

    /// Computes the layout of windows in packed sequences of `lengths` rows, for an input `[T, C]`
    /// or `[T, W, C]`.
    pub(super) fn geometry(self, dims: &[usize], lengths: &[usize]) -> Result<Geometry> {
        let (rows, width, channels) = match *dims {
            [rows, channels] => (rows, 1, channels),
            [rows, width, channels] => (rows, width, channels),
            _ => candle_core::bail!("windows: input {dims:?}, expected [T, C] or [T, W, C]"),
        };
        let empty = self.size.contains(&0) || self.stride.contains(&0) || channels == 0;
        if empty || lengths.iter().sum::<usize>() != rows {
            candle_core::bail!("{self:?} do not fit input {dims:?} with lengths {lengths:?}");
        }
        let (mut first_row, mut first_window) = (0, 0);
        let to_sequence = |&length: &usize| {
            let count = self.of_length(length);
            let sequence = Sequence {
                rows: Span { start: first_row, length },
                windows: Span { start: first_window, length: count },
            };
            first_row += length;
            first_window += count;
            sequence
        };
        let sequences = lengths.iter().map(to_sequence).collect();
        let out_width = self.of_width(width);
        Ok(Geometry {
            windows: self,
            sequences,
            channels,
            width,
            out_width,
            rows,
            out_rows: first_window,
        })
    }
}

/// The rows and the windows of a sequence.
#[derive(Debug, Clone, Copy)]
struct Sequence {
    rows: Span,
    windows: Span,
}

/// The elements covered by each window of a packed input. An element is the `C` channels of one row
/// and column.
#[derive(Debug, Clone)]
pub(super) struct Geometry {
    windows: Windows,
    sequences: Vec<Sequence>,
    pub(super) channels: usize,
    width: usize,
    pub(super) out_width: usize,
    rows: usize,
    pub(super) out_rows: usize,
}

impl Geometry {
    /// Returns the number of elements in the input.
    pub(super) fn num_elements(&self) -> usize {
        self.rows * self.width
    }

    /// Returns the number of windows.
    pub(super) fn num_windows(&self) -> usize {
        self.out_rows * self.out_width
    }

    /// For each position of a window that is not padding: calls `f` with the position, and the
    /// element at that position.
    #[inline(always)]
    pub(super) fn for_each_covered_element(&self, window: usize, mut f: impl FnMut(usize, usize)) {
        let Windows { size, stride, padding } = self.windows;
        let (row, column) = (window / self.out_width, window % self.out_width);
        let sequence = self.sequence_of(row, |sequence| sequence.windows);
        let (first, left) = ((row - sequence.windows.start) * stride[0], column * stride[1]);
        for i in 0..size[0] {
            let row = (first + i).wrapping_sub(padding[0]);
            if row >= sequence.rows.length {
                continue;
            }
            for j in 0..size[1] {
                let column = (left + j).wrapping_sub(padding[1]);
                if column < self.width {
                    f(i * size[1] + j, (sequence.rows.start + row) * self.width + column);
                }
            }
        }
    }

    /// For each window that covers an element: calls `f` with the element's position in the window,
    /// and the window's index.
    #[inline(always)]
    pub(super) fn for_each_covering_window(&self, element: usize, mut f: impl FnMut(usize, usize)) {
        let Windows { size, stride, padding } = self.windows;
        let (row, column) = (element / self.width, element % self.width);
        let sequence = self.sequence_of(row, |sequence| sequence.rows);
        let (top, left) = (row - sequence.rows.start + padding[0], column + padding[1]);
        for i in 0..size[0].min(top + 1) {
            let window_row = (top - i) / stride[0];
            if !(top - i).is_multiple_of(stride[0]) || window_row >= sequence.windows.length {
                continue;
            }
            for j in 0..size[1].min(left + 1) {
                let window_column = (left - j) / stride[1];
                if (left - j).is_multiple_of(stride[1]) && window_column < self.out_width {
                    let row = sequence.windows.start + window_row;
                    f(i * size[1] + j, row * self.out_width + window_column);
                }
            }
        }
    }

    /// Returns the sequence that contains a row (or a row of windows).
    #[inline(always)]
    fn sequence_of(&self, index: usize, span: impl Fn(&Sequence) -> Span) -> Sequence {
        let index_of_sequence = self.sequences.partition_point(|sequence| {
            let Span { start, length } = span(sequence);
            start + length <= index
        });
        self.sequences[index_of_sequence]
    }

    /// Gathers the elements of each window with candle's operations: `[windows, positions, C]`.
    pub(super) fn gather_elements(&self, x: &Tensor) -> Result<Tensor> {
        let positions = self.windows.kernel_positions();
        // The index after the last element selects a row of zeros.
        let mut elements = vec![self.num_elements() as u32; self.num_windows() * positions];
        for (window, elements) in elements.chunks_mut(positions).enumerate() {
            self.for_each_covered_element(window, |position, element| {
                elements[position] = element as u32
            });
        }
        let count = elements.len();
        let elements = Tensor::from_vec(elements, count, x.device())?;
        let x = x.reshape((self.num_elements(), self.channels))?.pad_with_zeros(0, 0, 1)?;
        x.contiguous()?.index_select(&elements, 0)?.reshape((
            self.num_windows(),
            positions,
            self.channels,
        ))
    }

    /// Returns the shape of an output with one value per channel and window.
    pub(super) fn output_dims(&self, dims: &[usize]) -> Vec<usize> {
        let mut output = dims.to_vec();
        output[0] = self.out_rows;
        if let [_, width, _] = output.as_mut_slice() {
            *width = self.out_width;
        }
        output
    }
}

/// Returns a contiguous copy of the transpose: `[.., A, B]` → `[.., B, A]`.
pub(super) fn transposed(x: &Tensor) -> Result<Tensor> {
    x.transpose(D::Minus2, D::Minus1)?.contiguous()
}
