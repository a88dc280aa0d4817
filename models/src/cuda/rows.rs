//! Sums and means of rows.

use candle_core::cuda_backend::WrapErr;
use candle_core::cuda_backend::cudarc::driver::PushKernelArg;
use candle_core::{DType, Result, Tensor};

use super::{address, by_row, device, empty, launch, named};
use crate::kernels::Span;

/// A sum of more rows than this is a sum of partial sums of this many rows.
const ROWS: usize = 32;

/// Sums rows by their ids: `x` `[T, D]` of `T`, ids `[T]` → f32 `[rows, D]`. The order of a sum is
/// fixed.
pub(crate) fn sum_rows(x: &Tensor, ids: &[u32], rows: usize) -> Result<Tensor> {
    let width = x.dim(1)?;
    let mut tokens: Vec<u32> = (0..ids.len() as u32).collect();
    tokens.sort_by_key(|token| ids[*token as usize]);
    // The parts of each sum: the ids, and the first token of each part.
    let (mut part_ids, mut starts) = (Vec::new(), Vec::new());
    for (position, token) in tokens.iter().enumerate() {
        let id = ids[*token as usize];
        let is_full = starts.last().is_some_and(|start| position - *start as usize == ROWS);
        if part_ids.last() != Some(&id) || is_full {
            part_ids.push(id);
            starts.push(position as u32);
        }
    }
    starts.push(tokens.len() as u32);
    let num_parts = part_ids.len();
    let mut firsts: Vec<u32> = (0..num_parts)
        .filter(|i| *i == 0 || part_ids[*i] != part_ids[*i - 1])
        .map(|i| i as u32)
        .collect();
    if firsts.len() == num_parts {
        return sums(x, &part_ids, &starts, &tokens, rows, width);
    }
    let parts: Vec<u32> = (0..num_parts as u32).collect();
    let partial = sums(x, &parts, &starts, &tokens, num_parts, width)?;
    part_ids.dedup();
    firsts.push(num_parts as u32);
    sums(&partial, &part_ids, &firsts, &parts, rows, width)
}

/// Sets row `targets[i]` to the sum of the rows of `x` at `positions[starts[i]..starts[i + 1]]`,
/// and other rows to 0.
fn sums(
    x: &Tensor,
    targets: &[u32],
    starts: &[u32],
    positions: &[u32],
    rows: usize,
    width: usize,
) -> Result<Tensor> {
    let device = device(x)?;
    let sums = Tensor::zeros((rows, width), DType::F32, x.device())?;
    if positions.is_empty() || width == 0 {
        return Ok(sums);
    }
    // One upload for all three lists.
    let indices = [targets, starts, positions].concat();
    let indices =
        Tensor::from_vec(indices, targets.len() + starts.len() + positions.len(), x.device())?;
    let first = address(&indices)?;
    let after = |count: usize| first + 4 * count as u64;
    launch!(
        device,
        &named("sum_rows", x.dtype())?,
        by_row(targets.len(), width),
        address(x)?,
        first,
        after(targets.len()),
        after(targets.len() + starts.len()),
        address(&sums)?,
        width as u32
    );
    Ok(sums)
}

/// Returns the mean row of each span, `[T, D]` → `[S, D]` of `T`, and the spans on the GPU.
pub(crate) fn span_means(x: &Tensor, spans: &[Span]) -> Result<(Tensor, Tensor)> {
    let (device, width) = (device(x)?, x.dim(1)?);
    let numbers: Vec<u32> =
        spans.iter().flat_map(|span| [span.start as u32, span.length as u32]).collect();
    let numbers = Tensor::from_vec(numbers, 2 * spans.len(), x.device())?;
    let y = empty(device, (spans.len(), width), x.dtype())?;
    launch!(
        device,
        &named("span_means", x.dtype())?,
        by_row(spans.len(), width),
        address(x)?,
        address(&numbers)?,
        address(&y)?,
        width as u32
    );
    Ok((y, numbers))
}

/// Returns the gradient of `x` `[T, D]`, given that of the means `[S, D]` and the `spans` of
/// [`span_means`].
pub(crate) fn span_means_backward(gradient: &Tensor, spans: &Tensor, x: &Tensor) -> Result<Tensor> {
    let (device, (rows, width)) = (device(x)?, x.dims2()?);
    let dx = empty(device, (rows, width), x.dtype())?;
    launch!(
        device,
        &named("span_means_backward", x.dtype())?,
        by_row(rows, width),
        address(gradient)?,
        address(spans)?,
        address(&dx)?,
        width as u32,
        gradient.dim(0)? as u32
    );
    Ok(dx)
}
