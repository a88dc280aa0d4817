//! The value head: learned latent tokens attend to an entry through T5 decoder layers (Perceiver,
//! arXiv 2103.03206). Entries of any length get the same small number of value tokens.

use std::sync::Arc;

use candle_core::Tensor;

use super::base_encoder::BaseStates;
use super::config::RevealConfig;
use crate::error::Result;
use crate::kernels::{Mode, Segments, dropout, embedding_sum};
use crate::layers::LayerNorm;
use crate::params::{Init, ParameterBuilder};
use crate::t5::blocks::{BlockInputs, PreNormBlock, RelativeBias, decoder_block, run_blocks};

/// The value head.
#[derive(Debug, Clone)]
pub(super) struct ValuePerceiver {
    norm: LayerNorm,
    /// `[M, D]`.
    latents: Tensor,
    /// `[value_positions, D]`, if there are any. Without them the Perceiver hardly learns to copy a
    /// name: T5's relative biases do not tell a state its place.
    positions: Option<Tensor>,
    bias: RelativeBias,
    layers: Vec<PreNormBlock>,
    scale: f64,
    dropout: f64,
}

impl ValuePerceiver {
    pub(super) fn new(config: &RevealConfig, builder: &ParameterBuilder) -> Result<Self> {
        let t5 = &config.t5;
        let block = |i| decoder_block(t5, &builder.pp("block").pp(i));
        let shape = [config.value_tokens, t5.d_model];
        let norm = builder.pp("layer_norm");
        let positions =
            |count| builder.get("positions", &[count, t5.d_model], Init::Sinusoids(t5.d_model));
        Ok(Self {
            norm: LayerNorm::rms(t5.d_model, t5.layer_norm_epsilon, &norm)?,
            latents: builder.get("latents", &shape, Init::Normal(1.0))?,
            positions: match config.value_positions {
                0 => None,
                count => Some(positions(count)?),
            },
            bias: RelativeBias::new(t5, true, &builder.pp("relative_attention_bias"))?,
            layers: (0..config.head_layers).map(block).collect::<Result<_>>()?,
            scale: config.token_scale,
            dropout: t5.dropout_rate,
        })
    }

    /// Returns the values of `N` entries, `[N M, D]`.
    pub(super) fn forward(&self, base: &BaseStates, mode: &Mode) -> Result<Tensor> {
        let (entries, tokens) = (base.lengths.len(), self.latents.dim(0)?);
        let rows: Arc<[u32]> = (0..entries).flat_map(|_| 0..tokens as u32).collect();
        let mut states = self.norm.forward(&base.states)?;
        if let Some(positions) = &self.positions {
            let last = positions.dim(0)? as u32 - 1;
            let places = base.lengths.iter().flat_map(|&length| 0..length as u32);
            let places: Arc<[u32]> = places.map(|place| place.min(last)).collect();
            states = (states + embedding_sum(&[(positions, places)])?)?;
        }
        let bias = self.bias.forward(tokens, tokens)?;
        let lengths = vec![tokens; entries];
        let segments = Segments::packed(&lengths);
        let cross = Segments::cross(&lengths, &base.lengths);
        let dropout_mask = mode.dropout(self.dropout);
        let latents = embedding_sum(&[(&self.latents, rows)])?.to_dtype(states.dtype())?;
        let x = dropout(&latents, dropout_mask)?;
        let (bias, cross) = (Some(&bias), Some((&states, &cross)));
        let inputs = BlockInputs { bias, cross, ..BlockInputs::new(&segments) };
        Ok((run_blocks(&self.layers, x, inputs, mode)? * self.scale)?)
    }
}
