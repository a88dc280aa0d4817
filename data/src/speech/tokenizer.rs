//! The tokenizer of an ASR model: a published tokenizer, or a tokenizer of single letters.

use std::path::{Path, PathBuf};

use tokenizers::Tokenizer;

use crate::DataError;
use crate::tokenizer::{guarded, parse};

/// The tokens of [`SpeechTokenizer::letters`], in order.
const LETTERS: &str = " 'abcdefghijklmnopqrstuvwxyz";

/// A tokenizer that encodes texts and decodes ids.
pub struct SpeechTokenizer {
    path: PathBuf,
    tokenizer: Tokenizer,
}

impl SpeechTokenizer {
    /// Reads a `tokenizer.json`.
    ///
    /// # Errors
    /// `Io`; `Tokenizer` for an invalid file
    pub fn from_file(path: &Path) -> Result<Self, DataError> {
        let bytes =
            std::fs::read(path).map_err(|source| DataError::Io { path: path.into(), source })?;
        let tokenizer = parse(&bytes).map_err(|reason| tokenizer_error(path, &reason))?;
        Ok(Self { path: path.into(), tokenizer })
    }

    /// Creates a tokenizer of single letters: the space, the apostrophe and `a` to `z`, with ids
    /// from 0 in this order. Capitals become lower-case letters.
    ///
    /// # Errors
    /// `Tokenizer`
    pub fn letters() -> Result<Self, DataError> {
        let vocabulary: serde_json::Map<String, serde_json::Value> = LETTERS
            .chars()
            .enumerate()
            .map(|(id, letter)| (letter.to_string(), id.into()))
            .collect();
        let json = serde_json::json!({
            "version": "1.0",
            "added_tokens": [],
            "normalizer": { "type": "Lowercase" },
            "pre_tokenizer": {
                "type": "Split",
                "pattern": { "Regex": "[\\s\\S]" },
                "behavior": "Isolated",
                "invert": false,
            },
            "decoder": { "type": "Fuse" },
            "model": { "type": "WordLevel", "vocab": vocabulary, "unk_token": "<unk>" },
        });
        let path = Path::new("the letters");
        let tokenizer = parse(json.to_string().as_bytes());
        Ok(Self {
            path: path.into(),
            tokenizer: tokenizer.map_err(|reason| tokenizer_error(path, &reason))?,
        })
    }

    /// Returns the content of the `tokenizer.json`.
    ///
    /// # Errors
    /// `Tokenizer`
    pub fn json(&self) -> Result<String, DataError> {
        self.tokenizer.to_string(true).map_err(|error| tokenizer_error(&self.path, &*error))
    }

    /// Returns the vocabulary size, including special tokens: the highest id plus 1.
    pub fn vocabulary_size(&self) -> usize {
        self.tokenizer.get_vocab(true).values().max().map_or(0, |id| *id as usize + 1)
    }

    /// Encodes a text. Fails if the vocabulary lacks a character of the text.
    ///
    /// # Errors
    /// `Tokenizer`, with the first character that is not in the vocabulary
    pub fn encode_strict(&self, text: &str) -> Result<Vec<u32>, DataError> {
        let unknown_ids = ["<unk>", "[UNK]", "⁇"].map(|name| self.id_of(name));
        let encode_known = |text: &str| {
            let ids = self.encode(text).ok()?;
            // Some tokenizers drop unknown characters.
            let is_dropped = ids.is_empty() && text.contains(char::is_alphanumeric);
            let is_known = !is_dropped && ids.iter().all(|id| !unknown_ids.contains(&Some(*id)));
            is_known.then_some(ids)
        };
        let is_unknown =
            |character: &char| encode_known(character.encode_utf8(&mut [0; 4])).is_none();
        let reason = match (text.chars().find(is_unknown), encode_known(text)) {
            (None, Some(ids)) => return Ok(ids),
            (Some(character), _) => format!("{character:?} of {text:?} is not in the vocabulary"),
            (None, None) => format!("{text:?} cannot be encoded with the vocabulary"),
        };
        Err(tokenizer_error(&self.path, &reason))
    }

    /// Encodes and decodes a text, as a reference for the output of an ASR model: both then lack
    /// the same distinctions, such as capitals.
    ///
    /// # Errors
    /// as [`SpeechTokenizer::encode_strict`]
    pub fn round_trip(&self, text: &str) -> Result<String, DataError> {
        Ok(self.decode(&self.encode_strict(text)?)?.trim().to_string())
    }

    /// Returns the id of the token with this exact name; `None` if there is no such token.
    pub fn id_of(&self, token: &str) -> Option<u32> {
        self.tokenizer.token_to_id(token)
    }

    /// Encodes a text, without special tokens.
    ///
    /// # Errors
    /// `Tokenizer`
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, DataError> {
        let encoded = guarded(|| self.tokenizer.encode(text, false));
        Ok(encoded.map_err(|reason| tokenizer_error(&self.path, &reason))?.get_ids().to_vec())
    }

    /// Decodes ids, without special tokens. Ids outside of the vocabulary, such as timestamps, are
    /// dropped.
    ///
    /// # Errors
    /// `Tokenizer`
    pub fn decode(&self, ids: &[u32]) -> Result<String, DataError> {
        let decoded = guarded(|| self.tokenizer.decode(ids, true));
        decoded.map_err(|reason| tokenizer_error(&self.path, &reason))
    }

    /// Returns the text that each id adds, including leading spaces. If several tokens form a
    /// character, all but the last add an empty text.
    ///
    /// # Errors
    /// `Tokenizer`
    pub fn pieces(&self, ids: &[u32]) -> Result<Vec<String>, DataError> {
        let pieces = guarded(|| {
            let mut stream = self.tokenizer.decode_stream(true);
            ids.iter().map(|id| Ok(stream.step(*id)?.unwrap_or_default())).collect()
        });
        pieces.map_err(|reason| tokenizer_error(&self.path, &reason))
    }
}

fn tokenizer_error(path: &Path, error: &dyn std::fmt::Display) -> DataError {
    DataError::Tokenizer { path: path.into(), reason: error.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_are_encoded_and_decoded() -> Result<(), DataError> {
        let letters = SpeechTokenizer::letters()?;
        assert_eq!(letters.vocabulary_size(), 28);
        let ids = letters.encode_strict("It's a zoo")?;
        assert_eq!(ids[..5], [10, 21, 1, 20, 0]);
        assert_eq!(letters.decode(&ids)?, "it's a zoo");
        assert_eq!(letters.pieces(&ids)?.concat(), "it's a zoo");
        assert_eq!(letters.pieces(&ids)?[2..6], ["'", "s", " ", "a"]);
        assert!(letters.encode_strict("")?.is_empty());
        assert_eq!(letters.round_trip(" IT IS ")?, "it is");
        let error = letters.encode_strict("a café, b").unwrap_err().to_string();
        assert!(error.contains("'é'"), "{error}");
        Ok(())
    }
}
