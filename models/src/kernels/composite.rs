//! Parts of several composites: the matrix product, and the selection of rows.

use std::sync::Arc;

use candle_core::{DType, Result, Tensor};

use super::operation::with_width;

/// Multiplies batches of matrices with candle: `[.., M, K]` and `[.., K, N]` → `[.., M, N]`.
pub(super) fn product(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    // On the CPU, candle does not multiply bf16.
    if a.dtype() == DType::BF16 && a.device().is_cpu() {
        let product = a.to_dtype(DType::F32)?.matmul(&b.to_dtype(DType::F32)?)?;
        return product.to_dtype(DType::BF16);
    }
    a.matmul(b)
}

/// Multiplies each row with a weight: `x` `[.., K]`, `weight` `[N, K]` → `[.., N]`.
pub(super) fn rows_product(x: &Tensor, weight: &Tensor) -> Result<Tensor> {
    let (columns, inner) = weight.dims2()?;
    product(&x.reshape(((), inner))?, &weight.t()?)?.reshape(with_width(x.dims(), columns))
}

/// Selects rows of a table: `[V, D]`, ids `[T]` → `[T, D]`.
pub(super) fn select_rows(table: &Tensor, ids: &Arc<[u32]>) -> Result<Tensor> {
    if table.device().is_cuda() && table.track_op() {
        // candle's own backward pass uses as many threads as the table has columns.
        return super::embedding_sum(&[(table, ids.clone())]);
    }
    let ids = Tensor::from_slice(ids, ids.len(), table.device())?;
    table.contiguous()?.index_select(&ids, 0)
}
