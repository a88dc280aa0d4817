//! The blocks of T5 v1.1. REVEAL's heads, Perceiver and fusion also consist of them.
//!
//! Reference: `transformers` 5, `models/t5/modeling_t5.py`. Blocks are pre-norm with RMS norms,
//! linear layers have no bias, and attention scores are not scaled. The first block of a stack
//! stores the relative biases of all blocks.

use std::sync::Arc;

use candle_core::Tensor;

use super::config::T5Config;
use crate::error::{ModelError, Result};
use crate::generation::cache::{LayerCache, Step};
use crate::kernels::{
    Attention, AttentionBias, Chain, Mode, Segments, Value, attention, embedding_sum, residual,
    stacked_linear,
};
use crate::layers::{CrossKeyValues, Linear, Projections, RmsNorm};
use crate::params::{Init, ParameterBuilder};

/// A learned bias for each head and bucket of relative positions.
#[derive(Debug, Clone)]
pub struct RelativeBias {
    /// `[buckets, H]`.
    weight: Tensor,
    max_distance: usize,
    bidirectional: bool,
}

/// `wo (gelu(wi_0 x) ⊙ wi_1 x)`.
#[derive(Debug, Clone)]
struct FeedForward {
    norm: RmsNorm,
    gate: Linear,
    up: Linear,
    down: Linear,
}

/// Self-attention and feed-forward.
#[derive(Debug, Clone)]
pub struct EncoderLayer {
    config: T5Config,
    norm: RmsNorm,
    attention: Projections,
    feed_forward: FeedForward,
}

/// Self-attention, cross-attention to the encoder's states, and feed-forward.
#[derive(Debug, Clone)]
pub struct DecoderLayer {
    config: T5Config,
    norm: RmsNorm,
    attention: Projections,
    cross_norm: RmsNorm,
    cross_attention: Projections,
    feed_forward: FeedForward,
}

impl RelativeBias {
    /// Creates the table: the parameter `weight` below the builder's path.
    pub fn new(config: &T5Config, bidirectional: bool, builder: &ParameterBuilder) -> Result<Self> {
        let shape = [config.relative_attention_num_buckets, config.num_heads];
        let std = (config.d_model as f64).powf(-0.5);
        Ok(Self {
            weight: builder.get("weight", &shape, Init::Normal(std))?,
            max_distance: config.relative_attention_max_distance,
            bidirectional,
        })
    }

    /// Returns the biases from the last `queries` of `keys` positions to all positions:
    /// `[H, queries, keys]`.
    ///
    /// # Errors
    /// [`ModelError::BadInput`] if there are more queries than keys.
    pub fn forward(&self, queries: usize, keys: usize) -> Result<Tensor> {
        if queries > keys {
            let reason = format!("{queries} queries for {keys} keys");
            return Err(ModelError::BadInput(reason));
        }
        let (buckets, heads) = self.weight.dims2()?;
        let ids: Arc<[u32]> = (keys - queries..keys)
            .flat_map(|query| (0..keys).map(move |key| key as i64 - query as i64))
            .map(|relative_position| self.bucket(relative_position, buckets))
            .collect();
        let rows = embedding_sum(&[(&self.weight, ids)])?;
        Ok(rows.reshape((queries, keys, heads))?.permute((2, 0, 1))?.contiguous()?)
    }

    /// Returns the bucket of a relative position. Each near position has its own bucket. Far
    /// positions share buckets on a logarithmic scale.
    fn bucket(&self, relative_position: i64, buckets: usize) -> u32 {
        let (mut first, mut buckets) = (0, buckets);
        let mut distance = (-relative_position).max(0) as usize;
        if self.bidirectional {
            buckets /= 2;
            first = if relative_position > 0 { buckets } else { 0 };
            distance = relative_position.unsigned_abs() as usize;
        }
        let max_exact = buckets / 2;
        let bucket = if distance < max_exact {
            distance
        } else {
            let max_ratio = self.max_distance as f32 / max_exact as f32;
            let ratio = (distance as f32 / max_exact as f32).ln() / max_ratio.ln();
            (max_exact + (ratio * (buckets - max_exact) as f32) as usize).min(buckets - 1)
        };
        (first + bucket) as u32
    }
}

