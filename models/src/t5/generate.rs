//! Answers of a decoder, token by token, greedily or by beams, for a whole batch at once.
//!
//! Reference: `generate` of `transformers` 5 with `do_sample=False`. Keys and values of the text
//! are made once and shared by its beams; those of the answer are kept from token to token. A text
//! whose answer is decided leaves the batch. One beam is the greedy search: the best token each
//! time, the lowest of equal ones.

use std::sync::Arc;

use candle_core::{DType, Tensor};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use super::beams::{Beams, Candidate};
use super::cache::Cache;
use super::config::T5Config;
use super::{Decoder, T5, TokenTable};
use crate::config::{bad_field, check_sizes};
use crate::error::{ModelError, Result};
use crate::kernels::{Mode, Segments, Span, log_sum};
use crate::packed::PackedTokens;

/// How answers are searched.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GenerateOptions {
    /// Tokens that an answer has at most, its end among them.
    pub max_new_tokens: usize,
    /// Answers to a text that are followed at the same time; 1 is the greedy search.
    pub num_beams: usize,
    /// The score of an answer is its log-probability by its length to this power: above 0 favours
    /// long ones.
    pub length_penalty: f64,
    /// Whether a search ends with the first `num_beams` answers; else it goes on while the best
    /// unfinished one scores above the worst of them.
    pub early_stopping: bool,
    /// The token that ends an answer.
    pub eos_token_id: u32,
    /// The token that the decoder reads first.
    pub start_token_id: u32,
}

/// An answer.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Generated {
    /// Its tokens after the start token; the end token is the last if the answer has ended.
    pub tokens: Vec<u32>,
    /// Whether it has: else `max_new_tokens` came first.
    pub ended: bool,
    /// The logarithm of each token's probability after those before.
    pub log_probabilities: Vec<f32>,
    /// Their sum.
    pub log_probability: f32,
    /// What beams are compared by: the sum by the length to the power of `length_penalty`.
    pub score: f32,
}

impl Default for GenerateOptions {
    fn default() -> Self {
        Self::greedy(&T5Config::default())
    }
}

impl GenerateOptions {
    /// The greedy search of at most 20 tokens, with the start and end of this model.
    pub fn greedy(config: &T5Config) -> Self {
        Self {
            max_new_tokens: 20,
            num_beams: 1,
            length_penalty: 1.0,
            early_stopping: false,
            eos_token_id: config.eos_token_id,
            start_token_id: config.decoder_start_token_id,
        }
    }

    /// Checks that a decoder with this vocabulary can follow them.
    ///
    /// # Errors
    /// [`ModelError::BadConfig`] naming the field.
    pub fn validate(&self, vocab_size: usize) -> Result<()> {
        check_sizes(&[("max_new_tokens", self.max_new_tokens)])?;
        if !(1..=MOST_BEAMS).contains(&self.num_beams) {
            let reason = format!("{} is not between 1 and {MOST_BEAMS}", self.num_beams);
            return Err(bad_field("num_beams", reason));
        }
        if !self.length_penalty.is_finite() {
            let reason = format!("{} is not a number", self.length_penalty);
            return Err(bad_field("length_penalty", reason));
        }
        for (what, token) in
            [("eos_token_id", self.eos_token_id), ("start_token_id", self.start_token_id)]
        {
            if token as usize >= vocab_size {
                let reason = format!("{token} is not below the vocabulary's {vocab_size}");
                return Err(bad_field(what, reason));
            }
        }
        Ok(())
    }

    /// What an answer of this length with this log-probability is compared by.
    pub(super) fn score(&self, log_probability: f32, length: usize) -> f32 {
        log_probability / (length as f64).powf(self.length_penalty) as f32
    }
}

/// More beams than this are a mistake.
const MOST_BEAMS: usize = 1 << 10;

impl Generated {
    /// The tokens without the end token.
    pub fn without_end(&self) -> &[u32] {
        match self.tokens.split_last() {
            Some((_, tokens)) if self.ended => tokens,
            _ => &self.tokens,
        }
    }
}

impl T5 {
    /// The best answer to each of these texts.
    ///
    /// # Errors
    /// As [`Decoder::generate`].
    pub fn generate(
        &self,
        texts: &PackedTokens,
        options: &GenerateOptions,
    ) -> Result<Vec<Generated>> {
        let lengths: Vec<usize> = texts.sequences().iter().map(|span| span.length).collect();
        let states = self.encode(texts, &Mode::predict())?;
        self.decoder.generate(&self.shared, (&states, &lengths), options)
    }
}

/// Keys and values of the texts.
struct Texts {
    /// Of each layer, `[T_k, H d_kv]`.
    keys: Vec<(Tensor, Tensor)>,
    /// The rows of each text.
    runs: Vec<Span>,
}

