//! The tokenizer of REVEAL's text-to-text model, with its special tokens.
//!
//! REVEAL's released code uses T5's sentinels as special tokens: `<extra_id_98>` begins a sequence,
//! and `<extra_id_0>` marks the text to generate.

use std::path::{Path, PathBuf};

use tokenizers::models::bpe::{BPE, BpeTrainer};
use tokenizers::normalizers::Lowercase;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::metaspace::{Metaspace, PrependScheme};
use tokenizers::pre_tokenizers::punctuation::Punctuation;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::{AddedToken, Tokenizer, TokenizerBuilder};

use crate::DataError;
use crate::tokenizer::{guarded, parse};

const PAD: &str = "<pad>";
const END: &str = "</s>";
const UNKNOWN: &str = "<unk>";
const MASK: &str = "<extra_id_0>";
const BEGIN: &str = "<extra_id_98>";

fn library_error(path: &Path) -> impl Fn(tokenizers::Error) -> DataError {
    move |error| DataError::Tokenizer { path: path.into(), reason: error.to_string() }
}

fn file_error(path: &Path) -> impl Fn(String) -> DataError {
    move |reason| DataError::Tokenizer { path: path.into(), reason }
}

/// A tokenizer and the ids of its special tokens.
pub struct T5Tokenizer {
    path: PathBuf,
    tokenizer: Tokenizer,
    /// The padding token; the loss ignores it.
    pub pad: u32,
    /// The token at the end of an answer.
    pub end: u32,
    /// The token at the start of every sequence.
    pub begin: u32,
    /// The mask token, in place of the text to generate.
    pub mask: u32,
}

impl T5Tokenizer {
    /// Trains a tokenizer of at most `size` pieces on texts (byte-pair encoding of lower-case
    /// words), for a model that is trained from scratch.
    ///
    /// # Errors
    /// `Tokenizer`; `MissingSpecialToken`
    pub fn train(
        texts: impl Iterator<Item = String> + Send,
        size: usize,
    ) -> Result<Self, DataError> {
        let path = Path::new("tokenizer.json");
        let special = [PAD, END, UNKNOWN, MASK, BEGIN].map(|name| AddedToken::from(name, true));
        let mut trainer = BpeTrainer::builder()
            .vocab_size(size)
            .min_frequency(2)
            .show_progress(false)
            .special_tokens(special.to_vec())
            .build();
        // An end-of-word suffix would make the token ids depend on the order of a hash table.
        let spaces = Metaspace::new('\u{2581}', PrependScheme::Always, true);
        let model =
            BPE::builder().unk_token(UNKNOWN.to_owned()).build().map_err(library_error(path))?;
        let mut tokenizer = TokenizerBuilder::default()
            .with_model(model)
            .with_normalizer(Some(Lowercase))
            .with_pre_tokenizer(Some(Sequence::new(vec![
                PreTokenizerWrapper::Metaspace(spaces.clone()),
                PreTokenizerWrapper::Punctuation(Punctuation::default()),
            ])))
            .with_post_processor(None::<tokenizers::processors::PostProcessorWrapper>)
            .with_decoder(Some(spaces))
            .build()
            .map_err(library_error(path))?;
        tokenizer.train(&mut trainer, texts).map_err(library_error(path))?;
        let json = Tokenizer::from(tokenizer).to_string(true).map_err(library_error(path))?;
        Self::parse(&json, path)
    }

    /// Parses the content of a `tokenizer.json`; error messages name `path`.
    ///
    /// # Errors
    /// `Tokenizer` for invalid content; `MissingSpecialToken`
    pub fn parse(json: &str, path: &Path) -> Result<Self, DataError> {
        let tokenizer = parse(json.as_bytes()).map_err(file_error(path))?;
        let find = |role, name: &str| {
            tokenizer.token_to_id(name).ok_or_else(|| DataError::MissingSpecialToken {
                path: path.into(),
                role,
                names: name.to_owned(),
            })
        };
        let (pad, end) = (find("pad", PAD)?, find("end", END)?);
        let (begin, mask) = (find("begin", BEGIN)?, find("mask", MASK)?);
        Ok(Self { pad, end, begin, mask, tokenizer, path: path.into() })
    }

    /// Returns the content of the `tokenizer.json`.
    ///
    /// # Errors
    /// `Tokenizer`
    pub fn json(&self) -> Result<String, DataError> {
        self.tokenizer.to_string(true).map_err(library_error(&self.path))
    }

    /// Returns the vocabulary size: the highest id plus 1.
    pub fn vocabulary(&self) -> usize {
        let ids = self.tokenizer.get_vocab(true).into_values();
        ids.max().map_or(0, |highest| highest as usize + 1)
    }

    /// Checks that a model with `model_size` embeddings has an embedding for every token.
    ///
    /// # Errors
    /// `VocabularyMismatch`
    pub fn check_fits(&self, model_size: usize) -> Result<(), DataError> {
        let tokenizer = self.vocabulary();
        if tokenizer > model_size {
            Err(DataError::VocabularyMismatch {
                path: self.path.clone(),
                tokenizer,
                model: model_size,
            })
        } else {
            Ok(())
        }
    }

    /// Returns the token with this id; `None` if the vocabulary has no such id.
    pub fn token_of(&self, id: u32) -> Option<String> {
        self.tokenizer.id_to_token(id)
    }

    /// Encodes a text, without special tokens.
    ///
    /// # Errors
    /// `Tokenizer`
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, DataError> {
        let encoded =
            guarded(|| self.tokenizer.encode(text, false)).map_err(file_error(&self.path))?;
        Ok(encoded.get_ids().to_vec())
    }

    /// Decodes ids, without special tokens.
    ///
    /// # Errors
    /// `Tokenizer`
    pub fn decode(&self, ids: &[u32]) -> Result<String, DataError> {
        guarded(|| self.tokenizer.decode(ids, true)).map_err(file_error(&self.path))
    }
}
