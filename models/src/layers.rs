//! Layers: parameters under their published names, and the fused operation that uses them.

use candle_core::Tensor;

use crate::error::{ModelError, Result};
use crate::kernels::{self, Norm};
use crate::params::{Init, ParameterBuilder};

/// A linear map `x Wᵀ + b` (`weight` `[D_out, D_in]`, `bias` `[D_out]`).
#[derive(Debug, Clone)]
pub struct Linear {
    /// `[D_out, D_in]`.
    pub weight: Tensor,
    /// `[D_out]`.
    pub bias: Option<Tensor>,
}

impl Linear {
    /// A map `[.., D_in]` → `[.., D_out]` with a bias; a fresh weight is normal with standard
    /// deviation `std`, the bias zero.
    pub fn new(d_in: usize, d_out: usize, std: f64, builder: &ParameterBuilder) -> Result<Self> {
        let weight = builder.get("weight", &[d_out, d_in], Init::Normal(std))?;
        let bias = Some(builder.get("bias", &[d_out], Init::Zeros)?);
        Ok(Self { weight, bias })
    }

    /// A map `[.., D_in]` → `[.., D_out]` without a bias; a fresh weight as in [`Linear::new`].
    pub fn without_bias(
        d_in: usize,
        d_out: usize,
        std: f64,
        builder: &ParameterBuilder,
    ) -> Result<Self> {
        let weight = builder.get("weight", &[d_out, d_in], Init::Normal(std))?;
        Ok(Self { weight, bias: None })
    }

    /// `[.., D_in]` → `[.., D_out]`.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        Ok(kernels::linear(x, &self.weight, self.bias.as_ref())?)
    }

    /// Weight `[D_out, D_in]` and bias `[D_out]` of a map that has both.
    ///
    /// # Errors
    /// [`ModelError::BadInput`] without a bias.
    pub fn with_bias(&self) -> Result<(&Tensor, &Tensor)> {
        match &self.bias {
            Some(bias) => Ok((&self.weight, bias)),
            None => Err(ModelError::BadInput("a feed-forward block needs biases".into())),
        }
    }

    /// The map as a part of [`kernels::stacked_linear`].
    pub fn as_part(&self) -> (&Tensor, Option<&Tensor>) {
        (&self.weight, self.bias.as_ref())
    }
}

/// A norm by the root mean square over the last dimension: no mean is subtracted, no bias added.
#[derive(Debug, Clone)]
pub struct RmsNorm {
    weight: Tensor,
    epsilon: f32,
}

impl RmsNorm {
    /// A norm of `size` channels `D`; a fresh one has scale 1.
    pub fn new(size: usize, epsilon: f64, builder: &ParameterBuilder) -> Result<Self> {
        let weight = builder.get("weight", &[size], Init::Ones)?;
        Ok(Self { weight, epsilon: epsilon as f32 })
    }

    /// The norm as a part of a [`kernels::Chain`].
    pub fn as_norm(&self) -> Norm<'_> {
        Norm { weight: &self.weight, bias: None, epsilon: self.epsilon }
    }

    /// `[.., D]` → `[.., D]`.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        Ok(kernels::norm(x, self.as_norm())?)
    }
}

/// A layer norm over the last dimension.
#[derive(Debug, Clone)]
pub struct LayerNorm {
    weight: Tensor,
    bias: Tensor,
    epsilon: f32,
}

impl LayerNorm {
    /// A norm of `size` channels `D`; a fresh one has scale 1 and shift 0.
    pub fn new(size: usize, epsilon: f64, builder: &ParameterBuilder) -> Result<Self> {
        Ok(Self {
            weight: builder.get("weight", &[size], Init::Ones)?,
            bias: builder.get("bias", &[size], Init::Zeros)?,
            epsilon: epsilon as f32,
        })
    }

    /// `[.., D]` → `[.., D]`.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        Ok(kernels::norm(x, self.as_norm())?)
    }

    /// The norm as a part of a [`kernels::Chain`].
    pub fn as_norm(&self) -> Norm<'_> {
        Norm { weight: &self.weight, bias: Some(&self.bias), epsilon: self.epsilon }
    }
}
