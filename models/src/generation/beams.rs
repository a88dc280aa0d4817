//! The beams of one text: which continuations go on, and which answers are finished.
//!
//! Reference: `transformers` 5, `_beam_search` in `generation/utils.py`. Of the `2 num_beams` best
//! continuations, those among the first `num_beams` that end are finished, and the first
//! `num_beams` that do not end go on.

use super::{GenerateOptions, Generated};
use crate::speech::boosting::BoostState;

/// A possible next token.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Candidate {
    pub token: u32,
    /// The logarithm of its probability.
    pub log_probability: f32,
    /// What boosting gives for it.
    pub boost: f32,
    /// How far the text is in the boosted words with it.
    pub boost_state: BoostState,
}

/// An answer that goes on.
#[derive(Debug, Clone)]
struct Beam {
    /// Its place in the text's part of the cache.
    slot: usize,
    tokens: Vec<u32>,
    log_probabilities: Vec<f32>,
    /// Their sum.
    total: f32,
    /// What boosting has given.
    boost: f32,
    boost_state: BoostState,
}

/// All answers to one text.
#[derive(Debug)]
pub(super) struct Beams<'a> {
    options: &'a GenerateOptions,
    /// By slot.
    running: Vec<Beam>,
    /// The best first, at most `num_beams`, and what boosting has given each.
    finished: Vec<(Generated, f32)>,
}

impl<'a> Beams<'a> {
    pub fn new(options: &'a GenerateOptions) -> Self {
        let (tokens, log_probabilities) = (Vec::new(), Vec::new());
        let (total, boost, boost_state) = (0.0, 0.0, BoostState::default());
        let running = vec![Beam { slot: 0, tokens, log_probabilities, total, boost, boost_state }];
        Self { options, running, finished: Vec::new() }
    }

    /// The slots of what goes on, ascending, and the token that each has to read next.
    pub fn running(&self) -> impl Iterator<Item = (usize, u32)> {
        let start = self.options.start_token_id;
        self.running.iter().map(move |b| (b.slot, b.tokens.last().copied().unwrap_or(start)))
    }

    /// The tokens of what goes on, by slot.
    pub fn texts(&self) -> impl Iterator<Item = &[u32]> {
        self.running.iter().map(|beam| beam.tokens.as_slice())
    }

    /// How far each of them is in the boosted words.
    pub fn boost_states(&self) -> impl Iterator<Item = BoostState> {
        self.running.iter().map(|beam| beam.boost_state)
    }

    /// Goes on by one token. `candidates` are the best ones of each running beam, best first, the
    /// lowest of equal ids first. Gives the slots that have to become copies of others: from, to.
    pub fn advance(&mut self, candidates: &[Vec<Candidate>]) -> Vec<(usize, usize)> {
        let width = self.options.num_beams;
        let mut best: Vec<(f32, usize, Candidate)> = Vec::new();
        for (parent, (beam, candidates)) in self.running.iter().zip(candidates).enumerate() {
            let total = |c: &Candidate| beam.total + c.log_probability + (beam.boost + c.boost);
            let scored = candidates.iter().map(|c| (total(c), parent, *c));
            best.extend(scored);
        }
        best.sort_by(|a, b| b.0.total_cmp(&a.0));
        best.truncate(2 * width);

        let length = self.running.first().map_or(0, |beam| beam.tokens.len()) + 1;
        let is_last = length >= self.options.max_new_tokens;
        let mut going_on = Vec::with_capacity(width);
        for (rank, (boosted, parent, candidate)) in best.into_iter().enumerate() {
            let ends = candidate.token == self.options.eos_token_id;
            if (ends || is_last) && rank < width {
                let beam = self.running[parent].extended(candidate);
                self.finished.push((self.answer(&beam, ends), beam.boost));
            } else if !ends && !is_last && going_on.len() < width {
                going_on.push((boosted, parent, candidate));
            }
        }
        let score = |finished: &_| boosted_score(self.options, finished, length);
        self.finished.sort_by(|a, b| score(b).total_cmp(&score(a)));
        self.finished.truncate(width);
        if self.is_decided(going_on.first().map(|(boosted, ..)| *boosted), length) {
            going_on.clear();
        }
        self.go_on(going_on)
    }

    /// The best answer.
    pub fn finish(self) -> Generated {
        self.finished.into_iter().next().unwrap_or_default().0
    }

    /// Whether nothing that goes on, of which `best` is the best sum, is to be waited for.
    fn is_decided(&self, best: Option<f32>, length: usize) -> bool {
        let (Some(best), Some(worst)) = (best, self.finished.last()) else {
            return best.is_none();
        };
        let is_full = self.finished.len() == self.options.num_beams;
        let can_improve =
            self.options.score(best, length) > boosted_score(self.options, worst, length);
        is_full && (self.options.early_stopping || !can_improve)
    }

    /// Replaces what runs. The first continuation of a beam keeps its slot, others take free ones.
    fn go_on(&mut self, chosen: Vec<(f32, usize, Candidate)>) -> Vec<(usize, usize)> {
        let mut free: Vec<bool> = vec![true; self.options.num_beams];
        for (_, parent, _) in &chosen {
            free[self.running[*parent].slot] = false;
        }
        let mut free = (0..free.len()).filter(|slot| free[*slot]);
        let (mut kept, mut copies) = (vec![false; self.running.len()], Vec::new());
        let mut next = Vec::with_capacity(chosen.len());
        for (_, parent, candidate) in chosen {
            let mut beam = self.running[parent].extended(candidate);
            if std::mem::replace(&mut kept[parent], true) {
                let Some(slot) = free.next() else { continue };
                copies.push((beam.slot, slot));
                beam.slot = slot;
            }
            next.push(beam);
        }
        next.sort_by_key(|beam| beam.slot);
        self.running = next;
        copies
    }

    fn answer(&self, beam: &Beam, ended: bool) -> Generated {
        Generated {
            score: self.options.score(beam.total, beam.tokens.len()),
            tokens: beam.tokens.clone(),
            log_probability: beam.total,
            log_probabilities: beam.log_probabilities.clone(),
            ended,
        }
    }
}

impl Beam {
    fn extended(&self, candidate: Candidate) -> Self {
        let mut beam = self.clone();
        beam.tokens.push(candidate.token);
        beam.log_probabilities.push(candidate.log_probability);
        beam.total += candidate.log_probability;
        beam.boost += candidate.boost;
        beam.boost_state = candidate.boost_state;
        beam
    }
}

/// What a finished answer is compared by while others have `length` tokens. What boosting has given is
/// divided by the same number for all: by its own length, of answers with the same words the one that
/// ends first would win.
fn boosted_score(
    options: &GenerateOptions,
    (answer, boost): &(Generated, f32),
    length: usize,
) -> f32 {
    answer.score + options.score(*boost, length)
}
