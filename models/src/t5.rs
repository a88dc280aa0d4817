//! T5 v1.1 (arXiv 1910.10683, 2002.05202): a text-to-text encoder-decoder.
//!
//! Reference: `transformers` 5, `models/t5/modeling_t5.py`. Parameter names are the published
//! names. As in [`crate::text_encoder`], texts are packed, not padded. [`Decoder::generate`] generates the
//! output texts.

pub mod blocks;
mod config;
mod generate;

use std::path::Path;
use std::sync::Arc;

use candle_core::Tensor;

use crate::compute::Compute;
use crate::error::{ModelError, Result};
pub use crate::generation::{GenerateOptions, Generated};
use crate::kernels::{Mode, Segments, dropout, embedding_sum};
use crate::layers::{LayerNorm, Linear};
use crate::packed::PackedTokens;
use crate::params::{Init, ParameterBuilder};
use crate::weights::Weights;
use blocks::{BlockInputs, PreNormBlock, RelativeBias, decoder_block, encoder_block, run_blocks};
pub use config::T5Config;

/// The encoder and the decoder.
#[derive(Debug, Clone)]
pub struct T5 {
    /// The token table of the encoder and the decoder.
    pub shared: TokenTable,
    encoder: Encoder,
    /// The decoder.
    pub decoder: Decoder,
}

/// The token embeddings, shared by encoder and decoder.
#[derive(Debug, Clone)]
pub struct TokenTable {
    /// `[V, D]`.
    weight: Tensor,
    compute: Compute,
}

/// The encoder's blocks and final norm.
#[derive(Debug, Clone)]
pub struct Encoder {
    config: T5Config,
    bias: RelativeBias,
    layers: Vec<PreNormBlock>,
    final_norm: LayerNorm,
}

/// The decoder's blocks, final norm and output projection.
#[derive(Debug, Clone)]
pub struct Decoder {
    config: T5Config,
    bias: RelativeBias,
    layers: Vec<PreNormBlock>,
    final_norm: LayerNorm,
    lm_head: Linear,
}

impl T5 {
    /// Builds the model with published weights, or with random initial weights.
    ///
    /// # Errors
    /// [`crate::ModelError::BadConfig`], and the errors of [`ParameterBuilder::get`].
    pub fn new(config: &T5Config, builder: &ParameterBuilder) -> Result<Self> {
        config.validate()?;
        Ok(Self {
            shared: TokenTable::new(config, &builder.pp("shared"))?,
            encoder: Encoder::new(config, &builder.pp("encoder"))?,
            decoder: Decoder::new(config, builder)?,
        })
    }

    /// Loads a published model's folder (`config.json` and `model.safetensors`) into the builder's
    /// parameters.
    ///
    /// # Errors
    /// See [`T5Config::read`], [`Weights::open_folder`] and [`T5::new`].
    pub fn load(folder: &Path, builder: &ParameterBuilder) -> Result<Self> {
        let config = T5Config::read(&folder.join("config.json"))?;
        let weights = Arc::new(Weights::open_folder(folder)?);
        Self::new(&config, &builder.with_weights(weights))
    }

    /// Encodes packed texts of `T` tokens: returns the states after the encoder's final norm,
    /// `[T, D]`.
    pub fn encode(&self, tokens: &PackedTokens, mode: &Mode) -> Result<Tensor> {
        let embedded = self.shared.forward(&tokens.ids)?;
        self.encoder.forward(embedded, &tokens.segments, mode)
    }

    /// Returns the logits `[T, V]` of the next token at each position of `tokens`. Sequence `i` of
    /// `tokens` attends to sequence `i` of `states` `[T_k, D]`, which has `lengths[i]` rows.
    pub fn decode(
        &self,
        tokens: &PackedTokens,
        states: &Tensor,
        lengths: &[usize],
        mode: &Mode,
    ) -> Result<Tensor> {
        let embedded = self.shared.forward(&tokens.ids)?;
        self.decoder.forward(embedded, &tokens.segments, states, lengths, mode)
    }
}

impl TokenTable {
    /// Creates the table: the parameter `weight` below the builder's path.
    pub fn new(config: &T5Config, builder: &ParameterBuilder) -> Result<Self> {
        let shape = [config.vocab_size, config.d_model];
        let weight = builder.get("weight", &shape, Init::Normal(1.0))?;
        Ok(Self { weight, compute: builder.compute() })
    }

    /// Returns the embeddings `[T, D]` of ids `[T]`.
    pub fn forward(&self, ids: &Arc<[u32]>) -> Result<Tensor> {
        self.compute.activations(&embedding_sum(&[(&self.weight, ids.clone())])?)
    }
}

