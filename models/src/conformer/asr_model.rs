//! A Conformer with any of its decoders.

use std::path::Path;

use candle_core::Tensor;
use serde::Deserialize;

use super::{
    AttentionDecoder, ConformerAttentionConfig, ConformerConfig, ConformerCtcConfig,
    ConformerEncoder, ConformerTransducerConfig, CtcHead,
};
use crate::config::read_published;
use crate::error::{ModelError, Result};
use crate::kernels::Mode;
use crate::params::ParameterBuilder;
use crate::speech::AudioStates;
use crate::speech::ctc::is_feasible;
use crate::speech::ctc_beam::{self, BeamSearchOptions};
use crate::speech::decode::BestPath;
use crate::transducer::{self, TransducerDecoder};

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
    /// The `model_type` in `config.json` of each decoder.
    const CTC: &str = "parakeet_ctc";
    const TRANSDUCER: &str = "parakeet_rnnt";
    const ATTENTION: &str = "engram_conformer_attention";

    /// Whether `model_type` in a `config.json` is one of these models.
    pub fn is_supported(model_type: &str) -> bool {
        [Self::CTC, Self::TRANSDUCER, Self::ATTENTION].contains(&model_type)
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
        let bytes = engram_durable::read_file(path)
            .map_err(|source| ModelError::Io { path: path.to_path_buf(), source })?;
        let found = serde_json::from_slice::<ModelType>(&bytes).ok().and_then(|c| c.model_type);
        Ok(match found.as_deref() {
            Some(kind @ Self::TRANSDUCER) => {
                Self::Transducer(read_published(path, kind, ConformerTransducerConfig::validate)?)
            }
            Some(kind @ Self::ATTENTION) => {
                Self::Attention(read_published(path, kind, ConformerAttentionConfig::validate)?)
            }
            // The error for another or no model type names this one.
            _ => Self::Ctc(read_published(path, Self::CTC, ConformerCtcConfig::validate)?),
        })
    }

    /// The content of `config.json`.
    ///
    /// # Errors
    /// [`ModelError::BadConfig`] for a value that JSON cannot express.
    pub fn to_json(&self) -> Result<serde_json::Value> {
        let (value, model_type) = match self {
            Self::Ctc(config) => (serde_json::to_value(config), Self::CTC),
            Self::Transducer(config) => (serde_json::to_value(config), Self::TRANSDUCER),
            Self::Attention(config) => (serde_json::to_value(config), Self::ATTENTION),
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
pub struct ConformerAsrModel {
    /// The encoder.
    pub encoder: ConformerEncoder,
    /// The decoder.
    pub decoder: ConformerDecoder,
}

/// A decoder of a Conformer's states.
#[derive(Debug, Clone)]
pub enum ConformerDecoder {
    /// A CTC head.
    Ctc(CtcHead),
    /// A transducer.
    Transducer(Box<TransducerDecoder>),
    /// An attention decoder with a CTC head.
    Attention(Box<AttentionDecoder>),
}

impl ConformerAsrModel {
    /// Builds the model with the weights of a file, or with random initial weights. Parameter names
    /// start with `encoder`, and with the names of the decoder.
    ///
    /// # Errors
    /// [`ModelError::BadConfig`], and the errors of [`ParameterBuilder::get`].
    pub fn new(config: &ConformerAsrConfig, builder: &ParameterBuilder) -> Result<Self> {
        config.validate()?;
        let encoder = ConformerEncoder::new(config.encoder(), &builder.pp("encoder"))?;
        let decoder = match config {
            ConformerAsrConfig::Ctc(config) => {
                ConformerDecoder::Ctc(CtcHead::new(config, builder)?)
            }
            ConformerAsrConfig::Transducer(ConformerTransducerConfig { decoder, .. }) => {
                let (width, std) = (encoder.config.hidden_size, encoder.config.initializer_range);
                let decoder = TransducerDecoder::new(decoder, width, std, builder)?;
                ConformerDecoder::Transducer(Box::new(decoder))
            }
            ConformerAsrConfig::Attention(config) => {
                ConformerDecoder::Attention(Box::new(AttentionDecoder::new(config, builder)?))
            }
        };
        Ok(Self { encoder, decoder })
    }

    /// Whether the loss of a text is finite for a clip with this many encoder states.
    pub fn is_feasible(&self, states: usize, text: &[u32]) -> bool {
        match &self.decoder {
            ConformerDecoder::Ctc(_) => is_feasible(states, text),
            ConformerDecoder::Transducer(_) => states > 0,
            ConformerDecoder::Attention(decoder) => {
                let config = &decoder.config;
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
        match &self.decoder {
            ConformerDecoder::Ctc(head) => head.losses(audio, texts),
            ConformerDecoder::Transducer(decoder) => decoder.losses(audio, texts, mode),
            ConformerDecoder::Attention(decoder) => decoder.losses(audio, texts, mode),
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
        match &self.decoder {
            ConformerDecoder::Ctc(head) => {
                let logits = head.logits(audio)?;
                ctc_beam::beam_search_paths(&logits, &audio.lengths, head.blank, searches)
            }
            ConformerDecoder::Transducer(decoder) => {
                transducer::beam_search_paths(decoder, audio, searches)
            }
            ConformerDecoder::Attention(decoder) => decoder.paths(audio, searches),
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
