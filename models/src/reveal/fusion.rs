//! Attentive knowledge fusion: the query and its retrieved values form one sequence, which passes
//! through the upper layers of the T5 encoder. The prior of an entry weights its tokens.
//!
//! Reference: the released `FusedT5Encoder` and `fuse_topk_knowledge`. The prior multiplies the
//! normalised input of each attention layer, and the final output. The generator's loss therefore
//! has a gradient with respect to the scores and trains the retriever.

use std::sync::Arc;

use candle_core::Tensor;

use super::base_encoder::BaseStates;
use super::config::RevealConfig;
use crate::error::{Result, bail};
use crate::kernels::{Mode, Span, dropout, embedding_sum, packed_spans, scaled_rows};
use crate::layers::LayerNorm;
use crate::params::ParameterBuilder;
use crate::t5::blocks::{BlockInputs, PreNormBlock, RelativeBias, encoder_block, run_blocks};

/// The entries retrieved for a batch of queries, query after query.
#[derive(Debug, Clone, Copy)]
pub struct Retrieved<'a> {
    /// The number of entries of each query.
    pub counts: &'a [usize],
    /// The prior of each entry `[ΣK]`, where `ΣK` is the number of entries of all queries. Its mean
    /// over the entries of a query is 1.
    pub prior: &'a Tensor,
    /// The values of the entries `[ΣK M, D]`.
    pub values: &'a Tensor,
}

/// The upper layers of the T5 encoder.
#[derive(Debug, Clone)]
pub(super) struct Fusion {
    config: RevealConfig,
    bias: RelativeBias,
    layers: Vec<PreNormBlock>,
    final_norm: LayerNorm,
}

impl Fusion {
    /// The parameters are `encoder.block.N` (the upper blocks, with published names),
    /// `encoder.final_layer_norm` and `fusion.relative_attention_bias`.
    pub(super) fn new(config: &RevealConfig, builder: &ParameterBuilder) -> Result<Self> {
        let (t5, encoder) = (&config.t5, builder.pp("encoder"));
        let block = |i| encoder_block(t5, &encoder.pp("block").pp(i));
        let bias = builder.pp("fusion.relative_attention_bias");
        let norm = encoder.pp("final_layer_norm");
        Ok(Self {
            bias: RelativeBias::new(t5, true, &bias)?,
            layers: (config.text_layers()..t5.num_layers).map(block).collect::<Result<_>>()?,
            final_norm: LayerNorm::rms(t5.d_model, t5.layer_norm_epsilon, &norm)?,
            config: config.clone(),
        })
    }

    /// Returns the states `[T, D]` of each query, followed by its values.
    ///
    /// # Errors
    /// [`crate::ModelError::BadInput`] if the retrieved entries do not match the queries.
    pub(super) fn forward(
        &self,
        query: &BaseStates,
        retrieved: Option<&Retrieved<'_>>,
        mode: &Mode,
    ) -> Result<BaseStates> {
        let (mut x, lengths, weights) = match retrieved {
            Some(retrieved) => {
                let (x, lengths, weights) = self.join(query, retrieved)?;
                (x, lengths, Some(weights))
            }
            None => (query.states.clone(), query.lengths.clone(), None),
        };
        let joined = BaseStates { states: x.clone(), lengths };
        let segments = joined.segments();
        let bias = self.bias.within(&segments)?;
        let (bias, weights) = (Some(&bias), weights.as_ref());
        let inputs = BlockInputs { bias, weights, ..BlockInputs::new(&segments) };
        x = self.final_norm.forward(&run_blocks(&self.layers, x, inputs, mode)?)?;
        if let Some(weights) = weights {
            x = scaled_rows(&x, weights)?;
        }
        let states = dropout(&x, mode.dropout(self.config.t5.dropout_rate))?;
        Ok(BaseStates { states, ..joined })
    }

    /// Returns each query's rows followed by the rows of its values, the length of each sequence,
    /// and the weight of each row `[T, 1]`.
    fn join(
        &self,
        query: &BaseStates,
        retrieved: &Retrieved<'_>,
    ) -> Result<(Tensor, Vec<usize>, Tensor)> {
        let (counts, tokens) = (retrieved.counts, self.config.value_tokens);
        let (entries, query_rows) = (counts.iter().sum::<usize>(), query.states.dim(0)?);
        let num_value_tokens = retrieved.values.dim(0)?;
        if counts.len() != query.lengths.len()
            || num_value_tokens != entries * tokens
            || retrieved.prior.dims() != [entries]
        {
            bail!(
                "{} queries, but {entries} entries for {} queries, {num_value_tokens} value tokens \
                 and a prior of shape {:?}",
                query.lengths.len(),
                counts.len(),
                retrieved.prior.dims()
            );
        }
        // Row 0 of the weight table is 1, the weight of query rows. Row `1 + i` is the prior of
        // entry `i`.
        let (mut rows, mut weight_rows, mut lengths) = (Vec::new(), Vec::new(), Vec::new());
        let mut entry = 0;
        for (Span { start, length }, &count) in packed_spans(&query.lengths).into_iter().zip(counts)
        {
            rows.extend((start..start + length).map(|row| row as u32));
            weight_rows.resize(rows.len(), 0u32);
            for entry in entry..entry + count {
                let first = query_rows + entry * tokens;
                rows.extend((first..first + tokens).map(|row| row as u32));
                weight_rows.resize(rows.len(), 1 + entry as u32);
            }
            entry += count;
            lengths.push(length + count * tokens);
        }
        let (device, dtype) = (query.states.device(), query.states.dtype());
        let values = retrieved.values.to_device(device)?.to_dtype(dtype)?;
        let states = Tensor::cat(&[&query.states, &values], 0)?;
        let prior = retrieved.prior.to_device(device)?;
        let one = Tensor::ones(1, prior.dtype(), device)?;
        let weights = Tensor::cat(&[&one, &prior], 0)?.unsqueeze(1)?;
        let gather = |table: &Tensor, ids: Vec<u32>| embedding_sum(&[(table, Arc::from(ids))]);
        Ok((gather(&states, rows)?, lengths, gather(&weights, weight_rows)?))
    }
}
