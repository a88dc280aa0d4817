//! Whisper (arXiv 2212.04356): a recogniser of speech.
//!
//! Reference: `transformers` 5, `models/whisper/modeling_whisper.py`, and openai/whisper for what is
//! decoded. Parameter names are the published ones (`model.encoder…`, `model.decoder…`). Clips are
//! packed instead of padded: one of 3 seconds costs a tenth of one of 30, unless it is padded with
//! silence, as the published models have learnt. Gradients pass through frozen parameters, so that
//! [adapters](crate::adapter) behind each block and tokens put before those of the sound
//! ([`Encoder::embed`]) can be trained.

mod alignment;
mod config;
mod decoder;
mod encoder;
mod generate;
mod rules;
mod tokens;

use std::path::Path;
use std::sync::Arc;

use candle_core::Tensor;

use crate::adapter::Adapters;
use crate::error::Result;
use crate::kernels::Mode;
use crate::packed::PackedTokens;
use crate::params::ParameterBuilder;
use crate::speech::AudioStates;
use crate::weights::Weights;
pub use alignment::{Alignment, AlignmentHeads, Said};
pub use config::WhisperConfig;
pub use decoder::Decoder;
pub use encoder::Encoder;
pub use generate::Heard;
pub use rules::{Rules, is_loop};
pub use tokens::{TIMESTAMP_STEP, Task, WhisperTokens};

/// The encoder and the decoder.
#[derive(Debug, Clone)]
pub struct Whisper {
    config: WhisperConfig,
    encoder: Encoder,
    decoder: Decoder,
}

impl Whisper {
    /// Builds the model from published weights or fresh.
    ///
    /// # Errors
    /// [`crate::ModelError::BadConfig`], and those of [`ParameterBuilder::get`].
    pub fn new(config: &WhisperConfig, builder: &ParameterBuilder) -> Result<Self> {
        config.validate()?;
        let model = builder.pp("model");
        Ok(Self {
            config: config.clone(),
            encoder: Encoder::new(config, &model.pp("encoder"))?,
            decoder: Decoder::new(config, &model.pp("decoder"))?,
        })
    }

    /// Reads a published model's folder: `config.json` and `model.safetensors`, into the builder's
    /// parameters.
    ///
    /// # Errors
    /// As [`WhisperConfig::read`], [`Weights::in_folder`] and [`Whisper::new`].
    pub fn load(folder: &Path, builder: &ParameterBuilder) -> Result<Self> {
        let config = WhisperConfig::read(&folder.join("config.json"))?;
        let weights = Arc::new(Weights::in_folder(folder)?);
        Self::new(&config, &builder.with_weights(weights))
    }

    /// The configuration.
    pub fn config(&self) -> &WhisperConfig {
        &self.config
    }

    /// The encoder.
    pub fn encoder(&self) -> &Encoder {
        &self.encoder
    }

    /// The decoder.
    pub fn decoder(&self) -> &Decoder {
        &self.decoder
    }

    /// States of frames `[F, M]` of packed clips, of which each has `lengths`.
    ///
    /// # Errors
    /// As [`Encoder::embed`].
    pub fn encode(&self, frames: &Tensor, lengths: &[usize], mode: &Mode) -> Result<AudioStates> {
        let embedded = self.encoder.embed(frames, lengths)?;
        self.encoder.forward(embedded, &Adapters::NONE, mode)
    }

    /// Logits `[T, V]` of the token that follows each of `tokens`, whose sequences belong to the clips
    /// one by one.
    ///
    /// # Errors
    /// As [`Decoder::forward`].
    pub fn decode(
        &self,
        tokens: &PackedTokens,
        audio: &AudioStates,
        mode: &Mode,
    ) -> Result<Tensor> {
        self.decoder.forward(tokens, audio, &Adapters::NONE, mode)
    }
}
