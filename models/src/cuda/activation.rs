//! Biases, activations and sums over rows.

use candle_core::cuda_backend::WrapErr;
use candle_core::cuda_backend::cudarc::driver::PushKernelArg;
use candle_core::{D, DType, Result, Tensor};

use super::{address, address_or_null, by_element, device, empty, grid, launch, named};
use crate::kernels::Activation;

/// The columns and the rows of a block that sums over rows.
const COLUMNS: usize = 128;
const ROWS: usize = 64;

/// The number of an activation in `models/cuda/activation.cu`.
fn kind(f: Activation) -> u32 {
    match f {
        Activation::Gelu => 1,
        Activation::GeluTanh => 2,
        Activation::QuickGelu => 3,
        Activation::Relu => 4,
        Activation::Silu => 5,
        Activation::Tanh => 6,
        Activation::Sigmoid => 7,
    }
}

/// Adds an f32 `bias` `[D]` to `x` `[.., D]` of `T` in place, and returns `f(x)`. Without `f`,
/// returns `x`.
pub(crate) fn bias_activation(
    x: &Tensor,
    bias: Option<&Tensor>,
    f: Option<Activation>,
) -> Result<Tensor> {
    let (device, count) = (device(x)?, x.elem_count());
    let y = f.map(|_| empty(device, x.shape(), x.dtype())).transpose()?;
    launch!(
        device,
        &named("bias_activation", x.dtype())?,
        by_element(count),
        address(x)?,
        address_or_null(bias)?,
        address_or_null(y.as_ref())?,
        count as u64,
        x.dim(D::Minus1)? as u32,
        f.map_or(0, kind)
    );
    Ok(y.unwrap_or_else(|| x.clone()))
}

/// Returns the gradient of `x`, given the gradient `dy` of `f(x)` (both `[.., D]` of `T`), and its
/// sums over the rows if `sums`: f32 `[D]`.
pub(crate) fn activation_backward(
    x: &Tensor,
    dy: &Tensor,
    f: Activation,
    sums: bool,
) -> Result<(Tensor, Option<Tensor>)> {
    let dx = empty(device(x)?, x.shape(), x.dtype())?;
    let sums = backward(Some(x), dy, Some(&dx), kind(f), sums)?;
    Ok((dx, sums))
}

/// Sums over the rows: `[.., D]` of `T` → f32 `[D]`.
pub(crate) fn column_sums(x: &Tensor) -> Result<Tensor> {
    match backward(None, x, None, 0, true)? {
        Some(sums) => Ok(sums),
        None => candle_core::bail!("column sums: no result"),
    }
}

fn backward(
    x: Option<&Tensor>,
    dy: &Tensor,
    dx: Option<&Tensor>,
    kind: u32,
    sums: bool,
) -> Result<Option<Tensor>> {
    let (device, width) = (device(dy)?, dy.dim(D::Minus1)?);
    let rows = dy.elem_count() / width;
    let row_blocks = rows.div_ceil(ROWS).max(1);
    let partial = sums.then(|| empty(device, (row_blocks, width), DType::F32)).transpose()?;
    launch!(
        device,
        &named("activation_backward", dy.dtype())?,
        grid(row_blocks * width.div_ceil(COLUMNS), COLUMNS),
        address_or_null(x)?,
        address(dy)?,
        address_or_null(dx)?,
        address_or_null(partial.as_ref())?,
        rows as u32,
        width as u32,
        ROWS as u32,
        kind
    );
    partial.map(|partial| sum_partials(&partial)).transpose()
}

/// Sums partial sums over their first dimension, in order: f32 `[N, D]` → `[D]`.
pub(super) fn sum_partials(partial: &Tensor) -> Result<Tensor> {
    let (blocks, columns) = partial.dims2()?;
    let device = device(partial)?;
    let sums = empty(device, columns, DType::F32)?;
    launch!(
        device,
        "sum_partials",
        grid(columns.div_ceil(COLUMNS), COLUMNS),
        address(partial)?,
        address(&sums)?,
        blocks as u32,
        columns as u32
    );
    Ok(sums)
}
