//! Token ids of text segments, with the `tokenizers` crate.
//!
//! A study joins text segments (anchor, target, title, …) into one input. A segment is therefore
//! encoded *without* special tokens, truncation or padding, whatever `tokenizer.json` specifies.
//! (The file of all-MiniLM-L6-v2 pads each text to 128 tokens.) Segments that recur, such as
//! anchors and titles, are cached. [`SegmentTokenizer::encode_text`] encodes a whole text with its
//! special tokens.

mod guard;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use serde::Serialize;
use tokenizers::{PostProcessor, TruncationDirection};

use crate::DataError;
pub(crate) use guard::guarded;

/// The maximum number of cached segments. A full cache is cleared.
const MAX_CACHED_SEGMENTS: usize = 1 << 17;

/// Names of the special tokens in published tokenizers, in the styles of BERT, RoBERTa and CLIP.
const CLS_NAMES: &[&str] = &["[CLS]", "<s>", "<|startoftext|>"];
const SEP_NAMES: &[&str] = &["[SEP]", "</s>", "<|endoftext|>"];
const PAD_NAMES: &[&str] = &["[PAD]", "<pad>", "<|endoftext|>"];
const MASK_NAMES: &[&str] = &["[MASK]", "<mask>"];

/// Ids of an encoder's special tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpecialTokens {
    /// Start of an input: `[CLS]`, `<s>` or `<|startoftext|>`.
    pub cls: u32,
    /// End of a segment: `[SEP]`, `</s>` or `<|endoftext|>`.
    pub sep: u32,
    /// Padding: `[PAD]`, `<pad>` or `<|endoftext|>`.
    pub pad: u32,
    /// Mask: `[MASK]` or `<mask>`; `None` if the tokenizer has no mask token.
    pub mask: Option<u32>,
}

/// A tokenizer that encodes segments without special tokens and caches them.
pub struct SegmentTokenizer {
    path: PathBuf,
    tokenizer: tokenizers::Tokenizer,
    special: SpecialTokens,
    cache: Mutex<HashMap<String, Arc<[u32]>>>,
}

/// Parses the content of a `tokenizer.json`. (`Tokenizer::from_bytes` is generic and would compile
/// serde's code for all kinds of tokenizers here a second time.)
///
/// Truncation and padding are switched off: all callers truncate texts themselves.
pub(crate) fn parse(json: &[u8]) -> Result<tokenizers::Tokenizer, String> {
    guarded(|| {
        let mut tokenizer: tokenizers::Tokenizer = std::str::from_utf8(json)?.parse()?;
        tokenizer.with_truncation(None)?;
        tokenizer.with_padding(None);
        Ok(tokenizer)
    })
}

/// How to encode a whole text: its truncation and its special tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct TextForm {
    /// The maximum number of tokens, including special tokens.
    pub max_length: usize,
    /// Whether to truncate a long text at its start, not at its end.
    pub truncate_left: bool,
    /// Whether the `post_processor` of `tokenizer.json` adds the special tokens. Otherwise
    /// [`SpecialTokens::cls`] is put before the text and [`SpecialTokens::sep`] after it.
    pub use_post_processor: bool,
}

impl SegmentTokenizer {
    /// Reads a `tokenizer.json`.
    ///
    /// # Errors
    /// `Io`; `Tokenizer` for an invalid file; `MissingSpecialToken`
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self, DataError> {
        let path = path.as_ref();
        let bytes =
            std::fs::read(path).map_err(|source| DataError::Io { path: path.into(), source })?;
        Self::from_bytes(path, &bytes)
    }

    /// Parses the content of a `tokenizer.json`; error messages name `path`.
    ///
    /// # Errors
    /// `Tokenizer` for invalid content; `MissingSpecialToken`
    pub fn from_bytes(path: impl AsRef<Path>, bytes: &[u8]) -> Result<Self, DataError> {
        let path = path.as_ref();
        let tokenizer_error = |reason: String| DataError::Tokenizer { path: path.into(), reason };
        let tokenizer = parse(bytes).map_err(tokenizer_error)?;
        let find = |names: &[&str]| names.iter().find_map(|name| tokenizer.token_to_id(name));
        let required = |role, names: &[&str]| {
            find(names).ok_or_else(|| DataError::MissingSpecialToken {
                path: path.into(),
                role,
                names: names.join(" or "),
            })
        };
        let special = SpecialTokens {
            cls: required("cls", CLS_NAMES)?,
            sep: required("sep", SEP_NAMES)?,
            pad: required("pad", PAD_NAMES)?,
            mask: find(MASK_NAMES),
        };
        Ok(Self { path: path.into(), tokenizer, special, cache: Mutex::default() })
    }

    /// Returns the ids of the special tokens.
    pub fn special(&self) -> SpecialTokens {
        self.special
    }

    /// Returns the vocabulary size, including added tokens.
    pub fn vocabulary_size(&self) -> usize {
        self.tokenizer.get_vocab_size(true)
    }

    /// Returns the id of the token with this exact name; `None` if there is no such token.
    pub fn id_of(&self, token: &str) -> Option<u32> {
        self.tokenizer.token_to_id(token)
    }

