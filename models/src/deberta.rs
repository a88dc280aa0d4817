//! DeBERTa-v2 and v3 (arXiv 2006.03654, 2111.09543): disentangled attention.
//!
//! Reference: `transformers` 5, `models/deberta_v2/modeling_deberta_v2.py`. Parameter names are the
//! published names. As in [`crate::bert`], sequences are packed, not padded. Task heads are
//! omitted. The two largest v2 models have a convolution, which is not supported: their
//! configurations are an error. Unlike the reference, only the relative embeddings that a batch
//! needs are projected, and dropout applies only to these embeddings.

mod config;

use std::sync::Arc;

use candle_core::Tensor;

use crate::block_output::BlockOutput;
use crate::compute::Compute;
use crate::error::{ModelError, Result};
use crate::kernels::{
    Attention, AttentionBias, Disentangled, Mode, disentangled_bias, dropout, embedding_sum,
    self_attention, stacked_linear,
};
use crate::layers::{LayerNorm, Linear, Projections};
use crate::packed::PackedTokens;
use crate::params::{EmbeddingTable, Init, Lookup, ParameterBuilder, sum_of_rows};
pub use config::{DebertaConfig, PositionTerms};

/// The encoder.
#[derive(Debug, Clone)]
pub struct Deberta {
    config: DebertaConfig,
    compute: Compute,
    word_embeddings: EmbeddingTable,
    position_embeddings: Option<EmbeddingTable>,
    token_type_embeddings: Option<EmbeddingTable>,
    embedding_projection: Option<Linear>,
    embedding_norm: LayerNorm,
    relative_embeddings: Option<Tensor>,
    relative_norm: Option<LayerNorm>,
    layers: Vec<DebertaLayer>,
}

/// One block.
#[derive(Debug, Clone)]
struct DebertaLayer {
    attention: Projections,
    /// Projects relative embeddings for the content-to-position term; equal to the key projection
    /// if shared. `None` without the term.
    position_key: Option<Linear>,
    /// Projects relative embeddings for the position-to-content term; equal to the query projection
    /// if shared. `None` without the term.
    position_query: Option<Linear>,
    output: BlockOutput,
}

/// The relative positions of a batch.
struct RelativePositions {
    /// The embeddings of the relative positions that occur, `[R, D]`.
    embeddings: Tensor,
    /// The row of `embeddings` for each distance (query position minus key position), in ascending
    /// order.
    rows: Arc<[u32]>,
}

impl DebertaLayer {
    fn new(config: &DebertaConfig, builder: &ParameterBuilder) -> Result<Self> {
        let (d, std) = (config.hidden_size, config.initializer_range);
        let attention = builder.pp("attention.self");
        let query = Linear::new(d, d, std, &attention.pp("query_proj"))?;
        let key = Linear::new(d, d, std, &attention.pp("key_proj"))?;
        let value = Linear::new(d, d, std, &attention.pp("value_proj"))?;
        let position = |term: bool, shared: &Linear, name: &str| -> Result<Option<Linear>> {
            if !term || !config.relative_attention {
                return Ok(None);
            }
            if config.share_att_key {
                return Ok(Some(shared.clone()));
            }
            Linear::new(d, d, std, &attention.pp(name)).map(Some)
        };
        let terms = config.pos_att_type;
        Ok(Self {
            position_key: position(terms.content_to_position, &key, "pos_key_proj")?,
            position_query: position(terms.position_to_content, &query, "pos_query_proj")?,
            attention: Projections {
                query,
                key,
                value,
                output: Linear::new(d, d, std, &builder.pp("attention.output.dense"))?,
            },
            output: BlockOutput::new(config.block_shape(), builder)?,
        })
    }

    /// Runs the block: `[T, D]` → `[T, D]`. `relative` has the embeddings of relative positions,
    /// with dropout, of the position-to-content term and of the content-to-position term, and the
    /// row of each distance.
    fn forward(
        &self,
        x: &Tensor,
        relative: Option<(&[Tensor], &Arc<[u32]>)>,
        config: &DebertaConfig,
        tokens: &PackedTokens,
        mode: &Mode,
    ) -> Result<Tensor> {
        let (num_heads, segments) = (config.num_attention_heads, tokens.segments.clone());
        let terms = 1 + config.pos_att_type.count();
        let scale = 1.0 / ((config.hidden_size / num_heads * terms) as f32).sqrt();
        let qkv = stacked_linear(x, &self.attention.query_key_value(mode))?;
        let bias = match relative {
            None => None,
            Some((embeddings, rows)) => {
                let project = |layer: &Option<Linear>, embeddings: Option<&Tensor>| {
                    layer
                        .as_ref()
                        .zip(embeddings)
                        .map(|(layer, x)| layer.forward(x, mode))
                        .transpose()
                };
                let key = project(&self.position_key, embeddings.get(1))?;
                let query = project(&self.position_query, embeddings.first())?;
                let segments = segments.clone();
                let options = Disentangled { num_heads, scale, segments, rows: rows.clone() };
                Some(disentangled_bias(&qkv, key.as_ref(), query.as_ref(), &options)?)
            }
        };
        let dropout = mode.dropout(config.attention_probs_dropout_prob);
        let options = Attention { num_heads, scale, causal: false, segments, dropout };
        let bias = bias.as_ref().map(AttentionBias::PerSegment);
        let context = self_attention(&qkv, bias, &options)?;
        let mut chain = mode.chain();
        let (context, x) = (chain.input(&context), chain.input(x));
        let attended = chain.stacked_linear(context, &[self.attention.output.parameters(mode)]);
        self.output.append(&mut chain, attended, x, mode);
        Ok(chain.finish()?)
    }
}

