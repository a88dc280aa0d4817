//! Text encoders. The `model_type` in the folder's `config.json` selects the family:
//!
//! - BERT (arXiv 1810.04805) with all encoders of its architecture: MiniLM, BERT-for-patents, E5;
//! - RoBERTa (1907.11692), XLM-R (1911.02116) and CamemBERT, which count positions from another row
//!   of their table;
//! - DistilBERT (1910.01108), which has no token types;
//! - MPNet (2004.09297), which adds a learned bias for each relative position to attention scores;
//! - DeBERTa-v2 and v3 (2006.03654, 2111.09543), which have disentangled attention;
//! - ModernBERT (2412.13663), which has other blocks: pre-norm, with rotary positions, local
//!   attention and gated feed-forward parts.
//!
//! References: `transformers` 5, `models/*/modeling_*.py` of these families. Parameter names are the
//! published names. Sequences are packed, not padded, so no work is spent on padding. Poolers and
//! task heads are omitted. The two largest DeBERTa-v2 models have a convolution, which is not
//! supported, so their configurations are an error. Unlike the reference, only the relative
//! embeddings that a batch needs are projected, and dropout applies only to these embeddings.

mod block;
mod config;
mod family;
mod modern;

use std::sync::Arc;

use candle_core::Tensor;

use crate::compute::Compute;
use crate::error::{Result, bail};
use crate::kernels::{Mode, dropout, embedding_sum};
use crate::layers::{LayerNorm, Linear};
use crate::packed::PackedTokens;
use crate::params::{EmbeddingTable, Init, Lookup, ParameterBuilder, sum_of_rows};
use crate::t5::blocks::RelativeBias;
use crate::weights::{Weights, WeightsFiles};
use block::{Block, Relative};
use config::MAX_BIAS_DISTANCE;
pub use config::{DisentangledConfig, PositionTerms, TextEncoderConfig};
pub use family::Family;
pub use modern::ModernBertConfig;
use modern::ModernBlocks;

/// An encoder of packed token sequences.
#[derive(Debug, Clone)]
pub struct TextEncoder {
    config: TextEncoderConfig,
    compute: Compute,
    word_embeddings: EmbeddingTable,
    position_embeddings: Option<EmbeddingTable>,
    token_type_embeddings: Option<EmbeddingTable>,
    embedding_projection: Option<Linear>,
    embedding_norm: LayerNorm,
    relative_bias: Option<RelativeBias>,
    relative_embeddings: Option<Tensor>,
    relative_norm: Option<LayerNorm>,
    /// Empty in ModernBERT.
    blocks: Vec<Block>,
    modern: Option<ModernBlocks>,
}

/// The relative positions of a batch.
struct RelativePositions {
    /// The embeddings of the relative positions that occur, `[R, D]`.
    embeddings: Tensor,
    /// The row of `embeddings` for each distance (query position minus key position), in ascending
    /// order.
    rows: Arc<[u32]>,
}