/// Creates the projections of an attention layer, without biases. Their width `num_heads * d_kv`
/// may differ from the model's width.
fn projections(config: &T5Config, builder: &ParameterBuilder) -> Result<Projections> {
    let (d, inner) = (config.d_model, config.inner_size());
    let std = (d as f64).powf(-0.5);
    let query_std = ((d * config.d_kv) as f64).powf(-0.5);
    let projection =
        |name: &str, d_in, d_out, std| Linear::without_bias(d_in, d_out, std, &builder.pp(name));
    Ok(Projections {
        query: projection("q", d, inner, query_std)?,
        key: projection("k", d, inner, std)?,
        value: projection("v", d, inner, std)?,
        output: projection("o", inner, d, (inner as f64).powf(-0.5))?,
    })
}

impl FeedForward {
    fn new(config: &T5Config, builder: &ParameterBuilder) -> Result<Self> {
        let (d, m) = (config.d_model, config.d_ff);
        let inner = builder.pp("DenseReluDense");
        let up_std = (d as f64).powf(-0.5);
        Ok(Self {
            norm: RmsNorm::new(d, config.layer_norm_epsilon, &builder.pp("layer_norm"))?,
            gate: Linear::without_bias(d, m, up_std, &inner.pp("wi_0"))?,
            up: Linear::without_bias(d, m, up_std, &inner.pp("wi_1"))?,
            down: Linear::without_bias(m, d, (m as f64).powf(-0.5), &inner.pp("wo"))?,
        })
    }

    /// Adds the module and its residual sum to a chain: `[T, D]` → `[T, D]`.
    fn forward(&self, chain: &mut Chain, x: Value, config: &T5Config, mode: &Mode) -> Value {
        let normed = chain.norm(x, self.norm.as_norm());
        let hidden = [&self.gate, &self.up].map(|layer| layer.parameters(mode));
        let hidden = chain.stacked_linear(normed, &hidden);
        let hidden = chain.gated(hidden, config.activation());
        let hidden = chain.dropout(hidden, mode.dropout(config.dropout_rate));
        let down = chain.stacked_linear(hidden, &[self.down.parameters(mode)]);
        chain.residual(x, down, mode.dropout(config.dropout_rate))
    }
}

/// T5's attention options: scores are not scaled.
fn options(config: &T5Config, segments: &Segments, causal: bool, mode: &Mode) -> Attention {
    Attention {
        num_heads: config.num_heads,
        scale: 1.0,
        causal,
        segments: segments.clone(),
        dropout: mode.dropout(config.dropout_rate),
    }
}

impl EncoderLayer {
    /// Builds the block from the parameters below `layer.0` and `layer.1` of the builder's path.
    pub fn new(config: &T5Config, builder: &ParameterBuilder) -> Result<Self> {
        let attention = builder.pp("layer.0");
        Ok(Self {
            norm: RmsNorm::new(
                config.d_model,
                config.layer_norm_epsilon,
                &attention.pp("layer_norm"),
            )?,
            attention: projections(config, &attention.pp("SelfAttention"))?,
            feed_forward: FeedForward::new(config, &builder.pp("layer.1"))?,
            config: config.clone(),
        })
    }

    /// Runs the block: `[T, D]` → `[T, D]`. The relative biases `[H, L, L]` apply to every segment.
    /// `weights` `[T, 1]` multiply the normalised input of attention, token by token, as in
    /// `fuse_topk_knowledge` of REVEAL; `None` means weight 1.
    pub fn forward(
        &self,
        x: &Tensor,
        bias: &Tensor,
        segments: &Segments,
        weights: Option<&Tensor>,
        mode: &Mode,
    ) -> Result<Tensor> {
        let (mut inputs, segments) = (vec![x, bias], segments.clone());
        inputs.extend(weights);
        mode.block(self, &inputs, move |layer, inputs, mode| {
            layer.run(&inputs[0], &inputs[1], &segments, inputs.get(2), mode)
        })
    }

    fn run(
        &self,
        x: &Tensor,
        bias: &Tensor,
        segments: &Segments,
        weights: Option<&Tensor>,
        mode: &Mode,
    ) -> Result<Tensor> {
        let mut chain = mode.chain();
        let x = chain.input(x);
        let mut normed = chain.norm(x, self.norm.as_norm());
        if let Some(weights) = weights {
            let weights = chain.input(weights);
            normed = chain.scaled_rows(normed, weights);
        }
        let options = options(&self.config, segments, false, mode);
        let attended = self.attention.self_attention(
            &mut chain,
            normed,
            Some(AttentionBias::Shared(bias)),
            &options,
            mode,
        );
        let x = chain.residual(x, attended, mode.dropout(self.config.dropout_rate));
        self.feed_forward.forward(&mut chain, x, &self.config, mode);
        Ok(chain.finish()?)
    }