impl Decoder {
    /// The best answer to each text, given the encoder's states `[T_k, D]`, of which each text has
    /// `lengths` rows. No gradient is kept.
    ///
    /// # Errors
    /// [`ModelError::BadConfig`] for options that cannot be followed; [`ModelError::BadInput`] for
    /// lengths that do not fit the states, and for logits that are not numbers.
    pub fn generate(
        &self,
        table: &TokenTable,
        (states, lengths): (&Tensor, &[usize]),
        options: &GenerateOptions,
    ) -> Result<Vec<Generated>> {
        options.validate(self.config.vocab_size)?;
        if lengths.is_empty() {
            return Ok(Vec::new());
        }
        let texts = self.read(states, lengths)?;
        let (beams, width) = (options.num_beams, self.config.inner_size());
        let slots = (lengths.len() * beams, width);
        let mut cache = Cache::new(self.layers.len(), slots, states.dtype(), states.device())?;
        let mut answers: Vec<Beams> = lengths.iter().map(|_| Beams::new(options)).collect();
        for length in 1..=options.max_new_tokens {
            let (mut slots, mut tokens, mut counts) = (Vec::new(), Vec::new(), Vec::new());
            for (text, answers) in answers.iter().enumerate() {
                slots.extend(answers.running().map(|(slot, _)| text * beams + slot));
                tokens.extend(answers.running().map(|(_, token)| token));
                counts.push(answers.running().count());
            }
            if slots.is_empty() {
                break;
            }
            let x = table.forward(&tokens.into())?;
            let logits = self.step(x, &texts, (&mut cache, &slots, &counts), length)?;
            let candidates = best_tokens(&logits, 2 * beams)?;
            let (mut first, mut copies) = (0, Vec::new());
            for (text, (answers, count)) in answers.iter_mut().zip(counts).enumerate() {
                if count > 0 {
                    let moved = answers.advance(&candidates[first..first + count]);
                    let place = |slot| text * beams + slot;
                    copies.extend(moved.into_iter().map(|(from, to)| (place(from), place(to))));
                    first += count;
                }
            }
            if !copies.is_empty() {
                cache.copy(&copies)?;
            }
        }
        Ok(answers.into_iter().map(Beams::finish).collect())
    }

    /// Keys and values of the encoder's states, for all tokens to come.
    fn read(&self, states: &Tensor, lengths: &[usize]) -> Result<Texts> {
        super::check_rows(states, lengths)?;
        let states = states.detach();
        let of_layer = |layer: &super::DecoderLayer| {
            let (keys, values) = layer.cross_keys(&states)?;
            Ok((keys.detach(), values.detach()))
        };
        let keys = self.layers.iter().map(of_layer).collect::<Result<_>>()?;
        Ok(Texts { keys, runs: Segments::packed(lengths).keys().to_vec() })
    }

    /// Logits `[S, V]` of what follows the last tokens `x` `[S, D]` of the beams in `slots`, of
    /// which each text has `counts`.
    fn step(
        &self,
        x: Tensor,
        texts: &Texts,
        (cache, slots, counts): (&mut Cache, &[usize], &[usize]),
        length: usize,
    ) -> Result<Tensor> {
        let mode = Mode::predict();
        let open = || texts.runs.iter().zip(counts).filter(|(_, count)| **count > 0);
        let runs: Arc<[Span]> = open().map(|(run, _)| *run).collect();
        let cross = Segments::to_runs(&open().map(|(_, count)| *count).collect::<Vec<_>>(), runs);
        let bias = self.bias.forward(1, length)?.detach();
        let step = cache.next(slots)?;
        let mut x = x.detach();
        for ((layer, own), (keys, values)) in
            self.layers.iter().zip(cache.layers()).zip(&texts.keys)
        {
            x = layer.step(&x, &bias, (own, &step), (keys, values, &cross), &mode)?.detach();
        }
        Ok(self.lm_head.forward(&self.final_norm.forward(&x)?)?.detach())
    }
}

/// The `count` likeliest tokens of each row of logits `[S, V]`, best first, the lowest of equal ids
/// first.
fn best_tokens(logits: &Tensor, count: usize) -> Result<Vec<Vec<Candidate>>> {
    let vocab_size = logits.dim(1)?;
    let logits = logits.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>()?;
    let of_row = |row: &[f32]| {
        let total = log_sum(row);
        if !total.is_finite() {
            let reason = "the decoder's logits are not numbers: are its weights?".to_string();
            return Err(ModelError::BadInput(reason));
        }
        let mut best: Vec<(f32, u32)> = Vec::with_capacity(count + 1);
        for (&logit, token) in row.iter().zip(0..) {
            if best.len() < count || best.last().is_some_and(|worst| logit > worst.0) {
                let place = best.partition_point(|better| better.0 >= logit);
                best.insert(place, (logit, token));
                best.truncate(count);
            }
        }
        let candidate = |(logit, token)| Candidate { token, log_probability: logit - total };
        Ok(best.into_iter().map(candidate).collect())
    };
    logits.par_chunks(vocab_size).map(of_row).collect()
}
