//! A Conformer block: half-step feed-forward, attention, convolution, half-step feed-forward, norm.

use candle_core::Tensor;

use super::config::{ConformerConfig, ConvolutionNorm, EPSILON};
use super::positions::Positions;
use crate::compute::full_precision;
use crate::error::Result;
use crate::kernels::{
    Attention, AttentionBias, Chain, Disentangled, Mode, Segments, Value, Windows,
    disentangled_bias, self_attention, stacked_linear,
};
use crate::layers::{LayerNorm, Linear, Pointwise, Projections};
use crate::params::{Init, ParameterBuilder};

/// The weight of a feed-forward module's output (half step).
const HALF: f32 = 0.5;

/// A Conformer block.
#[derive(Debug, Clone)]
pub(super) struct Block {
    feed_forward: [FeedForward; 2],
    attention_norm: LayerNorm,
    attention: RelativeAttention,
    convolution_norm: LayerNorm,
    convolution: ConvolutionModule,
    norm: LayerNorm,
}

/// The clips of a batch and the relative positions of their states.
pub(super) struct Clips {
    /// The lengths of the runs of tokens that are convolved separately.
    pub(super) parts: Vec<usize>,
    pub(super) segments: Segments,
    pub(super) positions: Positions,
}

impl Block {
    pub(super) fn new(config: &ConformerConfig, builder: &ParameterBuilder) -> Result<Self> {
        let norm = |name: &str| LayerNorm::new(config.hidden_size, EPSILON, &builder.pp(name));
        let feed_forward = |n: usize| {
            let part = builder.pp(format_args!("feed_forward{n}"));
            FeedForward::new(config, norm(&format!("norm_feed_forward{n}"))?, &part)
        };
        Ok(Self {
            feed_forward: [feed_forward(1)?, feed_forward(2)?],
            attention_norm: norm("norm_self_att")?,
            attention: RelativeAttention::new(config, &builder.pp("self_attn"))?,
            convolution_norm: norm("norm_conv")?,
            convolution: ConvolutionModule::new(config, &builder.pp("conv"))?,
            norm: norm("norm_out")?,
        })
    }

    /// Runs the block: `[T, D]` → `[T, D]`. Clips do not attend to each other.
    pub(super) fn forward(
        &self,
        x: &Tensor,
        clips: &Clips,
        config: &ConformerConfig,
        mode: &Mode,
    ) -> Result<Tensor> {
        let mut chain = mode.chain();
        let input = chain.input(x);
        self.feed_forward[0].append(&mut chain, input, config, mode)?;
        let x = chain.finish()?;

        let normed = self.attention_norm.forward(&x)?;
        let context = self.attention.forward(&normed, clips, config, mode)?;

        let mut chain = mode.chain();
        let (x, context) = (chain.input(&x), chain.input(&context));
        let output = self.attention.projections.output.parameters(mode);
        let attended = chain.stacked_linear(context, &[output]);
        let x = chain.residual(x, attended, mode.dropout(config.dropout));
        let normed = chain.norm(x, self.convolution_norm.as_norm());
        let convolved = self.convolution.append(&mut chain, normed, &clips.parts, config)?;
        let x = chain.residual(x, convolved, mode.dropout(config.dropout));
        let x = self.feed_forward[1].append(&mut chain, x, config, mode)?;
        chain.norm(x, self.norm.as_norm());
        Ok(chain.finish()?)
    }
}

/// Creates a linear layer with a bias. Without biases in `config`, the bias is a constant zero.
fn linear_layer(
    d_in: usize,
    d_out: usize,
    (std, bias): (f64, bool),
    builder: &ParameterBuilder,
) -> Result<Linear> {
    if bias {
        return Linear::new(d_in, d_out, std, builder);
    }
    Linear::without_bias(d_in, d_out, std, builder)?.with_zero_bias()
}

/// A feed-forward module with its norm.
#[derive(Debug, Clone)]
struct FeedForward {
    norm: LayerNorm,
    up: Linear,
    down: Linear,
}

