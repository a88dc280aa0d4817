//! Folders of `sentence-transformers`: their configuration files, and the encoder that these describe.
//!
//! | file | read by |
//! |---|---|
//! | `modules.json` | [`modules`] |
//! | `config_sentence_transformers.json` | [`Prompts`] |
//! | `sentence_bert_config.json` and its older names | [`TransformerSettings`] |
//! | `config.json` of a Pooling module | [`PoolingConfig`] |
//! | `config.json` of a Dense module | [`DenseConfig`] |
//!
//! Reference: `sentence-transformers` 6.2. Files of all versions since 2.0 are read. A module, a mode or a setting that
//! is not implemented here is an error with the name of the file.

mod dense;
mod encoder;
pub mod modules;
mod pooling;
mod prompts;
mod settings;

pub use dense::{DenseActivation, DenseConfig};
pub use encoder::{SentenceBatch, SentenceEncoder, SentenceModule};
pub use pooling::{PoolingConfig, PoolingMode};
pub use prompts::{PromptChoice, Prompts};
pub use settings::TransformerSettings;

use serde::de::DeserializeOwned;

use crate::error::{ModelError, Result};

/// The error of a file called `name`.
fn bad(name: &str, reason: impl Into<String>) -> ModelError {
    ModelError::BadConfig { what: name.to_owned(), reason: reason.into() }
}

/// Reads JSON; errors start with `name` and say what `file` should be.
fn parse_json<T: DeserializeOwned>(text: &str, name: &str, file: &str) -> Result<T> {
    serde_json::from_str(text)
        .map_err(|error| bad(name, format!("is not {file}: {error}; fetch the file again")))
}