impl TextEncoderConfig {
    /// Builds the encoder with the builder's weights, or with random initial weights.
    ///
    /// # Errors
    /// [`crate::ModelError::BadConfig`], and the errors of [`ParameterBuilder::get`].
    pub fn build(&self, builder: &ParameterBuilder) -> Result<TextEncoder> {
        self.validate()?;
        let (d, std, eps) = (self.hidden_size, self.initializer_range, self.layer_norm_eps());
        let (e, names) = (self.embedding_size(), &self.family.names);
        let (embeddings, encoder) = (builder.pp("embeddings"), builder.pp("encoder"));
        let table = |name: &str, rows: usize| {
            embeddings.pp(name).embedding_table("weight", [rows, e], Init::Normal(std))
        };
        let relative = self.relative();
        let relative_table = |relative: &DisentangledConfig| {
            let shape = [2 * relative.span(self.max_position_embeddings) as usize, d];
            encoder.pp("rel_embeddings").get("weight", &shape, Init::Normal(std))
        };
        let relative_bias = || {
            let shape = [self.relative_attention_num_buckets, self.num_attention_heads];
            let builder = encoder.pp("relative_attention_bias");
            RelativeBias::with_shape(shape, MAX_BIAS_DISTANCE, std, true, &builder)
        };
        let blocks = builder.pp(names.blocks);
        let norm = |builder: &ParameterBuilder| match &self.modern {
            Some(modern) if !modern.norm_bias => LayerNorm::without_bias(d, eps, builder),
            _ => LayerNorm::new(d, eps, builder),
        };
        let modern = |modern| ModernBlocks::new(self, modern, norm, builder);
        Ok(TextEncoder {
            word_embeddings: table(names.word_embeddings, self.vocab_size)?,
            position_embeddings: self
                .max_positions()
                .map(|_| table("position_embeddings", self.max_position_embeddings))
                .transpose()?,
            token_type_embeddings: (self.type_vocab_size > 0)
                .then(|| table("token_type_embeddings", self.type_vocab_size))
                .transpose()?,
            embedding_projection: (e != d)
                .then(|| Linear::without_bias(e, d, std, &embeddings.pp("embed_proj")))
                .transpose()?,
            embedding_norm: norm(&embeddings.pp(names.embedding_norm))?,
            relative_bias: self.family.has_relative_bias.then(relative_bias).transpose()?,
            relative_embeddings: relative.map(relative_table).transpose()?,
            relative_norm: relative
                .filter(|relative| relative.has_norm())
                .map(|_| LayerNorm::new(d, eps, &encoder.pp("LayerNorm")))
                .transpose()?,
            modern: self.modern.as_ref().map(modern).transpose()?,
            blocks: (0..if self.modern.is_some() { 0 } else { self.num_hidden_layers })
                .map(|i| Block::new(self, &blocks.pp(i)))
                .collect::<Result<_>>()?,
            config: self.clone(),
            compute: builder.compute(),
        })
    }

    /// Opens published weights. Tensor names may start with the name of the family, such as
    /// `bert.`, as in files of models with a task head.
    pub fn open_weights(&self, files: &WeightsFiles) -> Result<Arc<Weights>> {
        let weights = files.open()?;
        Ok(Arc::new(weights.with_optional_prefix(self.family.weights_prefix)))
    }
}

impl TextEncoder {
    /// The width `D` of hidden states.
    pub fn hidden_size(&self) -> usize {
        self.config.hidden_size
    }

    /// Returns the hidden states `[T, D]` after the embeddings and after each block, for `T` packed
    /// tokens. The last state is the output.
    ///
    /// # Errors
    /// The errors of [`TextEncoder::encode`].
    pub fn forward(&self, tokens: &PackedTokens, mode: &Mode) -> Result<Vec<Tensor>> {
        let mut states = Vec::new();
        let last = self.run(tokens, mode, |state| states.push(state.clone()))?;
        states.push(last);
        Ok(states)
    }

    /// Returns the last hidden state, `[T, D]`. Hidden states of earlier blocks are freed as soon
    /// as possible. A model without absolute positions accepts sequences of any length.
    ///
    /// # Errors
    /// [`crate::ModelError::BadInput`] for a position beyond the position table.
    /// [`crate::ModelError::Candle`] for a token id or type beyond its table.
    pub fn encode(&self, tokens: &PackedTokens, mode: &Mode) -> Result<Tensor> {
        self.run(tokens, mode, |_| {})
    }

    /// Returns the last hidden state, `[T, D]`. Calls `on_state` with each earlier state, starting
    /// with the embeddings.
    fn run(
        &self,
        tokens: &PackedTokens,
        mode: &Mode,
        mut on_state: impl FnMut(&Tensor),
    ) -> Result<Tensor> {
        let x = self.embed(tokens, mode)?;
        let x = dropout(&x, mode.dropout(self.config.hidden_dropout_prob))?;
        let mut state = mode.detach(x);
        if let (Some(blocks), Some(modern)) = (&self.modern, &self.config.modern) {
            return blocks.run(state, &self.config, modern, tokens, mode, on_state);
        }
        let relative = self.relative_positions(tokens)?;
        let bias = self.relative_bias(tokens)?;
        for block in &self.blocks {
            on_state(&state);
            let (config, tokens) = (self.config.clone(), tokens.clone());
            let (mut inputs, mut rows) = (vec![state.clone()], None);
            inputs.extend(bias.clone());
            if let Some(relative) = &relative {
                let mask = mode.dropout(config.hidden_dropout_prob);
                let embeddings = dropout(&relative.embeddings, mask)?;
                inputs.extend([embeddings.clone(), embeddings]);
                rows = Some(relative.rows.clone());
            }
            let inputs: Vec<&Tensor> = inputs.iter().collect();
            let next = mode.block(block, &inputs, move |block, inputs, mode| {
                let relative = match (&rows, &inputs[1..]) {
                    (Some(rows), embeddings) => Relative::Embeddings(embeddings, rows),
                    (None, [bias]) => Relative::Bias(bias),
                    (None, _) => Relative::None,
                };
                block.forward(&inputs[0], relative, &config, &tokens, mode)
            })?;
            state = mode.detach(next);
        }
        Ok(state)
    }

