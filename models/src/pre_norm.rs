//! Pre-norm blocks, `x + attention(norm(x))` and then `x + feed_forward(norm(x))`: the blocks of T5
//! and of Whisper's decoder, and the stack of blocks in the encoders of CLIP, ViT and Whisper.

mod block;
mod decoding;

use candle_core::Tensor;

use crate::adapter::Adapters;
use crate::config::{check_dropout, check_epsilon, check_heads, check_layers, check_sizes};
use crate::error::{Result, bail};
use crate::kernels::{Activation, Mode, Segments};
use crate::layers::{LayerNorm, Linear, Projections};
use crate::params::ParameterBuilder;
pub use block::{BlockInputs, PreNormBlock};
pub(crate) use block::{BlockOptions, FeedForward};
pub(crate) use decoding::DecodingState;

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
    /// The norm, and the projections of query, key, value and output, of a decoder's
    /// cross-attention.
    pub(crate) cross: Option<[&'static str; 5]>,
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

impl InitStds {
    /// The same standard deviation for all weights.
    pub(crate) fn all(std: f64) -> Self {
        Self { query_key_value: std, output: std, up: std, down: std }
    }
}

/// A stack of pre-norm blocks.
#[derive(Debug, Clone)]
pub(crate) struct PreNormBlocks {
    layers: Vec<PreNormBlock>,
}

impl PreNormConfig {
    /// Checks that the values are valid and fit together.
    ///
    /// # Errors
    /// [`crate::ModelError::BadConfig`], which names the field.
    pub(crate) fn validate(&self) -> Result<()> {
        check_heads(self.hidden_size, self.num_attention_heads)?;
        check_layers("num_hidden_layers", self.num_hidden_layers)?;
        check_sizes(&[
            ("hidden_size", self.hidden_size),
            ("intermediate_size", self.intermediate_size),
        ])?;
        check_epsilon("layer_norm_eps", self.layer_norm_eps)?;
        check_dropout(self.hidden_dropout, self.attention_dropout)
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
            .map(|i| block(&config, names, init_stds, &builder.pp(i)))
            .collect::<Result<_>>()?;
        Ok(Self { layers })
    }

    /// Number of blocks.
    pub(crate) fn len(&self) -> usize {
        self.layers.len()
    }

    /// Removes the blocks before `first` and returns them.
    pub(crate) fn split_before(&mut self, first: usize) -> Self {
        let rest = self.layers.split_off(first.min(self.layers.len()));
        Self { layers: std::mem::replace(&mut self.layers, rest) }
    }

    /// Runs all blocks: `[T, D]` → `[T, D]`. Rows attend within their segment, with a causal mask
    /// if `causal`. The first `stop_gradient_after` blocks and `x` get no gradient; with `None`,
    /// all blocks and `x` get gradients.
    ///
    /// # Errors
    /// [`crate::ModelError::BadInput`] if there are fewer blocks than `stop_gradient_after`, or the
    /// number of adapters is neither 0 nor the number of blocks.
    pub(crate) fn forward(
        &self,
        x: Tensor,
        segments: &Segments,
        causal: bool,
        stop_gradient_after: Option<usize>,
        adapters: &Adapters,
        mode: &Mode,
    ) -> Result<Tensor> {
        let blocks = self.layers.len();
        if let Some(frozen) = stop_gradient_after.filter(|frozen| *frozen > blocks) {
            bail!("stop-gradient after {frozen} blocks, but there are {blocks}");
        }
        adapters.check(blocks)?;
        // The state is detached after every block without gradient, so that memory holds the
        // intermediates of only one such block.
        let detach = |num_blocks_done: usize, x: Tensor| match stop_gradient_after {
            Some(frozen) if num_blocks_done <= frozen => x.detach(),
            _ => mode.detach(x),
        };
        let mut state = detach(0, x);
        for (i, layer) in self.layers.iter().enumerate() {
            let adapters = Some((adapters, i));
            let inputs = BlockInputs { causal, adapters, ..BlockInputs::new(segments) };
            state = detach(i + 1, layer.forward(&state, inputs, mode)?);
        }
        Ok(state)
    }
}

/// Creates the block with the parameters below the builder's path.
pub(crate) fn block(
    config: &PreNormConfig,
    names: &Names,
    init_stds: &InitStds,
    builder: &ParameterBuilder,
) -> Result<PreNormBlock> {
    let (d, m, eps) = (config.hidden_size, config.intermediate_size, config.layer_norm_eps);
    let norm = |name: &str| LayerNorm::new(d, eps, &builder.pp(name));
    let projection = |name: &str, bias: bool| {
        let new_linear = if bias { Linear::new } else { Linear::without_bias };
        new_linear(d, d, init_stds.query_key_value, &builder.pp(name))
    };
    let projections = |[query, key, value, output]: [&str; 4]| -> Result<Projections> {
        Ok(Projections {
            query: projection(query, config.qkv_bias[0])?,
            key: projection(key, config.qkv_bias[1])?,
            value: projection(value, config.qkv_bias[2])?,
            output: Linear::new(d, d, init_stds.output, &builder.pp(output))?,
        })
    };
    let cross = |[name, q, k, v, o]: [&str; 5]| -> Result<_> {
        Ok((norm(name)?, projections([q, k, v, o])?))
    };
    Ok(PreNormBlock {
        options: BlockOptions {
            num_heads: config.num_attention_heads,
            scale: 1.0 / ((d / config.num_attention_heads) as f32).sqrt(),
            hidden_dropout: config.hidden_dropout,
            attention_dropout: config.attention_dropout,
        },
        norm: norm(names.attention_norm)?,
        attention: projections([names.query, names.key, names.value, names.output])?,
        cross: names.cross.map(cross).transpose()?,
        feed_forward_norm: norm(names.feed_forward_norm)?,
        feed_forward: FeedForward::Plain {
            up: Linear::new(d, m, init_stds.up, &builder.pp(names.up))?,
            down: Linear::new(m, d, init_stds.down, &builder.pp(names.down))?,
            f: config.hidden_act,
        },
    })
}
