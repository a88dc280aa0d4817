//! The decoder: predicts text tokens from the encoder's states.

use candle_core::Tensor;

use super::config::{EPSILON, WhisperConfig};
use crate::adapter::Adapters;
use crate::compute::Compute;
use crate::error::Result;
use crate::generation::cache::{LayerCache, Step};
use crate::kernels::{
    Attention, Chain, Mode, Segments, Value, attention, dropout, embedding_sum, linear, residual,
    self_attention, stacked_linear,
};
use crate::layers::{CrossKeyValues, LayerNorm, Linear, Projections};
use crate::packed::PackedTokens;
use crate::params::{Init, ParameterBuilder};
use crate::speech::AudioStates;

/// Token and position embeddings, layers and final norm. The output projection is tied to the token
/// embeddings.
#[derive(Debug, Clone)]
pub struct Decoder {
    pub(super) config: WhisperConfig,
    compute: Compute,
    /// `[V, D]`.
    tokens: Tensor,
    /// `[max_target_positions, D]`.
    positions: Tensor,
    pub(super) layers: Vec<Layer>,
    layer_norm: LayerNorm,
}

/// A decoder layer.
#[derive(Debug, Clone)]
pub(super) struct Layer {
    norm: LayerNorm,
    attention: Projections,
    cross_norm: LayerNorm,
    cross_attention: Projections,
    feed_forward_norm: LayerNorm,
    up: Linear,
    down: Linear,
    config: WhisperConfig,
}

impl Decoder {
    pub(crate) fn new(config: &WhisperConfig, builder: &ParameterBuilder) -> Result<Self> {
        let (d, std) = (config.d_model, config.init_std);
        let table =
            |name: &str, rows: usize| builder.pp(name).get("weight", &[rows, d], Init::Normal(std));
        let layers = builder.pp("layers");
        Ok(Self {
            tokens: table("embed_tokens", config.vocab_size)?,
            positions: table("embed_positions", config.max_target_positions)?,
            layers: (0..config.decoder_layers)
                .map(|i| Layer::new(config, &layers.pp(i)))
                .collect::<Result<_>>()?,
            layer_norm: LayerNorm::new(d, EPSILON, &builder.pp("layer_norm"))?,
            config: config.clone(),
            compute: builder.compute(),
        })
    }

    /// Returns the logits `[T, V]` of the next token at each position of `tokens`, one sequence per
    /// clip of `audio`.
    ///
    /// # Errors
    /// [`crate::ModelError::BadInput`] if a text has more tokens than the model has positions, or
    /// the number of adapters is neither 0 nor the number of layers.
    pub fn forward(
        &self,
        tokens: &PackedTokens,
        audio: &AudioStates,
        adapters: &Adapters,
        mode: &Mode,
    ) -> Result<Tensor> {
        tokens.check_positions(self.config.max_target_positions)?;
        adapters.check(self.layers.len())?;
        let segments = &tokens.segments;
        let lengths: Vec<usize> = segments.queries().iter().map(|span| span.length).collect();
        let cross = Segments::cross(&lengths, &audio.lengths);
        let x = self.embed(tokens.ids.clone(), tokens.positions.clone())?;
        let mut x = dropout(&mode.detach(x), mode.dropout(self.config.dropout))?;
        for (i, layer) in self.layers.iter().enumerate() {
            let (segments, cross) = (segments.clone(), cross.clone());
            let (adapters, states) = (adapters.clone(), &audio.states);
            let next = mode.block(layer, &[&x, states, states], move |layer, inputs, mode| {
                let projections = &layer.cross_attention;
                let keys = projections.key.forward(&inputs[2], mode)?;
                let values = projections.value.forward(&inputs[1], mode)?;
                let cross = CrossKeyValues { keys: &keys, values: &values, segments: &cross };
                let next = layer.forward(&inputs[0], &segments, cross, mode)?;
                adapters.apply(i, &inputs[0], next, mode)
            })?;
            x = mode.detach(next);
        }
        self.logits(&x)
    }

    /// Returns the embeddings `[T, D]` of tokens at their positions.
    pub(super) fn embed(
        &self,
        ids: std::sync::Arc<[u32]>,
        position_ids: std::sync::Arc<[u32]>,
    ) -> Result<Tensor> {
        let embedded = embedding_sum(&[(&self.tokens, ids), (&self.positions, position_ids)])?;
        self.compute.activations(&embedded)
    }

    /// Returns the logits `[T, V]` of states `[T, D]`.
    pub(super) fn logits(&self, x: &Tensor) -> Result<Tensor> {
        Ok(linear(&self.layer_norm.forward(x)?, &self.tokens, None)?)
    }
}

impl Layer {
    fn new(config: &WhisperConfig, builder: &ParameterBuilder) -> Result<Self> {
        let (d, m, std) = (config.d_model, config.decoder_ffn_dim, config.init_std);
        let norm = |name: &str| LayerNorm::new(d, EPSILON, &builder.pp(name));
        Ok(Self {
            norm: norm("self_attn_layer_norm")?,
            attention: projections(config, &builder.pp("self_attn"))?,
            cross_norm: norm("encoder_attn_layer_norm")?,
            cross_attention: projections(config, &builder.pp("encoder_attn"))?,
            feed_forward_norm: norm("final_layer_norm")?,
            up: Linear::new(d, m, std, &builder.pp("fc1"))?,
            down: Linear::new(m, d, std, &builder.pp("fc2"))?,
            config: config.clone(),
        })
    }

