//! The blocks of T5 v1.1. REVEAL's heads, Perceiver and fusion also consist of them.
//!
//! Reference: `transformers` 5, `models/t5/modeling_t5.py`. Blocks are pre-norm with RMS norms,
//! linear layers have no bias, and attention scores are not scaled. The first block of a stack
//! stores the relative biases of all blocks.

use std::sync::Arc;

use candle_core::Tensor;

use super::config::T5Config;
use crate::error::{ModelError, Result, bail};
use crate::kernels::{Mode, Segments, embedding_sum};
use crate::layers::{LayerNorm, Linear, Projections};
use crate::params::{Init, ParameterBuilder};
pub use crate::pre_norm::{BlockInputs, PreNormBlock};
use crate::pre_norm::{BlockOptions, FeedForward};

/// A learned bias for each head and bucket of relative positions.
#[derive(Debug, Clone)]
pub struct RelativeBias {
    /// `[buckets, H]`.
    weight: Tensor,
    max_distance: usize,
    bidirectional: bool,
}

impl RelativeBias {
    /// Creates the table: the parameter `weight` below the builder's path.
    pub fn new(config: &T5Config, bidirectional: bool, builder: &ParameterBuilder) -> Result<Self> {
        let shape = [config.relative_attention_num_buckets, config.num_heads];
        let std = (config.d_model as f64).powf(-0.5);
        let max_distance = config.relative_attention_max_distance;
        Self::with_shape(shape, max_distance, std, bidirectional, builder)
    }

    /// Creates a table of this shape: the numbers of buckets and of heads. Positions from
    /// `max_distance` on share the last bucket. `std` is the standard deviation of random initial
    /// values.
    pub(crate) fn with_shape(
        shape: [usize; 2],
        max_distance: usize,
        std: f64,
        bidirectional: bool,
        builder: &ParameterBuilder,
    ) -> Result<Self> {
        let weight = builder.get("weight", &shape, Init::Normal(std))?;
        Ok(Self { weight, max_distance, bidirectional })
    }

    /// Returns the biases `[H, L, L]` of all positions of the longest query segment.
    pub fn within(&self, segments: &Segments) -> Result<Tensor> {
        let longest = segments.queries.iter().map(|span| span.length).max().unwrap_or(1);
        self.forward(longest, longest)
    }

    /// Returns the biases from the last `queries` of `keys` positions to all positions:
    /// `[H, queries, keys]`.
    ///
    /// # Errors
    /// [`ModelError::BadInput`] if there are more queries than keys.
    pub fn forward(&self, queries: usize, keys: usize) -> Result<Tensor> {
        if queries > keys {
            bail!("{queries} queries for {keys} keys");
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

/// Runs blocks one after the other, with the same inputs besides their state `[T, D]`.
pub(crate) fn run_blocks(
    layers: &[PreNormBlock],
    x: Tensor,
    inputs: BlockInputs<'_>,
    mode: &Mode,
) -> Result<Tensor> {
    layers.iter().try_fold(x, |x, layer| Ok(mode.detach(layer.forward(&x, inputs, mode)?)))
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

/// Builds a block of the encoder from the parameters below `layer.0` and `layer.1` of the builder's
/// path.
pub fn encoder_block(config: &T5Config, builder: &ParameterBuilder) -> Result<PreNormBlock> {
    block(config, false, builder)
}

/// Builds a block of the decoder from the parameters below `layer.0`, `layer.1` and `layer.2` of
/// the builder's path.
pub fn decoder_block(config: &T5Config, builder: &ParameterBuilder) -> Result<PreNormBlock> {
    block(config, true, builder)
}

fn block(config: &T5Config, is_decoder: bool, builder: &ParameterBuilder) -> Result<PreNormBlock> {
    let (d, m) = (config.d_model, config.d_ff);
    let norm = |path: &str| {
        let builder = builder.pp(path).pp("layer_norm");
        LayerNorm::rms(d, config.layer_norm_epsilon, &builder)
    };
    let projections = |path: &str| projections(config, &builder.pp(path));
    let options = BlockOptions {
        num_heads: config.num_heads,
        scale: 1.0,
        hidden_dropout: config.dropout_rate,
        attention_dropout: config.dropout_rate,
    };
    let (attention_norm, attention) = (norm("layer.0")?, projections("layer.0.SelfAttention")?);
    let cross = is_decoder
        .then(|| Ok::<_, ModelError>((norm("layer.1")?, projections("layer.1.EncDecAttention")?)))
        .transpose()?;
    let last = if is_decoder { "layer.2" } else { "layer.1" };
    let feed_forward_norm = norm(last)?;
    let inner = builder.pp(last).pp("DenseReluDense");
    let up_std = (d as f64).powf(-0.5);
    let feed_forward = FeedForward::Gated {
        gate: Linear::without_bias(d, m, up_std, &inner.pp("wi_0"))?,
        up: Linear::without_bias(d, m, up_std, &inner.pp("wi_1"))?,
        down: Linear::without_bias(m, d, (m as f64).powf(-0.5), &inner.pp("wo"))?,
        f: config.activation(),
    };
    Ok(PreNormBlock {
        options,
        norm: attention_norm,
        attention,
        cross,
        feed_forward_norm,
        feed_forward,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_rows_equal_the_first_rows_of_the_full_layer() -> Result<()> {
        let builder = ParameterBuilder::on_cpu(3);
        let config = T5Config { d_model: 16, d_kv: 4, d_ff: 24, num_heads: 4, ..T5Config::small() };
        let layer = encoder_block(&config, &builder)?;
        let bias = RelativeBias::new(&config, true, &builder.pp("bias"))?.forward(5, 5)?;
        let lengths = [5, 1, 3];
        let x: Vec<f32> = (0..9 * 16).map(|i| (i as f32 * 0.7).sin()).collect();
        let x = Tensor::from_vec(x, (9, 16), &candle_core::Device::Cpu)?;
        let mode = Mode::inference();
        let segments = Segments::packed(&lengths);
        let inputs = BlockInputs { bias: Some(&bias), ..BlockInputs::new(&segments) };
        let full = layer.forward(&x, inputs, &mode)?;
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
