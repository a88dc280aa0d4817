//! Prefix beam search for CTC.
//!
//! The probability of a text is the sum over all its paths. Each beam is a prefix with two
//! probabilities: the paths that end in a blank, and the paths that end in the last token. Both are
//! needed, because the same token can repeat only after a blank.
//!
//! Reference: Hannun et al. 2014, arXiv 1408.2873, algorithm 1. Unlike the reference, there is no
//! language model and no word insertion bonus. Instead, words can be boosted.

use std::sync::Arc;

use candle_core::Tensor;
use rayon::prelude::*;

use super::decode::{BestPath, clips, forced_alignment, greedy_path, rows};
use super::prefixes::{EMPTY, Node, Prefixes, descending, log_add, nan_logits};
use crate::error::{ModelError, Result};
use crate::generation::boosting::{BoostState, BoostTree, BrokenMatch};
use crate::generation::top_k;
use crate::kernels::log_sum_exp;

/// The search options for a clip.
#[derive(Debug, Clone)]
pub struct BeamSearchOptions {
    /// The number of beams. 0 or 1 means greedy (best-path) decoding without boosted words, and
    /// [`BOOSTED_BEAMS`] with boosted words: a single beam cannot recover from a broken match.
    pub num_beams: usize,
    /// The boosted words; `None` or an empty tree boosts none.
    pub boost: Option<Arc<BoostTree>>,
}

impl BeamSearchOptions {
    /// The boosted words; `None` if there are none.
    pub(crate) fn boost(&self) -> Option<&BoostTree> {
        self.boost.as_deref().filter(|tree| !tree.is_empty())
    }

    /// The number of beams of the search; `None` for greedy decoding.
    pub(crate) fn beams(&self) -> Option<usize> {
        match (self.num_beams, self.boost()) {
            (0 | 1, None) => None,
            (0 | 1, Some(_)) => Some(BOOSTED_BEAMS),
            (more, _) => Some(more),
        }
    }

    /// Returns an error unless there are search options for each of `clips` clips.
    pub(crate) fn check(searches: &[Self], clips: usize) -> Result<()> {
        if searches.len() == clips {
            return Ok(());
        }
        let found = searches.len();
        let reason = format!("search options for {found} clips, but there are {clips} clips");
        Err(ModelError::BadInput(reason))
    }
}

/// The number of beams if words are boosted and a single beam was requested.
pub const BOOSTED_BEAMS: usize = 8;

/// A hypothesis for the text of a clip.
#[derive(Debug, Clone, PartialEq)]
pub struct Hypothesis {
    /// The tokens.
    pub tokens: Vec<u32>,
    /// The log of the total probability of all paths within the beams, in nats.
    pub log_probability: f64,
    /// The total bonus of boosted words, in nats.
    pub bonus: f64,
}

/// Returns the path of the best hypothesis of each packed clip of `lengths` states: `logits`
/// `[T, V]`. Each clip is searched independently of the others.
///
/// # Errors
/// [`ModelError::BadInput`] if the numbers of searches and clips differ, and the errors of
/// [`beam_search`] and candle.
pub fn beam_search_paths(
    logits: &Tensor,
    lengths: &[usize],
    blank: u32,
    searches: &[BeamSearchOptions],
) -> Result<Vec<BestPath>> {
    BeamSearchOptions::check(searches, lengths.len())?;
    let rows = rows(logits)?;
    let path = |(rows, search): (&[Vec<f32>], &BeamSearchOptions)| {
        let Some(num_beams) = search.beams() else { return Ok(greedy_path(rows, blank)) };
        let best = beam_search(rows, blank, num_beams, search.boost())?.into_iter().next();
        let path = best.and_then(|text| forced_alignment(rows, &text.tokens, blank));
        // The best hypothesis has a probability above 0, so it has a path.
        path.ok_or_else(nan_logits)
    };
    clips(&rows, lengths).into_par_iter().zip(searches).map(path).collect()
}

/// Returns the `num_beams` best hypotheses of a clip, ranked by log probability plus bonus, best
/// first. `rows` holds the logits of the clip's states. Ties keep the order of discovery: a prefix
/// before its extensions, a lower token id before a higher one.
///
/// The pruning of tokens is exact. Only the `num_beams + 1` best tokens of each prefix are tried:
/// for any other token, `num_beams` extensions of the same prefix are better. (One more is needed,
/// because a repetition of the last token may score lower.)
///
/// Log probabilities are summed in f64. Each state's softmax is summed in f32.
///
/// # Errors
/// [`ModelError::BadInput`] if a logit is NaN or plus infinity, or if all logits of a state are
/// minus infinity.
pub fn beam_search(
    rows: &[Vec<f32>],
    blank: u32,
    num_beams: usize,
    boost: Option<&BoostTree>,
) -> Result<Vec<Hypothesis>> {
    let mut prefixes = Prefixes::new();
    let mut beams = vec![Beam { blank: 0.0, ..Beam::default() }];
    for row in rows {
        let log_sum = f64::from(log_sum_exp(row));
        if !log_sum.is_finite() {
            return Err(nan_logits());
        }
        let state = State { row, log_sum, blank_id: blank, num_beams: num_beams.max(1) };
        beams = state.advance(&beams, &mut prefixes, boost);
    }
    Ok(prefixes.hypotheses(beams.iter().map(|beam| (beam.node, beam.total())), boost))
}

