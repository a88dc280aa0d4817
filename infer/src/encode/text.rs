//! Sentence embeddings of a text encoder, as in `sentence-transformers`.

use std::sync::Arc;

use engram_data::tokenizer::{SegmentTokenizer, TextForm};
use engram_models::compute::Compute;
use engram_models::packed::PackedTokens;
use engram_models::params::ParameterBuilder;
use engram_models::similarity::sentence_transformer::{
    PromptChoice, SentenceBatch, SentenceEncoder, TransformerSettings,
};

use super::EncoderFiles;
use super::clip::flat_values;
use super::identity::{Identity, Inputs};
use super::layout::Layout;
use super::tokenizer::{TokenizerConfig, text_form};
use crate::digest;
use crate::error::{InferError, Result};

/// The maximum number of tokens in a forward pass.
const BATCH_TOKENS: usize = 4096;

/// A sentence encoder with its tokenizer.
pub(super) struct TextModel {
    encoder: SentenceEncoder,
    tokenizer: Arc<SegmentTokenizer>,
    settings: TransformerSettings,
    tokenizer_config: Option<TokenizerConfig>,
    /// The maximum text length in `config.json`, in tokens.
    default_limit: usize,
    /// The number of position embeddings; `None` for a model without a position table.
    positions: Option<usize>,
    form: TextForm,
    /// The number of prompt tokens, if a module excludes them from pooling; otherwise 0.
    prompt_length: usize,
}

impl TextModel {
    /// Builds the model of a folder. Returns the model and its identity. The identity's `sha256`
    /// covers the weights, the modules and `do_lower_case`. For mean pooling without
    /// `do_lower_case`, it is the hash of the weights file.
    pub(super) fn open(layout: &Layout, compute: &Compute) -> Result<(Self, Identity)> {
        let files = EncoderFiles::of_layout(layout)?;
        let settings = layout.settings(false)?;
        let tokenizer_config = TokenizerConfig::read(&layout.transformer())?;
        let builder = ParameterBuilder::frozen(compute);
        let encoder = files.build(&builder)?;
        let (modules, mut module_identity) = layout.modules()?;
        if settings.do_lower_case {
            module_identity.push_str("do_lower_case\n");
        }
        let encoder = SentenceEncoder::new(encoder, modules, layout.prompts.truncate_dim)?;
        let weights = files.weights_sha256().unwrap_or_default();
        let sha256 = if module_identity.is_empty() {
            weights.to_owned()
        } else {
            digest::of_bytes(format!("{weights}\n{module_identity}"))
        };
        let (default_limit, positions) =
            (files.config.max_position_embeddings, files.config.max_positions());
        let config = tokenizer_config.as_ref();
        let forms = PromptChoice::ROLES.map(|role| {
            text_form(&settings, settings.task_length(&role), config, default_limit, positions)
        });
        let identity = Inputs::of_config(&files.config_json)
            .texts(&files.tokenizer_json, &forms, &layout.prompts)
            .with_weights(sha256);
        let [form, ..] = forms;
        let tokenizer = Arc::clone(&files.tokenizer);
        let prompt_length = 0;
        let model = Self {
            encoder,
            tokenizer,
            settings,
            tokenizer_config,
            default_limit,
            positions,
            form,
            prompt_length,
        };
        Ok((model, identity))
    }

    /// Sets the prompt `text` for all further texts, with the length limit of queries or documents.
    pub(super) fn set_prompt(&mut self, text: &str, choice: &PromptChoice) -> Result<()> {
        let task_length = self.settings.task_length(choice);
        let (config, limit) = (self.tokenizer_config.as_ref(), self.default_limit);
        self.form = text_form(&self.settings, task_length, config, limit, self.positions);
        self.prompt_length = 0;
        if !text.is_empty() && self.encoder.needs_prompt_length() {
            let ids = self.tokens(text)?;
            let special = self.tokenizer.special();
            let ends_with_special = ids
                .last()
                .is_some_and(|last| [special.sep, special.cls, special.pad].contains(last));
            self.prompt_length = ids.len() - usize::from(ends_with_special);
        }
        Ok(())
    }

    pub(super) fn width(&self) -> usize {
        self.encoder.width()
    }

    /// Tokenizes a text as `[CLS] text [SEP]`, or with the special tokens of its tokenizer.
    pub(super) fn tokens(&self, text: &str) -> Result<Vec<u32>> {
        let ids = self.tokenizer.encode_text(text, &self.form)?;
        // A tokenizer without special tokens returns no tokens for an empty text.
        Ok(if ids.is_empty() { vec![self.tokenizer.special().pad] } else { ids })
    }

    /// Computes the embeddings of `N` texts, `[N, D]` in row-major order.
    pub(super) fn embed(&self, texts: &[&[u32]]) -> Result<Vec<f32>> {
        let mut vectors = Vec::with_capacity(texts.len() * self.width());
        for batch in batches_of_tokens(texts) {
            let tokens = PackedTokens::new(batch);
            let batch = SentenceBatch { tokens, prompt_length: self.prompt_length };
            let embedded = self.encoder.embed(&batch)?;
            vectors.extend(flat_values(&embedded)?);
        }
        Ok(vectors)
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

/// Wraps a tensor error, for `map_err`.
pub(super) fn tensor_error(error: candle_core::Error) -> InferError {
    InferError::Model(error.into())
}