impl Deberta {
    /// Builds the encoder with published weights, or with random initial weights.
    ///
    /// # Errors
    /// [`ModelError::BadConfig`], and the errors of [`ParameterBuilder::get`].
    pub fn new(config: &DebertaConfig, builder: &ParameterBuilder) -> Result<Self> {
        config.validate()?;
        let (d, std, eps) = (config.hidden_size, config.initializer_range, config.layer_norm_eps);
        let e = config.embedding_size.unwrap_or(d);
        let (embeddings, encoder) = (builder.pp("embeddings"), builder.pp("encoder"));
        let table = |name: &str, rows: usize| {
            embeddings.pp(name).embedding_table("weight", [rows, e], Init::Normal(std))
        };
        let (positions, types) = (config.max_position_embeddings, config.type_vocab_size);
        let relative = config.relative_attention;
        let span = config.relative_span() as usize;
        Ok(Self {
            word_embeddings: table("word_embeddings", config.vocab_size)?,
            position_embeddings: config
                .position_biased_input
                .then(|| table("position_embeddings", positions))
                .transpose()?,
            token_type_embeddings: (types > 0)
                .then(|| table("token_type_embeddings", types))
                .transpose()?,
            embedding_projection: (e != d)
                .then(|| Linear::without_bias(e, d, std, &embeddings.pp("embed_proj")))
                .transpose()?,
            embedding_norm: LayerNorm::new(d, eps, &embeddings.pp("LayerNorm"))?,
            relative_embeddings: relative
                .then(|| {
                    let table = encoder.pp("rel_embeddings");
                    table.get("weight", &[2 * span, d], Init::Normal(std))
                })
                .transpose()?,
            relative_norm: (relative && config.has_relative_norm())
                .then(|| LayerNorm::new(d, eps, &encoder.pp("LayerNorm")))
                .transpose()?,
            layers: (0..config.num_hidden_layers)
                .map(|i| DebertaLayer::new(config, &encoder.pp("layer").pp(i)))
                .collect::<Result<_>>()?,
            config: config.clone(),
            compute: builder.compute(),
        })
    }

    /// The configuration.
    pub fn config(&self) -> &DebertaConfig {
        &self.config
    }

    /// Returns the last hidden state, `[T, D]`. Hidden states of earlier blocks are freed as soon
    /// as possible. A model without absolute positions accepts sequences of any length.
    ///
    /// # Errors
    /// [`ModelError::BadInput`] for a position beyond the position table. [`ModelError::Candle`]
    /// for a token id or type beyond its table.
    pub fn encode(&self, tokens: &PackedTokens, mode: &Mode) -> Result<Tensor> {
        self.run(tokens, mode, |_| {})
    }

    /// Returns the last hidden state, `[T, D]`. Calls `on_state` with each earlier state, starting
    /// with the embeddings.
    pub(crate) fn run(
        &self,
        tokens: &PackedTokens,
        mode: &Mode,
        mut on_state: impl FnMut(&Tensor),
    ) -> Result<Tensor> {
        let x = self.embed(tokens, mode)?;
        let x = dropout(&x, mode.dropout(self.config.hidden_dropout_prob))?;
        let mut state = mode.detach(x);
        let relative = self.relative_positions(tokens)?;
        for layer in &self.layers {
            on_state(&state);
            let (config, tokens) = (self.config.clone(), tokens.clone());
            let (mut inputs, mut rows) = (vec![state.clone()], None);
            if let Some(relative) = &relative {
                let mask = mode.dropout(config.hidden_dropout_prob);
                let embeddings = dropout(&relative.embeddings, mask)?;
                inputs.extend([embeddings.clone(), embeddings]);
                rows = Some(relative.rows.clone());
            }
            let inputs: Vec<&Tensor> = inputs.iter().collect();
            let next = mode.block(layer, &inputs, move |layer, inputs, mode| {
                let relative = rows.as_ref().map(|rows| (&inputs[1..], rows));
                layer.forward(&inputs[0], relative, &config, &tokens, mode)
            })?;
            state = mode.detach(next);
        }
        Ok(state)
    }

    /// The embedding tables, with the ids that these tokens look up in each.
    ///
    /// # Errors
    /// [`ModelError::BadInput`] for a position beyond its table.
    pub(crate) fn lookups<'a>(&'a self, tokens: &'a PackedTokens) -> Result<Vec<Lookup<'a>>> {
        if self.position_embeddings.is_some() {
            tokens.check_positions(self.config.max_position_embeddings)?;
        }
        let positions = self.position_embeddings.iter().map(|table| (table, &tokens.positions));
        let types = self.token_type_embeddings.iter().map(|table| (table, &tokens.types));
        let words = std::iter::once((&self.word_embeddings, &tokens.ids));
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

    /// Returns the relative positions that occur in a batch; `None` without relative attention.
    fn relative_positions(&self, tokens: &PackedTokens) -> Result<Option<RelativePositions>> {
        let Some(table) = &self.relative_embeddings else { return Ok(None) };
        if tokens.segments.branches().is_some() {
            let reason = "branching sequences are not supported with relative attention";
            return Err(ModelError::BadInput(reason.into()));
        }
        let max_length =
            tokens.sequences().iter().map(|span| span.length).max().unwrap_or(0) as i64;
        let (mut occurring_rows, mut rows) = (Vec::new(), Vec::new());
        // Rows ascend with the distance, so equal rows are adjacent.
        for row in (1 - max_length..max_length).map(|distance| self.config.relative_row(distance)) {
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
