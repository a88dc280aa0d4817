//! The matrix product shared by all composites.

use candle_core::{DType, Tensor};

/// Multiplies batches of matrices with candle: `[.., M, K]` and `[.., K, N]` → `[.., M, N]`.
pub(super) fn product(a: &Tensor, b: &Tensor) -> candle_core::Result<Tensor> {
    // On the CPU, candle does not multiply bf16.
    if a.dtype() == DType::BF16 && a.device().is_cpu() {
        let product = a.to_dtype(DType::F32)?.matmul(&b.to_dtype(DType::F32)?)?;
        return product.to_dtype(DType::BF16);
    }
    a.matmul(b)
}

/// Multiplies each row with a weight: `x` `[.., K]`, `weight` `[N, K]` → `[.., N]`.
pub(super) fn rows_product(x: &Tensor, weight: &Tensor) -> candle_core::Result<Tensor> {
    let (columns, inner) = weight.dims2()?;
    let mut dims = x.dims().to_vec();
    if let Some(last) = dims.last_mut() {
        *last = columns;
    }
    product(&x.reshape(((), inner))?, &weight.t()?)?.reshape(dims)
}
