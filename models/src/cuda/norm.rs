//! Layer norm and RMS norm, after dropout and the residual sum.

use candle_core::cuda_backend::WrapErr;
use candle_core::cuda_backend::cudarc::driver::PushKernelArg;
use candle_core::{D, DType, Result, Tensor};

use super::activation::sum_partials;
use super::{Mask, address, address_or_null, by_row, device, empty, launch, named};
use crate::kernels::Dropout;

/// The rows of a block that sums the gradients of parameters.
const ROWS: usize = 32;

/// The rows to be normalised, `residual + dropout(x)`: tensors `[.., D]` of `T`.
#[derive(Clone, Copy)]
pub(crate) struct Sums<'a> {
    pub x: &'a Tensor,
    pub residual: Option<&'a Tensor>,
    pub mask: Option<Dropout>,
}

impl Sums<'_> {
    /// Returns the number of rows and their width.
    fn sizes(&self) -> Result<(usize, usize)> {
        let width = self.x.dim(D::Minus1)?.max(1);
        Ok((self.x.elem_count() / width, width))
    }
}

/// Normalises rows: layer norm with a bias, RMS norm without; f32 `weight` and `bias` `[D]` →
/// `[.., D]` of `T`, and the statistics `[rows, 2]`.
pub(crate) fn norm(
    sums: Sums<'_>,
    weight: &Tensor,
    bias: Option<&Tensor>,
    epsilon: f32,
) -> Result<(Tensor, Tensor)> {
    let (device, x, (rows, width)) = (device(sums.x)?, sums.x, sums.sizes()?);
    let y = empty(device, x.shape(), x.dtype())?;
    let statistics = empty(device, (rows, 2), DType::F32)?;
    launch!(
        device,
        &named("norm_forward", x.dtype())?,
        by_row(rows, width),
        address(x)?,
        address_or_null(sums.residual)?,
        Mask::from(sums.mask),
        address(weight)?,
        address_or_null(bias)?,
        address(&y)?,
        address(&statistics)?,
        width as u32,
        epsilon
    );
    Ok((y, statistics))
}

/// Returns the gradients of `x` and of the residual, if `wanted`.
pub(crate) fn norm_backward(
    sums: Sums<'_>,
    weight: &Tensor,
    gradient: &Tensor,
    statistics: &Tensor,
    centred: bool,
    wanted: [bool; 2],
) -> Result<[Option<Tensor>; 2]> {
    let (device, x, (rows, width)) = (device(sums.x)?, sums.x, sums.sizes()?);
    // Without dropout, both gradients are equal.
    let shared = wanted == [true; 2] && sums.mask.is_none();
    let output = |wanted: bool| wanted.then(|| empty(device, x.shape(), x.dtype())).transpose();
    let (dx, dresidual) = (output(wanted[0] && !shared)?, output(wanted[1])?);
    if dx.is_some() || dresidual.is_some() {
        launch!(
            device,
            &named("norm_backward", x.dtype())?,
            by_row(rows, width),
            address(x)?,
            address_or_null(sums.residual)?,
            Mask::from(sums.mask),
            address(weight)?,
            address(gradient)?,
            address(statistics)?,
            address_or_null(dx.as_ref())?,
            address_or_null(dresidual.as_ref())?,
            width as u32,
            u32::from(centred)
        );
    }
    Ok(if shared { [dresidual.clone(), dresidual] } else { [dx, dresidual] })
}

/// Returns the gradients of weight and bias, f32 `[D]`.
pub(crate) fn norm_parameters_backward(
    sums: Sums<'_>,
    gradient: &Tensor,
    statistics: &Tensor,
) -> Result<[Tensor; 2]> {
    let (device, x, (rows, width)) = (device(sums.x)?, sums.x, sums.sizes()?);
    let blocks = rows.div_ceil(ROWS).max(1);
    let partial = empty(device, (blocks, 2 * width), DType::F32)?;
    launch!(
        device,
        &named("norm_parameters_backward", x.dtype())?,
        by_row(blocks, width),
        address(x)?,
        address_or_null(sums.residual)?,
        Mask::from(sums.mask),
        address(gradient)?,
        address(statistics)?,
        address(&partial)?,
        rows as u32,
        width as u32,
        ROWS as u32
    );
    let sums = sum_partials(&partial)?;
    Ok([sums.narrow(0, 0, width)?, sums.narrow(0, width, width)?])
}
