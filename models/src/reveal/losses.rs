//! The auxiliary losses that are added to the generator's loss, as in the released `losses.py` and
//! `layers.py`.

use std::sync::Arc;

use candle_core::Tensor;

use super::query_key_head::{normalise_rows, row_norms};
use crate::compute::full_precision;
use crate::error::{Result, bail};
use crate::kernels::{CrossEntropy, cross_entropy, linear};

/// Finding no entry, as a candidate beside the keys.
#[derive(Debug, Clone, Copy)]
pub struct NoEntry<'a> {
    /// Its score `[1]`.
    pub score: &'a Tensor,
    /// For each query, the index of a key that is not a candidate, because the query is to find no
    /// entry.
    pub excluded: &'a [Option<u32>],
}

/// Added to the score of an excluded key, far above all differences of scores.
const EXCLUDED: f32 = -1e4;

/// The contrastive loss of queries `[B, E]` and keys `[N, E]`, in nats: the mean cross-entropy of
/// the logits `q · k / temperature`. The positive key of query `i` has index `targets[i]`. With
/// `no_entry`, the logit of finding no entry is the last one of each query, with index `N`.
pub fn contrastive(
    queries: &Tensor,
    keys: &Tensor,
    no_entry: Option<NoEntry<'_>>,
    targets: Arc<[u32]>,
    temperature: f64,
) -> Result<Tensor> {
    let mut scores = linear(queries, keys, None)?;
    if let Some(NoEntry { score, excluded }) = no_entry {
        let (queries, keys) = scores.dims2()?;
        let column = score.to_dtype(scores.dtype())?.broadcast_as((queries, 1))?.contiguous()?;
        let mut excluded_cells = vec![0f32; queries * (keys + 1)];
        for (row, key) in excluded.iter().enumerate() {
            if let Some(key) = key {
                excluded_cells[row * (keys + 1) + *key as usize] = EXCLUDED;
            }
        }
        let mask = Tensor::from_vec(excluded_cells, (queries, keys + 1), scores.device())?;
        scores = (Tensor::cat(&[&scores, &column], 1)? + mask.to_dtype(scores.dtype())?)?;
    }
    let logits = (scores / temperature)?;
    let options = CrossEntropy { targets, ignore_index: None, label_smoothing: 0.0 };
    Ok(cross_entropy(&logits, options)?.mean_all()?)
}

/// Measures the similarity of the value tokens of an entry: values `[N M, D]` → a scalar. Per
/// entry, the tokens are centred and normalised to unit length. The squared cosines below the
/// diagonal are summed and divided by `M²`; the loss is the mean over entries.
pub fn decorrelation(values: &Tensor, tokens: usize) -> Result<Tensor> {
    let (rows, width) = values.dims2()?;
    if tokens == 0 || rows % tokens != 0 {
        bail!("{rows} rows cannot be divided into entries of {tokens} tokens");
    }
    let entries = rows / tokens;
    let values = full_precision(values)?.reshape((entries, tokens, width))?;
    let centred = values.broadcast_sub(&values.mean_keepdim(1)?)?;
    let unit_tokens = normalise_rows(&centred)?;
    let squares = unit_tokens.matmul(&unit_tokens.transpose(1, 2)?.contiguous()?)?.sqr()?;
    let below_diagonal: Vec<f32> =
        (0..tokens * tokens).map(|i| if i % tokens < i / tokens { 1.0 } else { 0.0 }).collect();
    let below_diagonal = Tensor::from_vec(below_diagonal, (1, tokens, tokens), values.device())?;
    Ok(squares.broadcast_mul(&below_diagonal.to_dtype(values.dtype())?)?.mean_all()?)
}

/// Measures the difference between the norms of value tokens and query tokens, both `[.., D]`.
/// Returns the scalar `|1 − mean ‖value‖ / mean ‖query‖|`.
pub fn alignment(values: &Tensor, query_states: &Tensor) -> Result<Tensor> {
    let mean = |x: &Tensor| -> Result<Tensor> { Ok(row_norms(x)?.mean_all()?) };
    let ratio = mean(values)?.div(&mean(query_states)?)?;
    Ok((1.0 - ratio)?.abs()?)
}
