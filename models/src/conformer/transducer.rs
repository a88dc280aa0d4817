//! A Conformer with a transducer decoder (`ParakeetForRNNT`).

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::{ConformerConfig, ConformerEncoder};
use crate::config::read_published;
use crate::error::Result;
use crate::kernels::Activation;
use crate::params::ParameterBuilder;
use crate::transducer::{TransducerConfig, TransducerDecoder};

/// The configuration of a Conformer with a transducer, as published (`ParakeetRNNTConfig`).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ConformerTransducerConfig {
    /// The encoder.
    pub encoder_config: ConformerConfig,
    /// The prediction and the joint network.
    #[serde(flatten)]
    pub decoder: TransducerConfig,
}

impl ConformerTransducerConfig {
    /// The `model_type` of a published `config.json`.
    pub const MODEL_TYPE: &str = "parakeet_rnnt";

    /// Reads a published `config.json`.
    ///
    /// # Errors
    /// [`ModelError::Io`](crate::ModelError::Io).
    /// [`ModelError::BadConfig`](crate::ModelError::BadConfig) for another model type or
    /// inconsistent values.
    pub fn read(path: &Path) -> Result<Self> {
        read_published(path, Self::MODEL_TYPE, Self::validate)
    }

    /// Conformer S (arXiv 2005.08100, table 1) with a vocabulary of `labels` and the blank, which is
    /// the last class.
    pub fn small(labels: usize) -> Self {
        Self::of_sizes(ConformerConfig::small(), labels, (320, 1, 320))
    }

    /// Conformer M; see [`Self::small`].
    pub fn medium(labels: usize) -> Self {
        Self::of_sizes(ConformerConfig::medium(), labels, (640, 1, 640))
    }

    /// Conformer L; see [`Self::small`].
    pub fn large(labels: usize) -> Self {
        Self::of_sizes(ConformerConfig::large(), labels, (640, 1, 640))
    }

    /// BEST-RQ's model of 0.6 billion parameters (arXiv 2202.01855), the frozen ASR model of the
    /// AVFormer paper; see [`Self::small`].
    pub fn extra_large(labels: usize) -> Self {
        Self::of_sizes(ConformerConfig::extra_large(), labels, (1280, 2, 640))
    }

    /// A model with these widths and layers of the prediction network, and width of the joint
    /// network.
    fn of_sizes(
        encoder_config: ConformerConfig,
        labels: usize,
        (decoder_hidden_size, num_decoder_layers, joint): (usize, usize, usize),
    ) -> Self {
        let decoder = TransducerConfig {
            vocab_size: labels + 1,
            decoder_hidden_size,
            num_decoder_layers,
            joint_hidden_size: Some(joint),
            hidden_act: Activation::Tanh,
            blank: labels as u32,
            ..TransducerConfig::default()
        };
        Self { encoder_config, decoder }
    }

    /// Checks the values that the types do not restrict.
    ///
    /// # Errors
    /// The errors of [`ConformerConfig::validate`] and [`TransducerConfig::validate`].
    pub fn validate(&self) -> Result<()> {
        self.encoder_config.validate()?;
        self.decoder.validate()
    }
}

/// An encoder with a transducer decoder.
#[derive(Debug, Clone)]
pub struct ConformerTransducer {
    /// The configuration.
    pub config: ConformerTransducerConfig,
    /// The encoder.
    pub encoder: ConformerEncoder,
    /// The prediction and the joint network.
    pub decoder: TransducerDecoder,
}

impl ConformerTransducer {
    /// Builds the model with published weights, or with random initial weights. Parameter names
    /// start with `encoder`, `encoder_projector`, `decoder` and `joint`.
    ///
    /// # Errors
    /// The errors of [`ConformerEncoder::new`] and [`TransducerDecoder::new`].
    pub fn new(config: &ConformerTransducerConfig, builder: &ParameterBuilder) -> Result<Self> {
        config.validate()?;
        let encoder = &config.encoder_config;
        let (width, std) = (encoder.hidden_size, encoder.initializer_range);
        Ok(Self {
            encoder: ConformerEncoder::new(encoder, &builder.pp("encoder"))?,
            decoder: TransducerDecoder::new(&config.decoder, width, std, builder)?,
            config: config.clone(),
        })
    }
}
