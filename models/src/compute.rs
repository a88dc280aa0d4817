//! The device and the dtype of a model's computation.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use candle_core::{DType, Device, Tensor};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::{ModelError, Result};

/// Where a model computes, and with which precision.
///
/// On the CPU in f32, models use the fused kernels. On other devices and in other dtypes, they use
/// candle operations and, on a GPU, a few CUDA kernels.
///
/// In half precision, trainable parameters and their gradients stay in f32; a kernel converts them
/// to the dtype of its input. Norms, softmax, pooling and losses compute in f32.
#[derive(Debug, Clone)]
pub struct Compute {
    /// The device of parameters and activations.
    pub device: Device,
    /// The dtype of activations.
    pub dtype: DType,
}

/// The precision of activations.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// Single precision.
    #[default]
    F32,
    /// bfloat16: the range of f32, with 8 bits of precision.
    Bf16,
}

impl Precision {
    /// Returns the precision's name in recipes.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
        }
    }
}

impl Compute {
    /// The CPU in f32.
    pub fn cpu() -> Self {
        Self { device: Device::Cpu, dtype: DType::F32 }
    }

    /// Opens the device `cpu`, `cuda` or `cuda:N`, for computation with this precision.
    ///
    /// # Errors
    /// [`ModelError::BadConfig`] for another device, if the program is built without CUDA, or if
    /// the machine does not have the device.
    pub fn open(device: &str, precision: Precision) -> Result<Self> {
        let dtype = match precision {
            Precision::F32 => DType::F32,
            Precision::Bf16 => DType::BF16,
        };
        Ok(Self { device: open_device(device)?, dtype })
    }

    /// Converts a model's input, of any shape, to activations: on the device, in the dtype. Both
    /// conversions are differentiable.
    pub fn activations(&self, x: &Tensor) -> Result<Tensor> {
        Ok(x.to_device(&self.device)?.to_dtype(self.dtype)?)
    }

    /// The dtype of a parameter of `rank` dimensions. In half precision, only frozen matrices and
    /// tables are stored in the dtype of activations.
    pub(crate) fn parameter_dtype(&self, rank: usize, is_trainable: bool) -> DType {
        match self.dtype {
            DType::F16 | DType::BF16 if is_trainable || rank < 2 => DType::F32,
            dtype => dtype,
        }
    }
}

fn open_device(name: &str) -> Result<Device> {
    let bad = |reason: String| ModelError::BadConfig { what: format!("device `{name}`"), reason };
    let index = match name {
        "cpu" => return Ok(Device::Cpu),
        "cuda" => "0",
        _ => name
            .strip_prefix("cuda:")
            .ok_or_else(|| bad("a device is `cpu`, `cuda` or `cuda:N`".into()))?,
    };
    let index: usize =
        index.parse().map_err(|_| bad(format!("`{index}` is not the number of a GPU")))?;
    if !candle_core::utils::cuda_is_available() {
        let reason = "this program is built without CUDA; use `cpu`, or build it with the feature \
                      `cuda` (tests/gpu/build.sh shows how)";
        return Err(bad(reason.into()));
    }
    opened_gpu(index).map_err(|error: candle_core::Error| {
        let error = error.to_string();
        let reason = error.lines().next().unwrap_or_default();
        bad(format!("the device cannot be opened ({reason}); `nvidia-smi -L` lists the GPUs"))
    })
}

/// Opens a GPU once: candle treats two openings of a GPU as different devices.
fn opened_gpu(index: usize) -> candle_core::Result<Device> {
    static OPENED: Mutex<BTreeMap<usize, Device>> = Mutex::new(BTreeMap::new());
    let mut opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(device) = opened.get(&index) {
        return Ok(device.clone());
    }
    let device = Device::new_cuda(index)?;
    #[cfg(feature = "cuda")]
    if let Device::Cuda(device) = &device {
        crate::cuda::keep_freed_memory(device)?;
    }
    opened.insert(index, device.clone());
    Ok(device)
}

/// Converts half precision to f32; other tensors are returned unchanged.
pub(crate) fn full_precision(x: &Tensor) -> candle_core::Result<Tensor> {
    match x.dtype() {
        DType::F16 | DType::BF16 => x.to_dtype(DType::F32),
        _ => Ok(x.clone()),
    }
}

/// Copies a tensor of any shape and dtype to the host, as f32 in row-major order.
pub fn to_host(x: &Tensor) -> candle_core::Result<Vec<f32>> {
    x.to_dtype(DType::F32)?.flatten_all()?.to_vec1()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_that_do_not_exist_are_refused_with_a_remedy() {
        let error = |device| Compute::open(device, Precision::F32).unwrap_err().to_string();
        assert!(error("gpu").contains("`cpu`, `cuda` or `cuda:N`"));
        assert!(error("cuda:first").contains("`first`"));
        if !candle_core::utils::cuda_is_available() {
            assert!(error("cuda:0").contains("feature `cuda`"));
        }
    }

    #[test]
    fn half_precision_keeps_trainable_parameters_and_vectors_in_f32() {
        let half = Compute { dtype: DType::BF16, ..Compute::cpu() };
        assert_eq!(half.parameter_dtype(2, true), DType::F32);
        assert_eq!(half.parameter_dtype(1, false), DType::F32);
        assert_eq!(half.parameter_dtype(2, false), DType::BF16);
        assert_eq!(Compute::cpu().parameter_dtype(2, false), DType::F32);
    }
}