    /// Returns the cross-attention keys and values of audio states `[T_k, D]`, both `[T_k, D]`.
    pub fn cross_key_values(&self, states: &Tensor, mode: &Mode) -> Result<(Tensor, Tensor)> {
        self.cross_attention.key_values(states, mode)
    }

    /// Returns the options of an attention within these segments.
    fn attention_options(&self, segments: &Segments, causal: bool, mode: &Mode) -> Attention {
        let num_heads = self.config.decoder_attention_heads;
        Attention {
            num_heads,
            scale: 1.0 / ((self.config.d_model / num_heads) as f32).sqrt(),
            causal,
            segments: segments.clone(),
            dropout: mode.dropout(self.config.attention_dropout),
        }
    }

    /// Runs the layer: `[T, D]` → `[T, D]`. Rows attend to themselves and earlier rows of their
    /// segment, and to the audio states according to `cross`.
    fn forward(
        &self,
        x: &Tensor,
        segments: &Segments,
        cross: CrossKeyValues<'_>,
        mode: &Mode,
    ) -> Result<Tensor> {
        let mut chain = mode.chain();
        let x = chain.input(x);
        let normed = chain.norm(x, self.norm.as_norm());
        let options = self.attention_options(segments, true, mode);
        let attended = self.attention.self_attention(&mut chain, normed, None, &options, mode);
        let x = chain.residual(x, attended, mode.dropout(self.config.dropout));
        self.finish_forward(chain, x, cross, mode)
    }

    /// Runs the layer for the next row of each sequence, `[S, D]` → `[S, D]`. The cache holds
    /// the keys and values of the previous rows; this call adds the new rows.
    pub fn step(
        &self,
        x: &Tensor,
        cache: &LayerCache,
        step: &Step,
        cross: CrossKeyValues<'_>,
    ) -> Result<Tensor> {
        let mode = Mode::inference();
        let qkv = stacked_linear(&self.norm.forward(x)?, &self.attention.query_key_value(&mode))?;
        cache.write(&qkv, step)?;
        let query = qkv.narrow(1, 0, self.config.d_model)?;
        let options = self.attention_options(&step.segments, false, &mode);
        let context = attention(&query, &cache.keys, &cache.values, None, &options)?;
        let x = residual(x, &self.attention.output.forward(&context, &mode)?, None)?;
        let mut chain = Chain::new();
        let x = chain.input(&x);
        self.finish_forward(chain, x, cross, &mode)
    }

    /// Runs a causal forward pass without dropout, `[T, D]` → `[T, D]`. Also returns the queries
    /// `[T, D]` of the cross-attention.
    pub(crate) fn forward_with_queries(
        &self,
        x: &Tensor,
        segments: &Segments,
        cross: CrossKeyValues<'_>,
    ) -> Result<(Tensor, Tensor)> {
        let mode = Mode::inference();
        let qkv = stacked_linear(&self.norm.forward(x)?, &self.attention.query_key_value(&mode))?;
        let context = self_attention(&qkv, None, &self.attention_options(segments, true, &mode))?;
        let x = residual(x, &self.attention.output.forward(&context, &mode)?, None)?;
        let queries = self.cross_attention.query.forward(&self.cross_norm.forward(&x)?, &mode)?;
        let mut chain = Chain::new();
        let x = chain.input(&x);
        Ok((self.finish_forward(chain, x, cross, &mode)?, queries))
    }

    /// Runs the layer after its self-attention: cross-attention and feed-forward.
    fn finish_forward(
        &self,
        mut chain: Chain,
        x: Value,
        cross: CrossKeyValues<'_>,
        mode: &Mode,
    ) -> Result<Tensor> {
        let (k, v) = (chain.input(cross.keys), chain.input(cross.values));
        let normed = chain.norm(x, self.cross_norm.as_norm());
        let options = self.attention_options(cross.segments, false, mode);
        let attended =
            self.cross_attention.cross_attention(&mut chain, normed, (k, v), None, &options, mode);
        let x = chain.residual(x, attended, mode.dropout(self.config.dropout));
        let normed = chain.norm(x, self.feed_forward_norm.as_norm());
        let (up, down) = (self.up.parameters(mode), self.down.parameters(mode));
        let ffn_output = chain.feed_forward(normed, up, down, self.config.activation_function);
        chain.residual(x, ffn_output, mode.dropout(self.config.dropout));
        Ok(chain.finish()?)
    }
}

/// Creates the projections of an attention layer. As published, keys have no bias.
fn projections(config: &WhisperConfig, builder: &ParameterBuilder) -> Result<Projections> {
    let (d, std) = (config.d_model, config.init_std);
    let projection = |name: &str| Linear::new(d, d, std, &builder.pp(name));
    Ok(Projections {
        query: projection("q_proj")?,
        key: Linear::without_bias(d, d, std, &builder.pp("k_proj"))?,
        value: projection("v_proj")?,
        output: projection("out_proj")?,
    })
}
