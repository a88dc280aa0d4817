//! The stack of pre-norm blocks in the encoders of CLIP, ViT and Whisper: `x + attention(norm(x))`,
//! then `x + feed_forward(norm(x))`.

use candle_core::Tensor;

use crate::adapter::Adapters;
use crate::config::{check_dropout, check_epsilon, check_heads, check_layers, check_sizes};
use crate::error::{ModelError, Result};
use crate::kernels::{Activation, Attention, Mode, Segments};
use crate::layers::{LayerNorm, Linear, Projections};
use crate::params::ParameterBuilder;

/// The shape of a stack of blocks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PreNormConfig {
    /// Width `D`.
    pub(crate) hidden_size: usize,
    /// Width of the feed-forward part.
    pub(crate) intermediate_size: usize,
    /// Number of blocks.
    pub(crate) num_hidden_layers: usize,
    /// Number of heads `H`.
    pub(crate) num_attention_heads: usize,
    /// Activation of the feed-forward part.
    pub(crate) hidden_act: Activation,
    /// Epsilon of the layer norms, added to the variance.
    pub(crate) layer_norm_eps: f64,
    /// Whether the query, key and value projections have biases. The other linear layers always
    /// have biases.
    pub(crate) qkv_bias: [bool; 3],
    /// Dropout probability of the outputs of attention and feed-forward, before the residual sums.
    pub(crate) hidden_dropout: f64,
    /// Dropout probability of attention weights.
    pub(crate) attention_dropout: f64,
}

/// The names of a block's parameters, below the block's own path.
pub(crate) struct Names {
    pub(crate) attention_norm: &'static str,
    pub(crate) query: &'static str,
    pub(crate) key: &'static str,
    pub(crate) value: &'static str,
    pub(crate) output: &'static str,
    pub(crate) feed_forward_norm: &'static str,
    pub(crate) up: &'static str,
    pub(crate) down: &'static str,
}

/// Standard deviations of random initial weights.
pub(crate) struct InitStds {
    pub(crate) query_key_value: f64,
    pub(crate) output: f64,
    pub(crate) up: f64,
    pub(crate) down: f64,
}

/// A stack of pre-norm blocks.
#[derive(Debug, Clone)]
pub(crate) struct PreNormBlocks {
    config: PreNormConfig,
    layers: Vec<Layer>,
}

/// One block.
#[derive(Debug, Clone)]
struct Layer {
    attention_norm: LayerNorm,
    attention: Projections,
    feed_forward_norm: LayerNorm,
    up: Linear,
    down: Linear,
}

impl PreNormConfig {
    /// Checks that the values are valid and fit together.
    ///
    /// # Errors
    /// [`ModelError::BadConfig`], which names the field.
    pub(crate) fn validate(&self) -> Result<()> {
        check_heads(self.hidden_size, self.num_attention_heads)?;
        check_layers(self.num_hidden_layers)?;
        check_sizes(&[
            ("hidden_size", self.hidden_size),
            ("intermediate_size", self.intermediate_size),
        ])?;
        check_epsilon("layer_norm_eps", self.layer_norm_eps)?;
        check_dropout(self.hidden_dropout, self.attention_dropout)
    }

    /// Returns the number of parameter values in all blocks.
    pub(crate) fn num_parameters(&self) -> usize {
        let (d, m) = (self.hidden_size, self.intermediate_size);
        let linear = |d_in: usize, d_out: usize, bias: bool| d_out * (d_in + usize::from(bias));
        let qkv = self.qkv_bias.map(|bias| linear(d, d, bias));
        let attention = qkv.iter().sum::<usize>() + linear(d, d, true);
        let norms = 2 * 2 * d;
        let feed_forward = linear(d, m, true) + linear(m, d, true);
        self.num_hidden_layers * (attention + norms + feed_forward)
    }
}

impl PreNormBlocks {
    /// Creates the blocks. The parameters of block `N` are below `N` of the builder's path.
    pub(crate) fn new(
        config: PreNormConfig,
        names: &Names,
        init_stds: &InitStds,
        builder: &ParameterBuilder,
    ) -> Result<Self> {
        let layers = (0..config.num_hidden_layers)
            .map(|i| Layer::new(&config, names, init_stds, &builder.pp(i)))
            .collect::<Result<_>>()?;
        Ok(Self { config, layers })
    }

