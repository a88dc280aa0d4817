//! Reads `sentence-transformers` folders: the configuration files, and the modules that they
//! describe.
//!
//! | file | read by |
//! |---|---|
//! | `modules.json` | [`modules`] |
//! | `config_sentence_transformers.json` | [`Prompts`] |
//! | `sentence_bert_config.json` and its older names | [`TransformerSettings`] |
//! | `config.json` of a Pooling module | [`PoolingConfig`] |
//! | `config.json` of a Dense module | [`DenseConfig`] |
//!
//! Reference: `sentence-transformers` 6.2. Files of all versions since 2.0 are supported. An
//! unsupported module, mode or setting is an error that names the file.

mod dense;
mod encoder;
pub mod modules;
mod pooling;
mod prompts;
mod settings;

pub use dense::DenseConfig;
pub use encoder::{SentenceBatch, SentenceHead, SentenceModule};
pub use pooling::{PoolingConfig, PoolingMode};
pub use prompts::{PromptChoice, Prompts};
pub use settings::TransformerSettings;

use serde::de::DeserializeOwned;

use crate::config::bad_field;
use crate::error::Result;

/// Parses JSON. Errors start with the file's `name` and say that the text is not `expected`.
fn parse_json<T: DeserializeOwned>(text: &str, name: &str, expected: &str) -> Result<T> {
    serde_json::from_str(text).map_err(|error| {
        bad_field(name, format!("not {expected}: {error}; download the file again"))
    })
}
