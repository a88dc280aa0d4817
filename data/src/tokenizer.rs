//! Token ids of text segments, with the `tokenizers` crate.
//!
//! A study joins text segments (anchor, target, title, …) into one input. A segment is therefore
//! encoded *without* special tokens, truncation or padding, whatever `tokenizer.json` specifies.
//! (The file of all-MiniLM-L6-v2 pads each text to 128 tokens.) Segments that recur, such as
//! anchors and titles, are cached. [`SegmentTokenizer::encode_text`] encodes a whole text with its
//! special tokens.

mod growth;

use std::collections::HashMap;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use engram_textfile::{refuse_lfs_pointer, shortened};
use serde::Serialize;
use tokenizers::{PostProcessor, TruncationDirection};

use crate::{DataError, guard};

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

/// The content of a `tokenizer.json`. Truncation and padding are switched off: all callers truncate
/// texts themselves.
#[derive(Clone)]
pub struct TextTokenizer {
    /// The path that error messages name.
    path: PathBuf,
    tokenizer: tokenizers::Tokenizer,
}

impl TextTokenizer {
    /// Reads a `tokenizer.json`.
    ///
    /// # Errors
    /// `Io`; `Tokenizer` for an invalid file
    pub fn from_file(path: &Path) -> Result<Self, DataError> {
        let json = engram_durable::read_file(path)
            .map_err(|source| DataError::Io { path: path.into(), source })?;
        Self::parse(path, &json)
    }

    /// Parses the content of a `tokenizer.json`; error messages name `path`.
    ///
    /// # Errors
    /// `Tokenizer` for invalid content, and for steps that could make a short text fill the memory
    pub fn parse(path: &Path, json: &[u8]) -> Result<Self, DataError> {
        refuse_lfs_pointer(path, json)?;
        let error = |reason| DataError::Tokenizer { path: path.into(), reason };
        growth::check_growth(json).map_err(error)?;
        // `Tokenizer::from_bytes` is generic and would compile serde's code for all kinds of
        // tokenizers here a second time.
        Self::make(path, || std::str::from_utf8(json)?.parse())
    }

    /// Creates a tokenizer with the library; error messages name `path`.
    pub(crate) fn make(
        path: &Path,
        make: impl FnOnce() -> Result<tokenizers::Tokenizer, tokenizers::Error>,
    ) -> Result<Self, DataError> {
        let tokenizer = guarded(|| {
            let mut tokenizer = make()?;
            tokenizer.with_truncation(None)?;
            tokenizer.with_padding(None);
            Ok(tokenizer)
        });
        match tokenizer {
            Ok(tokenizer) => Ok(Self { path: path.into(), tokenizer }),
            Err(reason) => Err(DataError::Tokenizer { path: path.into(), reason }),
        }
    }

    /// Returns the content of the `tokenizer.json`.
    ///
    /// # Errors
    /// `Tokenizer`
    pub fn json(&self) -> Result<String, DataError> {
        self.tokenizer.to_string(true).map_err(|error| self.error(error.to_string()))
    }

    /// Returns the vocabulary size, including added tokens: the highest id plus 1.
    pub fn vocabulary_size(&self) -> usize {
        self.tokenizer.get_vocab(true).into_values().max().map_or(0, |id| id as usize + 1)
    }

    /// Returns the id of the token with this exact name; `None` if there is no such token.
    pub fn id_of(&self, token: &str) -> Option<u32> {
        self.tokenizer.token_to_id(token)
    }

    /// Returns the id of a special token: the first of these names that the vocabulary has.
    pub(crate) fn special(&self, role: &'static str, names: &[&str]) -> Result<u32, DataError> {
        let id = names.iter().find_map(|name| self.id_of(name));
        id.ok_or_else(|| {
            let reason = format!("no {role} token (looked for {})", names.join(" or "));
            let remedy = "use the tokenizer.json of an encoder such as BERT or RoBERTa";
            DataError::of_file(&self.path, reason, remedy)
        })
    }

    /// Returns the token with this id; `None` if the vocabulary has no such id.
    pub fn token_of(&self, id: u32) -> Option<String> {
        self.tokenizer.id_to_token(id)
    }

    /// Encodes a text, without special tokens.
    ///
    /// # Errors
    /// `Malformed` for text that the tokenizer cannot encode
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, DataError> {
        let encoding = self.encode_with(text, || self.tokenizer.encode(text, false))?;
        Ok(encoding.get_ids().to_vec())
    }

