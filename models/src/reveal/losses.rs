//! The auxiliary losses that are added to the generator's loss, as in the released `losses.py` and
//! `layers.py`.

use std::sync::Arc;

use candle_core::Tensor;

use super::query_key_head::{normalise_rows, row_norms};
use crate::compute::full_precision;
use crate::error::{Result, bail};
use crate::kernels::{CrossEntropy, cross_entropy, linear};

/// The contrastive loss of queries `[B, E]` and keys `[N, E]`, in nats: the mean cross-entropy of
/// the logits `q · k / temperature`. The positive key of query `i` has index `targets[i]`.
pub fn contrastive(
    queries: &Tensor,
    keys: &Tensor,
    targets: Arc<[u32]>,
    temperature: f64,
) -> Result<Tensor> {
    let logits = (linear(queries, keys, None)? / temperature)?;
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