    /// Computes only the first row of each sequence of [`EncoderLayer::forward`] without weights:
    /// `[T, D]` in sequences of `lengths` → `[S, D]`, with the biases `[H, L, L]`.
    pub(crate) fn first_rows(
        &self,
        x: &Tensor,
        lengths: &[usize],
        bias: &Tensor,
        mode: &Mode,
    ) -> Result<Tensor> {
        let mut starts = Vec::with_capacity(lengths.len());
        let mut next_start = 0;
        for length in lengths {
            starts.push(next_start);
            next_start += *length as u32;
        }
        let starts: Arc<[u32]> = starts.into();
        let bias = bias.narrow(1, 0, 1)?.contiguous()?;
        let segments = Segments::cross(&vec![1; lengths.len()], lengths);
        mode.block(self, &[x, x, &bias], move |layer, inputs, mode| {
            let first = embedding_sum(&[(&inputs[1], starts.clone())])?;
            layer.run_first_rows(&inputs[0], &first, &inputs[2], &segments, mode)
        })
    }

    /// Runs the block for the rows `first` `[S, D]`, which attend to `x` `[T, D]`.
    fn run_first_rows(
        &self,
        x: &Tensor,
        first: &Tensor,
        bias: &Tensor,
        segments: &Segments,
        mode: &Mode,
    ) -> Result<Tensor> {
        let options = options(&self.config, segments, false, mode);
        let mut chain = mode.chain();
        let (x, first) = (chain.input(x), chain.input(first));
        let normed = chain.norm(x, self.norm.as_norm());
        let normed_first = chain.norm(first, self.norm.as_norm());
        let projections = &self.attention;
        let keys = chain.stacked_linear(normed, &[projections.key.parameters(mode)]);
        let values = chain.stacked_linear(normed, &[projections.value.parameters(mode)]);
        let bias = Some(AttentionBias::Shared(bias));
        let attended = projections.cross_attention(
            &mut chain,
            normed_first,
            (keys, values),
            bias,
            &options,
            mode,
        );
        let first = chain.residual(first, attended, mode.dropout(self.config.dropout_rate));
        self.feed_forward.forward(&mut chain, first, &self.config, mode);
        Ok(chain.finish()?)
    }
}

impl DecoderLayer {
    /// Builds the block from the parameters below `layer.0`, `layer.1` and `layer.2` of the
    /// builder's path.
    pub fn new(config: &T5Config, builder: &ParameterBuilder) -> Result<Self> {
        let norm = |path: &str| {
            let builder = builder.pp(path).pp("layer_norm");
            RmsNorm::new(config.d_model, config.layer_norm_epsilon, &builder)
        };
        let projections = |path: &str| projections(config, &builder.pp(path));
        Ok(Self {
            norm: norm("layer.0")?,
            attention: projections("layer.0.SelfAttention")?,
            cross_norm: norm("layer.1")?,
            cross_attention: projections("layer.1.EncDecAttention")?,
            feed_forward: FeedForward::new(config, &builder.pp("layer.2"))?,
            config: config.clone(),
        })
    }

    /// Returns the keys and values of the encoder's states `[T_k, D]`, both `[T_k, H d_kv]`.
    pub fn cross_key_values(&self, states: &Tensor, mode: &Mode) -> Result<(Tensor, Tensor)> {
        self.cross_attention.key_values(states, mode)
    }

    /// Runs the block: `[T, D]` → `[T, D]`. Rows attend within `segments`, with the biases
    /// `[H, L, L]` and a causal mask if `causal`. They attend to the encoder's states `[T_k, D]`
    /// according to the segments `cross`.
    pub fn forward(
        &self,
        x: &Tensor,
        bias: &Tensor,
        segments: &Segments,
        causal: bool,
        (states, cross): (&Tensor, &Segments),
        mode: &Mode,
    ) -> Result<Tensor> {
        let (segments, cross) = (segments.clone(), cross.clone());
        mode.block(self, &[x, bias, states, states], move |layer, inputs, mode| {
            let projections = &layer.cross_attention;
            let keys = projections.key.forward(&inputs[3], mode)?;
            let values = projections.value.forward(&inputs[2], mode)?;
            let cross = CrossKeyValues { keys: &keys, values: &values, segments: &cross };
            layer.run(&inputs[0], &inputs[1], (&segments, causal), cross, mode)
        })
    }