impl FeedForward {
    fn new(config: &ConformerConfig, norm: LayerNorm, builder: &ParameterBuilder) -> Result<Self> {
        let (d, m) = (config.hidden_size, config.intermediate_size);
        let init = (config.initializer_range, config.attention_bias);
        Ok(Self {
            norm,
            up: linear_layer(d, m, init, &builder.pp("linear1"))?,
            down: linear_layer(m, d, init, &builder.pp("linear2"))?,
        })
    }

    /// Adds the module and its residual sum to a chain: `[T, D]` → `[T, D]`.
    fn append(
        &self,
        chain: &mut Chain,
        x: Value,
        config: &ConformerConfig,
        mode: &Mode,
    ) -> Result<Value> {
        let normed = chain.norm(x, self.norm.as_norm());
        let (up, down) = (self.up.parameters(mode), self.down.parameters(mode));
        let ffn_output = chain.feed_forward(normed, up, down, config.hidden_act);
        Ok(chain.scaled_residual(x, HALF, ffn_output, mode.dropout(config.dropout)))
    }
}

/// Self-attention with relative positions (arXiv 1901.02860, section 3.3).
#[derive(Debug, Clone)]
struct RelativeAttention {
    /// All with biases, which may be constant zeros.
    projections: Projections,
    /// Projects sinusoids to relative keys.
    relative_key: Linear,
    /// Added to queries before the product with keys (content term), `[H, D / H]`.
    content_bias: Tensor,
    /// Added to queries before the product with relative keys (position term).
    distance_bias: Tensor,
}

impl RelativeAttention {
    fn new(config: &ConformerConfig, builder: &ParameterBuilder) -> Result<Self> {
        let (d, heads) = (config.hidden_size, config.num_attention_heads);
        let std = config.initializer_range;
        let projection =
            |name: &str| linear_layer(d, d, (std, config.attention_bias), &builder.pp(name));
        let bias = |name: &str| builder.get(name, &[heads, d / heads], Init::Normal(std));
        Ok(Self {
            projections: Projections {
                query: projection("q_proj")?,
                key: projection("k_proj")?,
                value: projection("v_proj")?,
                output: projection("o_proj")?,
            },
            relative_key: Linear::without_bias(d, d, std, &builder.pp("relative_k_proj"))?,
            content_bias: bias("bias_u")?,
            distance_bias: bias("bias_v")?,
        })
    }

    /// Computes the attention before the output projection: `[T, D]` → `[T, D]`.
    fn forward(
        &self,
        normed: &Tensor,
        clips: &Clips,
        config: &ConformerConfig,
        mode: &Mode,
    ) -> Result<Tensor> {
        let (num_heads, segments) = (config.num_attention_heads, clips.segments.clone());
        let scale = 1.0 / ((config.hidden_size / num_heads) as f32).sqrt();
        let Projections { query, key, value, .. } = &self.projections;
        let with_bias = |other: &Tensor| -> Result<Linear> {
            let other = full_precision(other)?.flatten_all()?;
            Ok(match query.bias() {
                Some(bias) => query.with_bias((bias + other)?),
                None => query.with_bias(other),
            })
        };
        let content_query = with_bias(&self.content_bias)?;
        let position_query = with_bias(&self.distance_bias)?;
        let qkv = [&content_query, key, value].map(|layer| layer.parameters(mode));
        let qkv = stacked_linear(normed, &qkv)?;
        let queries = position_query.forward(normed, mode)?;
        let distances = self.relative_key.forward(&clips.positions.table, mode)?;
        let options = Disentangled {
            num_heads,
            scale,
            segments: segments.clone(),
            rows: clips.positions.rows.clone(),
        };
        let bias = disentangled_bias(&queries, Some(&distances), None, &options)?;
        let dropout = mode.dropout(config.attention_dropout);
        let options = Attention { num_heads, scale, causal: false, segments, dropout };
        Ok(self_attention(&qkv, Some(AttentionBias::PerSegment(&bias)), &options)?)
    }
}

