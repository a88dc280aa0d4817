//! The likeliest text of a clip by prefix beam search for CTC.
//!
//! A text's probability is the sum over all its paths, where the best path has one. Each beam is a
//! text so far, with the probability of its paths that end in a blank and of those that end in its
//! last token: only behind a blank does the same token follow again.
//!
//! Reference: Hannun et al. 2014, arXiv 1408.2873, algorithm 1; unlike there, without a language model
//! and its word bonus, and with words that are listened for.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::sync::Arc;

use candle_core::Tensor;
use rayon::prelude::*;

use super::boosting::{BoostState, BoostTree, BrokenMatch};
use super::decode::{BestPath, best_path, clips, path_of_tokens, rows};
use crate::error::{ModelError, Result};
use crate::generation::highest;
use crate::kernels::log_sum;

/// How the text of a clip is looked for.
#[derive(Debug, Clone)]
pub struct Search {
    /// Texts that are followed at the same time. 1 takes the best path; with words to listen for it is
    /// [`BEAMS_TO_LISTEN`], because one text alone cannot give back what a word got that breaks.
    pub num_beams: usize,
    /// The words that are listened for.
    pub boost: Option<Arc<BoostTree>>,
}

/// Texts that are followed where words are listened for and one is asked for.
pub const BEAMS_TO_LISTEN: usize = 8;

/// A text of a clip.
#[derive(Debug, Clone, PartialEq)]
pub struct Hypothesis {
    /// Its tokens.
    pub tokens: Vec<u32>,
    /// The logarithm of the probability of all its paths that the beams held, in nats.
    pub log_probability: f64,
    /// What the listed words in it give, in nats.
    pub bonus: f64,
}

/// The path of each packed clip's text, which is the likeliest that its search found: `logits`
/// `[T, V]`. Each clip is searched on its own, so that the others change nothing.
///
/// # Errors
/// [`ModelError::BadInput`] for fewer searches than clips, and where beams meet logits that are not
/// numbers; those of candle.
pub fn paths(
    logits: &Tensor,
    lengths: &[usize],
    blank: u32,
    searches: &[Search],
) -> Result<Vec<BestPath>> {
    if searches.len() != lengths.len() {
        let (found, clips) = (searches.len(), lengths.len());
        return Err(ModelError::BadInput(format!("{found} searches for {clips} clips")));
    }
    let rows = rows(logits)?;
    let path = |(rows, search): (&[Vec<f32>], &Search)| {
        let boost = search.boost.as_deref().filter(|tree| !tree.is_empty());
        let num_beams = match (search.num_beams, boost) {
            (0 | 1, None) => return Ok(best_path(rows, blank)),
            (0 | 1, Some(_)) => BEAMS_TO_LISTEN,
            (more, _) => more,
        };
        let found = search_texts(rows, blank, num_beams, boost)?.into_iter().next();
        let path = found.and_then(|text| path_of_tokens(rows, &text.tokens, blank));
        // The likeliest text has a probability above 0, and so a path.
        path.ok_or_else(not_numbers)
    };
    clips(&rows, lengths).into_par_iter().zip(searches).map(path).collect()
}

/// The `num_beams` likeliest texts of a clip, with what listed words give, best first; `rows` are the
/// logits of its states. Of equal ones the first is the one that was found first: a text before what
/// goes on from it, a lower token before a higher.
///
/// No token is left out that could come among the beams: of the tokens behind a text, those below the
/// `num_beams + 1` best have as many better texts beside them (one of the best may be the last token
/// again, which counts for less).
///
/// Probabilities are summed in f64 as logarithms; each state's softmax has its sum in f32.
///
/// # Errors
/// [`ModelError::BadInput`] for logits that are not numbers; some may be minus infinity.
pub fn search_texts(
    rows: &[Vec<f32>],
    blank: u32,
    num_beams: usize,
    boost: Option<&BoostTree>,
) -> Result<Vec<Hypothesis>> {
    let mut texts = Texts { nodes: vec![Node::default()], children: HashMap::new() };
    let mut beams = vec![Beam { blank: 0.0, ..Beam::default() }];
    for row in rows {
        let total = f64::from(log_sum(row));
        if !total.is_finite() {
            return Err(not_numbers());
        }
        let state = State { row, total, blank, num_beams: num_beams.max(1) };
        beams = state.advance(&beams, &mut texts, boost);
    }
    let end = |beam: &Beam| {
        let node = &texts.nodes[beam.node];
        let given = boost.map_or(0.0, |tree| f64::from(tree.end(node.boost_state)));
        Hypothesis {
            tokens: texts.tokens(beam.node),
            log_probability: beam.total(),
            bonus: node.bonus + given,
        }
    };
    let mut found: Vec<Hypothesis> = beams.iter().map(end).collect();
    let score = |text: &Hypothesis| text.log_probability + text.bonus;
    found.sort_by(|a, b| falling(score(a), score(b)));
    Ok(found)
}

fn not_numbers() -> ModelError {
    ModelError::BadInput("the logits are not numbers: are the model's weights?".to_string())
}

fn falling(a: f64, b: f64) -> Ordering {
    b.total_cmp(&a)
}

