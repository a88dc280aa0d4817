//! Softmax over the last dimension, in f32.

use candle_core::cuda_backend::WrapErr;
use candle_core::cuda_backend::cudarc::driver::PushKernelArg;
use candle_core::{D, DType, Result, Tensor};

use super::{address, by_row, device, empty, launch};

/// Computes the softmax: `[.., N]` → `[.., N]`.
pub(crate) fn softmax(x: &Tensor) -> Result<Tensor> {
    let (device, width) = (device(x)?, x.dim(D::Minus1)?.max(1));
    let y = empty(device, x.shape(), DType::F32)?;
    let config = by_row(x.elem_count() / width, width);
    launch!(device, "softmax", config, address(x)?, address(&y)?, width as u32);
    Ok(y)
}

/// Returns the gradient of the input, given the softmax `y` and its gradient.
pub(crate) fn softmax_backward(y: &Tensor, gradient: &Tensor) -> Result<Tensor> {
    let (device, width) = (device(y)?, y.dim(D::Minus1)?.max(1));
    let dx = empty(device, y.shape(), DType::F32)?;
    launch!(
        device,
        "softmax_backward",
        by_row(y.elem_count() / width, width),
        address(y)?,
        address(gradient)?,
        address(&dx)?,
        width as u32
    );
    Ok(dx)
}
