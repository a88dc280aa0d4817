//! The steps of several device kernels. On a GPU each is one CUDA kernel, or two.

use candle_core::{DType, Result, Tensor};

use super::super::activation::Activation;
use crate::compute::full_precision;

/// Joins matrices `[N_i, K]`, or vectors `[N_i]`, in this dtype: `[ΣN_i, K]`, or `[ΣN_i]`.
pub(in super::super) fn stacked(tensors: &[Tensor], dtype: DType) -> Result<Tensor> {
    match tensors {
        [tensor] => tensor.to_dtype(dtype),
        [first, rest @ ..] if rest.iter().all(|tensor| tensor.dtype() == first.dtype()) => {
            Tensor::cat(tensors, 0)?.to_dtype(dtype)
        }
        _ => {
            let tensors = tensors.iter().map(|tensor| tensor.to_dtype(dtype));
            Tensor::cat(&tensors.collect::<Result<Vec<_>>>()?, 0)
        }
    }
}

/// Adds a bias: `x` `[R, D]`, which must not be used afterwards, and an f32 `bias` `[D]` →
/// `[R, D]`.
pub(in super::super) fn add_bias(x: Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
    let Some(bias) = bias else { return Ok(x) };
    #[cfg(feature = "cuda")]
    if x.device().is_cuda() {
        crate::cuda::bias_activation(&x, Some(bias), None)?;
        return Ok(x);
    }
    x.broadcast_add(&bias.to_dtype(x.dtype())?)
}

/// Computes `x + bias` and `f(x + bias)`: `x` `[.., D]`, which must not be used afterwards if there
/// is a `bias` `[D]`.
pub(in super::super) fn add_bias_and_activate(
    x: Tensor,
    bias: Option<&Tensor>,
    f: Activation,
) -> Result<[Tensor; 2]> {
    #[cfg(feature = "cuda")]
    if x.device().is_cuda() {
        let y = crate::cuda::bias_activation(&x, bias, Some(f))?;
        return Ok([x, y]);
    }
    let x = add_bias(x, bias)?;
    let y = mapped(&x, |x| f.at(x).0, |x| f.at(x).0)?;
    Ok([x, y])
}

/// Returns the gradient of `x`, and its sum over the rows if `sums`: `x` and the gradient `dy` of
/// `f(x)` `[.., D]` → `[.., D]` and `[D]`.
pub(in super::super) fn activation_backward(
    x: &Tensor,
    dy: &Tensor,
    f: Activation,
    sums: bool,
) -> Result<(Tensor, Option<Tensor>)> {
    #[cfg(feature = "cuda")]
    if x.device().is_cuda() {
        return crate::cuda::activation_backward(x, dy, f, sums);
    }
    let dx = (mapped(x, |x| f.at(x).1, |x| f.at(x).1)? * dy)?;
    let sums = sums.then(|| column_sums(&dx)).transpose()?;
    Ok((dx, sums))
}

/// Sums over the rows, in f32: `[.., D]` → `[D]`.
pub(in super::super) fn column_sums(x: &Tensor) -> Result<Tensor> {
    #[cfg(feature = "cuda")]
    if x.device().is_cuda() {
        return crate::cuda::column_sums(x);
    }
    full_precision(x)?.reshape(((), x.dim(candle_core::D::Minus1)?))?.sum(0)
}

/// Applies a function to each element on the CPU: `full` in f32, `double` to a tensor of f64.
fn mapped(x: &Tensor, full: impl Fn(f32) -> f32, double: impl Fn(f64) -> f64) -> Result<Tensor> {
    if x.dtype() == DType::F64 {
        let values = x.flatten_all()?.to_vec1()?;
        return Tensor::from_iter(values.into_iter().map(double), x.device())?.reshape(x.shape());
    }
    let values = crate::compute::to_host(x)?;
    let mapped = Tensor::from_iter(values.into_iter().map(full), x.device())?;
    mapped.reshape(x.shape())?.to_dtype(x.dtype())
}
