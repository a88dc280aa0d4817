//! Generates text with a T5 decoder, in batches.
//!
//! The cross-attention keys and values of an input text are computed once and shared by its beams.
//! A cache keeps the keys and values of the output from token to token.

use std::sync::Arc;

use candle_core::Tensor;

use super::{Decoder, T5, TokenTable};
use crate::error::Result;
use crate::generation::cache::KeyValueCache;
use crate::generation::{GenerateOptions, Generated, NextTokens, search};
use crate::kernels::{Mode, Segments, Span};
use crate::layers::CrossKeyValues;
use crate::packed::PackedTokens;

impl T5 {
    /// Generates the best output for each text.
    ///
    /// # Errors
    /// See [`Decoder::generate`].
    pub fn generate(
        &self,
        texts: &PackedTokens,
        options: &GenerateOptions,
    ) -> Result<Vec<Generated>> {
        let lengths: Vec<usize> = texts.sequences().iter().map(|span| span.length).collect();
        let states = self.encode(texts, &Mode::inference())?;
        self.decoder.generate(&self.shared, &states, &lengths, options)
    }
}

/// Decoding state: the encoded texts, and the cache of the output so far.
struct DecodingState<'a> {
    decoder: &'a Decoder,
    table: &'a TokenTable,
    /// Keys and values of the texts, per layer: `[T_k, H d_kv]`.
    keys: Vec<(Tensor, Tensor)>,
    /// The rows of each text in `keys`.
    text_spans: Vec<Span>,
    cache: KeyValueCache,
}

impl Decoder {
    /// Generates the best output for each text from the encoder's states `[T_k, D]`. `lengths`
    /// holds the number of states of each text. No gradient is computed.
    ///
    /// # Errors
    /// [`ModelError::BadConfig`](crate::ModelError::BadConfig) for invalid options.
    /// [`ModelError::BadInput`](crate::ModelError::BadInput) if the lengths do not sum to the
    /// number of states, or if a logit is NaN or plus infinity.
    pub fn generate(
        &self,
        table: &TokenTable,
        states: &Tensor,
        lengths: &[usize],
        options: &GenerateOptions,
    ) -> Result<Vec<Generated>> {
        options.validate(self.config.vocab_size)?;
        if lengths.is_empty() {
            return Ok(Vec::new());
        }
        super::check_rows(states, lengths)?;
        let states = states.detach();
        let keys_and_values = |layer: &super::DecoderLayer| {
            let (keys, values) = layer.cross_key_values(&states, &Mode::inference())?;
            Ok((keys.detach(), values.detach()))
        };
        let (slots, width) = (lengths.len() * options.num_beams, self.config.inner_size());
        let (dtype, device) = (states.dtype(), states.device());
        let mut state = DecodingState {
            decoder: self,
            table,
            keys: self.layers.iter().map(keys_and_values).collect::<Result<_>>()?,
            text_spans: Segments::packed(lengths).keys().to_vec(),
            cache: KeyValueCache::new(self.layers.len(), slots, width, dtype, device)?,
        };
        search(lengths.len(), options, &mut state)
    }
}

impl NextTokens for DecodingState<'_> {
    fn step(&mut self, tokens: &[u32], slots: &[usize], counts: &[usize]) -> Result<Tensor> {
        let Decoder { bias, layers, final_norm, lm_head, .. } = self.decoder;
        let unfinished_texts =
            || self.text_spans.iter().zip(counts).filter(|(_, count)| **count > 0);
        let spans: Arc<[Span]> = unfinished_texts().map(|(span, _)| *span).collect();
        let cross = Segments::to_key_spans(
            &unfinished_texts().map(|(_, count)| *count).collect::<Vec<_>>(),
            spans,
        );
        let step = self.cache.next(slots)?;
        let bias = bias.forward(1, self.cache.length())?.detach();
        let mut x = self.table.forward(&tokens.into())?.detach();
        let mode = Mode::inference();
        for ((layer, cache), (keys, values)) in
            layers.iter().zip(self.cache.layers()).zip(&self.keys)
        {
            let cross = CrossKeyValues { keys, values, segments: &cross };
            x = layer.step(&x, &bias, cache, &step, cross, &mode)?.detach();
        }
        Ok(lm_head.forward(&final_norm.forward(&x)?, &mode)?.detach())
    }

    fn copy(&mut self, pairs: &[(usize, usize)]) -> Result<()> {
        self.cache.copy(pairs)
    }
}
