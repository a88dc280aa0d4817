//! One block: attention, feed-forward, and a residual sum with a norm after each.

use std::sync::Arc;

use candle_core::Tensor;

use super::TextEncoderConfig;
use crate::error::Result;
use crate::kernels::{
    Attention, AttentionBias, Chain, Disentangled, Mode, Value, disentangled_bias, self_attention,
    stacked_linear,
};
use crate::layers::{LayerNorm, Linear, Projections};
use crate::packed::PackedTokens;
use crate::params::ParameterBuilder;

#[derive(Debug, Clone)]
pub(super) struct Block {
    attention: Projections,
    /// Projects relative embeddings for the content-to-position term; equal to the key projection
    /// if shared. `None` without the term.
    position_key: Option<Linear>,
    /// Projects relative embeddings for the position-to-content term; equal to the query projection
    /// if shared. `None` without the term.
    position_query: Option<Linear>,
    attention_norm: LayerNorm,
    intermediate: Linear,
    output: Linear,
    output_norm: LayerNorm,
}

/// What a block knows of relative positions.
#[derive(Clone, Copy)]
pub(super) enum Relative<'a> {
    None,
    /// MPNet's biases `[H, L, L]`.
    Bias(&'a Tensor),
    /// DeBERTa's embeddings of relative positions after dropout, for the position-to-content term
    /// and for the content-to-position term, and the row of each distance.
    Embeddings(&'a [Tensor], &'a Arc<[u32]>),
}

impl Block {
    pub(super) fn new(config: &TextEncoderConfig, builder: &ParameterBuilder) -> Result<Self> {
        let (d, m) = (config.hidden_size, config.intermediate_size);
        let (std, eps) = (config.initializer_range, config.layer_norm_eps());
        let names = &config.family.names;
        let linear = |name: &str| Linear::new(d, d, std, &builder.pp(name));
        let (query, key, value) = (linear(names.query)?, linear(names.key)?, linear(names.value)?);
        let relative = config.relative();
        let position = |term: bool, shared: &Linear, name: &str| -> Result<Option<Linear>> {
            match relative.filter(|_| term) {
                None => Ok(None),
                Some(relative) if relative.share_att_key => Ok(Some(shared.clone())),
                Some(_) => linear(name).map(Some),
            }
        };
        let terms = relative.map(|relative| relative.pos_att_type).unwrap_or_default();
        let norm = |name: &str| LayerNorm::new(d, eps, &builder.pp(name));
        Ok(Self {
            position_key: position(terms.content_to_position, &key, "attention.self.pos_key_proj")?,
            position_query: position(
                terms.position_to_content,
                &query,
                "attention.self.pos_query_proj",
            )?,
            attention: Projections { query, key, value, output: linear(names.attention_output)? },
            attention_norm: norm(names.attention_norm)?,
            intermediate: Linear::new(d, m, std, &builder.pp(names.intermediate))?,
            output: Linear::new(m, d, std, &builder.pp(names.output))?,
            output_norm: norm(names.output_norm)?,
        })
    }

    /// Runs the block: `[T, D]` → `[T, D]`.
    pub(super) fn forward(
        &self,
        x: &Tensor,
        relative: Relative<'_>,
        config: &TextEncoderConfig,
        tokens: &PackedTokens,
        mode: &Mode,
    ) -> Result<Tensor> {
        let (num_heads, scale) = (config.num_attention_heads, config.attention_scale());
        let segments = tokens.segments.clone();
        let options = |mode: &Mode| Attention {
            num_heads,
            scale,
            causal: false,
            segments: segments.clone(),
            dropout: mode.dropout(config.attention_probs_dropout_prob),
        };
        let mut chain = mode.chain();
        if config.disentangled.is_none() {
            let bias = match relative {
                Relative::Bias(bias) => Some(AttentionBias::Shared(bias)),
                _ => None,
            };
            let (options, x) = (options(mode), chain.input(x));
            let attended = self.attention.self_attention(&mut chain, x, bias, &options, mode);
            return self.finish(chain, attended, x, config, mode);
        }
        let qkv = stacked_linear(x, &self.attention.query_key_value(mode))?;
        let project = |layer: &Option<Linear>, embeddings: &Tensor| {
            layer.as_ref().map(|layer| layer.forward(embeddings, mode)).transpose()
        };
        let bias = match relative {
            Relative::None | Relative::Bias(_) => None,
            Relative::Embeddings(embeddings, rows) => {
                let key = project(&self.position_key, &embeddings[1])?;
                let query = project(&self.position_query, &embeddings[0])?;
                let (segments, rows) = (segments.clone(), rows.clone());
                let positions = Disentangled { num_heads, scale, segments, rows };
                Some(disentangled_bias(&qkv, key.as_ref(), query.as_ref(), &positions)?)
            }
        };
        let bias = bias.as_ref().map(AttentionBias::PerSegment);
        let context = self_attention(&qkv, bias, &options(mode))?;
        let (context, x) = (chain.input(&context), chain.input(x));
        let attended = chain.stacked_linear(context, &[self.attention.output.parameters(mode)]);
        self.finish(chain, attended, x, config, mode)
    }

    /// Finishes the chain: the output of attention `attended` and the block's input `x`, both
    /// `[T, D]` → the block's output `[T, D]`.
    fn finish(
        &self,
        mut chain: Chain,
        attended: Value,
        x: Value,
        config: &TextEncoderConfig,
        mode: &Mode,
    ) -> Result<Tensor> {
        let dropout = mode.dropout(config.hidden_dropout_prob);
        let x = chain.residual_norm(attended, x, self.attention_norm.as_norm(), dropout);
        let (up, down) = (self.intermediate.parameters(mode), self.output.parameters(mode));
        let y = chain.feed_forward(x, up, down, config.hidden_act);
        let dropout = mode.dropout(config.hidden_dropout_prob);
        chain.residual_norm(y, x, self.output_norm.as_norm(), dropout);
        Ok(chain.finish()?)
    }
}