/// The convolution module: GLU, depthwise convolution over time, norm, and linear layer.
#[derive(Debug, Clone)]
struct ConvolutionModule {
    glu_input: Pointwise,
    /// The weight `[D, 1, rows]` and the bias `[D]` of the depthwise convolution over time. Without
    /// biases in the configuration, the bias is a constant zero.
    depthwise: [Tensor; 2],
    norm: InnerNorm,
    output: Pointwise,
}

/// The norm within the convolution module.
#[derive(Debug, Clone)]
enum InnerNorm {
    Layer(LayerNorm),
    /// Batch norm with fixed statistics: weight, bias, mean and variance, each `[D]`.
    Batch([Tensor; 4]),
}

impl ConvolutionModule {
    fn new(config: &ConformerConfig, builder: &ParameterBuilder) -> Result<Self> {
        let (d, rows) = (config.hidden_size, config.conv_kernel_size);
        let depthwise = builder.pp("depthwise_conv");
        let std = (rows as f64).powf(-0.5);
        let weight = depthwise.get("weight", &[d, 1, rows], Init::Normal(std))?;
        let bias = match config.convolution_bias {
            true => depthwise.get("bias", &[d], Init::Zeros)?,
            false => Tensor::zeros(d, weight.dtype(), weight.device())?,
        };
        let pointwise = |name: &str, out_channels: usize| {
            let (std, bias) = (config.initializer_range, config.convolution_bias);
            Pointwise::new(d, out_channels, std, bias, &builder.pp(name))
        };
        let norm_builder = builder.pp("norm");
        let norm = match config.convolution_norm {
            ConvolutionNorm::LayerNorm => {
                InnerNorm::Layer(LayerNorm::new(d, EPSILON, &norm_builder)?)
            }
            ConvolutionNorm::BatchNorm => InnerNorm::Batch([
                norm_builder.get("weight", &[d], Init::Ones)?,
                norm_builder.get("bias", &[d], Init::Zeros)?,
                norm_builder.buffer("running_mean", &[d], Init::Zeros)?,
                norm_builder.buffer("running_var", &[d], Init::Ones)?,
            ]),
        };
        Ok(Self {
            glu_input: pointwise("pointwise_conv1", 2 * d)?,
            depthwise: [weight, bias],
            norm,
            output: pointwise("pointwise_conv2", d)?,
        })
    }

    /// Adds the module, without the residual sum, to a chain: `[T, D]` → `[T, D]`.
    fn append(
        &self,
        chain: &mut Chain,
        x: Value,
        lengths: &[usize],
        config: &ConformerConfig,
    ) -> Result<Value> {
        let x = self.glu_input.append(chain, x)?;
        let x = chain.glu(x);
        let rows = config.conv_kernel_size;
        let windows = Windows::over_time(rows, 1, (rows - 1) / 2);
        let (weight, bias) = self.with_folded_norm()?;
        let x = chain.depthwise(x, &weight, &bias, lengths, windows);
        let x = match &self.norm {
            InnerNorm::Layer(norm) => chain.norm(x, norm.as_norm()),
            InnerNorm::Batch(_) => x,
        };
        let x = chain.activation(x, config.hidden_act);
        self.output.append(chain, x)
    }

    /// Returns weight `[D, rows]` and bias `[D]` with the batch norm folded in.
    fn with_folded_norm(&self) -> Result<(Tensor, Tensor)> {
        let [weights, depthwise_bias] = &self.depthwise;
        let weights = full_precision(weights)?.squeeze(1)?;
        match &self.norm {
            InnerNorm::Layer(_) => Ok((weights, depthwise_bias.clone())),
            InnerNorm::Batch([weight, bias, mean, variance]) => {
                let scale = (weight / (variance + EPSILON)?.sqrt()?)?;
                let shifted = (((depthwise_bias - mean)? * &scale)? + bias)?;
                Ok((weights.broadcast_mul(&scale.unsqueeze(1)?)?, shifted))
            }
        }
    }
}
