//! Whisper (arXiv 2212.04356), an ASR model.
//!
//! References: `transformers` 5, `models/whisper/modeling_whisper.py`; for decoding,
//! openai/whisper. Parameter names are the published names (`model.encoder…`, `model.decoder…`).
//! Clips are packed, not padded, so short clips cost less than long clips. But the published models
//! were trained on clips padded with silence to 30 seconds, so pad your clips to match. Gradients
//! pass through frozen blocks, so you can train [adapters](crate::adapter) for each block, and
//! tokens placed before the audio tokens ([`Encoder::embed`]).

mod alignment;
mod config;
mod context;
mod cross_attention;
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
pub use alignment::{Alignment, AlignmentHeads, AlignmentText};
pub use config::WhisperConfig;
pub use context::EarlierContext;
pub use decoder::Decoder;
pub use encoder::Encoder;
pub use generate::WhisperTranscript;
pub use rules::{DecodingRules, has_repetition_loop};
pub use tokens::{Task, WhisperTokens};

/// The Whisper model: encoder and decoder.
#[derive(Debug, Clone)]
pub struct Whisper {
    /// The configuration.
    pub config: WhisperConfig,
    /// The encoder.
    pub encoder: Encoder,
    /// The decoder.
    pub decoder: Decoder,
}

impl Whisper {
    /// Builds the model with published weights, or with random initial weights.
    ///
    /// # Errors
    /// [`crate::ModelError::BadConfig`], and the errors of [`ParameterBuilder::get`].
    pub fn new(config: &WhisperConfig, builder: &ParameterBuilder) -> Result<Self> {
        config.validate()?;
        let model = builder.pp("model");
        Ok(Self {
            config: config.clone(),
            encoder: Encoder::new(config, &model.pp("encoder"))?,
            decoder: Decoder::new(config, &model.pp("decoder"))?,
        })
    }

    /// Loads a published model's folder: `config.json` and `model.safetensors`.
    ///
    /// # Errors
    /// The errors of [`WhisperConfig::read`], [`Weights::open_folder`] and [`Whisper::new`].
    pub fn load(folder: &Path, builder: &ParameterBuilder) -> Result<Self> {
        let config = WhisperConfig::read(&folder.join("config.json"))?;
        let weights = Arc::new(Weights::open_folder(folder)?);
        Self::new(&config, &builder.with_weights(weights))
    }

    /// Encodes log-mel frames `[F, M]` of packed clips. `lengths` is the number of frames of each
    /// clip.
    ///
    /// # Errors
    /// The same as for [`Encoder::embed`].
    pub fn encode(&self, frames: &Tensor, lengths: &[usize], mode: &Mode) -> Result<AudioStates> {
        let embedded = self.encoder.embed(frames, lengths)?;
        self.encoder.forward(embedded, &Adapters::NONE, mode)
    }

    /// Returns the logits `[T, V]` of the next token at each position of `tokens`, which holds one
    /// sequence per clip. An id of at least `V` is the row `id - V` of `extra` `[N, D]`.
    ///
    /// # Errors
    /// The same as for [`Decoder::forward`].
    pub fn decode(
        &self,
        tokens: &PackedTokens,
        extra: Option<&Tensor>,
        audio: &AudioStates,
        mode: &Mode,
    ) -> Result<Tensor> {
        self.decoder.forward(tokens, extra, audio, &Adapters::NONE, mode)
    }
}
