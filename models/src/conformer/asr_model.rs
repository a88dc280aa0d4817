//! A Conformer with any of its decoders.

use std::path::Path;

use candle_core::Tensor;
use serde::Deserialize;

use super::{
    ConformerAttention, ConformerAttentionConfig, ConformerConfig, ConformerCtc,
    ConformerCtcConfig, ConformerEncoder, ConformerTransducer, ConformerTransducerConfig,
};
use crate::error::{ModelError, Result};
use crate::kernels::Mode;
use crate::params::ParameterBuilder;
use crate::speech::ctc::{ctc_loss, is_feasible};
use crate::speech::ctc_beam::{self, BeamSearchOptions};
use crate::speech::decode::BestPath;
use crate::speech::{AlignedTargets, AudioStates};
use crate::transducer;

/// The configuration of a Conformer with one of its decoders.
#[derive(Debug, Clone, PartialEq)]
pub enum ConformerAsrConfig {
    /// A CTC head.
    Ctc(ConformerCtcConfig),
    /// A transducer.
    Transducer(ConformerTransducerConfig),
    /// An attention decoder and a CTC head.
    Attention(ConformerAttentionConfig),
}

impl ConformerAsrConfig {
    /// The `model_type` of a `config.json` with a CTC head.
    const CTC: &str = "parakeet_ctc";

    /// Whether `model_type` in a `config.json` is one of these models.
    pub fn is_supported(model_type: &str) -> bool {
        [Self::CTC, ConformerTransducerConfig::MODEL_TYPE, ConformerAttentionConfig::MODEL_TYPE]
            .contains(&model_type)
    }

    /// Reads a `config.json`; its `model_type` selects the decoder.
    ///
    /// # Errors
    /// [`ModelError::Io`]. [`ModelError::BadConfig`] for another model type or inconsistent values.
    pub fn read(path: &Path) -> Result<Self> {
        #[derive(Deserialize)]
        struct ModelType {
            model_type: Option<String>,
        }
        let bytes = std::fs::read(path)
            .map_err(|source| ModelError::Io { path: path.to_path_buf(), source })?;
        let found = serde_json::from_slice::<ModelType>(&bytes).ok().and_then(|c| c.model_type);
        Ok(match found.as_deref() {
            Some(ConformerTransducerConfig::MODEL_TYPE) => {
                Self::Transducer(ConformerTransducerConfig::read(path)?)
            }
            Some(ConformerAttentionConfig::MODEL_TYPE) => {
                Self::Attention(ConformerAttentionConfig::read(path)?)
            }
            // The error for another or no model type names this one.
            _ => Self::Ctc(ConformerCtcConfig::read(path)?),
        })
    }

    /// The content of `config.json`.
    ///
    /// # Errors
    /// [`ModelError::BadConfig`] for a value that JSON cannot express.
    pub fn to_json(&self) -> Result<serde_json::Value> {
        let (value, model_type) = match self {
            Self::Ctc(config) => (serde_json::to_value(config), Self::CTC),
            Self::Transducer(config) => {
                (serde_json::to_value(config), ConformerTransducerConfig::MODEL_TYPE)
            }
            Self::Attention(config) => {
                (serde_json::to_value(config), ConformerAttentionConfig::MODEL_TYPE)
            }
        };
        let mut value = value.map_err(|error| ModelError::BadConfig {
            what: "config.json".into(),
            reason: error.to_string(),
        })?;
        value["model_type"] = model_type.into();
        Ok(value)
    }

    /// Checks the values that the types do not restrict.
    ///
    /// # Errors
    /// [`ModelError::BadConfig`] with the field's name.
    pub fn validate(&self) -> Result<()> {
        match self {
            Self::Ctc(config) => config.validate(),
            Self::Transducer(config) => config.validate(),
            Self::Attention(config) => config.validate(),
        }
    }

    /// The configuration of the encoder.
    pub fn encoder(&self) -> &ConformerConfig {
        match self {
            Self::Ctc(config) => &config.encoder_config,
            Self::Transducer(config) => &config.encoder_config,
            Self::Attention(config) => &config.encoder_config,
        }
    }

    /// Vocabulary size, including the blank.
    pub fn vocab_size(&self) -> usize {
        match self {
            Self::Ctc(config) => config.vocab_size,
            Self::Transducer(config) => config.decoder.vocab_size,
            Self::Attention(config) => config.vocab_size,
        }
    }

