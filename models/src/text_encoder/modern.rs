//! ModernBERT (arXiv 2412.13663): pre-norm blocks with rotary positions, a gated feed-forward part,
//! and local attention in most blocks.

use std::collections::BTreeMap;

use candle_core::Tensor;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::{TextEncoderConfig, check_no_branches};
use crate::config::{check_epsilon, check_probability, require};
use crate::error::Result;
use crate::kernels::{Attention, Mode, Segments, rotary_angles};
use crate::layers::{LayerNorm, Linear};
use crate::packed::PackedTokens;
use crate::params::ParameterBuilder;

/// The fields that only a ModernBERT's configuration has, in the spelling of transformers 4 and 5.
/// `None` stands for the published default.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct ModernBertConfig {
    /// The kind of each block's attention; `None` for the kinds of `global_attn_every_n_layers`.
    layer_types: Option<Vec<LayerType>>,
    /// One block of this number has global attention, beginning with the first.
    global_attn_every_n_layers: Option<usize>,
    /// The width of the window of local attention. A token sees half of it on each side.
    local_attention: Option<usize>,
    /// The positions of each kind of attention, instead of the next three fields.
    rope_parameters: Option<BTreeMap<LayerType, Option<Rope>>>,
    global_rope_theta: Option<f64>,
    local_rope_theta: Option<f64>,
    rope_scaling: Option<Value>,
    attention_bias: bool,
    mlp_bias: bool,
    pub(super) norm_bias: bool,
    pub(super) mlp_dropout: f64,
}

/// The kind of a block's attention: global or local.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "snake_case")]
enum LayerType {
    FullAttention,
    SlidingAttention,
}

impl LayerType {
    const ALL: [Self; 2] = [Self::FullAttention, Self::SlidingAttention];
}

#[derive(Debug, Clone, Deserialize)]
struct Rope {
    #[serde(alias = "type")]
    rope_type: Option<String>,
    rope_theta: Option<f64>,
}

/// ModernBERT's names of fields that all families have, and the other families' names.
const FIELDS: [(&str, &str); 4] = [
    ("hidden_activation", "hidden_act"),
    ("norm_eps", "layer_norm_eps"),
    ("embedding_dropout", "hidden_dropout_prob"),
    ("attention_dropout", "attention_probs_dropout_prob"),
];

/// Returns a `config.json` with the other families' names. Published files may also have fields of
/// the other families, which have no effect.
pub(super) fn renamed(text: &str) -> Result<String, String> {
    let mut fields: Map<String, Value> = serde_json::from_str(text).map_err(|e| e.to_string())?;
    for (name, other) in FIELDS {
        match fields.remove(name) {
            Some(value) => _ = fields.insert(other.into(), value),
            None if fields.contains_key(other) => {
                return Err(format!("`{other}` is a field of BERT; rename it to `{name}`"));
            }
            None => {}
        }
    }
    if fields.get("local_rope_theta").is_some_and(Value::is_null) {
        return Err("`local_rope_theta` is null: give it the value of `global_rope_theta`".into());
    }
    fields.entry("hidden_act").or_insert_with(|| "gelu".into());
    Ok(Value::Object(fields).to_string())
}

impl ModernBertConfig {
    /// Checks that the values are valid and fit the other fields.
    pub(super) fn validate(&self, config: &TextEncoderConfig) -> Result<()> {
        let (heads, layers) = (config.num_attention_heads, config.num_hidden_layers);
        let size = config.hidden_size / heads;
        require(size.is_multiple_of(2), "num_attention_heads", || {
            format!("{heads} heads have {size} channels each, an odd number")
        })?;
        check_epsilon("norm_eps", config.layer_norm_eps())?;
        check_probability("embedding_dropout", config.hidden_dropout_prob)?;
        check_probability("attention_dropout", config.attention_probs_dropout_prob)?;
        check_probability("mlp_dropout", self.mlp_dropout)?;
        let count = self.layer_types.as_ref().map_or(layers, Vec::len);
        require(count == layers, "layer_types", || format!("{count} types of {layers} layers"))?;
        let every = self.global_attn_every_n_layers;
        require(every != Some(0), "global_attn_every_n_layers", || "has to be at least 1")?;
        require(self.rope_scaling.is_none(), "rope_scaling", || "only null is supported")?;
        for kind in LayerType::ALL {
            let rope = self.rope(kind).and_then(|rope| rope.rope_type.as_deref());
            let rope = rope.unwrap_or("default");
            require(rope == "default", "rope_parameters", || {
                format!("rope_type `{rope}` is not supported; only `default` is")
            })?;
            let theta = self.theta(kind);
            require(theta.is_finite() && theta > 0.0, "rope_theta", || {
                format!("{theta} is not a positive number")
            })?;
        }
        Ok(())
    }

    fn layer_type(&self, layer: usize) -> LayerType {
        let every = self.global_attn_every_n_layers.unwrap_or(3);
        match &self.layer_types {
            Some(types) => types[layer],
            None if layer.is_multiple_of(every) => LayerType::FullAttention,
            None => LayerType::SlidingAttention,
        }
    }

    fn rope(&self, kind: LayerType) -> Option<&Rope> {
        self.rope_parameters.as_ref()?.get(&kind)?.as_ref()
    }

    /// The base of the rotary frequencies.
    fn theta(&self, kind: LayerType) -> f64 {
        let (older, default) = match kind {
            LayerType::FullAttention => (self.global_rope_theta, 160_000.0),
            LayerType::SlidingAttention => (self.local_rope_theta, 10_000.0),
        };
        self.rope(kind).and_then(|rope| rope.rope_theta).or(older).unwrap_or(default)
    }
}