    /// The embedding tables, with the ids `[T]` that these tokens look up in each.
    ///
    /// # Errors
    /// [`crate::ModelError::BadInput`] for a position beyond its table.
    pub fn lookups(&self, tokens: &PackedTokens) -> Result<Vec<Lookup<'_>>> {
        if let Some(positions) = self.config.max_positions() {
            tokens.check_positions(positions)?;
        }
        let offset = self.config.position_offset() as u32;
        let positions = self.position_embeddings.iter().map(|table| match offset {
            0 => (table, tokens.positions.clone()),
            _ => (table, tokens.positions.iter().map(|position| position + offset).collect()),
        });
        let types =
            self.token_type_embeddings.iter().map(|table| match self.config.type_vocab_size {
                // RoBERTa has one type for all tokens.
                1 => (table, vec![0; tokens.len()].into()),
                _ => (table, tokens.types.clone()),
            });
        let words = std::iter::once((&self.word_embeddings, tokens.ids.clone()));
        Ok(words.chain(positions).chain(types).collect())
    }

    /// Returns the embeddings before dropout, `[T, D]`.
    fn embed(&self, tokens: &PackedTokens, mode: &Mode) -> Result<Tensor> {
        let mut x = self.compute.activations(&sum_of_rows(&self.lookups(tokens)?)?)?;
        if let Some(projection) = &self.embedding_projection {
            x = projection.forward(&x, mode)?;
        }
        self.embedding_norm.forward(&x)
    }

    /// Returns MPNet's biases of a batch, `[H, L, L]`; `None` without them.
    fn relative_bias(&self, tokens: &PackedTokens) -> Result<Option<Tensor>> {
        let Some(bias) = &self.relative_bias else { return Ok(None) };
        check_no_branches(tokens)?;
        Ok(Some(bias.within(&tokens.segments)?))
    }

    /// Returns the relative positions that occur in a batch; `None` without relative attention.
    fn relative_positions(&self, tokens: &PackedTokens) -> Result<Option<RelativePositions>> {
        let (Some(table), Some(relative)) = (&self.relative_embeddings, self.config.relative())
        else {
            return Ok(None);
        };
        check_no_branches(tokens)?;
        let max_length =
            tokens.sequences().iter().map(|span| span.length).max().unwrap_or(0) as i64;
        let (mut occurring_rows, mut rows) = (Vec::new(), Vec::new());
        // Rows ascend with the distance, so equal rows are adjacent.
        for distance in 1 - max_length..max_length {
            let row = relative.row(distance, self.config.max_position_embeddings);
            if occurring_rows.last() != Some(&row) {
                occurring_rows.push(row);
            }
            rows.push(occurring_rows.len() as u32 - 1);
        }
        let embeddings = embedding_sum(&[(table, occurring_rows.into())])?;
        let embeddings = self.compute.activations(&embeddings)?;
        let embeddings = match &self.relative_norm {
            Some(norm) => norm.forward(&embeddings)?,
            None => embeddings,
        };
        Ok(Some(RelativePositions { embeddings, rows: rows.into() }))
    }
}

/// Returns an error for sequences with branches, whose positions relative and local attention do not
/// know.
fn check_no_branches(tokens: &PackedTokens) -> Result<()> {
    if tokens.segments.branches().is_some() {
        bail!("branching sequences are not supported with relative or local attention");
    }
    Ok(())
}
