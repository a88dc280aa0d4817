//! The linear layer.

use candle_core::{DType, Device, Tensor};

use super::Branch;
use crate::error::Result;
use crate::kernels::{self, LinearParameters, Mode, QuantisedMatrix, Weight};
use crate::params::{Init, ParameterBuilder};

/// A linear layer `x Wᵀ + b`. It has a low-rank branch if a pattern of
/// [`ParameterBuilder::with_low_rank`] matches its path, and a quantised weight if a pattern of
/// [`ParameterBuilder::with_quantised`] does.
#[derive(Debug, Clone)]
pub struct Linear {
    /// `[D_out, D_in]`.
    weight: LinearWeight,
    /// `[D_out]`; `None` for a layer without a bias.
    bias: Option<Tensor>,
    low_rank: Option<Branch>,
}

/// The weight of a linear layer.
#[derive(Debug, Clone)]
pub(crate) enum LinearWeight {
    Dense(Tensor),
    /// A frozen matrix in 4 bits, and the device of the model.
    Quantised {
        matrix: QuantisedMatrix,
        device: Device,
    },
}

impl Linear {
    /// A linear layer `[.., D_in]` → `[.., D_out]` with a bias. Without published weights, the
    /// weight is normal with standard deviation `std`, and the bias is zero.
    pub fn new(d_in: usize, d_out: usize, std: f64, builder: &ParameterBuilder) -> Result<Self> {
        Self::initialised(d_in, d_out, Init::Normal(std), builder)
    }

    /// A linear layer `[.., D_in]` → `[.., D_out]` with a bias. Without published weights, the
    /// weight is initialised by `init`, and the bias is zero.
    pub(crate) fn initialised(
        d_in: usize,
        d_out: usize,
        init: Init,
        builder: &ParameterBuilder,
    ) -> Result<Self> {
        let weight = builder.linear_weight(d_out, d_in, init)?;
        let bias = Some(builder.get("bias", &[d_out], Init::Zeros)?);
        Ok(Self { weight, bias, low_rank: Branch::new(d_in, d_out, builder)? })
    }

    /// A linear layer `[.., D_in]` → `[.., D_out]` without a bias. The weight is initialised as in
    /// [`Linear::new`].
    pub(crate) fn without_bias(
        d_in: usize,
        d_out: usize,
        std: f64,
        builder: &ParameterBuilder,
    ) -> Result<Self> {
        let weight = builder.linear_weight(d_out, d_in, Init::Normal(std))?;
        Ok(Self { weight, bias: None, low_rank: Branch::new(d_in, d_out, builder)? })
    }

    /// Returns this layer with another weight `[D_out, D_in]`.
    #[cfg(test)]
    pub(crate) fn with_weight(&self, weight: Tensor) -> Self {
        Self { weight: LinearWeight::Dense(weight), ..self.clone() }
    }

    /// Returns this layer with another bias `[D_out]`.
    pub(crate) fn with_bias(&self, bias: Tensor) -> Self {
        Self { bias: Some(bias), ..self.clone() }
    }

    /// Returns this layer with a bias of zeros that is not a parameter.
    pub(crate) fn with_zero_bias(&self) -> Result<Self> {
        let zeros = match &self.weight {
            LinearWeight::Dense(weight) => {
                Tensor::zeros(weight.dim(0)?, weight.dtype(), weight.device())?
            }
            LinearWeight::Quantised { matrix, device } => {
                Tensor::zeros(matrix.dims()[0], DType::F32, device)?
            }
        };
        Ok(self.with_bias(zeros))
    }

    /// The width `D_in` of the input.
    pub(crate) fn d_in(&self) -> Result<usize> {
        Ok(match &self.weight {
            LinearWeight::Dense(weight) => weight.dim(1)?,
            LinearWeight::Quantised { matrix, .. } => matrix.dims()[1],
        })
    }

    /// The bias `[D_out]` in full precision; `None` for a layer without a bias.
    pub(crate) fn bias(&self) -> Option<&Tensor> {
        self.bias.as_ref()
    }

    /// Applies the layer: `[.., D_in]` → `[.., D_out]`. Only a low-rank branch with dropout depends
    /// on the mode.
    pub fn forward(&self, x: &Tensor, mode: &Mode) -> Result<Tensor> {
        Ok(kernels::stacked_linear(x, &[self.parameters(mode)])?)
    }

    /// Returns the parameters, as kernels and chains take them. A low-rank branch with dropout
    /// draws the next mask of `mode`.
    pub fn parameters(&self, mode: &Mode) -> LinearParameters<'_> {
        let low_rank = self.low_rank.as_ref().map(|branch| branch.parameters(mode));
        let weight = match &self.weight {
            LinearWeight::Dense(weight) => Weight::Dense(weight),
            LinearWeight::Quantised { matrix, .. } => Weight::Quantised(matrix),
        };
        LinearParameters { weight, bias: self.bias.as_ref(), low_rank }
    }
}
