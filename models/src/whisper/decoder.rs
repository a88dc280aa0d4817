//! The decoder: predicts text tokens from the encoder's states.

use std::sync::Arc;

use candle_core::Tensor;

use super::config::{DECODER_NAMES, EPSILON, WhisperConfig};
use crate::adapter::Adapters;
use crate::compute::Compute;
use crate::error::Result;
use crate::kernels::{Mode, Segments, dropout, embedding_sum, linear};
use crate::layers::LayerNorm;
use crate::packed::PackedTokens;
use crate::params::{Init, ParameterBuilder};
use crate::pre_norm::{BlockInputs, InitStds, PreNormBlock, block};
use crate::speech::AudioStates;

/// Token and position embeddings, layers and final norm. The output projection is tied to the token
/// embeddings.
#[derive(Debug, Clone)]
pub struct Decoder {
    pub(super) config: WhisperConfig,
    compute: Compute,
    /// `[V, D]`.
    tokens: Tensor,
    /// `[max_target_positions, D]`.
    positions: Tensor,
    pub(super) layers: Vec<PreNormBlock>,
    layer_norm: LayerNorm,
}

impl Decoder {
    pub(crate) fn new(config: &WhisperConfig, builder: &ParameterBuilder) -> Result<Self> {
        let (d, std) = (config.d_model, config.init_std);
        let table =
            |name: &str, rows: usize| builder.pp(name).get("weight", &[rows, d], Init::Normal(std));
        let (layers, blocks, stds) = (builder.pp("layers"), config.decoder(), InitStds::all(std));
        Ok(Self {
            tokens: table("embed_tokens", config.vocab_size)?,
            positions: table("embed_positions", config.max_target_positions)?,
            layers: (0..config.decoder_layers)
                .map(|i| block(&blocks, &DECODER_NAMES, &stds, &layers.pp(i)))
                .collect::<Result<_>>()?,
            layer_norm: LayerNorm::new(d, EPSILON, &builder.pp("layer_norm"))?,
            config: config.clone(),
            compute: builder.compute(),
        })
    }

    /// Returns the logits `[T, V]` of the next token at each position of `tokens`, one sequence per
    /// clip of `audio`. An id of at least `V` is the row `id - V` of `extra` `[N, D]`.
    ///
    /// # Errors
    /// [`crate::ModelError::BadInput`] if a text has more tokens than the model has positions, or
    /// the number of adapters is neither 0 nor the number of layers.
    pub fn forward(
        &self,
        tokens: &PackedTokens,
        extra: Option<&Tensor>,
        audio: &AudioStates,
        adapters: &Adapters,
        mode: &Mode,
    ) -> Result<Tensor> {
        tokens.check_positions(self.config.max_target_positions)?;
        adapters.check(self.layers.len())?;
        let segments = &tokens.segments;
        let lengths: Vec<usize> = segments.queries.iter().map(|span| span.length).collect();
        let cross = Segments::cross(&lengths, &audio.lengths);
        let x = self.embed(&tokens.ids, tokens.positions.clone(), extra)?;
        let mut x = dropout(&mode.detach(x), mode.dropout(self.config.dropout))?;
        let cross = Some((&audio.states, &cross));
        for (i, layer) in self.layers.iter().enumerate() {
            let adapters = Some((adapters, i));
            let inputs =
                BlockInputs { causal: true, cross, adapters, ..BlockInputs::new(segments) };
            x = mode.detach(layer.forward(&x, inputs, mode)?);
        }
        self.logits(&x)
    }

    /// Returns the embeddings `[T, D]` of tokens at their positions. An id of at least `V` is the
    /// row `id - V` of `extra`.
    pub(super) fn embed(
        &self,
        ids: &Arc<[u32]>,
        position_ids: Arc<[u32]>,
        extra: Option<&Tensor>,
    ) -> Result<Tensor> {
        let positions = (&self.positions, position_ids);
        let Some(extra) = extra else {
            let embedded = embedding_sum(&[(&self.tokens, Arc::clone(ids)), positions])?;
            return self.compute.activations(&embedded);
        };
        let extra = extra.to_dtype(self.tokens.dtype())?;
        let size = self.config.vocab_size as u32;
        let known: Vec<u32> = ids.iter().copied().filter(|id| *id < size).collect();
        let (first_extra, mut next_known) = (known.len() as u32, 0..);
        let row = |id: &u32| match id.checked_sub(size) {
            Some(row) => first_extra + row,
            None => next_known.next().unwrap_or_default(),
        };
        let rows: Arc<[u32]> = ids.iter().map(row).collect();
        let table = match known.len() {
            0 => extra,
            _ => Tensor::cat(&[&embedding_sum(&[(&self.tokens, known.into())])?, &extra], 0)?,
        };
        self.compute.activations(&embedding_sum(&[(&table, rows), positions])?)
    }

    /// Returns the logits `[T, V]` of states `[T, D]`.
    pub(super) fn logits(&self, x: &Tensor) -> Result<Tensor> {
        Ok(linear(&self.layer_norm.forward(x)?, &self.tokens, None)?)
    }
}
