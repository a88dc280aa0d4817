//! Text generation for a whole batch, by greedy or beam search.
//!
//! Reference: `generate` of `transformers` 5 with `do_sample=False`. A text whose search is
//! finished is removed from the batch. With one beam, the search is greedy: it takes the argmax
//! token at each step, and the lowest id in a tie.

mod beams;
pub mod boosting;
pub(crate) mod cache;

use candle_core::Tensor;
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use crate::compute::to_host;
use crate::config::{check_sizes, check_token, require};
use crate::error::{Result, bail};
use crate::kernels::log_sum_exp;
use beams::{Beams, Candidate};
use boosting::{BoostState, BoostTree, BrokenMatch};

/// The options of a search.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GenerateOptions {
    /// The maximum number of new tokens, including the end token.
    pub max_new_tokens: usize,
    /// The number of beams; 1 is greedy search.
    pub num_beams: usize,
    /// The score of a hypothesis is its log probability divided by its length to this power. The
    /// length is the number of generated tokens, including the end token. Values above 0 favour
    /// long hypotheses; 0 ranks by log probability alone.
    pub length_penalty: f64,
    /// Whether a search stops as soon as `num_beams` hypotheses are finished. If false, it
    /// continues until, in addition, no unfinished hypothesis scores above the worst finished
    /// hypothesis.
    pub early_stopping: bool,
    /// The end token.
    pub eos_token_id: u32,
    /// The first token that the decoder reads.
    pub start_token_id: u32,
}

/// A generated text.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Generated {
    /// The tokens after the start token. The end token is last if the text has ended.
    pub tokens: Vec<u32>,
    /// Whether the end token was generated. If not, `max_new_tokens` was reached.
    pub ended: bool,
    /// The log probability of each token given the previous tokens, in nats.
    pub log_probabilities: Vec<f32>,
    /// The sum of `log_probabilities`.
    pub log_probability: f32,
    /// The score that ranks beams, without boosting: `log_probability` divided by the number of
    /// tokens to the power of `length_penalty`.
    pub score: f32,
}

impl Default for GenerateOptions {
    /// Greedy search with T5's start and end tokens.
    fn default() -> Self {
        Self::greedy(0, 1)
    }
}

impl GenerateOptions {
    /// Greedy search of at most 20 tokens, with these start and end tokens.
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

    /// Checks the options against the decoder's vocabulary size.
    ///
    /// # Errors
    /// [`crate::ModelError::BadConfig`] with the field's name.
    pub fn validate(&self, vocab_size: usize) -> Result<()> {
        check_sizes(&[("max_new_tokens", self.max_new_tokens)])?;
        require((1..=MAX_BEAMS).contains(&self.num_beams), "num_beams", || {
            format!("{} is not between 1 and {MAX_BEAMS}", self.num_beams)
        })?;
        require(self.length_penalty.is_finite(), "length_penalty", || {
            format!("{} is not finite", self.length_penalty)
        })?;
        check_token("eos_token_id", self.eos_token_id, vocab_size)?;
        check_token("start_token_id", self.start_token_id, vocab_size)
    }

    /// Returns the score of a text with this length and log probability.
    fn score(&self, log_probability: f32, length: usize) -> f32 {
        log_probability / (length as f64).powf(self.length_penalty) as f32
    }
}

/// The largest accepted number of beams.
const MAX_BEAMS: usize = 1 << 10;

impl Generated {
    /// Returns the tokens without the end token.
    pub fn without_end(&self) -> &[u32] {
        match self.tokens.split_last() {
            Some((_, tokens)) if self.ended => tokens,
            _ => &self.tokens,
        }
    }
}

/// A decoder used by [`search`]. Each text has `num_beams` consecutive slots.
pub(crate) trait NextTokens {
    /// Returns the logits `[S, V]` after `tokens`, the last tokens of the `S` running beams, which
    /// are in `slots`. `counts` holds the number of running beams of each text.
    fn step(&mut self, tokens: &[u32], slots: &[usize], counts: &[usize]) -> Result<Tensor>;

    /// Copies the state of the first slot of each pair to the second slot. A slot must not be both
    /// source and target.
    fn copy(&mut self, pairs: &[(usize, usize)]) -> Result<()>;

    /// Adjusts the logits after `tokens` in a text; minus infinity masks a token.
    fn adjust(&self, _text: usize, _tokens: &[u32], _logits: &mut [f32]) {}

    /// Returns the boosted words of a text; `None` boosts none.
    fn boost(&self, _text: usize) -> Option<&BoostTree> {
        None
    }
}

