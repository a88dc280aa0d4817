//! The beams of one text: the running beams and the finished hypotheses.
//!
//! Reference: `transformers` 5, `_beam_search` in `generation/utils.py`. Each step ranks the
//! `2 num_beams` best continuations. Continuations among the first `num_beams` that end with
//! the end token become finished hypotheses. The first `num_beams` continuations without the end
//! token become the running beams.

use super::boosting::BoostState;
use super::{GenerateOptions, Generated};

/// A candidate for the next token.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Candidate {
    pub token: u32,
    /// The log probability of the token.
    pub log_probability: f32,
    /// The bonus from boosting.
    pub boost: f32,
    /// The boosting state after the token.
    pub boost_state: BoostState,
}

/// A running beam.
#[derive(Debug, Clone)]
struct Beam {
    /// The beam's slot in the text's part of the cache.
    slot: usize,
    tokens: Vec<u32>,
    log_probabilities: Vec<f32>,
    /// The sum of `log_probabilities`.
    log_probability: f32,
    /// The total bonus from boosting.
    boost: f32,
    boost_state: BoostState,
}

/// All beams of one text.
#[derive(Debug)]
pub(super) struct Beams<'a> {
    options: &'a GenerateOptions,
    /// Sorted by slot.
    running: Vec<Beam>,
    /// The finished hypotheses with their bonuses, best first, at most `num_beams`.
    finished: Vec<(Generated, f32)>,
}

impl<'a> Beams<'a> {
    /// Starts a search with one beam without tokens.
    pub fn new(options: &'a GenerateOptions) -> Self {
        let (tokens, log_probabilities) = (Vec::new(), Vec::new());
        let (log_probability, boost, boost_state) = (0.0, 0.0, BoostState::default());
        let running =
            vec![Beam { slot: 0, tokens, log_probabilities, log_probability, boost, boost_state }];
        Self { options, running, finished: Vec::new() }
    }

    /// Returns the slots of the running beams, in ascending order, and the next token that each
    /// reads.
    pub fn running(&self) -> impl Iterator<Item = (usize, u32)> {
        let start = self.options.start_token_id;
        self.running.iter().map(move |b| (b.slot, b.tokens.last().copied().unwrap_or(start)))
    }

    /// Returns the tokens of the running beams, by slot.
    pub fn token_sequences(&self) -> impl Iterator<Item = &[u32]> {
        self.running.iter().map(|beam| beam.tokens.as_slice())
    }

    /// Returns the boosting state of each running beam.
    pub(crate) fn boost_states(&self) -> impl Iterator<Item = BoostState> {
        self.running.iter().map(|beam| beam.boost_state)
    }

    /// Advances the beams by one token. `candidates` holds the best next tokens of each running
    /// beam: best first, the lowest id first in a tie. Returns pairs of slots to copy: (from, to).
    pub fn advance(&mut self, candidates: &[Vec<Candidate>]) -> Vec<(usize, usize)> {
        let num_beams = self.options.num_beams;
        let mut best: Vec<(f32, usize, Candidate)> = Vec::new();
        for (parent, (beam, candidates)) in self.running.iter().zip(candidates).enumerate() {
            let boosted =
                |c: &Candidate| beam.log_probability + c.log_probability + (beam.boost + c.boost);
            let scored = candidates.iter().map(|c| (boosted(c), parent, *c));
            best.extend(scored);
        }
        best.sort_by(|a, b| b.0.total_cmp(&a.0));
        best.truncate(2 * num_beams);

        let length = self.running.first().map_or(0, |beam| beam.tokens.len()) + 1;
        let is_last = length >= self.options.max_new_tokens;
        let mut continuing = Vec::with_capacity(num_beams);
        for (rank, (boosted, parent, candidate)) in best.into_iter().enumerate() {
            let ends = candidate.token == self.options.eos_token_id;
            if (ends || is_last) && rank < num_beams {
                let beam = self.running[parent].extended(candidate);
                self.finished.push((self.to_generated(&beam, ends), beam.boost));
            } else if !ends && !is_last && continuing.len() < num_beams {
                continuing.push((boosted, parent, candidate));
            }
        }
        let score = |finished: &_| boosted_score(self.options, finished, length);
        self.finished.sort_by(|a, b| score(b).total_cmp(&score(a)));
        self.finished.truncate(num_beams);
        if self.is_decided(continuing.first().map(|(boosted, ..)| *boosted), length) {
            continuing.clear();
        }
        self.replace_running(continuing)
    }

    /// Returns the best hypothesis.
    pub fn finish(self) -> Generated {
        self.finished.into_iter().next().unwrap_or_default().0
    }

    /// Whether the search is finished. `best` is the highest sum of log probability and bonus among
    /// the continuations.
    fn is_decided(&self, best: Option<f32>, length: usize) -> bool {
        let (Some(best), Some(worst)) = (best, self.finished.last()) else {
            return best.is_none();
        };
        let is_full = self.finished.len() == self.options.num_beams;
        let can_improve =
            self.options.score(best, length) > boosted_score(self.options, worst, length);
        is_full && (self.options.early_stopping || !can_improve)
    }

    /// Replaces the running beams. The first continuation of a beam keeps its slot. Other
    /// continuations take free slots. Returns pairs of slots to copy: (from, to).
    fn replace_running(
        &mut self,
        continuations: Vec<(f32, usize, Candidate)>,
    ) -> Vec<(usize, usize)> {
        let mut is_free: Vec<bool> = vec![true; self.options.num_beams];
        for (_, parent, _) in &continuations {
            is_free[self.running[*parent].slot] = false;
        }
        let mut free_slots = (0..is_free.len()).filter(|slot| is_free[*slot]);
        let (mut slot_is_kept, mut copies) = (vec![false; self.running.len()], Vec::new());
        let mut running = Vec::with_capacity(continuations.len());
        for (_, parent, candidate) in continuations {
            let mut beam = self.running[parent].extended(candidate);
            if std::mem::replace(&mut slot_is_kept[parent], true) {
                let Some(slot) = free_slots.next() else { continue };
                copies.push((beam.slot, slot));
                beam.slot = slot;
            }
            running.push(beam);
        }
        running.sort_by_key(|beam| beam.slot);
        self.running = running;
        copies
    }

    /// Converts a beam to a hypothesis. `ended` is true if its last token is the end token.
    fn to_generated(&self, beam: &Beam, ended: bool) -> Generated {
        Generated {
            score: self.options.score(beam.log_probability, beam.tokens.len()),
            tokens: beam.tokens.clone(),
            log_probability: beam.log_probability,
            log_probabilities: beam.log_probabilities.clone(),
            ended,
        }
    }
}

impl Beam {
    /// Returns the beam with one more token.
    fn extended(&self, candidate: Candidate) -> Self {
        let mut beam = self.clone();
        beam.tokens.push(candidate.token);
        beam.log_probabilities.push(candidate.log_probability);
        beam.log_probability += candidate.log_probability;
        beam.boost += candidate.boost;
        beam.boost_state = candidate.boost_state;
        beam
    }
}

/// Returns the score of a finished hypothesis while running beams have `length` tokens. The bonus
/// is divided by the same length for all hypotheses. If it were divided by each hypothesis' own
/// length, the shortest of several hypotheses with the same words would win.
fn boosted_score(
    options: &GenerateOptions,
    (generated, boost): &(Generated, f32),
    length: usize,
) -> f32 {
    generated.score + options.score(*boost, length)
}
