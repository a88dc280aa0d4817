//! The prefixes of a beam search, shared by CTC and the transducer.

use std::cmp::Ordering;
use std::collections::HashMap;

use super::ctc_beam::Hypothesis;
use crate::error::ModelError;
use crate::generation::boosting::{BoostState, BoostTree};

/// The tree of prefixes: a node extends its parent by one token. Each prefix has one node.
pub(crate) struct Prefixes {
    /// The nodes; the empty text is first.
    pub nodes: Vec<Node>,
    /// The child node, by parent node and token.
    children: HashMap<(usize, u32), usize>,
}

/// A prefix, given by its last token and its parent.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Node {
    pub parent: usize,
    pub token: u32,
    pub boost_state: BoostState,
    /// The total bonus of the prefix, including an incomplete word.
    pub bonus: f64,
}

/// The node of the empty text.
pub(crate) const EMPTY: usize = 0;

impl Prefixes {
    /// A tree with the empty text.
    pub fn new() -> Self {
        Self { nodes: vec![Node::default()], children: HashMap::new() }
    }

    /// Returns the hypotheses of prefixes, given by their nodes and log probabilities: ranked by
    /// log probability plus bonus, best first. Ties keep their order.
    pub fn hypotheses(
        &self,
        ends: impl Iterator<Item = (usize, f64)>,
        boost: Option<&BoostTree>,
    ) -> Vec<Hypothesis> {
        let to_hypothesis = |(index, log_probability): (usize, f64)| {
            let node = &self.nodes[index];
            let final_bonus =
                boost.map_or(0.0, |tree| f64::from(tree.final_bonus(node.boost_state)));
            Hypothesis {
                tokens: self.tokens(index),
                log_probability,
                bonus: node.bonus + final_bonus,
            }
        };
        let mut hypotheses: Vec<Hypothesis> = ends.map(to_hypothesis).collect();
        let score = |text: &Hypothesis| text.log_probability + text.bonus;
        hypotheses.sort_by(|a, b| descending(score(a), score(b)));
        hypotheses
    }

    /// Returns the index of a node, which is added if it is new.
    pub fn child(&mut self, node: Node) -> usize {
        let next = self.nodes.len();
        let node_index = *self.children.entry((node.parent, node.token)).or_insert(next);
        if node_index == next {
            self.nodes.push(node);
        }
        node_index
    }

    /// Returns the tokens of a prefix.
    pub fn tokens(&self, mut node: usize) -> Vec<u32> {
        let mut tokens = Vec::new();
        while node != EMPTY {
            tokens.push(self.nodes[node].token);
            node = self.nodes[node].parent;
        }
        tokens.reverse();
        tokens
    }
}

/// The error for a model whose logits are NaN or infinite.
pub(crate) fn nan_logits() -> ModelError {
    ModelError::BadInput(
        "the model produced NaN or infinite logits: check the weights for NaN".to_string(),
    )
}

pub(crate) fn descending(a: f64, b: f64) -> Ordering {
    b.total_cmp(&a)
}

/// Returns `ln(e^a + e^b)`. Either may be minus infinity.
pub(crate) fn log_add(a: f64, b: f64) -> f64 {
    let (larger, smaller) = if a > b { (a, b) } else { (b, a) };
    if smaller == f64::NEG_INFINITY { larger } else { larger + (smaller - larger).exp().ln_1p() }
}