/// A prefix and its log probabilities.
#[derive(Debug, Clone, Copy)]
struct Beam {
    node: usize,
    /// The log probability of the paths that end in a blank.
    blank: f64,
    /// The log probability of the paths that end in the last token.
    label: f64,
}

impl Default for Beam {
    /// The empty text, with no path.
    fn default() -> Self {
        Self { node: EMPTY, blank: f64::NEG_INFINITY, label: f64::NEG_INFINITY }
    }
}

impl Beam {
    /// Returns the log probability of all paths of the prefix.
    fn total(&self) -> f64 {
        log_add(self.blank, self.label)
    }
}

/// A candidate for the next beams.
struct Candidate {
    /// The log probability of all its paths, plus the boosting bonus.
    score: f64,
    /// As in [`Beam`].
    blank: f64,
    /// As in [`Beam`].
    label: f64,
    prefix: CandidatePrefix,
}

/// The prefix of a candidate.
enum CandidatePrefix {
    /// The unchanged prefix of a beam, given by its node.
    Same(usize),
    /// A prefix that extends a beam by one token.
    New(Node),
}

/// The logits of an encoder state, and the options of the search.
struct State<'a> {
    row: &'a [f32],
    /// The log-sum-exp of the logits.
    log_sum: f64,
    blank_id: u32,
    num_beams: usize,
}

impl State<'_> {
    /// Returns the log probability of a class in this state; minus infinity for an unknown class.
    fn log_probability(&self, class: u32) -> f64 {
        self.row.get(class as usize).map_or(f64::NEG_INFINITY, |v| f64::from(*v) - self.log_sum)
    }

    /// Returns the beams after this state, best first.
    fn advance(
        &self,
        beams: &[Beam],
        prefixes: &mut Prefixes,
        boost: Option<&BoostTree>,
    ) -> Vec<Beam> {
        let totals: Vec<f64> = beams.iter().map(Beam::total).collect();
        let mut candidates = Vec::new();
        // Beams whose extension by a token is itself a beam: the beam's index and the token.
        let mut merged = Vec::new();
        for (beam, total) in beams.iter().zip(&totals) {
            let node = prefixes.nodes[beam.node];
            let mut label = f64::NEG_INFINITY;
            if beam.node != EMPTY {
                label = beam.label;
                if let Some(parent_beam) = beams.iter().position(|other| other.node == node.parent)
                {
                    merged.push((parent_beam, node.token));
                    let repeats =
                        prefixes.nodes[node.parent].token == node.token && node.parent != EMPTY;
                    label = log_add(
                        label,
                        if repeats { beams[parent_beam].blank } else { totals[parent_beam] },
                    );
                }
                label += self.log_probability(node.token);
            }
            let blank = total + self.log_probability(self.blank_id);
            let score = log_add(blank, label) + node.bonus;
            candidates.push(Candidate {
                score,
                blank,
                label,
                prefix: CandidatePrefix::Same(beam.node),
            });
        }
        let mut likeliest = Vec::new();
        for (i, (beam, total)) in beams.iter().zip(&totals).enumerate() {
            let node = &prefixes.nodes[beam.node];
            if i == 0 || boost.is_some() {
                likeliest = self.likeliest_tokens(node.boost_state, boost);
            }
            for token in likeliest.iter().copied().filter(|token| !merged.contains(&(i, *token))) {
                let repeats = beam.node != EMPTY && node.token == token;
                let label = if repeats { beam.blank } else { *total } + self.log_probability(token);
                let (boost_state, token_bonus) = boost.map_or(Default::default(), |tree| {
                    tree.advance(node.boost_state, token, BrokenMatch::ReturnBonus)
                });
                let bonus = node.bonus + f64::from(token_bonus);
                let prefix =
                    CandidatePrefix::New(Node { parent: beam.node, token, boost_state, bonus });
                candidates.push(Candidate {
                    score: label + bonus,
                    blank: f64::NEG_INFINITY,
                    label,
                    prefix,
                });
            }
        }
        candidates.retain(|candidate| candidate.score > f64::NEG_INFINITY);
        candidates.sort_by(|a, b| descending(a.score, b.score));
        candidates.truncate(self.num_beams);
        let to_beam = |Candidate { blank, label, prefix, .. }| {
            let node = match prefix {
                CandidatePrefix::Same(node) => node,
                CandidatePrefix::New(node) => prefixes.child(node),
            };
            Beam { node, blank, label }
        };
        candidates.into_iter().map(to_beam).collect()
    }

    /// Returns the best next tokens of a beam, best first.
    fn likeliest_tokens(&self, state: BoostState, boost: Option<&BoostTree>) -> Vec<u32> {
        let mut row = vec![0.0; self.row.len()];
        if let Some(tree) = boost {
            tree.bonuses(state, BrokenMatch::ReturnBonus, &mut row);
        }
        row.iter_mut().zip(self.row).for_each(|(score, logit)| *score += logit);
        if let Some(blank) = row.get_mut(self.blank_id as usize) {
            *blank = f32::NEG_INFINITY;
        }
        let best = top_k(&row, self.num_beams.saturating_add(1)).into_iter();
        best.filter(|(score, _)| *score > f32::NEG_INFINITY).map(|(_, token)| token).collect()
    }
}
