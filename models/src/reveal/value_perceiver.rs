//! The value head: learned latent tokens attend to an entry through T5 decoder layers (Perceiver,
//! arXiv 2103.03206). Entries of any length get the same small number of value tokens.

use std::sync::Arc;

use candle_core::Tensor;

use super::base_encoder::BaseStates;
use super::config::RevealConfig;
use crate::error::Result;
use crate::kernels::{Mode, Segments, Span, dropout, embedding_sum, packed_spans};
use crate::layers::LayerNorm;
use crate::params::{Init, ParameterBuilder};
use crate::t5::blocks::{BlockInputs, PreNormBlock, RelativeBias, decoder_block, run_blocks};
use crate::t5::positions::Positions;

/// The value head.
#[derive(Debug, Clone)]
pub(super) struct ValuePerceiver {
    norm: LayerNorm,
    /// `[M, D]`.
    latents: Tensor,
    positions: Positions,
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
        Ok(Self {
            norm: LayerNorm::rms(t5.d_model, t5.layer_norm_epsilon, &norm)?,
            latents: builder.get("latents", &shape, Init::Normal(1.0))?,
            positions: Positions::new(config.value_positions, t5.d_model, builder)?,
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
        let states = self.norm.forward(&base.states)?;
        let states =
            self.positions.add(states, base.lengths.iter().flat_map(|length| 0..*length))?;
        let bias = self.bias.forward(tokens, tokens)?;
        let lengths = vec![tokens; entries];
        let segments = Segments::packed(&lengths);
        let cross = Segments::cross(&lengths, &base.lengths);
        let dropout_mask = mode.dropout(self.dropout);
        let latents = embedding_sum(&[(&self.latents, rows)])?.to_dtype(states.dtype())?;
        let x = dropout(&latents, dropout_mask)?;
        let (bias, cross) = (Some(&bias), Some((&states, &cross)));
        let inputs = BlockInputs { bias, cross, ..BlockInputs::new(&segments) };
        let mut values = run_blocks(&self.layers, x, inputs, mode)?;
        if !self.positions.is_none() {
            values = (values + first_states(&states, &base.lengths, tokens)?)?;
        }
        Ok((values * self.scale)?)
    }
}

/// The first `tokens` states of each entry, `[N M, D]`; zeros after the end of an entry.
fn first_states(states: &Tensor, lengths: &[usize], tokens: usize) -> Result<Tensor> {
    let (rows, width) = states.dims2()?;
    let zeros = Tensor::zeros((1, width), states.dtype(), states.device())?;
    let first_rows = packed_spans(lengths).into_iter().flat_map(|Span { start, length }| {
        (0..tokens).map(move |i| if i < length { start + i } else { rows } as u32)
    });
    let first_rows: Arc<[u32]> = first_rows.collect();
    Ok(embedding_sum(&[(&Tensor::cat(&[states, &zeros], 0)?, first_rows)])?)
}
