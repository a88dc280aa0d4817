//! Sentence embeddings of a text encoder, as in `sentence-transformers`.

use std::sync::Arc;

use candle_core::Tensor;
use engram_data::tokenizer::SpecialTokens;
use engram_models::compute::Compute;
use engram_models::packed::PackedTokens;
use engram_models::params::ParameterBuilder;
use engram_models::similarity::sentence_transformer::{SentenceBatch, SentenceEncoder};

use super::identity::{Identity, Inputs};
use super::layout::Layout;
use super::tokenizer::{TextTokens, TokenizerConfig};
use super::{EncoderFiles, TextEncoder};
use crate::digest;
use crate::error::Result;

/// The maximum number of tokens in a forward pass.
const BATCH_TOKENS: usize = 4096;

/// A sentence encoder.
pub(super) struct TextModel {
    encoder: SentenceEncoder,
    /// The number of prompt tokens, if a module excludes them from pooling; otherwise 0.
    prompt_length: usize,
}

impl TextModel {
    /// Builds the model of a folder. Returns the model with its tokenizer and its identity. The
    /// identity's `sha256` covers the weights, the modules and `do_lower_case`. For mean pooling
    /// without `do_lower_case`, it is the hash of the weights file.
    pub(super) fn open(layout: &Layout, compute: &Compute) -> Result<(Self, TextTokens, Identity)> {
        let files = EncoderFiles::of_layout(layout)?;
        let tokens = TextTokens {
            tokenizer: Arc::clone(&files.tokenizer),
            settings: layout.settings(false)?,
            config: TokenizerConfig::read(&layout.transformer())?,
            default_limit: files.config.max_tokens(),
            positions: files.config.max_positions(),
        };
        let encoder = files.build(&ParameterBuilder::frozen(compute))?;
        let (modules, mut module_identity) = layout.modules()?;
        if tokens.settings.do_lower_case {
            module_identity.push_str("do_lower_case\n");
        }
        let encoder = SentenceEncoder::new(encoder, modules, layout.prompts.truncate_dim)?;
        let weights = files.weights_sha256().unwrap_or_default();
        let sha256 = if module_identity.is_empty() {
            weights.to_owned()
        } else {
            digest::of_bytes(format!("{weights}\n{module_identity}"))
        };
        let identity = Inputs::of_config(&files.config_json)
            .texts(&files.tokenizer_json, &tokens.forms(), &layout.prompts)
            .with_weights(sha256);
        Ok((Self { encoder, prompt_length: 0 }, tokens, identity))
    }
}

impl TextEncoder for TextModel {
    fn set_prompt(&mut self, ids: &[u32], special: SpecialTokens) {
        if self.encoder.needs_prompt_length() {
            let ends_with_special = ids
                .last()
                .is_some_and(|last| [special.sep, special.cls, special.pad].contains(last));
            self.prompt_length = ids.len() - usize::from(ends_with_special);
        }
    }

    fn width(&self) -> usize {
        self.encoder.width()
    }

    fn embed(&self, batch: PackedTokens) -> Result<Tensor> {
        let batch = SentenceBatch { tokens: batch, prompt_length: self.prompt_length };
        Ok(self.encoder.embed(&batch)?)
    }
}

/// Splits texts into batches of at most [`BATCH_TOKENS`] tokens. A longer text is a batch of its
/// own.
pub(super) fn batches_of_tokens<'a, 'b>(
    texts: &'a [&'b [u32]],
) -> impl Iterator<Item = &'a [&'b [u32]]> {
    let mut remaining = texts;
    std::iter::from_fn(move || {
        let mut tokens = 0;
        let fits = |text: &&&[u32]| {
            tokens += text.len();
            tokens <= BATCH_TOKENS
        };
        let count = remaining.iter().take_while(fits).count().max(1).min(remaining.len());
        let (batch, later) = remaining.split_at(count);
        remaining = later;
        (!batch.is_empty()).then_some(batch)
    })
}
