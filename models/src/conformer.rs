//! Conformer (arXiv 2005.08100): an encoder of speech of attention and convolution, with a head for
//! CTC.
//!
//! Reference: `transformers` 5, `models/parakeet/modeling_parakeet.py`, whose parameter names are
//! used, so that published Fast Conformers load. The paper's own form is
//! [`Subsampling::Full`] with the same blocks. Clips are packed instead of padded. Gradients pass
//! through frozen parameters to [adapters](crate::adapter) and to tokens put before those of the
//! sound ([`ConformerEncoder::embed`]).

mod block;
mod config;
mod positions;
mod subsampling;

use std::path::Path;
use std::sync::Arc;

use candle_core::Tensor;

use crate::adapter::Adapters;
use crate::error::{ModelError, Result};
use crate::kernels::{Mode, Segments};
use crate::layers::Linear;
use crate::params::{Init, ParameterBuilder};
use crate::speech::AudioStates;
use crate::weights::Weights;
use block::{Block, Clips};
pub use config::{ConformerConfig, ConformerCtcConfig, ConvolutionNorm, Subsampling};
use positions::Positions;
use subsampling::Shortening;

/// The convolutions and the blocks.
#[derive(Debug, Clone)]
pub struct ConformerEncoder {
    config: ConformerConfig,
    subsampling: Shortening,
    layers: Vec<Block>,
}

impl ConformerEncoder {
    /// Builds the encoder from published weights or fresh.
    ///
    /// # Errors
    /// [`ModelError::BadConfig`], and those of [`ParameterBuilder::get`].
    pub fn new(config: &ConformerConfig, builder: &ParameterBuilder) -> Result<Self> {
        config.validate()?;
        let layers = builder.pp("layers");
        Ok(Self {
            config: config.clone(),
            subsampling: Shortening::new(config, &builder.pp("subsampling"))?,
            layers: (0..config.num_hidden_layers)
                .map(|i| Block::new(config, &layers.pp(i)))
                .collect::<Result<_>>()?,
        })
    }

    /// The configuration.
    pub fn config(&self) -> &ConformerConfig {
        &self.config
    }

    /// What the blocks read: frames `[F, M]` of packed clips, each of `lengths` of them, as one token
    /// for every `subsampling_factor` frames. Other tokens may be put between before
    /// [`ConformerEncoder::forward`].
    ///
    /// # Errors
    /// [`ModelError::BadInput`] for a clip without frames, and frames of another number of bands.
    pub fn embed(&self, frames: &Tensor, lengths: &[usize]) -> Result<AudioStates> {
        let bands = self.config.num_mel_bins;
        if lengths.contains(&0) || frames.dims().get(1) != Some(&bands) {
            let reason = format!(
                "frames {:?} of clips of {lengths:?}; this encoder takes {bands} bands, and no clip \
                 without frames",
                frames.dims()
            );
            return Err(ModelError::BadInput(reason));
        }
        let (states, lengths) = self.subsampling.forward(frames, lengths)?;
        let states = match self.config.scale_input {
            true => (states * (self.config.hidden_size as f64).sqrt())?,
            false => states,
        };
        Ok(AudioStates { states, lengths })
    }

    /// The blocks with their adapters: `[T, D]` → `[T, D]`. No clip hears another.
    ///
    /// # Errors
    /// [`ModelError::BadInput`] for a number of adapters that is neither 0 nor that of the blocks.
    pub fn forward(&self, x: AudioStates, adapters: &Adapters, mode: &Mode) -> Result<AudioStates> {
        adapters.check(self.layers.len())?;
        let longest = x.lengths.iter().max().copied().unwrap_or_default();
        let kind = (x.states.dtype(), x.states.device());
        let clips = Clips {
            lengths: &x.lengths,
            segments: Segments::packed(&x.lengths),
            positions: Positions::new(longest, self.config.hidden_size, kind)?,
        };
        let mut states = mode.cut(x.states);
        for (i, layer) in self.layers.iter().enumerate() {
            let next = layer.forward(&states, &clips, &self.config, mode)?;
            states = mode.cut(adapters.apply(i, &states, next)?);
        }
        Ok(AudioStates { states, lengths: x.lengths })
    }
}

/// An encoder with a head for CTC (`ParakeetForCTC`).
#[derive(Debug, Clone)]
pub struct ConformerCtc {
    config: ConformerCtcConfig,
    encoder: ConformerEncoder,
    /// `[V, D, 1]` and `[V]`: the published head is a convolution of one row.
    head: Linear,
}

impl ConformerCtc {
    /// Builds the model from published weights or fresh; parameters below `encoder` and `ctc_head`.
    ///
    /// # Errors
    /// As [`ConformerEncoder::new`].
    pub fn new(config: &ConformerCtcConfig, builder: &ParameterBuilder) -> Result<Self> {
        config.validate()?;
        let encoder = ConformerEncoder::new(&config.encoder_config, &builder.pp("encoder"))?;
        let (head, d) = (builder.pp("ctc_head"), config.encoder_config.hidden_size);
        let std = Init::Normal(config.encoder_config.initializer_range);
        let head = Linear {
            weight: head.get("weight", &[config.vocab_size, d, 1], std)?,
            bias: Some(head.get("bias", &[config.vocab_size], Init::Zeros)?),
        };
        Ok(Self { config: config.clone(), encoder, head })
    }

    /// Reads a published model's folder: `config.json` and `model.safetensors`, into the builder's
    /// parameters.
    ///
    /// # Errors
    /// As [`ConformerCtcConfig::read`], [`Weights::in_folder`] and [`ConformerCtc::new`].
    pub fn load(folder: &Path, builder: &ParameterBuilder) -> Result<Self> {
        let config = ConformerCtcConfig::read(&folder.join("config.json"))?;
        let weights = Arc::new(Weights::in_folder(folder)?);
        Self::new(&config, &builder.with_weights(weights))
    }

    /// The configuration.
    pub fn config(&self) -> &ConformerCtcConfig {
        &self.config
    }

    /// The encoder.
    pub fn encoder(&self) -> &ConformerEncoder {
        &self.encoder
    }

    /// Logits `[T, V]` of the encoder's states `[T, D]`.
    pub fn logits(&self, audio: &AudioStates) -> Result<Tensor> {
        let head = Linear { weight: self.head.weight.squeeze(2)?, bias: self.head.bias.clone() };
        head.forward(&audio.states)
    }
}
