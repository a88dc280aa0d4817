//! Sums of embedding lookups: token + position + segment embeddings in one pass.

use std::sync::Arc;

use candle_core::{Result, Shape, Tensor};
use rayon::prelude::*;

use super::device::{BackwardPass, DeviceKernel, Saved};
use super::operation::{Gradient, Input, Kernel, Output, Pass, apply, dims_of, tensor_dims};
use super::rows::{ROWS, add, zeros};
use crate::compute::full_precision;

/// Looks up `ids` in each table and sums the rows: tables `[V_i, D]`, ids `[T]` each → `[T, D]`.
///
/// # Errors
/// If the id lists differ in length, the tables differ in width, or an id is beyond its table.
pub fn embedding_sum(lookups: &[(&Tensor, Arc<[u32]>)]) -> Result<Tensor> {
    let tables: Vec<&Tensor> = lookups.iter().map(|(table, _)| *table).collect();
    let ids = lookups.iter().map(|(_, ids)| ids.clone()).collect();
    apply(EmbeddingSum { ids }, &tables)
}

/// Adds each token's row of the gradient to the row of its id: gradient `[T, D]`, sums `[V, D]`.
/// Each value is the sum in token order, for any number of threads.
fn add_rows(ids: &[u32], gradient: &[f32], width: usize, sums: &mut [f32]) {
    // The tokens of id `i` are `tokens[ends[i - 1]..ends[i]]`.
    let mut ends = vec![0; sums.len() / width];
    ids.iter().for_each(|id| ends[*id as usize] += 1);
    let mut start = 0;
    for end in &mut ends {
        start += std::mem::replace(end, start);
    }
    let mut tokens = vec![0; ids.len()];
    for (token, id) in ids.iter().enumerate() {
        let end = &mut ends[*id as usize];
        tokens[*end] = token;
        *end += 1;
    }
    sums.par_chunks_mut(width).enumerate().with_min_len(ROWS).for_each(|(id, sum)| {
        let first = if id == 0 { 0 } else { ends[id - 1] };
        let tokens = &tokens[first..ends[id]];
        // If an id has many tokens (for example a token type), its row is split.
        let columns = if tokens.len() > MANY_TOKENS { COLUMNS } else { width };
        sum.par_chunks_mut(columns).enumerate().for_each(|(block, sum)| {
            for token in tokens {
                let start = token * width + block * columns;
                add(&gradient[start..start + sum.len()], sum);
            }
        });
    });
}

/// The row of an id with more tokens than this is summed in blocks of [`COLUMNS`] columns.
const MANY_TOKENS: usize = 256;
/// The columns in one block of a split row.
const COLUMNS: usize = 64;

struct EmbeddingSum {
    ids: Vec<Arc<[u32]>>,
}

impl EmbeddingSum {
    /// Checks the tables and ids, and returns the number of tokens and the width.
    fn check(&self, dims: &[&[usize]]) -> Result<(usize, usize)> {
        let count = self.ids.first().map_or(0, |ids| ids.len());
        let width = dims.first().and_then(|d| d.last()).copied().unwrap_or(0);
        for (ids, dims) in self.ids.iter().zip(dims) {
            let &[rows, table_width] = *dims else {
                candle_core::bail!("embedding: a table of shape {dims:?}, expected [V, D]");
            };
            if table_width != width || ids.len() != count || width == 0 {
                candle_core::bail!(
                    "embedding: the tables differ in width, or the id lists in length"
                );
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

    fn forward(&self, inputs: &[Input<'_>]) -> Result<Output> {
        let (count, width) = self.check(&dims_of(inputs))?;
        let mut output = zeros(count * width);
        output.par_chunks_mut(ROWS * width).enumerate().for_each(|(block, rows)| {
            for (i, row) in rows.chunks_mut(width).enumerate() {
                for (ids, table) in self.ids.iter().zip(inputs) {
                    let start = ids[block * ROWS + i] as usize * width;
                    add(&table.data[start..start + width], row);
                }
            }
        });
        Ok((output, Shape::from((count, width)), Box::new(())))
    }

    fn backward(&self, pass: &Pass<'_>, input_gradients: &mut [Option<Gradient>]) -> Result<()> {
        let (inputs, gradient) = (pass.inputs, pass.gradient);
        let width = inputs[0].dims.last().copied().unwrap_or(1);
        input_gradients.par_iter_mut().zip(&self.ids).for_each(|(buffer, ids)| {
            if let Some(buffer) = buffer {
                add_rows(ids, gradient, width, buffer.as_sum());
            }
        });
        Ok(())
    }

    fn device(&self) -> Option<&dyn DeviceKernel> {
        Some(self)
    }
}

impl DeviceKernel for EmbeddingSum {
    fn forward(&self, inputs: &[Tensor], _: &[bool]) -> Result<(Tensor, Saved)> {
        self.check(&tensor_dims(inputs))?;
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

    fn backward(&self, pass: &BackwardPass<'_>) -> Result<Vec<Option<Tensor>>> {
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
fn sum_rows(x: &Tensor, ids: &Arc<[u32]>, rows: usize) -> Result<Tensor> {
    #[cfg(feature = "cuda")]
    if x.device().is_cuda() {
        return crate::cuda::sum_rows(x, ids, rows);
    }
    let x = full_precision(x)?;
    let ids = Tensor::from_slice(ids, ids.len(), x.device())?;
    Tensor::zeros((rows, x.dim(1)?), x.dtype(), x.device())?.index_add(&ids, &x, 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_summed_in_token_order() {
        let (width, rows) = (70, 9);
        // Id 4 has more than `MANY_TOKENS` tokens, id 8 has none.
        let ids: Vec<u32> = (0..900).map(|i| if i % 2 == 0 { 4 } else { i * i % 8 }).collect();
        let gradient: Vec<f32> = (0..ids.len() * width).map(|i| (i as f32).sin()).collect();
        let mut expected = vec![0.5; rows * width];
        let mut sums = expected.clone();
        for (id, row) in ids.iter().zip(gradient.chunks(width)) {
            add(row, &mut expected[*id as usize * width..][..width]);
        }
        add_rows(&ids, &gradient, width, &mut sums);
        assert!(sums == expected);
    }
}
