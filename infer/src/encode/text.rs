//! Sentence embeddings of a text encoder, as in `sentence-transformers`.

use std::sync::Arc;

use candle_core::Tensor;
use engram_data::tokenizer::SpecialTokens;
use engram_models::compute::Compute;
use engram_models::kernels::Mode;
use engram_models::packed::PackedTokens;
use engram_models::params::ParameterBuilder;
use engram_models::similarity::sentence_transformer::{SentenceBatch, SentenceHead};

use super::identity::Inputs;
use super::layout::Layout;
use super::tokenizer::{TextTokens, TokenizerConfig};
use super::{EncoderFiles, Parts, Texts};
use crate::digest;
use crate::error::Result;

/// The maximum number of tokens in a forward pass.
const BATCH_TOKENS: usize = 4096;

/// Computes the states of packed texts, `[T, D]`, or the embeddings of `N` packed texts, `[N, D]`.
type Forward = Box<dyn Fn(&PackedTokens) -> Result<Tensor> + Send + Sync>;

/// An encoder of token sequences.
pub(super) struct TextModel {
    forward: Forward,
    /// The dimension `D` of the embeddings.
    pub(super) width: usize,
    /// The modules that make embeddings of the states that `forward` gives; `None` if it gives
    /// embeddings.
    head: Option<SentenceHead>,
    /// The number of prompt tokens, if a module excludes them from pooling; otherwise 0.
    prompt_length: usize,
}

impl TextModel {
    /// A model whose forward pass gives embeddings of width `D`.
    pub(super) fn new(width: usize, forward: Forward) -> Self {
        Self { forward, width, head: None, prompt_length: 0 }
    }

    /// Builds the model of a folder. The identity's `sha256` covers the weights, the modules and
    /// `do_lower_case`. For mean pooling without `do_lower_case`, it is the hash of the weights file.
    pub(super) fn open(layout: &Layout, compute: &Compute) -> Result<Parts> {
        let files = EncoderFiles::of_layout(layout)?;
        let tokens = TextTokens {
            tokenizer: Arc::clone(&files.tokenizer),
            settings: layout.settings(false)?,
            config: TokenizerConfig::read(&layout.transformer())?,
            default_limit: files.config.max_tokens(),
            positions: files.config.max_positions(),
        };
        let encoder = files.build(&ParameterBuilder::frozen(compute))?;
        let width = encoder.hidden_size();
        let states: Forward = Box::new(move |batch| Ok(encoder.encode(batch, &Mode::inference())?));
        let weights = files.weights.as_ref().map_or("", |weights| weights.sha256.as_str());
        let (model, sha256) = Self::with_modules(layout, &tokens, weights, width, states)?;
        let identity = Inputs::of_config(&files.config_json)
            .texts(&files.tokenizer_json, &tokens.forms(), &layout.prompts)
            .with_weights(sha256);
        Ok((Some(Texts::new(model, tokens)), None, identity))
    }

    /// Adds the modules of a folder to an encoder of width `D`. `weights` is the hash of its
    /// weights. Also returns the hash of weights, modules and `do_lower_case`.
    pub(super) fn with_modules(
        layout: &Layout,
        tokens: &TextTokens,
        weights: &str,
        width: usize,
        states: Forward,
    ) -> Result<(Self, String)> {
        let (modules, mut module_identity) = layout.modules()?;
        if tokens.settings.do_lower_case {
            module_identity.push_str("do_lower_case\n");
        }
        let head = SentenceHead::new(width, modules, layout.prompts.truncate_dim)?;
        let sha256 = if module_identity.is_empty() {
            weights.to_owned()
        } else {
            digest::of_bytes(format!("{weights}\n{module_identity}"))
        };
        let model = Self { width: head.width(), head: Some(head), ..Self::new(width, states) };
        Ok((model, sha256))
    }

    /// Sets the prompt of all further texts, as token ids with the special tokens.
    pub(super) fn set_prompt(&mut self, ids: &[u32], special: SpecialTokens) {
        if self.head.as_ref().is_some_and(SentenceHead::needs_prompt_length) {
            let ends_with_special = ids
                .last()
                .is_some_and(|last| [special.sep, special.cls, special.pad].contains(last));
            self.prompt_length = ids.len() - usize::from(ends_with_special);
        }
    }

    /// Computes the embeddings of `N` packed texts, `[N, D]`.
    pub(super) fn embed(&self, tokens: PackedTokens) -> Result<Tensor> {
        let states = (self.forward)(&tokens)?;
        let Some(head) = &self.head else { return Ok(states) };
        Ok(head.embed(states, &SentenceBatch { tokens, prompt_length: self.prompt_length })?)
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