    /// The blank token.
    pub fn blank(&self) -> u32 {
        match self {
            Self::Ctc(config) => config.blank,
            Self::Transducer(config) => config.decoder.blank,
            Self::Attention(config) => config.blank,
        }
    }
}

/// A Conformer with one of its decoders.
#[derive(Debug, Clone)]
pub enum ConformerAsrModel {
    /// With a CTC head.
    Ctc(ConformerCtc),
    /// With a transducer.
    Transducer(ConformerTransducer),
    /// With an attention decoder and a CTC head.
    Attention(ConformerAttention),
}

impl ConformerAsrModel {
    /// Builds the model with the weights of a file, or with random initial weights.
    ///
    /// # Errors
    /// [`ModelError::BadConfig`], and the errors of [`ParameterBuilder::get`].
    pub fn new(config: &ConformerAsrConfig, builder: &ParameterBuilder) -> Result<Self> {
        Ok(match config {
            ConformerAsrConfig::Ctc(config) => Self::Ctc(ConformerCtc::new(config, builder)?),
            ConformerAsrConfig::Transducer(config) => {
                Self::Transducer(ConformerTransducer::new(config, builder)?)
            }
            ConformerAsrConfig::Attention(config) => {
                Self::Attention(ConformerAttention::new(config, builder)?)
            }
        })
    }

    /// Returns the encoder.
    pub fn encoder(&self) -> &ConformerEncoder {
        match self {
            Self::Ctc(model) => &model.encoder,
            Self::Transducer(model) => &model.encoder,
            Self::Attention(model) => &model.ctc.encoder,
        }
    }

    /// Whether the loss of a text is finite for a clip with this many encoder states.
    pub fn is_feasible(&self, states: usize, text: &[u32]) -> bool {
        match self {
            Self::Ctc(_) => is_feasible(states, text),
            Self::Transducer(_) => states > 0,
            Self::Attention(model) => {
                let config = &model.config;
                let fits_ctc = config.ctc_weight == 0.0 || is_feasible(states, text);
                fits_ctc && text.len() < config.decoder.max_tokens
            }
        }
    }

    /// Returns the loss of each clip's text in nats, `[B]`. A text for which
    /// [`ConformerAsrModel::is_feasible`] is false has infinite loss and zero gradient.
    ///
    /// # Errors
    /// The errors of the decoder. A text of more than `max_tokens` tokens is an error of the
    /// attention decoder.
    pub fn losses(&self, audio: &AudioStates, texts: &[Vec<u32>], mode: &Mode) -> Result<Tensor> {
        match self {
            Self::Ctc(model) => {
                let (lengths, blank) = (audio.lengths.clone(), model.config.blank);
                let ctc = AlignedTargets { lengths, targets: texts.to_vec(), blank };
                Ok(ctc_loss(&model.logits(audio)?, ctc)?)
            }
            Self::Transducer(model) => model.decoder.losses(audio, texts, mode),
            Self::Attention(model) => model.losses(audio, texts, mode),
        }
    }

    /// Returns the best path of each clip.
    ///
    /// # Errors
    /// [`ModelError::BadInput`] if the numbers of searches and clips differ, or for logits that are
    /// NaN or infinite.
    pub fn paths(
        &self,
        audio: &AudioStates,
        searches: &[BeamSearchOptions],
    ) -> Result<Vec<BestPath>> {
        match self {
            Self::Ctc(model) => {
                let (logits, blank) = (model.logits(audio)?, model.config.blank);
                ctc_beam::beam_search_paths(&logits, &audio.lengths, blank, searches)
            }
            Self::Transducer(model) => {
                transducer::beam_search_paths(&model.decoder, audio, searches)
            }
            Self::Attention(model) => model.paths(audio, searches),
        }
    }

    /// Returns the greedy path of each clip, without boosted words.
    ///
    /// # Errors
    /// The errors of [`ConformerAsrModel::paths`].
    pub fn greedy_paths(&self, audio: &AudioStates) -> Result<Vec<BestPath>> {
        let greedy = BeamSearchOptions { num_beams: 1, boost: None };
        self.paths(audio, &vec![greedy; audio.lengths.len()])
    }
}
