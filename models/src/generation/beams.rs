//! The beams of one text: which continuations go on, and which answers are finished.
//!
//! Reference: `transformers` 5, `_beam_search` in `generation/utils.py`. Of the `2 num_beams` best
//! continuations, those among the first `num_beams` that end are finished, and the first
//! `num_beams` that do not end go on.

use super::{GenerateOptions, Generated};

/// A possible next token.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Candidate {
    pub token: u32,
    /// The logarithm of its probability.
    pub log_probability: f32,
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
}

/// All answers to one text.
#[derive(Debug)]
pub(super) struct Beams<'a> {
    options: &'a GenerateOptions,
    /// By slot.
    running: Vec<Beam>,
    /// The best first, at most `num_beams`.
    finished: Vec<Generated>,
}

impl<'a> Beams<'a> {
    pub fn new(options: &'a GenerateOptions) -> Self {
        let (tokens, log_probabilities) = (Vec::new(), Vec::new());
        let running = vec![Beam { slot: 0, tokens, log_probabilities, total: 0.0 }];
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

    /// Goes on by one token. `candidates` are the best ones of each running beam, best first, the
    /// lowest of equal ids first. Gives the slots that have to become copies of others: from, to.
    pub fn advance(&mut self, candidates: &[Vec<Candidate>]) -> Vec<(usize, usize)> {
        let width = self.options.num_beams;
        let mut best: Vec<(f32, usize, Candidate)> = Vec::new();
        for (parent, (beam, candidates)) in self.running.iter().zip(candidates).enumerate() {
            let scored = candidates.iter().map(|c| (beam.total + c.log_probability, parent, *c));
            best.extend(scored);
        }
        best.sort_by(|a, b| b.0.total_cmp(&a.0));
        best.truncate(2 * width);

        let length = self.running.first().map_or(0, |beam| beam.tokens.len()) + 1;
        let is_last = length >= self.options.max_new_tokens;
        let mut going_on = Vec::with_capacity(width);
        for (rank, (total, parent, candidate)) in best.into_iter().enumerate() {
            let ends = candidate.token == self.options.eos_token_id;
            if (ends || is_last) && rank < width {
                let beam = self.running[parent].extended(total, candidate);
                self.finished.push(self.answer(beam, ends));
            } else if !ends && !is_last && going_on.len() < width {
                going_on.push((total, parent, candidate));
            }
        }
        self.finished.sort_by(|a, b| b.score.total_cmp(&a.score));
        self.finished.truncate(width);
        if self.is_decided(going_on.first().map(|(total, ..)| *total), length) {
            going_on.clear();
        }
        self.go_on(going_on)
    }

    /// The best answer.
    pub fn finish(self) -> Generated {
        self.finished.into_iter().next().unwrap_or_default()
    }

    /// Whether nothing that goes on, of which `best` is the best total, is to be waited for.
    fn is_decided(&self, best: Option<f32>, length: usize) -> bool {
        let (Some(best), Some(worst)) = (best, self.finished.last()) else {
            return best.is_none();
        };
        let is_full = self.finished.len() == self.options.num_beams;
        let can_improve = self.options.score(best, length) > worst.score;
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
        for (total, parent, candidate) in chosen {
            let mut beam = self.running[parent].extended(total, candidate);
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

    fn answer(&self, beam: Beam, ended: bool) -> Generated {
        Generated {
            score: self.options.score(beam.total, beam.tokens.len()),
            tokens: beam.tokens,
            log_probability: beam.total,
            log_probabilities: beam.log_probabilities,
            ended,
        }
    }
}

impl Beam {
    fn extended(&self, total: f32, candidate: Candidate) -> Self {
        let mut beam = self.clone();
        beam.tokens.push(candidate.token);
        beam.log_probabilities.push(candidate.log_probability);
        beam.total = total;
        beam
    }
}