/// Builds `count` blocks named `block.N`, and the relative position bias stored in the first block.
fn stack(
    config: &T5Config,
    (count, bidirectional): (usize, bool),
    builder: &ParameterBuilder,
    block: impl Fn(&T5Config, &ParameterBuilder) -> Result<PreNormBlock>,
) -> Result<(RelativeBias, Vec<PreNormBlock>)> {
    let blocks = builder.pp("block");
    let bias_path = "0.layer.0.SelfAttention.relative_attention_bias";
    let bias = RelativeBias::new(config, bidirectional, &blocks.pp(bias_path))?;
    let layers = (0..count).map(|i| block(config, &blocks.pp(i))).collect::<Result<_>>()?;
    Ok((bias, layers))
}

/// Builds the norm after the last block.
fn final_norm(config: &T5Config, builder: &ParameterBuilder) -> Result<LayerNorm> {
    LayerNorm::rms(config.d_model, config.layer_norm_epsilon, &builder.pp("final_layer_norm"))
}

/// Returns an error unless the lengths sum to the number of encoder states.
fn check_rows(states: &Tensor, lengths: &[usize]) -> Result<()> {
    match (states.dim(0)?, lengths.iter().sum::<usize>()) {
        (rows, expected) if rows == expected => Ok(()),
        (rows, expected) => {
            let reason = format!("{rows} encoder states, but the lengths sum to {expected}");
            Err(ModelError::BadInput(reason))
        }
    }
}

impl Encoder {
    /// Builds the encoder from the parameters below the builder's path.
    pub fn new(config: &T5Config, builder: &ParameterBuilder) -> Result<Self> {
        let count_and_direction = (config.num_layers, true);
        let (bias, layers) = stack(config, count_and_direction, builder, encoder_block)?;
        let final_norm = final_norm(config, builder)?;
        Ok(Self { config: config.clone(), bias, layers, final_norm })
    }

    /// Runs the blocks and the final norm: `[T, D]` → `[T, D]`.
    pub fn forward(&self, x: Tensor, segments: &Segments, mode: &Mode) -> Result<Tensor> {
        let rate = self.config.dropout_rate;
        let bias = self.bias.within(segments)?;
        let x = dropout(&mode.detach(x), mode.dropout(rate))?;
        let inputs = BlockInputs { bias: Some(&bias), ..BlockInputs::new(segments) };
        let x = run_blocks(&self.layers, x, inputs, mode)?;
        Ok(dropout(&self.final_norm.forward(&x)?, mode.dropout(rate))?)
    }
}

impl Decoder {
    /// Builds the decoder from the parameters below `decoder` and `lm_head` of the builder's path.
    pub fn new(config: &T5Config, builder: &ParameterBuilder) -> Result<Self> {
        let (d, v) = (config.d_model, config.vocab_size);
        let decoder = builder.pp("decoder");
        let count_and_direction = (config.decoder_layers(), false);
        let (bias, layers) = stack(config, count_and_direction, &decoder, decoder_block)?;
        let final_norm = final_norm(config, &decoder)?;
        let lm_head = Linear::without_bias(d, v, (d as f64).powf(-0.5), &builder.pp("lm_head"))?;
        Ok(Self { config: config.clone(), bias, layers, final_norm, lm_head })
    }

    /// Returns the logits `[T, V]` for embeddings `[T, D]` and the encoder's states `[T_k, D]`.
    /// `lengths` holds the number of encoder states of each sequence.
    ///
    /// # Errors
    /// [`BadInput`](crate::ModelError::BadInput) if the lengths do not sum to the number of states.
    pub fn forward(
        &self,
        x: Tensor,
        segments: &Segments,
        states: &Tensor,
        lengths: &[usize],
        mode: &Mode,
    ) -> Result<Tensor> {
        check_rows(states, lengths)?;
        let rate = self.config.dropout_rate;
        let query_lengths: Vec<usize> = segments.queries.iter().map(|span| span.length).collect();
        let cross = Segments::cross(&query_lengths, lengths);
        let bias = self.bias.within(segments)?;
        let x = dropout(&mode.detach(x), mode.dropout(rate))?;
        let (bias, cross) = (Some(&bias), Some((states, &cross)));
        let inputs = BlockInputs { causal: true, bias, cross, ..BlockInputs::new(segments) };
        let x = run_blocks(&self.layers, x, inputs, mode)?;
        let x = dropout(&self.final_norm.forward(&x)?, mode.dropout(rate))?;
        self.lm_head.forward(&x, mode)
    }
}
