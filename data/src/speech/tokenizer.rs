//! The tokenizer of an ASR model: a published tokenizer, a tokenizer of single letters, or word
//! pieces learned from texts.

use std::ops::Deref;
use std::path::Path;

use tokenizers::Tokenizer;
use tokenizers::models::TrainerWrapper;
use tokenizers::models::bpe::{BPE, BpeTrainer};
use tokenizers::normalizers::Lowercase;
use tokenizers::pre_tokenizers::metaspace::{Metaspace, PrependScheme};

use crate::DataError;
use crate::tokenizer::TextTokenizer;

/// The tokens of [`SpeechTokenizer::letters`], in order.
const LETTERS: &str = " 'abcdefghijklmnopqrstuvwxyz";
/// The character that begins the first piece of a word.
const WORD_START: char = '▁';

/// A tokenizer that encodes texts and decodes ids.
pub struct SpeechTokenizer(TextTokenizer);

impl Deref for SpeechTokenizer {
    type Target = TextTokenizer;

    fn deref(&self) -> &TextTokenizer {
        &self.0
    }
}

impl SpeechTokenizer {
    /// Reads a `tokenizer.json`.
    ///
    /// # Errors
    /// `Io`; `Tokenizer` for an invalid file
    pub fn from_file(path: &Path) -> Result<Self, DataError> {
        TextTokenizer::from_file(path).map(Self)
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
        TextTokenizer::parse(Path::new("the letters"), json.to_string().as_bytes()).map(Self)
    }

    /// Learns word pieces from texts by byte pair encoding (arXiv 1508.07909): the letters of
    /// [`SpeechTokenizer::letters`], and the most frequent parts of words, up to `size` tokens.
    /// Equal texts give equal tokens. Capitals become lower-case letters.
    ///
    /// # Errors
    /// `Tokenizer`
    pub fn word_pieces<'a>(
        texts: impl Iterator<Item = &'a str> + Send,
        size: usize,
    ) -> Result<Self, DataError> {
        let metaspace = Metaspace::new(WORD_START, PrependScheme::Always, true);
        let letters = LETTERS.chars().filter(|letter| *letter != ' ').chain([WORD_START]);
        let trainer = BpeTrainer::builder()
            .vocab_size(size)
            .show_progress(false)
            .initial_alphabet(letters.clone().collect())
            // Other characters stay unknown, as for letters.
            .limit_alphabet(letters.count())
            .build();
        let learn = || {
            let unknown = BPE::builder().unk_token("<unk>".into()).build()?;
            let mut tokenizer = Tokenizer::new(unknown);
            tokenizer
                .with_normalizer(Some(Lowercase))?
                .with_pre_tokenizer(Some(metaspace.clone()))
                .with_decoder(Some(metaspace));
            tokenizer.train(&mut TrainerWrapper::BpeTrainer(trainer), texts)?;
            Ok(tokenizer)
        };
        TextTokenizer::make(Path::new("the word pieces"), learn).map(Self)
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
        Err(self.error(reason))
    }

    /// Encodes and decodes a text, as a reference for the output of an ASR model: both then lack
    /// the same distinctions, such as capitals.
    ///
    /// # Errors
    /// as [`SpeechTokenizer::encode_strict`]
    pub fn round_trip(&self, text: &str) -> Result<String, DataError> {
        Ok(self.decode(&self.encode_strict(text)?)?.trim().to_string())
    }
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

    #[test]
    fn frequent_words_become_one_piece() -> Result<(), DataError> {
        let texts = ["a zoo", "the zoo", "The owl's zoo", "the owl"];
        let learn = |size| SpeechTokenizer::word_pieces(texts.into_iter(), size);
        let (few, many) = (learn(32)?, learn(100)?);
        assert_eq!(few.vocabulary_size(), 32);
        assert_eq!(many.encode_strict("the zoo")?.len(), 2);
        assert!(few.encode_strict("the zoo")?.len() > 2);
        for tokenizer in [few, many] {
            assert_eq!(tokenizer.json()?, learn(tokenizer.vocabulary_size())?.json()?);
            let ids = tokenizer.encode_strict("It's the zoo")?;
            assert_eq!(tokenizer.decode(&ids)?, "it's the zoo");
            let error = tokenizer.encode_strict("the café").unwrap_err().to_string();
            assert!(error.contains("'é'"), "{error}");
        }
        Ok(())
    }
}