    /// Returns the token with this id; `None` if the vocabulary has no such id.
    pub fn token_of(&self, id: u32) -> Option<String> {
        self.tokenizer.id_to_token(id)
    }

    /// Checks that this tokenizer belongs to a model with `model_size` embeddings and the padding
    /// id `model_pad`. With `None`, the padding id is not checked.
    ///
    /// Models round the number of their embeddings up (DeBERTa-v3: 128,001 tokens, 128,100
    /// embeddings), so up to a tenth may be unused. An id beyond the embeddings, or a smaller
    /// vocabulary, means that the tokenizer belongs to another model.
    ///
    /// # Errors
    /// `VocabularyMismatch`, `PadMismatch`
    pub fn check_fits(&self, model_size: usize, model_pad: Option<u32>) -> Result<(), DataError> {
        let ids = self.tokenizer.get_vocab(true).into_values();
        let vocabulary_size = ids.max().map_or(0, |highest| highest as usize + 1);
        if vocabulary_size > model_size || vocabulary_size * 10 < model_size * 9 {
            return Err(DataError::VocabularyMismatch {
                path: self.path.clone(),
                tokenizer: vocabulary_size,
                model: model_size,
            });
        }
        match model_pad {
            Some(model) if model != self.special.pad => Err(DataError::PadMismatch {
                path: self.path.clone(),
                tokenizer: self.special.pad,
                model,
            }),
            _ => Ok(()),
        }
    }

    /// Encodes a text segment, without special tokens.
    ///
    /// # Errors
    /// `Encode` for text that the tokenizer cannot encode
    pub fn encode_segment(&self, segment: &str) -> Result<Arc<[u32]>, DataError> {
        // The map is consistent after every statement, so a panic elsewhere leaves it usable.
        let lock_cache = || self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(ids) = lock_cache().get(segment) {
            return Ok(Arc::clone(ids));
        }
        let ids: Arc<[u32]> = self.encode(segment)?.get_ids().into();
        let mut cache = lock_cache();
        if cache.len() >= MAX_CACHED_SEGMENTS {
            cache.clear();
        }
        cache.insert(segment.to_owned(), Arc::clone(&ids));
        Ok(ids)
    }

    /// Encodes a whole text with its special tokens, truncated to the length of `form`; not cached.
    ///
    /// # Errors
    /// `Encode` for text that the tokenizer cannot encode
    pub fn encode_text(&self, text: &str, form: &TextForm) -> Result<Vec<u32>, DataError> {
        if !form.use_post_processor {
            let ids = self.encode(text)?;
            let ids = ids.get_ids();
            let count = ids.len().min(form.max_length.saturating_sub(2));
            let start = if form.truncate_left { ids.len() - count } else { 0 };
            let truncated = ids[start..start + count].iter().copied();
            return Ok([self.special.cls]
                .into_iter()
                .chain(truncated)
                .chain([self.special.sep])
                .collect());
        }
        let direction =
            if form.truncate_left { TruncationDirection::Left } else { TruncationDirection::Right };
        let encoding = self.call_library(text, || {
            let mut encoding = self.tokenizer.encode(text, false)?;
            let num_special = self
                .tokenizer
                .get_post_processor()
                .map_or(0, |processor| processor.added_tokens(false));
            encoding.truncate(form.max_length.saturating_sub(num_special), 0, direction);
            self.tokenizer.post_process(encoding, None, true)
        })?;
        Ok(encoding.get_ids().to_vec())
    }

    fn encode(&self, segment: &str) -> Result<tokenizers::Encoding, DataError> {
        self.call_library(segment, || self.tokenizer.encode(segment, false))
    }

    fn call_library<T>(
        &self,
        segment: &str,
        call: impl FnOnce() -> Result<T, tokenizers::Error>,
    ) -> Result<T, DataError> {
        guarded(call).map_err(|reason| DataError::Encode {
            path: self.path.clone(),
            piece: segment.chars().take(60).collect(),
            reason,
        })
    }
}

/// Returns the number of tokens to keep of each segment, so that all fit into `budget`.
/// Longest-first truncation removes one token at a time from the longest segment (if several are
/// equally long, from the last).
pub fn longest_first(lengths: &[usize], budget: usize) -> Vec<usize> {
    if lengths.iter().sum::<usize>() <= budget {
        return lengths.to_vec();
    }
    // Find a common limit, starting with the shortest segment. Segments below the limit stay whole.
    let mut ascending = lengths.to_vec();
    ascending.sort_unstable();
    let mut remaining_budget = budget;
    let mut limit = 0;
    // The number of tokens that remain if every longer segment has `limit` tokens.
    let mut spare = 0;
    for (index, &length) in ascending.iter().enumerate() {
        let remaining_segments = ascending.len() - index;
        limit = remaining_budget / remaining_segments;
        spare = remaining_budget % remaining_segments;
        if length > limit {
            break;
        }
        remaining_budget -= length;
    }
    lengths
        .iter()
        .map(|&length| {
            let extra = usize::from(length > limit && spare > 0);
            spare -= extra;
            length.min(limit + extra)
        })
        .collect()
}
