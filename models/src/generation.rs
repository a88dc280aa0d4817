//! Texts from a decoder, token by token, greedily or by beams, for a whole batch at once.
//!
//! Reference: `generate` of `transformers` 5 with `do_sample=False`. A text that is decided leaves
//! the batch. One beam is the greedy search: the best token each time, the lowest of equal ones.

mod beams;
pub(crate) mod cache;

use candle_core::{DType, Tensor};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use crate::config::{bad_field, check_sizes};
use crate::error::{ModelError, Result};
use crate::kernels::log_sum;
use crate::speech::boosting::{BoostState, BoostTree, BrokenMatch};
use beams::{Beams, Candidate};

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
    /// What beams are compared by, but for boosting: the sum by the length to the power of
    /// `length_penalty`.
    pub score: f32,
}

impl Default for GenerateOptions {
    /// Those of T5.
    fn default() -> Self {
        Self::greedy(0, 1)
    }
}

impl GenerateOptions {
    /// The greedy search of at most 20 tokens, with these first and last ones.
    pub fn greedy(start_token_id: u32, eos_token_id: u32) -> Self {
        Self {
            max_new_tokens: 20,
            num_beams: 1,
            length_penalty: 1.0,
            early_stopping: false,
            eos_token_id,
            start_token_id,
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
    fn score(&self, log_probability: f32, length: usize) -> f32 {
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

/// A decoder that [`search`] asks what follows. Each text has `num_beams` slots, one after the other.
pub(crate) trait NextTokens {
    /// Logits `[S, V]` of what follows `tokens`, the last ones of the beams in `slots`, of which
    /// each text has `counts`.
    fn step(&mut self, tokens: &[u32], slots: &[usize], counts: &[usize]) -> Result<Tensor>;

    /// Makes the second slot of each pair a copy of the first. No slot is in both places.
    fn copy(&mut self, pairs: &[(usize, usize)]) -> Result<()>;

    /// Changes the logits of what follows `tokens` in a text; minus infinity forbids a token.
    fn adjust(&self, _text: usize, _tokens: &[u32], _logits: &mut [f32]) {}

    /// The words that are listened for in a text.
    fn boost(&self, _text: usize) -> Option<&BoostTree> {
        None
    }
}

/// The best continuation of each of `texts` texts.
///
/// # Errors
/// Those of the decoder; [`ModelError::BadInput`] for logits that are not numbers.
pub(crate) fn search(
    texts: usize,
    options: &GenerateOptions,
    decoder: &mut impl NextTokens,
) -> Result<Vec<Generated>> {
    let beams = options.num_beams;
    // The greedy search cannot take back what it chose: a word that it has begun by mistake would be
    // ended at any price.
    let broken = if beams == 1 { BrokenMatch::Keeps } else { BrokenMatch::GivesBack };
    let mut answers: Vec<Beams> = (0..texts).map(|_| Beams::new(options)).collect();
    for _ in 0..options.max_new_tokens {
        let (mut slots, mut last, mut counts) = (Vec::new(), Vec::new(), Vec::new());
        for (text, answers) in answers.iter().enumerate() {
            slots.extend(answers.running().map(|(slot, _)| text * beams + slot));
            last.extend(answers.running().map(|(_, token)| token));
            counts.push(answers.running().count());
        }
        if slots.is_empty() {
            break;
        }
        let logits = decoder.step(&last, &slots, &counts)?;
        let vocab_size = logits.dim(1)?;
        let mut logits = logits.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>()?;
        let running = answers.iter().enumerate();
        let rows = running.flat_map(|(text, answers)| answers.texts().map(move |t| (text, t)));
        for ((text, tokens), logits) in rows.zip(logits.chunks_mut(vocab_size)) {
            decoder.adjust(text, tokens, logits);
        }
        let listening = &*decoder;
        let running = answers.iter().enumerate();
        let boosts: Vec<Option<Boost<'_>>> = running
            .flat_map(|(text, answers)| {
                let tree = listening.boost(text).filter(|tree| !tree.is_empty());
                answers.boost_states().map(move |state| Some(Boost { tree: tree?, state, broken }))
            })
            .collect();
        let candidates = best_tokens(&logits, &boosts, vocab_size, 2 * beams)?;
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
            decoder.copy(&copies)?;
        }
    }
    Ok(answers.into_iter().map(Beams::finish).collect())
}

/// What is listened for behind a text.
#[derive(Clone, Copy)]
struct Boost<'a> {
    tree: &'a BoostTree,
    state: BoostState,
    broken: BrokenMatch,
}

/// The `count` likeliest tokens of each row of logits `[S, V]`, with what boosting gives them, best
/// first, the lowest of equal ids first.
fn best_tokens(
    logits: &[f32],
    boosts: &[Option<Boost<'_>>],
    vocab_size: usize,
    count: usize,
) -> Result<Vec<Vec<Candidate>>> {
    let of_row = |(row, boost): (&[f32], &Option<Boost<'_>>)| {
        let total = log_sum(row);
        if !total.is_finite() {
            let reason = "the decoder's logits are not numbers: are its weights?".to_string();
            return Err(ModelError::BadInput(reason));
        }
        let Some(Boost { tree, state, broken }) = *boost else {
            let candidate = |(logit, token)| Candidate {
                token,
                log_probability: logit - total,
                boost: 0.0,
                boost_state: BoostState::default(),
            };
            return Ok(highest(row, count).into_iter().map(candidate).collect());
        };
        let mut boosted = vec![0.0; row.len()];
        tree.bonuses(state, broken, &mut boosted);
        boosted.iter_mut().zip(row).for_each(|(boosted, logit)| *boosted += logit);
        let candidate = |(_, token): (f32, u32)| {
            let log_probability = row[token as usize] - total;
            let (boost_state, boost) = tree.advance(state, token, broken);
            Candidate { token, log_probability, boost, boost_state }
        };
        Ok(highest(&boosted, count).into_iter().map(candidate).collect())
    };
    logits.par_chunks(vocab_size).zip(boosts).map(of_row).collect()
}

/// The `count` highest numbers of a row and their places, highest first, the first of equal ones
/// first.
pub(crate) fn highest(row: &[f32], count: usize) -> Vec<(f32, u32)> {
    let mut best: Vec<(f32, u32)> = Vec::with_capacity(count + 1);
    for (&logit, token) in row.iter().zip(0..) {
        if best.len() < count || best.last().is_some_and(|worst| logit > worst.0) {
            let place = best.partition_point(|better| better.0 >= logit);
            best.insert(place, (logit, token));
            best.truncate(count);
        }
    }
    best
}
