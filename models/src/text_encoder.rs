//! A published text encoder, selected by the `model_type` in its folder's `config.json`.

use std::path::Path;
use std::sync::Arc;

use candle_core::Tensor;
use serde::Deserialize;

use crate::bert::{Bert, BertConfig};
use crate::deberta::{Deberta, DebertaConfig};
use crate::error::{ModelError, Result};
use crate::kernels::Mode;
use crate::packed::PackedTokens;
use crate::params::{Lookup, ParameterBuilder};
use crate::weights::Weights;

/// The configuration of an encoder.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum TextEncoderConfig {
    /// BERT, and encoders with the same architecture.
    Bert(BertConfig),
    /// DeBERTa-v2 and -v3.
    Deberta(DebertaConfig),
}

/// An encoder of packed token sequences.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum TextEncoder {
    /// BERT, and encoders with the same architecture.
    Bert(Bert),
    /// DeBERTa-v2 and -v3.
    Deberta(Deberta),
}

impl TextEncoderConfig {
    /// Reads a published `config.json`.
    ///
    /// # Errors
    /// [`ModelError::Io`]. [`ModelError::BadConfig`] if the model type is unknown, a field is
    /// missing, or values contradict each other.
    pub fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| ModelError::Io { path: path.to_path_buf(), source })?;
        Self::parse(&text, &path.display().to_string())
    }

    /// Parses the text of a `config.json`; `name` names it in errors.
    pub fn parse(text: &str, name: &str) -> Result<Self> {
        #[derive(Deserialize)]
        struct ModelType {
            model_type: String,
        }
        let bad_config = |reason: String| ModelError::BadConfig { what: name.to_string(), reason };
        let with_config_name = |error| match error {
            ModelError::BadConfig { what, reason } => bad_config(format!("`{what}`: {reason}")),
            other => other,
        };
        let published: ModelType =
            serde_json::from_str(text).map_err(|e| bad_config(e.to_string()))?;
        match published.model_type.as_str() {
            "bert" => {
                let config: BertConfig =
                    serde_json::from_str(text).map_err(|e| bad_config(e.to_string()))?;
                config.validate().map_err(with_config_name)?;
                Ok(Self::Bert(config))
            }
            "deberta-v2" => {
                let config: DebertaConfig =
                    serde_json::from_str(text).map_err(|e| bad_config(e.to_string()))?;
                config.validate().map_err(with_config_name)?;
                Ok(Self::Deberta(config))
            }
            other => {
                let reason = format!("model_type `{other}` is not one of: bert, deberta-v2");
                Err(bad_config(reason))
            }
        }
    }

    /// Builds the encoder with the builder's weights, or with random initial weights.
    pub fn build(&self, builder: &ParameterBuilder) -> Result<TextEncoder> {
        match self {
            Self::Bert(config) => Ok(TextEncoder::Bert(Bert::new(config, builder)?)),
            Self::Deberta(config) => Ok(TextEncoder::Deberta(Deberta::new(config, builder)?)),
        }
    }

    /// Opens published weights. Tensor names may start with `bert.` or `deberta.`, as in files of
    /// models with a task head.
    pub fn open_weights(&self, path: &Path) -> Result<Arc<Weights>> {
        let prefix = match self {
            Self::Bert(_) => "bert.",
            Self::Deberta(_) => "deberta.",
        };
        Ok(Arc::new(Weights::open(path)?.with_optional_prefix(prefix)?))
    }

    /// The size of the vocabulary.
    pub fn vocab_size(&self) -> usize {
        match self {
            Self::Bert(config) => config.vocab_size,
            Self::Deberta(config) => config.vocab_size,
        }
    }

    /// The configured maximum length of a sequence, in tokens (`max_position_embeddings`).
    pub fn max_length(&self) -> usize {
        match self {
            Self::Bert(config) => config.max_position_embeddings,
            Self::Deberta(config) => config.max_position_embeddings,
        }
    }

    /// The number of rows of the position table, which limits the sequence length. `None` if the
    /// model has no position table: any length is accepted.
    pub fn max_positions(&self) -> Option<usize> {
        match self {
            Self::Bert(config) => Some(config.max_position_embeddings),
            Self::Deberta(config) => {
                config.position_biased_input.then_some(config.max_position_embeddings)
            }
        }
    }

    /// Sets the dropout probabilities of residual branches and of attention weights.
    pub fn set_dropout(&mut self, hidden: f64, attention: f64) {
        match self {
            Self::Bert(config) => {
                config.hidden_dropout_prob = hidden;
                config.attention_probs_dropout_prob = attention;
            }
            Self::Deberta(config) => {
                config.hidden_dropout_prob = hidden;
                config.attention_probs_dropout_prob = attention;
            }
        }
    }
}

impl TextEncoder {
    /// The width `D` of hidden states.
    pub fn hidden_size(&self) -> usize {
        match self {
            Self::Bert(bert) => bert.config().hidden_size,
            Self::Deberta(deberta) => deberta.config().hidden_size,
        }
    }

    /// The embedding tables, with the ids `[T]` that these tokens look up in each.
    ///
    /// # Errors
    /// [`ModelError::BadInput`] for a position beyond its table.
    pub fn lookups<'a>(&'a self, tokens: &'a PackedTokens) -> Result<Vec<Lookup<'a>>> {
        match self {
            Self::Bert(bert) => bert.lookups(tokens),
            Self::Deberta(deberta) => deberta.lookups(tokens),
        }
    }

    /// Returns the hidden states `[T, D]` after the embeddings and after each block, for `T` packed
    /// tokens. The last state is the output.
    pub fn forward(&self, tokens: &PackedTokens, mode: &Mode) -> Result<Vec<Tensor>> {
        let mut states = Vec::new();
        let collect_state = |state: &Tensor| states.push(state.clone());
        let last = match self {
            Self::Bert(bert) => bert.run(tokens, mode, collect_state)?,
            Self::Deberta(deberta) => deberta.run(tokens, mode, collect_state)?,
        };
        states.push(last);
        Ok(states)
    }

    /// Returns the last hidden state, `[T, D]`. Hidden states of earlier blocks are freed as soon
    /// as possible.
    pub fn encode(&self, tokens: &PackedTokens, mode: &Mode) -> Result<Tensor> {
        match self {
            Self::Bert(bert) => bert.encode(tokens, mode),
            Self::Deberta(deberta) => deberta.encode(tokens, mode),
        }
    }
}
