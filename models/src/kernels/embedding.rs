//! Sums of embedding lookups: token + position + segment embeddings in one pass.

use std::sync::Arc;

use candle_core::{Shape, Tensor};
use rayon::prelude::*;

use super::operation::{Gradient, Input, Kernel, apply};
use super::rows::{ROWS, add};

/// Looks up `ids` in each table and sums the rows: tables `[V_i, D]`, ids `[T]` each → `[T, D]`.
///
/// # Errors
/// If the id lists differ in length, or an id is beyond its table.
pub fn embedding_sum(lookups: &[(&Tensor, Arc<[u32]>)]) -> candle_core::Result<Tensor> {
    let tables: Vec<&Tensor> = lookups.iter().map(|(table, _)| *table).collect();
    let ids = lookups.iter().map(|(_, ids)| ids.clone()).collect();
    apply(EmbeddingSum { ids }, &tables)
}

struct EmbeddingSum {
    ids: Vec<Arc<[u32]>>,
}

impl EmbeddingSum {
    fn check(&self, dims: &[&[usize]]) -> candle_core::Result<(usize, usize)> {
        let count = self.ids.first().map_or(0, |ids| ids.len());
        let width = dims.first().and_then(|d| d.last()).copied().unwrap_or(0);
        for (ids, dims) in self.ids.iter().zip(dims) {
            let &[rows, w] = *dims else {
                candle_core::bail!("embedding: a table of shape {dims:?}, expected [V, D]");
            };
            if w != width || ids.len() != count || width == 0 {
                candle_core::bail!("embedding: tables or id lists do not match");
            }
            if let Some(id) = ids.iter().find(|id| **id as usize >= rows) {
                candle_core::bail!("embedding: id {id} is beyond a table of {rows} rows");
            }
        }
        Ok((count, width))
    }
}

impl Kernel for EmbeddingSum {
    fn name(&self) -> &'static str {
        "embedding"
    }

    fn forward(&mut self, inputs: &[Input<'_>]) -> candle_core::Result<(Vec<f32>, Shape)> {
        let dims: Vec<_> = inputs.iter().map(|input| input.dims).collect();
        let (count, width) = self.check(&dims)?;
        let mut output = vec![0.0; count * width];
        output.par_chunks_mut(ROWS * width).enumerate().for_each(|(block, rows)| {
            for (i, row) in rows.chunks_mut(width).enumerate() {
                for (ids, table) in self.ids.iter().zip(inputs) {
                    let start = ids[block * ROWS + i] as usize * width;
                    add(&table.data[start..start + width], row);
                }
            }
        });
        Ok((output, Shape::from((count, width))))
    }

    fn backward(
        &self,
        inputs: &[Input<'_>],
        _: &[f32],
        gradient: &[f32],
        input_gradients: &mut [Option<Gradient>],
    ) -> candle_core::Result<()> {
        let width = inputs[0].dims.last().copied().unwrap_or(1);
        // One thread per table adds the rows in token order.
        input_gradients.par_iter_mut().zip(&self.ids).for_each(|(buffer, ids)| {
            if let Some(buffer) = buffer {
                let sums = buffer.as_sum();
                for (id, row) in ids.iter().zip(gradient.chunks(width)) {
                    let start = *id as usize * width;
                    add(row, &mut sums[start..start + width]);
                }
            }
        });
        Ok(())
    }

    fn composite(&self, inputs: &[Tensor]) -> candle_core::Result<Tensor> {
        let dims: Vec<_> = inputs.iter().map(Tensor::dims).collect();
        self.check(&dims)?;
        let mut sum: Option<Tensor> = None;
        for (table, ids) in inputs.iter().zip(&self.ids) {
            let ids = Tensor::from_slice(ids, ids.len(), table.device())?;
            let rows = table.index_select(&ids, 0)?;
            sum = Some(match sum {
                Some(sum) => (sum + rows)?,
                None => rows,
            });
        }
        sum.ok_or_else(|| candle_core::Error::Msg("embedding: no tables given".into()))
    }
}
