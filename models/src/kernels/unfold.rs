//! Unfolds the windows of packed sequences into rows, so that a convolution becomes a linear layer.

use candle_core::{Result, Shape, Tensor};
use rayon::prelude::*;

use super::operation::{Gradient, Input, Kernel, Output, Pass, apply};
use super::rows::ROWS;
use super::windows::{Geometry, Windows, transposed};

/// Unfolds windows of `p` positions into rows, one sequence after the other: `x` `[T, C]` or
/// `[T, W, C]`, packed sequences of `lengths` rows → `[T' W', C p]`, where `T'` and `W'` count the
/// windows. Column `c p + j` holds channel `c` at position `j`. This is the order of published
/// weights `[C_out, C, rows, columns]`.
///
/// # Errors
/// If the lengths do not sum to the number of rows, or a window size or stride is 0.
pub fn unfold(x: &Tensor, lengths: &[usize], windows: Windows) -> Result<Tensor> {
    apply(Unfold { windows, lengths: lengths.to_vec() }, &[x])
}

struct Unfold {
    windows: Windows,
    lengths: Vec<usize>,
}

impl Unfold {
    fn geometry(&self, dims: &[usize]) -> Result<Geometry> {
        self.windows.geometry(dims, &self.lengths)
    }
}

impl Kernel for Unfold {
    fn name(&self) -> &'static str {
        "unfold"
    }

    fn forward(&self, inputs: &[Input<'_>]) -> Result<Output> {
        let geometry = self.geometry(inputs[0].dims)?;
        let (x, channels, positions) =
            (inputs[0].data, geometry.channels, self.windows.kernel_positions());
        let width = channels * positions;
        let mut output = vec![0.0; geometry.num_windows() * width];
        output.par_chunks_mut(ROWS * width).enumerate().for_each(|(block, windows)| {
            for (i, window) in windows.chunks_mut(width).enumerate() {
                geometry.for_each_covered_element(block * ROWS + i, |position, element| {
                    let from = &x[element * channels..][..channels];
                    for (value, to) in
                        from.iter().zip(window[position..].iter_mut().step_by(positions))
                    {
                        *to = *value;
                    }
                });
            }
        });
        Ok((output, Shape::from((geometry.num_windows(), width)), Box::new(())))
    }

    fn backward(&self, pass: &Pass<'_>, input_gradients: &mut [Option<Gradient>]) -> Result<()> {
        let (inputs, gradient) = (pass.inputs, pass.gradient);
        let geometry = self.geometry(inputs[0].dims)?;
        let (channels, positions) = (geometry.channels, self.windows.kernel_positions());
        let width = channels * positions;
        let Some(dx) = &mut input_gradients[0] else { return Ok(()) };
        dx.as_sum().par_chunks_mut(ROWS * channels).enumerate().for_each(|(block, elements)| {
            for (i, sums) in elements.chunks_mut(channels).enumerate() {
                geometry.for_each_covering_window(block * ROWS + i, |position, window| {
                    let dy = &gradient[window * width..][..width];
                    for (sum, value) in
                        sums.iter_mut().zip(dy[position..].iter().step_by(positions))
                    {
                        *sum += value;
                    }
                });
            }
        });
        Ok(())
    }

    fn composite(&self, inputs: &[Tensor]) -> Result<Tensor> {
        let geometry = self.geometry(inputs[0].dims())?;
        let rows = transposed(&geometry.gather_elements(&inputs[0])?)?;
        rows.reshape((geometry.num_windows(), geometry.channels * self.windows.kernel_positions()))
    }
}
