//! Dropout.

use candle_core::cuda_backend::WrapErr;
use candle_core::cuda_backend::cudarc::driver::PushKernelArg;
use candle_core::{Result, Tensor};

use super::{Mask, address, address_or_null, by_element, device, empty, launch, named};
use crate::kernels::Dropout;

/// The position of padded attention scores `[S, heads, L_q, L_k]` in a dropout mask.
#[derive(Debug, Clone)]
pub(crate) struct PaddedScores {
    /// For each segment: the index of its first score, its number of queries and of keys.
    pub segments: Vec<i64>,
    pub heads: usize,
    pub query_length: usize,
    pub key_length: usize,
}

/// Computes `residual + dropout(x)`, tensors of `T` and one shape. Without `scores`, an element's
/// index in the mask is its index in `x`.
pub(crate) fn masked(
    x: &Tensor,
    residual: Option<&Tensor>,
    mask: Dropout,
    scores: Option<&PaddedScores>,
) -> Result<Tensor> {
    let (device, count) = (device(x)?, x.elem_count());
    let y = empty(device, x.shape(), x.dtype())?;
    let segments = scores
        .map(|scores| Tensor::from_slice(&scores.segments, scores.segments.len(), x.device()));
    let segments = segments.transpose()?;
    launch!(
        device,
        &named("dropout", x.dtype())?,
        by_element(count),
        address(x)?,
        address_or_null(residual)?,
        address(&y)?,
        count as u64,
        Mask::from(Some(mask)),
        address_or_null(segments.as_ref())?,
        scores.map_or(0, |scores| scores.heads as u32),
        scores.map_or(1, |scores| scores.query_length as u32),
        scores.map_or(1, |scores| scores.key_length as u32)
    );
    Ok(y)
}
