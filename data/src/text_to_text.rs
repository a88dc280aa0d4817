//! The tokenizer of REVEAL's text-to-text model, with its special tokens.
//!
//! REVEAL's released code uses T5's sentinels as special tokens: `<extra_id_98>` begins a sequence,
//! and `<extra_id_0>` marks the text to generate.

use std::ops::Deref;
use std::path::Path;

use tokenizers::models::bpe::{BPE, BpeTrainer};
use tokenizers::normalizers::Lowercase;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::metaspace::{Metaspace, PrependScheme};
use tokenizers::pre_tokenizers::punctuation::Punctuation;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::{AddedToken, TokenizerBuilder};

use crate::DataError;
use crate::tokenizer::TextTokenizer;

const PAD: &str = "<pad>";
const END: &str = "</s>";
const UNKNOWN: &str = "<unk>";
const MASK: &str = "<extra_id_0>";
const BEGIN: &str = "<extra_id_98>";

/// A tokenizer and the ids of its special tokens.
#[derive(Clone)]
pub struct T5Tokenizer {
    tokens: TextTokenizer,
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
    /// `Tokenizer`; `Malformed` without a special token
    pub fn train(
        texts: impl Iterator<Item = String> + Send,
        size: usize,
    ) -> Result<Self, DataError> {
        let special = [PAD, END, UNKNOWN, MASK, BEGIN].map(|name| AddedToken::from(name, true));
        let mut trainer = BpeTrainer::builder()
            .vocab_size(size)
            .min_frequency(2)
            .show_progress(false)
            .special_tokens(special.to_vec())
            .build();
        // An end-of-word suffix would make the token ids depend on the order of a hash table.
        let spaces = Metaspace::new('\u{2581}', PrependScheme::Always, true);
        let path = Path::new("tokenizer.json");
        let trained = TextTokenizer::make(path, || {
            let mut tokenizer = TokenizerBuilder::default()
                .with_model(BPE::builder().unk_token(UNKNOWN.to_owned()).build()?)
                .with_normalizer(Some(Lowercase))
                .with_pre_tokenizer(Some(Sequence::new(vec![
                    PreTokenizerWrapper::Metaspace(spaces.clone()),
                    PreTokenizerWrapper::Punctuation(Punctuation::default()),
                ])))
                .with_post_processor(None::<tokenizers::processors::PostProcessorWrapper>)
                .with_decoder(Some(spaces))
                .build()?;
            tokenizer.train(&mut trainer, texts)?;
            Ok(tokenizer.into())
        })?;
        Self::parse(&trained.json()?, path)
    }

    /// Parses the content of a `tokenizer.json`; error messages name `path`.
    ///
    /// # Errors
    /// `Tokenizer` for invalid content; `Malformed` without a special token
    pub fn parse(json: &str, path: &Path) -> Result<Self, DataError> {
        let tokens = TextTokenizer::parse(path, json.as_bytes())?;
        let pad = tokens.special("pad", &[PAD])?;
        let end = tokens.special("end", &[END])?;
        let begin = tokens.special("begin", &[BEGIN])?;
        let mask = tokens.special("mask", &[MASK])?;
        Ok(Self { tokens, pad, end, begin, mask })
    }
}

impl Deref for T5Tokenizer {
    type Target = TextTokenizer;

    fn deref(&self) -> &TextTokenizer {
        &self.tokens
    }
}
