//! Layers: each holds its parameters, under their published names, and applies them with a fused
//! kernel.

use candle_core::Tensor;

use crate::error::{ModelError, Result};
use crate::kernels::{self, Norm, Segments, Windows};
use crate::params::{Init, ParameterBuilder};

/// The keys and values of an encoder's output, for a decoder's cross-attention.
#[derive(Clone, Copy)]
pub struct CrossKeyValues<'a> {
    /// `[T_k, W]`, where `W` is the width of all heads.
    pub keys: &'a Tensor,
    /// The same shape as the keys.
    pub values: &'a Tensor,
    /// For each sequence of the decoder: its query rows, and the key rows that they attend to.
    pub segments: &'a Segments,
}

/// A linear layer `x Wᵀ + b`.
#[derive(Debug, Clone)]
pub struct Linear {
    /// `[D_out, D_in]`.
    pub weight: Tensor,
    /// `[D_out]`; `None` for a layer without a bias.
    pub bias: Option<Tensor>,
}

impl Linear {
    /// A linear layer `[.., D_in]` → `[.., D_out]` with a bias. Without published weights, the
    /// weight is normal with standard deviation `std`, and the bias is zero.
    pub fn new(d_in: usize, d_out: usize, std: f64, builder: &ParameterBuilder) -> Result<Self> {
        let weight = builder.get("weight", &[d_out, d_in], Init::Normal(std))?;
        let bias = Some(builder.get("bias", &[d_out], Init::Zeros)?);
        Ok(Self { weight, bias })
    }

    /// A linear layer `[.., D_in]` → `[.., D_out]` without a bias. The weight is initialised as in
    /// [`Linear::new`].
    pub(crate) fn without_bias(
        d_in: usize,
        d_out: usize,
        std: f64,
        builder: &ParameterBuilder,
    ) -> Result<Self> {
        let weight = builder.get("weight", &[d_out, d_in], Init::Normal(std))?;
        Ok(Self { weight, bias: None })
    }

    /// Applies the layer: `[.., D_in]` → `[.., D_out]`.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        Ok(kernels::linear(x, &self.weight, self.bias.as_ref())?)
    }

    /// Returns the weight `[D_out, D_in]` and the bias `[D_out]`.
    ///
    /// # Errors
    /// [`ModelError::BadInput`] if the layer has no bias.
    pub(crate) fn weight_and_bias(&self) -> Result<(&Tensor, &Tensor)> {
        match &self.bias {
            Some(bias) => Ok((&self.weight, bias)),
            None => Err(ModelError::BadInput("this linear layer needs a bias".into())),
        }
    }

    /// Returns the weight and the bias, as [`kernels::stacked_linear`] takes them.
    pub fn parameters(&self) -> (&Tensor, Option<&Tensor>) {
        (&self.weight, self.bias.as_ref())
    }
}

/// A convolution over packed sequences, computed as a linear layer on the unfolded windows.
#[derive(Debug, Clone)]
pub struct Convolution {
    /// `[C_out, C, rows]` or `[C_out, C, rows, columns]`.
    weight: Tensor,
    /// `[C_out]`.
    bias: Tensor,
    windows: Windows,
}

impl Convolution {
    /// A convolution over time, with `C` input and `C_out` output channels: `[T, C]` →
    /// `[T', C_out]`. Without published weights, it is initialised as in [`Linear::new`].
    pub fn over_time(
        in_channels: usize,
        out_channels: usize,
        windows: Windows,
        std: f64,
        builder: &ParameterBuilder,
    ) -> Result<Self> {
        Self::of_shape(&[out_channels, in_channels, windows.size[0]], windows, std, builder)
    }

    /// A convolution over time and width, `[T, W, C]` → `[T', W', C_out]`.
    pub(crate) fn over_time_and_width(
        in_channels: usize,
        out_channels: usize,
        windows: Windows,
        std: f64,
        builder: &ParameterBuilder,
    ) -> Result<Self> {
        let [rows, columns] = windows.size;
        Self::of_shape(&[out_channels, in_channels, rows, columns], windows, std, builder)
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
        })
    }

    /// Returns the output for packed sequences of these `lengths`, and the lengths of the output.
    ///
    /// # Errors
    /// See [`kernels::unfold`].
    pub fn forward(&self, x: &Tensor, lengths: &[usize]) -> Result<(Tensor, Vec<usize>)> {
        let rows = kernels::unfold(x, lengths, self.windows)?;
        let output = kernels::linear(&rows, &self.weight.flatten_from(1)?, Some(&self.bias))?;
        let lengths: Vec<usize> =
            lengths.iter().map(|&length| self.windows.of_length(length)).collect();
        let output = match *x.dims() {
            [_, width, _] => {
                let shape = (
                    lengths.iter().sum::<usize>(),
                    self.windows.of_width(width),
                    self.bias.dim(0)?,
                );
                output.reshape(shape)?
            }
            _ => output,
        };
        Ok((output, lengths))
    }
}

/// RMS norm over the last dimension: a layer norm without mean subtraction and bias.
#[derive(Debug, Clone)]
pub struct RmsNorm {
    weight: Tensor,
    epsilon: f32,
}

impl RmsNorm {
    /// A norm over `size` channels `D`. The initial scale is 1.
    pub fn new(size: usize, epsilon: f64, builder: &ParameterBuilder) -> Result<Self> {
        let weight = builder.get("weight", &[size], Init::Ones)?;
        Ok(Self { weight, epsilon: epsilon as f32 })
    }

    /// Returns the norm as a part of a [`kernels::Chain`].
    pub fn as_norm(&self) -> Norm<'_> {
        Norm { weight: &self.weight, bias: None, epsilon: self.epsilon }
    }

    /// Applies the norm: `[.., D]` → `[.., D]`.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        Ok(kernels::norm(x, self.as_norm())?)
    }
}

/// Layer norm over the last dimension.
#[derive(Debug, Clone)]
pub struct LayerNorm {
    weight: Tensor,
    bias: Tensor,
    epsilon: f32,
}

impl LayerNorm {
    /// A norm over `size` channels `D`. The initial scale is 1, the initial shift 0.
    pub fn new(size: usize, epsilon: f64, builder: &ParameterBuilder) -> Result<Self> {
        Ok(Self {
            weight: builder.get("weight", &[size], Init::Ones)?,
            bias: builder.get("bias", &[size], Init::Zeros)?,
            epsilon: epsilon as f32,
        })
    }

    /// Applies the norm: `[.., D]` → `[.., D]`.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        Ok(kernels::norm(x, self.as_norm())?)
    }

    /// Returns the norm as a part of a [`kernels::Chain`].
    pub fn as_norm(&self) -> Norm<'_> {
        Norm { weight: &self.weight, bias: Some(&self.bias), epsilon: self.epsilon }
    }
}