    /// Decodes ids, without special tokens. Ids outside of the vocabulary, such as timestamps, are
    /// dropped.
    ///
    /// # Errors
    /// `Tokenizer`
    pub fn decode(&self, ids: &[u32]) -> Result<String, DataError> {
        guarded(|| self.tokenizer.decode(ids, true)).map_err(|reason| self.error(reason))
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
        pieces.map_err(|reason| self.error(reason))
    }

    /// Creates an error of this tokenizer.
    pub(crate) fn error(&self, reason: String) -> DataError {
        DataError::Tokenizer { path: self.path.clone(), reason }
    }

    /// Creates the error for a tokenizer that does not fit its model.
    fn mismatch(&self, reason: String) -> DataError {
        let remedy = "use the tokenizer.json that was published with the weights";
        DataError::of_file(&self.path, reason, remedy)
    }

    fn size_mismatch(&self, model_size: usize) -> DataError {
        let tokenizer = self.vocabulary_size();
        self.mismatch(format!(
            "the tokenizer has {tokenizer} entries, but the model has {model_size} embeddings"
        ))
    }

    fn encode_with<T>(
        &self,
        text: &str,
        call: impl FnOnce() -> Result<T, tokenizers::Error>,
    ) -> Result<T, DataError> {
        guarded(call).map_err(|reason| {
            let piece: String = text.chars().take(60).collect();
            let reason = format!("cannot encode {piece:?}: {reason}");
            let remedy = "download tokenizer.json again, or use a tokenizer with an unknown token";
            DataError::of_file(&self.path, reason, remedy)
        })
    }

    /// Checks that a model with `model_size` embeddings has an embedding for every token.
    ///
    /// # Errors
    /// `Malformed`
    pub fn check_embeddings(&self, model_size: usize) -> Result<(), DataError> {
        if self.vocabulary_size() <= model_size {
            return Ok(());
        }
        Err(self.size_mismatch(model_size))
    }
}

/// Calls the `tokenizers` library. An error or a panic becomes a message on one line of at most 200
/// characters, because it may quote a whole file.
fn guarded<T>(call: impl FnOnce() -> Result<T, tokenizers::Error>) -> Result<T, String> {
    match guard::guarded(call) {
        Ok(result) => result.map_err(|error| shortened(&error.to_string(), 200)),
        Err(panic) => Err(format!("the tokenizers library panicked: {}", shortened(&panic, 200))),
    }
}

/// A tokenizer that encodes segments without special tokens and caches them.
pub struct SegmentTokenizer {
    tokens: TextTokenizer,
    special: SpecialTokens,
    cache: Mutex<HashMap<String, Arc<[u32]>>>,
    truncated: AtomicUsize,
}

impl Deref for SegmentTokenizer {
    type Target = TextTokenizer;

    fn deref(&self) -> &TextTokenizer {
        &self.tokens
    }
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
    /// as [`TextTokenizer::from_file`]; `Malformed` without a special token
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self, DataError> {
        Self::new(TextTokenizer::from_file(path.as_ref())?)
    }

    /// Parses the content of a `tokenizer.json`; error messages name `path`.
    ///
    /// # Errors
    /// as [`TextTokenizer::parse`]; `Malformed` without a special token
    pub fn from_bytes(path: impl AsRef<Path>, bytes: &[u8]) -> Result<Self, DataError> {
        Self::new(TextTokenizer::parse(path.as_ref(), bytes)?)
    }

    /// Parses the content of a `tokenizer.json` whose post-processor adds all special tokens but the
    /// padding, which has this name. The other special tokens are then those of the padding.
    ///
    /// # Errors
    /// as [`TextTokenizer::parse`]; `Malformed` without the padding token
    pub fn with_padding(
        path: impl AsRef<Path>,
        bytes: &[u8],
        padding: &str,
    ) -> Result<Self, DataError> {
        let tokens = TextTokenizer::parse(path.as_ref(), bytes)?;
        let pad = tokens.special("padding", &[padding])?;
        let special = SpecialTokens { cls: pad, sep: pad, pad, mask: None };
        Ok(Self { tokens, special, cache: Mutex::default(), truncated: AtomicUsize::default() })
    }