/// The blocks, and the norm after them.
#[derive(Debug, Clone)]
pub(super) struct ModernBlocks {
    blocks: Vec<Block>,
    final_norm: LayerNorm,
}

#[derive(Debug, Clone)]
struct Block {
    kind: LayerType,
    /// `None` in the first block, whose input is normalised.
    attention_norm: Option<LayerNorm>,
    query_key_value: Linear,
    attention_output: Linear,
    feed_forward_norm: LayerNorm,
    /// The value with the activation, then its factor.
    intermediate: Linear,
    output: Linear,
}

impl ModernBlocks {
    /// Creates the blocks. `norm` creates the norm with the parameters of a builder.
    pub(super) fn new(
        config: &TextEncoderConfig,
        modern: &ModernBertConfig,
        norm: impl Fn(&ParameterBuilder) -> Result<LayerNorm>,
        builder: &ParameterBuilder,
    ) -> Result<Self> {
        let (d, m, names) = (config.hidden_size, config.intermediate_size, &config.family.names);
        let (layers, std) = (config.num_hidden_layers, config.initializer_range);
        let output_std = std / (2.0 * layers as f64).sqrt();
        let block = |i: usize| {
            let builder = builder.pp(names.blocks).pp(i);
            let linear = |[d_in, d_out]: [usize; 2], std, has_bias, name| {
                let new = if has_bias { Linear::new } else { Linear::without_bias };
                new(d_in, d_out, std, &builder.pp(name))
            };
            let (of_attention, of_mlp) = (modern.attention_bias, modern.mlp_bias);
            let attention_norm = (i > 0).then(|| norm(&builder.pp(names.attention_norm)));
            Ok(Block {
                kind: modern.layer_type(i),
                attention_norm: attention_norm.transpose()?,
                query_key_value: linear([d, 3 * d], std, of_attention, names.query)?,
                attention_output: linear([d, d], output_std, of_attention, names.attention_output)?,
                feed_forward_norm: norm(&builder.pp(names.output_norm))?,
                intermediate: linear([d, 2 * m], std, of_mlp, names.intermediate)?,
                output: linear([m, d], output_std, of_mlp, names.output)?,
            })
        };
        let blocks = (0..layers).map(block).collect::<Result<_>>()?;
        Ok(Self { blocks, final_norm: norm(&builder.pp("final_norm"))? })
    }

    /// Runs the blocks on the embeddings, `[T, D]` → `[T, D]`. Calls `on_state` with the state
    /// before each block.
    pub(super) fn run(
        &self,
        mut state: Tensor,
        config: &TextEncoderConfig,
        modern: &ModernBertConfig,
        tokens: &PackedTokens,
        mode: &Mode,
        mut on_state: impl FnMut(&Tensor),
    ) -> Result<Tensor> {
        check_no_branches(tokens)?;
        let size = config.hidden_size / config.num_attention_heads;
        let angles =
            |kind| rotary_angles(&tokens.positions, modern.theta(kind), size, state.device());
        let [global, local] = LayerType::ALL.map(angles);
        let distance = modern.local_attention.unwrap_or(128) / 2;
        let window = tokens.segments.clone().with_window(distance);
        let positions = [(global?, tokens.segments.clone()), (local?, window)];
        for block in &self.blocks {
            on_state(&state);
            let (angles, segments) = positions[block.kind as usize].clone();
            let (config, mlp_dropout) = (config.clone(), modern.mlp_dropout);
            let next = mode.block(block, &[&state], move |block, inputs, mode| {
                block.forward(&inputs[0], (&angles, &segments), &config, mlp_dropout, mode)
            })?;
            state = mode.detach(next);
        }
        Ok(mode.detach(self.final_norm.forward(&state)?))
    }
}

impl Block {
    /// Runs the block with the angles of [`rotary_angles`]: `[T, D]` → `[T, D]`.
    fn forward(
        &self,
        x: &Tensor,
        (angles, segments): (&Tensor, &Segments),
        config: &TextEncoderConfig,
        mlp_dropout: f64,
        mode: &Mode,
    ) -> Result<Tensor> {
        let attention_dropout = || mode.dropout(config.attention_probs_dropout_prob);
        let mut chain = mode.chain();
        let x = chain.input(x);
        let normed = match &self.attention_norm {
            Some(norm) => chain.norm(x, norm.as_norm()),
            None => x,
        };
        let qkv = chain.stacked_linear(normed, &[self.query_key_value.parameters(mode)]);
        let qkv = chain.rotary(qkv, angles);
        let options = Attention {
            num_heads: config.num_attention_heads,
            scale: config.attention_scale(),
            causal: false,
            segments: segments.clone(),
            dropout: attention_dropout(),
        };
        let context = chain.self_attention(qkv, None, &options);
        let attended = chain.stacked_linear(context, &[self.attention_output.parameters(mode)]);
        let x = chain.residual(x, attended, attention_dropout());
        let normed = chain.norm(x, self.feed_forward_norm.as_norm());
        let hidden = chain.stacked_linear(normed, &[self.intermediate.parameters(mode)]);
        let hidden = chain.gated(hidden, config.hidden_act);
        let hidden = chain.dropout(hidden, mode.dropout(mlp_dropout));
        let output = chain.stacked_linear(hidden, &[self.output.parameters(mode)]);
        chain.residual(x, output, None);
        Ok(chain.finish()?)
    }
}
