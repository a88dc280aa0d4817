//! T5 v1.1 (arXiv 1910.10683, 2002.05202): a text-to-text encoder-decoder.
//!
//! Reference: `transformers` 5, `models/t5/modeling_t5.py`. Parameter names are the published
//! names. As in [`crate::text_encoder`], texts are packed, not padded. [`Decoder::generate`]
//! generates the output texts.

pub mod blocks;
mod config;
mod generate;
pub(crate) mod positions;

use std::path::Path;
use std::sync::Arc;

use candle_core::Tensor;

use crate::compute::Compute;
use crate::error::{Result, bail};
pub use crate::generation::{GenerateOptions, Generated};
use crate::kernels::{Mode, Segments, dropout, embedding_sum};
use crate::layers::{LayerNorm, Linear};
use crate::packed::PackedTokens;
use crate::params::{Init, ParameterBuilder};
use crate::weights::Weights;
use blocks::{BlockInputs, PreNormBlock, RelativeBias, decoder_block, encoder_block, run_blocks};
pub use config::T5Config;
use positions::Positions;

/// The encoder and the decoder.
#[derive(Debug, Clone)]
pub struct T5 {
    /// The token table of the encoder and the decoder.
    pub shared: TokenTable,
    encoder: Stack,
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

/// The blocks of the encoder or the decoder, and the norm after the last block.
#[derive(Debug, Clone)]
struct Stack {
    bias: RelativeBias,
    layers: Vec<PreNormBlock>,
    final_norm: LayerNorm,
    dropout: f64,
}

/// The decoder's blocks and its output projection.
#[derive(Debug, Clone)]
pub struct Decoder {
    config: T5Config,
    positions: Positions,
    stack: Stack,
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
            encoder: Stack::new(config, false, &builder.pp("encoder"))?,
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
        self.encoder.forward(embedded, &tokens.segments, None, mode)
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

/// Returns an error unless the lengths sum to the number of encoder states.
fn check_rows(states: &Tensor, lengths: &[usize]) -> Result<()> {
    let (rows, expected) = (states.dim(0)?, lengths.iter().sum::<usize>());
    if rows != expected {
        bail!("{rows} encoder states, but the lengths sum to {expected}");
    }
    Ok(())
}

impl Stack {
    /// Builds the blocks `block.N` and the final norm. The first block stores the relative position
    /// bias.
    fn new(config: &T5Config, is_decoder: bool, builder: &ParameterBuilder) -> Result<Self> {
        let count = if is_decoder { config.decoder_layers() } else { config.num_layers };
        let block = if is_decoder { decoder_block } else { encoder_block };
        let (blocks, norm) = (builder.pp("block"), builder.pp("final_layer_norm"));
        let bias = blocks.pp("0.layer.0.SelfAttention.relative_attention_bias");
        Ok(Self {
            bias: RelativeBias::new(config, !is_decoder, &bias)?,
            layers: (0..count).map(|i| block(config, &blocks.pp(i))).collect::<Result<_>>()?,
            final_norm: LayerNorm::rms(config.d_model, config.layer_norm_epsilon, &norm)?,
            dropout: config.dropout_rate,
        })
    }

    /// Runs the blocks and the final norm: `[T, D]` → `[T, D]`. With encoder states to attend to,
    /// the rows also have a causal mask.
    fn forward(
        &self,
        x: Tensor,
        segments: &Segments,
        cross: Option<(&Tensor, &Segments)>,
        mode: &Mode,
    ) -> Result<Tensor> {
        let bias = self.bias.within(segments)?;
        let x = dropout(&mode.detach(x), mode.dropout(self.dropout))?;
        let (causal, bias) = (cross.is_some(), Some(&bias));
        let inputs = BlockInputs { causal, bias, cross, ..BlockInputs::new(segments) };
        let x = run_blocks(&self.layers, x, inputs, mode)?;
        Ok(dropout(&self.final_norm.forward(&x)?, mode.dropout(self.dropout))?)
    }
}

impl Decoder {
    /// Builds the decoder from the parameters below `decoder` and `lm_head` of the builder's path.
    pub fn new(config: &T5Config, builder: &ParameterBuilder) -> Result<Self> {
        let (d, v) = (config.d_model, config.vocab_size);
        let stack = Stack::new(config, true, &builder.pp("decoder"))?;
        let lm_head = Linear::without_bias(d, v, (d as f64).powf(-0.5), &builder.pp("lm_head"))?;
        let positions = Positions::new(config.decoder_positions, d, &builder.pp("decoder"))?;
        Ok(Self { config: config.clone(), positions, stack, lm_head })
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
        let query_lengths: Vec<usize> = segments.queries.iter().map(|span| span.length).collect();
        let cross = Segments::cross(&query_lengths, lengths);
        let x = self.positions.add(x, query_lengths.iter().flat_map(|length| 0..*length))?;
        let x = self.stack.forward(x, segments, Some((states, &cross)), mode)?;
        self.lm_head.forward(&x, mode)
    }
}