    fn new(tokens: TextTokenizer) -> Result<Self, DataError> {
        // A vocabulary may have the names of several styles: MPNet's has BERT's, too. The
        // post-processor adds the tokens that the encoder knows.
        let added = guarded(|| tokens.tokenizer.encode("", true));
        let added = added.map(|encoding| encoding.get_ids().to_vec()).unwrap_or_default();
        let is_added = |name: &&str| tokens.id_of(name).is_some_and(|id| added.contains(&id));
        let style = CLS_NAMES.iter().position(is_added).unwrap_or_default();
        let of_style = |names: &[&'static str]| {
            let (others, preferred) = names.split_at(style.min(names.len()));
            [preferred, others].concat()
        };
        let special = SpecialTokens {
            cls: tokens.special("cls", &of_style(CLS_NAMES))?,
            sep: tokens.special("sep", &of_style(SEP_NAMES))?,
            pad: tokens.special("pad", &of_style(PAD_NAMES))?,
            mask: of_style(MASK_NAMES).iter().find_map(|name| tokens.id_of(name)),
        };
        Ok(Self { tokens, special, cache: Mutex::default(), truncated: AtomicUsize::new(0) })
    }

    /// Returns the ids of the special tokens.
    pub fn special(&self) -> SpecialTokens {
        self.special
    }

    /// Checks that this tokenizer belongs to a model with `model_size` embeddings and the padding
    /// id `model_pad`. With `None`, the padding id is not checked.
    ///
    /// Models round the number of their embeddings up (DeBERTa-v3: 128,001 tokens, 128,100
    /// embeddings), so up to a tenth may be unused. An id beyond the embeddings, or a smaller
    /// vocabulary, means that the tokenizer belongs to another model.
    ///
    /// # Errors
    /// `Malformed`
    pub fn check_fits(&self, model_size: usize, model_pad: Option<u32>) -> Result<(), DataError> {
        self.check_embeddings(model_size)?;
        if self.vocabulary_size() * 10 < model_size * 9 {
            return Err(self.size_mismatch(model_size));
        }
        let pad = self.special.pad;
        match model_pad {
            Some(model) if model != pad => Err(self
                .mismatch(format!("the tokenizer pads with id {pad}, the model with id {model}"))),
            _ => Ok(()),
        }
    }

    /// Encodes a text segment, without special tokens.
    ///
    /// # Errors
    /// `Malformed` for text that the tokenizer cannot encode
    pub fn encode_segment(&self, segment: &str) -> Result<Arc<[u32]>, DataError> {
        // The map is consistent after every statement, so a panic elsewhere leaves it usable.
        let lock_cache = || self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(ids) = lock_cache().get(segment) {
            return Ok(Arc::clone(ids));
        }
        let ids: Arc<[u32]> = self.encode(segment)?.into();
        let mut cache = lock_cache();
        if cache.len() >= MAX_CACHED_SEGMENTS {
            cache.clear();
        }
        cache.insert(segment.to_owned(), Arc::clone(&ids));
        Ok(ids)
    }

    /// The number of texts that [`encode_text`](Self::encode_text) has truncated.
    pub fn truncated_texts(&self) -> usize {
        self.truncated.load(Ordering::Relaxed)
    }

    /// Encodes a whole text with its special tokens, truncated to the length of `form`; not cached.
    ///
    /// # Errors
    /// `Malformed` for text that the tokenizer cannot encode
    pub fn encode_text(&self, text: &str, form: &TextForm) -> Result<Vec<u32>, DataError> {
        if !form.use_post_processor {
            let ids = self.encode(text)?;
            let count = ids.len().min(form.max_length.saturating_sub(2));
            self.truncated.fetch_add(usize::from(count < ids.len()), Ordering::Relaxed);
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
        let encoding = self.encode_with(text, || {
            let mut encoding = self.tokenizer.encode(text, false)?;
            let num_special = self
                .tokenizer
                .get_post_processor()
                .map_or(0, |processor| processor.added_tokens(false));
            let budget = form.max_length.saturating_sub(num_special);
            let is_longer = encoding.get_ids().len() > budget;
            self.truncated.fetch_add(usize::from(is_longer), Ordering::Relaxed);
            encoding.truncate(budget, 0, direction);
            self.tokenizer.post_process(encoding, None, true)
        })?;
        Ok(encoding.get_ids().to_vec())
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
