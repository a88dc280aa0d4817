//! The tokenizer of a Whisper model.

use std::path::{Path, PathBuf};

use tokenizers::Tokenizer;

use crate::DataError;

/// Texts as ids and back.
pub struct SpeechTokeniser {
    path: PathBuf,
    tokenizer: Tokenizer,
}

impl SpeechTokeniser {
    /// Reads a `tokenizer.json`.
    ///
    /// # Errors   `Io`; `Tokenizer` for a file that is none
    pub fn from_file(path: &Path) -> Result<Self, DataError> {
        let bytes =
            std::fs::read(path).map_err(|source| DataError::Io { path: path.into(), source })?;
        let mut tokenizer = Tokenizer::from_bytes(&bytes).map_err(|error| failed(path, &*error))?;
        tokenizer.with_truncation(None).map_err(|error| failed(path, &*error))?;
        tokenizer.with_padding(None);
        Ok(Self { path: path.into(), tokenizer })
    }

    /// The id of a token by its exact name.
    pub fn id_of(&self, token: &str) -> Option<u32> {
        self.tokenizer.token_to_id(token)
    }

    /// Ids of a text, without special tokens.
    ///
    /// # Errors   `Tokenizer`
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, DataError> {
        let encoded = self.tokenizer.encode(text, false);
        Ok(encoded.map_err(|error| failed(&self.path, &*error))?.get_ids().to_vec())
    }

    /// The text of ids, without special tokens. Ids that the vocabulary does not have, such as
    /// timestamps, are left out.
    ///
    /// # Errors   `Tokenizer`
    pub fn decode(&self, ids: &[u32]) -> Result<String, DataError> {
        self.tokenizer.decode(ids, true).map_err(|error| failed(&self.path, &*error))
    }
}

fn failed(path: &Path, error: &dyn std::fmt::Display) -> DataError {
    DataError::Tokenizer { path: path.into(), reason: error.to_string() }
}
