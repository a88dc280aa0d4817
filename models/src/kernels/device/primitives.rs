//! The steps of several device kernels. On a GPU each is one CUDA kernel, or two.

use candle_core::{DType, Tensor};

use super::super::activation::Activation;

/// Joins matrices `[N_i, K]`, or vectors `[N_i]`, in this dtype: `[ΣN_i, K]`, or `[ΣN_i]`.
pub(in super::super) fn stacked(tensors: &[Tensor], dtype: DType) -> candle_core::Result<Tensor> {
    match tensors {
        [tensor] => tensor.to_dtype(dtype),
        [first, rest @ ..] if rest.iter().all(|tensor| tensor.dtype() == first.dtype()) => {
            Tensor::cat(tensors, 0)?.to_dtype(dtype)
        }
        _ => {
            let tensors = tensors.iter().map(|tensor| tensor.to_dtype(dtype));
            Tensor::cat(&tensors.collect::<Result<Vec<_>, _>>()?, 0)
        }
    }
}

/// Adds a bias: `x` `[R, D]`, which must not be used afterwards, and an f32 `bias` `[D]` →
/// `[R, D]`.
pub(in super::super) fn add_bias(x: Tensor, bias: Option<&Tensor>) -> candle_core::Result<Tensor> {
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
pub(in super::super) fn bias_activation(
    x: Tensor,
    bias: Option<&Tensor>,
    f: Activation,
) -> candle_core::Result<[Tensor; 2]> {
    #[cfg(feature = "cuda")]
    if x.device().is_cuda() {
        let y = crate::cuda::bias_activation(&x, bias, Some(f))?;
        return Ok([x, y]);
    }
    let x = add_bias(x, bias)?;
    let y = mapped(&x, |x| f.at(x).0)?;
    Ok([x, y])
}

/// Returns the gradient of `x`, and its sum over the rows if `sums`: `x` and the gradient `dy` of
/// `f(x)` `[.., D]` → `[.., D]` and `[D]`.
pub(in super::super) fn activation_backward(
    x: &Tensor,
    dy: &Tensor,
    f: Activation,
    sums: bool,
) -> candle_core::Result<(Tensor, Option<Tensor>)> {
    #[cfg(feature = "cuda")]
    if x.device().is_cuda() {
        return crate::cuda::activation_backward(x, dy, f, sums);
    }
    let dx = (mapped(x, |x| f.at(x).1)? * dy)?;
    let sums = sums.then(|| column_sums(&dx)).transpose()?;
    Ok((dx, sums))
}

/// Sums over the rows, in f32: `[.., D]` → `[D]`.
pub(in super::super) fn column_sums(x: &Tensor) -> candle_core::Result<Tensor> {
    #[cfg(feature = "cuda")]
    if x.device().is_cuda() {
        return crate::cuda::column_sums(x);
    }
    x.to_dtype(DType::F32)?.reshape(((), x.dim(candle_core::D::Minus1)?))?.sum(0)
}

/// Applies `f` to each element on the CPU.
fn mapped(x: &Tensor, f: impl Fn(f32) -> f32) -> candle_core::Result<Tensor> {
    let mut values = crate::compute::to_host(x)?;
    values.iter_mut().for_each(|value| *value = f(*value));
    Tensor::from_vec(values, x.shape(), x.device())?.to_dtype(x.dtype())
}