    fn run(
        &self,
        x: &Tensor,
        bias: &Tensor,
        (segments, causal): (&Segments, bool),
        cross: CrossKeyValues<'_>,
        mode: &Mode,
    ) -> Result<Tensor> {
        let self_options = options(&self.config, segments, causal, mode);
        let mut chain = mode.chain();
        let x = chain.input(x);
        let normed = chain.norm(x, self.norm.as_norm());
        let attended = self.attention.self_attention(
            &mut chain,
            normed,
            Some(AttentionBias::Shared(bias)),
            &self_options,
            mode,
        );
        let x = chain.residual(x, attended, mode.dropout(self.config.dropout_rate));
        self.finish_forward(chain, x, cross, mode)
    }

    /// One causal step of [`DecoderLayer::forward`] for the next row of each sequence, with the
    /// biases `[H, 1, L]` of all rows so far: `[S, D]` → `[S, D]`. The cache holds the keys and
    /// values of the earlier rows; this call adds the new rows.
    pub(super) fn step(
        &self,
        x: &Tensor,
        bias: &Tensor,
        cache: &LayerCache,
        step: &Step,
        cross: CrossKeyValues<'_>,
        mode: &Mode,
    ) -> Result<Tensor> {
        let qkv = stacked_linear(&self.norm.forward(x)?, &self.attention.query_key_value(mode))?;
        cache.write(&qkv, step)?;
        let query = qkv.narrow(1, 0, self.config.inner_size())?;
        let options = options(&self.config, &step.segments, false, mode);
        let bias = Some(AttentionBias::Shared(bias));
        let context = attention(&query, &cache.keys, &cache.values, bias, &options)?;
        let x = residual(x, &self.attention.output.forward(&context, mode)?, None)?;
        let mut chain = Chain::new();
        let x = chain.input(&x);
        self.finish_forward(chain, x, cross, mode)
    }

    /// Runs the block after its self-attention.
    fn finish_forward(
        &self,
        mut chain: Chain,
        x: Value,
        cross: CrossKeyValues<'_>,
        mode: &Mode,
    ) -> Result<Tensor> {
        let options = options(&self.config, cross.segments, false, mode);
        let (k, v) = (chain.input(cross.keys), chain.input(cross.values));
        let normed = chain.norm(x, self.cross_norm.as_norm());
        let attended =
            self.cross_attention.cross_attention(&mut chain, normed, (k, v), None, &options, mode);
        let x = chain.residual(x, attended, mode.dropout(self.config.dropout_rate));
        self.feed_forward.forward(&mut chain, x, &self.config, mode);
        Ok(chain.finish()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_rows_equal_the_first_rows_of_the_full_layer() -> Result<()> {
        let builder = ParameterBuilder::on_cpu(3);
        let config = T5Config { d_model: 16, d_kv: 4, d_ff: 24, num_heads: 4, ..T5Config::small() };
        let layer = EncoderLayer::new(&config, &builder)?;
        let bias = RelativeBias::new(&config, true, &builder.pp("bias"))?.forward(5, 5)?;
        let lengths = [5, 1, 3];
        let x: Vec<f32> = (0..9 * 16).map(|i| (i as f32 * 0.7).sin()).collect();
        let x = Tensor::from_vec(x, (9, 16), &candle_core::Device::Cpu)?;
        let mode = Mode::inference();
        let full = layer.forward(&x, &bias, &Segments::packed(&lengths), None, &mode)?;
        let full = embedding_sum(&[(&full, vec![0, 5, 6].into())])?;
        let first = layer.first_rows(&x, &lengths, &bias, &mode)?;
        let difference = (full - first)?.abs()?.max_all()?.to_scalar::<f32>()?;
        assert!(difference < 1e-5, "{difference}");
        Ok(())
    }

    /// Expected buckets: `tests/reference/t5.py`.
    #[test]
    fn buckets_equal_the_reference() -> Result<()> {
        let text = include_str!("../../tests/fixtures/t5_buckets.json");
        let expected: serde_json::Value = serde_json::from_str(text).expect("JSON");
        for (kind, bidirectional) in [("bidirectional", true), ("causal", false)] {
            let builder = ParameterBuilder::on_cpu(0);
            let bias = RelativeBias::new(&T5Config::small(), bidirectional, &builder)?;
            let expected = expected[kind].as_array().expect("a list");
            for (distance, expected) in (-300..=300).zip(expected) {
                let bucket = u64::from(bias.bucket(distance, 32));
                assert_eq!(Some(bucket), expected.as_u64(), "{kind}: distance {distance}");
            }
        }
        Ok(())
    }
}