    /// Runs all blocks: `[T, D]` → `[T, D]`. Rows attend within their segment, with a causal mask
    /// if `causal`. The first `stop_gradient_after` blocks and `x` get no gradient; with `None`,
    /// all blocks and `x` get gradients.
    ///
    /// # Errors
    /// [`ModelError::BadInput`] if there are fewer blocks than `stop_gradient_after`.
    pub(crate) fn forward(
        &self,
        x: Tensor,
        segments: &Segments,
        causal: bool,
        stop_gradient_after: Option<usize>,
        mode: &Mode,
    ) -> Result<Tensor> {
        self.forward_adapted(x, segments, causal, stop_gradient_after, &Adapters::NONE, mode)
    }

    /// Like `forward`, with adapters.
    ///
    /// # Errors
    /// [`ModelError::BadInput`] also if the number of adapters is neither 0 nor the number of
    /// blocks.
    pub(crate) fn forward_adapted(
        &self,
        x: Tensor,
        segments: &Segments,
        causal: bool,
        stop_gradient_after: Option<usize>,
        adapters: &Adapters,
        mode: &Mode,
    ) -> Result<Tensor> {
        let PreNormConfig { hidden_size, num_attention_heads: num_heads, .. } = self.config;
        let blocks = self.layers.len();
        if let Some(frozen) = stop_gradient_after.filter(|frozen| *frozen > blocks) {
            let reason = format!("stop-gradient after {frozen} blocks, but there are {blocks}");
            return Err(ModelError::BadInput(reason));
        }
        adapters.check(blocks)?;
        // The state is detached after every block without gradient, so that memory holds the
        // intermediates of only one such block.
        let detach = |num_blocks_done: usize, x: Tensor| match stop_gradient_after {
            Some(frozen) if num_blocks_done <= frozen => x.detach(),
            _ => mode.detach(x),
        };
        let scale = 1.0 / ((hidden_size / num_heads) as f32).sqrt();
        let mut state = detach(0, x);
        for (i, layer) in self.layers.iter().enumerate() {
            let (config, segments, adapters) = (self.config, segments.clone(), adapters.clone());
            let next = mode.block(layer, &[&state], move |layer, inputs, mode| {
                let options = Attention {
                    num_heads,
                    scale,
                    causal,
                    segments: segments.clone(),
                    dropout: mode.dropout(config.attention_dropout),
                };
                let next = layer.forward(&inputs[0], &options, &config, mode)?;
                adapters.apply(i, &inputs[0], next, mode)
            })?;
            state = detach(i + 1, next);
        }
        Ok(state)
    }
}

impl Layer {
    fn new(
        config: &PreNormConfig,
        names: &Names,
        init_stds: &InitStds,
        builder: &ParameterBuilder,
    ) -> Result<Self> {
        let (d, m, eps) = (config.hidden_size, config.intermediate_size, config.layer_norm_eps);
        let norm = |name: &str| LayerNorm::new(d, eps, &builder.pp(name));
        let projection = |name: &str, bias: bool| {
            let new_linear = if bias { Linear::new } else { Linear::without_bias };
            new_linear(d, d, init_stds.query_key_value, &builder.pp(name))
        };
        Ok(Self {
            attention_norm: norm(names.attention_norm)?,
            attention: Projections {
                query: projection(names.query, config.qkv_bias[0])?,
                key: projection(names.key, config.qkv_bias[1])?,
                value: projection(names.value, config.qkv_bias[2])?,
                output: Linear::new(d, d, init_stds.output, &builder.pp(names.output))?,
            },
            feed_forward_norm: norm(names.feed_forward_norm)?,
            up: Linear::new(d, m, init_stds.up, &builder.pp(names.up))?,
            down: Linear::new(m, d, init_stds.down, &builder.pp(names.down))?,
        })
    }

    /// Runs the block: `[T, D]` → `[T, D]`.
    fn forward(
        &self,
        x: &Tensor,
        options: &Attention,
        config: &PreNormConfig,
        mode: &Mode,
    ) -> Result<Tensor> {
        let dropout = || mode.dropout(config.hidden_dropout);
        let mut chain = mode.chain();
        let x = chain.input(x);
        let normed = chain.norm(x, self.attention_norm.as_norm());
        let attended = self.attention.self_attention(&mut chain, normed, None, options, mode);
        let x = chain.residual(x, attended, dropout());
        let normed = chain.norm(x, self.feed_forward_norm.as_norm());
        let (up, down) = (self.up.parameters(mode), self.down.parameters(mode));
        let ffn_output = chain.feed_forward(normed, up, down, config.hidden_act);
        chain.residual(x, ffn_output, dropout());
        Ok(chain.finish()?)
    }
}