/// Generates the best continuation of each of `num_texts` texts.
///
/// # Errors
/// The errors of the decoder. [`crate::ModelError::BadInput`] if a logit is NaN or plus infinity,
/// or if all logits of a beam are minus infinity.
pub(crate) fn search(
    num_texts: usize,
    options: &GenerateOptions,
    decoder: &mut impl NextTokens,
) -> Result<Vec<Generated>> {
    let beams = options.num_beams;
    // `BrokenMatch::KeepBonus` says why greedy search keeps the bonus.
    let broken_match = if beams == 1 { BrokenMatch::KeepBonus } else { BrokenMatch::ReturnBonus };
    let mut searches: Vec<Beams> = (0..num_texts).map(|_| Beams::new(options)).collect();
    for _ in 0..options.max_new_tokens {
        let (mut slots, mut last_tokens, mut counts) = (Vec::new(), Vec::new(), Vec::new());
        for (text, beams_of_text) in searches.iter().enumerate() {
            slots.extend(beams_of_text.running().map(|(slot, _)| text * beams + slot));
            last_tokens.extend(beams_of_text.running().map(|(_, token)| token));
            counts.push(beams_of_text.running().count());
        }
        if slots.is_empty() {
            break;
        }
        let logits = decoder.step(&last_tokens, &slots, &counts)?;
        let vocab_size = logits.dim(1)?;
        let mut logits = to_host(&logits)?;
        let running = searches.iter().enumerate();
        let rows = running.flat_map(|(text, beams_of_text)| {
            beams_of_text.token_sequences().map(move |t| (text, t))
        });
        for ((text, tokens), logits) in rows.zip(logits.chunks_mut(vocab_size)) {
            decoder.adjust(text, tokens, logits);
        }
        let decoder_ref = &*decoder;
        let running = searches.iter().enumerate();
        let boosts: Vec<Option<Boost<'_>>> = running
            .flat_map(|(text, beams_of_text)| {
                let tree = decoder_ref.boost(text).filter(|tree| !tree.is_empty());
                beams_of_text
                    .boost_states()
                    .map(move |state| Some(Boost { tree: tree?, state, broken_match }))
            })
            .collect();
        let candidates = best_tokens(&logits, &boosts, vocab_size, 2 * beams)?;
        let (mut first_candidate, mut copies) = (0, Vec::new());
        for (text, (beams_of_text, count)) in searches.iter_mut().zip(counts).enumerate() {
            if count > 0 {
                let slots_to_copy =
                    beams_of_text.advance(&candidates[first_candidate..first_candidate + count]);
                let index = |slot| text * beams + slot;
                copies.extend(slots_to_copy.into_iter().map(|(from, to)| (index(from), index(to))));
                first_candidate += count;
            }
        }
        if !copies.is_empty() {
            decoder.copy(&copies)?;
        }
    }
    Ok(searches.into_iter().map(Beams::finish).collect())
}

/// The boosted words of a text and the state of the match.
#[derive(Clone, Copy)]
struct Boost<'a> {
    tree: &'a BoostTree,
    state: BoostState,
    broken_match: BrokenMatch,
}

/// Returns the `count` tokens with the highest logit plus bonus in each row of logits `[S, V]`,
/// best first. Ties go to the lowest id.
fn best_tokens(
    logits: &[f32],
    boosts: &[Option<Boost<'_>>],
    vocab_size: usize,
    count: usize,
) -> Result<Vec<Vec<Candidate>>> {
    let best_of_row = |(row, boost): (&[f32], &Option<Boost<'_>>)| {
        let log_sum = log_sum_exp(row);
        if !log_sum.is_finite() {
            bail!("the decoder produced NaN or infinite logits: check its weights");
        }
        let Some(Boost { tree, state, broken_match }) = *boost else {
            let candidate = |(logit, token)| Candidate {
                token,
                log_probability: logit - log_sum,
                boost: 0.0,
                boost_state: BoostState::default(),
            };
            return Ok(top_k(row, count).into_iter().map(candidate).collect());
        };
        let mut boosted = vec![0.0; row.len()];
        tree.bonuses(state, broken_match, &mut boosted);
        boosted.iter_mut().zip(row).for_each(|(score, logit)| *score += logit);
        let candidate = |(_, token): (f32, u32)| {
            let log_probability = row[token as usize] - log_sum;
            let (boost_state, boost) = tree.advance(state, token, broken_match);
            Candidate { token, log_probability, boost, boost_state }
        };
        Ok(top_k(&boosted, count).into_iter().map(candidate).collect())
    };
    logits.par_chunks(vocab_size).zip(boosts).map(best_of_row).collect()
}

/// Returns the `count` highest values of a row and their indices, highest first. Ties go to the
/// lowest index.
pub(crate) fn top_k(row: &[f32], count: usize) -> Vec<(f32, u32)> {
    let mut best: Vec<(f32, u32)> = Vec::with_capacity(count + 1);
    for (&logit, token) in row.iter().zip(0..) {
        if best.len() < count || best.last().is_some_and(|worst| logit > worst.0) {
            let index = best.partition_point(|better| better.0 >= logit);
            best.insert(index, (logit, token));
            best.truncate(count);
        }
    }
    best
}