/// The texts that were beams: each is another with one more token, and stands there once.
struct Texts {
    /// The empty text first.
    nodes: Vec<Node>,
    /// By node and token.
    children: HashMap<(usize, u32), usize>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Node {
    parent: usize,
    token: u32,
    boost_state: BoostState,
    /// What listed words have got so far, whole or not.
    bonus: f64,
}

const EMPTY: usize = 0;

impl Texts {
    fn child(&mut self, node: Node) -> usize {
        let next = self.nodes.len();
        let found = *self.children.entry((node.parent, node.token)).or_insert(next);
        if found == next {
            self.nodes.push(node);
        }
        found
    }

    fn tokens(&self, mut node: usize) -> Vec<u32> {
        let mut tokens = Vec::new();
        while node != EMPTY {
            tokens.push(self.nodes[node].token);
            node = self.nodes[node].parent;
        }
        tokens.reverse();
        tokens
    }
}

/// A text and the logarithms of its probability.
#[derive(Debug, Clone, Copy)]
struct Beam {
    node: usize,
    /// Of the paths that end in a blank.
    blank: f64,
    /// Of those that end in the last token.
    label: f64,
}

impl Default for Beam {
    /// The empty text, with no path.
    fn default() -> Self {
        Self { node: EMPTY, blank: f64::NEG_INFINITY, label: f64::NEG_INFINITY }
    }
}

impl Beam {
    fn total(&self) -> f64 {
        log_add(self.blank, self.label)
    }
}

/// A text that a state may lead to.
struct Candidate {
    score: f64,
    blank: f64,
    label: f64,
    text: Text,
}

enum Text {
    /// One of the beams before.
    Same(usize),
    /// One that goes on from a beam.
    New(Node),
}

/// The logits of a state, and how many texts are followed.
struct State<'a> {
    row: &'a [f32],
    /// The logarithm of the sum of their exponentials.
    total: f64,
    blank: u32,
    num_beams: usize,
}

impl State<'_> {
    fn log_probability(&self, class: u32) -> f64 {
        self.row.get(class as usize).map_or(f64::NEG_INFINITY, |v| f64::from(*v) - self.total)
    }

    /// The beams behind this state, best first.
    fn advance(&self, beams: &[Beam], texts: &mut Texts, boost: Option<&BoostTree>) -> Vec<Beam> {
        let totals: Vec<f64> = beams.iter().map(Beam::total).collect();
        let mut candidates = Vec::new();
        // Beams that go on to another beam, and by which token.
        let mut joins = Vec::new();
        for (beam, total) in beams.iter().zip(&totals) {
            let node = texts.nodes[beam.node];
            let mut label = f64::NEG_INFINITY;
            if beam.node != EMPTY {
                label = beam.label;
                if let Some(before) = beams.iter().position(|other| other.node == node.parent) {
                    joins.push((before, node.token));
                    let repeats =
                        texts.nodes[node.parent].token == node.token && node.parent != EMPTY;
                    label =
                        log_add(label, if repeats { beams[before].blank } else { totals[before] });
                }
                label += self.log_probability(node.token);
            }
            let blank = total + self.log_probability(self.blank);
            let score = log_add(blank, label) + node.bonus;
            candidates.push(Candidate { score, blank, label, text: Text::Same(beam.node) });
        }
        let mut likeliest = Vec::new();
        for (i, (beam, total)) in beams.iter().zip(&totals).enumerate() {
            let node = &texts.nodes[beam.node];
            if i == 0 || boost.is_some() {
                likeliest = self.likeliest_tokens(node.boost_state, boost);
            }
            for token in likeliest.iter().copied().filter(|token| !joins.contains(&(i, *token))) {
                let repeats = beam.node != EMPTY && node.token == token;
                let label = if repeats { beam.blank } else { *total } + self.log_probability(token);
                let (boost_state, gives) = boost.map_or(Default::default(), |tree| {
                    tree.advance(node.boost_state, token, BrokenMatch::GivesBack)
                });
                let bonus = node.bonus + f64::from(gives);
                let text = Text::New(Node { parent: beam.node, token, boost_state, bonus });
                candidates.push(Candidate {
                    score: label + bonus,
                    blank: f64::NEG_INFINITY,
                    label,
                    text,
                });
            }
        }
        candidates.retain(|candidate| candidate.score > f64::NEG_INFINITY);
        candidates.sort_by(|a, b| falling(a.score, b.score));
        candidates.truncate(self.num_beams);
        let place = |Candidate { blank, label, text, .. }| {
            let node = match text {
                Text::Same(node) => node,
                Text::New(node) => texts.child(node),
            };
            Beam { node, blank, label }
        };
        candidates.into_iter().map(place).collect()
    }

    /// The tokens that may be among the best texts behind one, best first.
    fn likeliest_tokens(&self, state: BoostState, boost: Option<&BoostTree>) -> Vec<u32> {
        let mut row = vec![0.0; self.row.len()];
        if let Some(tree) = boost {
            tree.bonuses(state, BrokenMatch::GivesBack, &mut row);
        }
        row.iter_mut().zip(self.row).for_each(|(boosted, logit)| *boosted += logit);
        if let Some(blank) = row.get_mut(self.blank as usize) {
            *blank = f32::NEG_INFINITY;
        }
        let best = highest(&row, self.num_beams.saturating_add(1)).into_iter();
        best.filter(|(boosted, _)| *boosted > f32::NEG_INFINITY).map(|(_, token)| token).collect()
    }
}

/// `ln(e^a + e^b)`, of which either may be minus infinity.
fn log_add(a: f64, b: f64) -> f64 {
    let (most, least) = if a > b { (a, b) } else { (b, a) };
    if least == f64::NEG_INFINITY { most } else { most + (least - most).exp().ln_1p() }
}
