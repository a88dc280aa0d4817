//! Layer norm and RMS norm.

use candle_core::Tensor;

use crate::error::Result;
use crate::kernels::{self, Norm};
use crate::params::{Init, ParameterBuilder};

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
