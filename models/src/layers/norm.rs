//! Layer norm and RMS norm.

use candle_core::Tensor;

use crate::error::Result;
use crate::kernels::{self, Norm};
use crate::params::{Init, ParameterBuilder};

/// Layer norm or RMS norm over the last dimension.
#[derive(Debug, Clone)]
pub struct LayerNorm {
    weight: Tensor,
    /// `None` for an RMS norm, which does not subtract the mean.
    bias: Option<Tensor>,
    epsilon: f32,
}

impl LayerNorm {
    /// A layer norm over `size` channels `D`. The initial scale is 1, the initial shift 0.
    pub fn new(size: usize, epsilon: f64, builder: &ParameterBuilder) -> Result<Self> {
        let norm = Self::rms(size, epsilon, builder)?;
        Ok(Self { bias: Some(builder.get("bias", &[size], Init::Zeros)?), ..norm })
    }

    /// A layer norm over `size` channels `D` that does not shift. The initial scale is 1.
    pub(crate) fn without_bias(
        size: usize,
        epsilon: f64,
        builder: &ParameterBuilder,
    ) -> Result<Self> {
        let norm = Self::rms(size, epsilon, builder)?;
        Ok(Self { bias: Some(norm.weight.zeros_like()?), ..norm })
    }

    /// An RMS norm over `size` channels `D`. The initial scale is 1.
    pub fn rms(size: usize, epsilon: f64, builder: &ParameterBuilder) -> Result<Self> {
        let weight = builder.get("weight", &[size], Init::Ones)?;
        Ok(Self { weight, bias: None, epsilon: epsilon as f32 })
    }

    /// Applies the norm: `[.., D]` → `[.., D]`.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        Ok(kernels::norm(x, self.as_norm())?)
    }

    /// Returns the norm as a part of a [`kernels::Chain`].
    pub fn as_norm(&self) -> Norm<'_> {
        Norm { weight: &self.weight, bias: self.bias.as_ref(), epsilon: self.epsilon }
    }
}
