//! The device path of embedding sums, and of the selection of rows.

use std::sync::Arc;

use candle_core::{DType, Tensor};

use super::super::device::{BackwardPass, DeviceKernel, Saved};
use super::EmbeddingSum;

impl DeviceKernel for EmbeddingSum {
    fn forward(&self, inputs: &[Tensor], _: &[bool]) -> candle_core::Result<(Tensor, Saved)> {
        let dims: Vec<_> = inputs.iter().map(Tensor::dims).collect();
        self.check(&dims)?;
        let dtype = inputs[0].dtype();
        let mut sum: Option<Tensor> = None;
        for (table, ids) in inputs.iter().zip(&self.ids) {
            let ids = Tensor::from_slice(ids, ids.len(), table.device())?;
            let rows = table.index_select(&ids, 0)?.to_dtype(dtype)?;
            sum = Some(match sum {
                Some(sum) => (sum + rows)?,
                None => rows,
            });
        }
        match sum {
            Some(sum) => Ok((sum, Saved::default())),
            None => candle_core::bail!("embedding: no tables given"),
        }
    }

    fn backward(&self, pass: &BackwardPass<'_>) -> candle_core::Result<Vec<Option<Tensor>>> {
        let tables = pass.inputs.iter().zip(&self.ids).zip(pass.wanted);
        tables
            .map(|((table, ids), wanted)| {
                wanted.then(|| sum_rows(pass.gradient, ids, table.dims()[0])).transpose()
            })
            .collect()
    }
}

/// Sums the rows of `x` by their ids, in f32: `[T, D]`, ids `[T]` → `[rows, D]`. Each value is the
/// same in every run.
fn sum_rows(x: &Tensor, ids: &Arc<[u32]>, rows: usize) -> candle_core::Result<Tensor> {
    #[cfg(feature = "cuda")]
    if x.device().is_cuda() {
        return crate::cuda::sum_rows(x, ids, rows);
    }
    let x = x.to_dtype(DType::F32)?;
    let ids = Tensor::from_slice(ids, ids.len(), x.device())?;
    Tensor::zeros((rows, x.dim(1)?), DType::F32, x.device())?.index_add(&ids, &x, 0)
}
