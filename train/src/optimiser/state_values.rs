//! One state tensor of an update rule, on the CPU or on the GPU of its parameter.

use std::borrow::Cow;

use candle_core::Tensor;
use engram_models::ModelError;
use engram_models::compute::to_host;

use crate::error::Result;

/// The values of one state tensor.
pub(crate) enum StateValues {
    /// On the CPU, in row-major order.
    Host(Vec<f32>),
    /// On the GPU of the parameter, in the shape of the state tensor.
    OnGpu(Tensor),
}

impl StateValues {
    /// `count` zeros.
    pub(crate) fn zeros(count: usize) -> Self {
        Self::Host(vec![0.0; count])
    }

    /// The values on the CPU. Moves them there if they are on a GPU.
    pub(crate) fn host(&mut self) -> Result<&mut [f32]> {
        if let Self::OnGpu(tensor) = self {
            *self = Self::Host(to_host(tensor).map_err(ModelError::from)?);
        }
        match self {
            Self::Host(values) => Ok(values),
            Self::OnGpu(_) => Ok(&mut []),
        }
    }

    /// The values as a tensor of this shape on the device of `parameter`. Moves them there at the
    /// first call.
    pub(crate) fn tensor(
        &mut self,
        shape: &[usize],
        parameter: &Tensor,
    ) -> candle_core::Result<&mut Tensor> {
        if let Self::Host(values) = self {
            *self = Self::OnGpu(Tensor::from_slice(values, shape, parameter.device())?);
        }
        match self {
            Self::OnGpu(tensor) => Ok(tensor),
            Self::Host(_) => candle_core::bail!("the state is not on a GPU"),
        }
    }

    /// Moves the values towards `x` on its device: `decay · values + (1 − decay) · x`. Returns the
    /// new values.
    pub(crate) fn average(&mut self, x: &Tensor, decay: f64) -> candle_core::Result<Tensor> {
        let values = self.tensor(x.dims(), x)?;
        *values = ((&*values * decay)? + (x * (1.0 - decay))?)?;
        Ok(values.clone())
    }

    /// The values on the CPU; copied only from a GPU.
    pub(crate) fn to_host(&self) -> Result<Cow<'_, [f32]>> {
        match self {
            Self::Host(values) => Ok(Cow::from(values)),
            Self::OnGpu(tensor) => Ok(Cow::from(to_host(tensor).map_err(ModelError::from)?)),
        }
    }
}
