//! Convolutions over packed sequences, and over channels alone.

use candle_core::Tensor;

use crate::error::Result;
use crate::kernels::{self, Chain, LinearParameters, Value, Windows};
use crate::params::{Init, ParameterBuilder};

/// A convolution over packed sequences: a linear layer on the unfolded windows, or depthwise.
#[derive(Debug, Clone)]
pub struct Convolution {
    /// `[C_out, C, rows]` or `[C_out, C, rows, columns]`; `C` is 1 if depthwise.
    weight: Tensor,
    /// `[C_out]`.
    bias: Tensor,
    windows: Windows,
    is_depthwise: bool,
}

impl Convolution {
    /// A convolution over time, with `C` input and `C_out` output channels: `[T, C]` →
    /// `[T', C_out]`. Without published weights, it is initialised as in
    /// [`Linear::new`](super::Linear::new).
    pub fn over_time(
        [in_channels, out_channels]: [usize; 2],
        windows: Windows,
        std: f64,
        builder: &ParameterBuilder,
    ) -> Result<Self> {
        Self::of_shape(&[out_channels, in_channels, windows.size[0]], windows, std, builder)
    }

    /// A convolution over time and width, `[T, W, C]` → `[T', W', C_out]`.
    pub(crate) fn over_time_and_width(
        [in_channels, out_channels]: [usize; 2],
        windows: Windows,
        std: f64,
        builder: &ParameterBuilder,
    ) -> Result<Self> {
        let [rows, columns] = windows.size;
        Self::of_shape(&[out_channels, in_channels, rows, columns], windows, std, builder)
    }

    /// A depthwise convolution over time and width, `[T, W, C]` → `[T', W', C]`.
    pub(crate) fn depthwise(
        channels: usize,
        windows: Windows,
        std: f64,
        builder: &ParameterBuilder,
    ) -> Result<Self> {
        let layer = Self::over_time_and_width([1, channels], windows, std, builder)?;
        Ok(Self { is_depthwise: true, ..layer })
    }

    /// A convolution with a weight of this shape.
    fn of_shape(
        shape: &[usize],
        windows: Windows,
        std: f64,
        builder: &ParameterBuilder,
    ) -> Result<Self> {
        Ok(Self {
            weight: builder.get("weight", shape, Init::Normal(std))?,
            bias: builder.get("bias", &shape[..1], Init::Zeros)?,
            windows,
            is_depthwise: false,
        })
    }

    /// Returns the output for packed sequences of these `lengths`, and the lengths of the output.
    ///
    /// # Errors
    /// See [`kernels::unfold`] and [`kernels::depthwise`].
    pub fn forward(&self, x: &Tensor, lengths: &[usize]) -> Result<(Tensor, Vec<usize>)> {
        let (weight, windows) = (self.weight.flatten_from(1)?, self.windows);
        let new_lengths = lengths.iter().map(|&length| windows.of_length(length)).collect();
        if self.is_depthwise {
            let output = kernels::depthwise(x, &weight, &self.bias, lengths, windows)?;
            return Ok((output, new_lengths));
        }
        let rows = kernels::unfold(x, lengths, windows)?;
        let output = kernels::linear(&rows, &weight, Some(&self.bias))?;
        let output = match *x.dims() {
            [_, width, _] => output.reshape(((), windows.of_width(width), self.bias.dim(0)?))?,
            _ => output,
        };
        Ok((output, new_lengths))
    }
}

/// A convolution with kernel size 1: a linear layer whose weight has the published shape of a
/// convolution.
#[derive(Debug, Clone)]
pub(crate) struct Pointwise {
    /// `[C_out, C, 1]`.
    weight: Tensor,
    /// `[C_out]`; `None` for a convolution without a bias.
    bias: Option<Tensor>,
}

impl Pointwise {
    /// A convolution of `C` input and `C_out` output channels. Without published weights, it is
    /// initialised as [`Linear::new`](super::Linear::new).
    pub(crate) fn new(
        in_channels: usize,
        out_channels: usize,
        std: f64,
        has_bias: bool,
        builder: &ParameterBuilder,
    ) -> Result<Self> {
        let weight = builder.get("weight", &[out_channels, in_channels, 1], Init::Normal(std))?;
        let bias = || builder.get("bias", &[out_channels], Init::Zeros);
        Ok(Self { weight, bias: has_bias.then(bias).transpose()? })
    }

    /// Applies the convolution: `[.., C]` → `[.., C_out]`.
    pub(crate) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        Ok(kernels::linear(x, &self.weight.squeeze(2)?, self.bias.as_ref())?)
    }

    /// Adds the convolution to a chain: `[.., C]` → `[.., C_out]`.
    pub(crate) fn append(&self, chain: &mut Chain, x: Value) -> Result<Value> {
        let weight = self.weight.squeeze(2)?;
        Ok(chain.stacked_linear(x, &[LinearParameters::new(&weight, self.bias.as_ref())]))
    }
}
