//! Which pairs belong together: groups that no split may cut, and the rows of an anchor that see
//! each other's targets (the first place of the Kaggle competition did both).

use std::collections::{HashMap, HashSet};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::patent::PhrasePair;

/// The group of each pair, numbered from 0 in order of first appearance.
///
/// Pairs of one anchor, in upper or lower case, are one group. Anchors are merged where one is the
/// target of another: otherwise a model would be judged on a phrase that it was trained on from
/// the other side.
pub fn anchor_groups(pairs: &[PhrasePair]) -> Vec<usize> {
    let anchors: Vec<String> = pairs.iter().map(|pair| pair.anchor.to_lowercase()).collect();
    let mut anchor_index: HashMap<&str, usize> = HashMap::new();
    for anchor in &anchors {
        let next = anchor_index.len();
        anchor_index.entry(anchor).or_insert(next);
    }
    let mut sets = DisjointSets::new(anchor_index.len());
    for (pair, anchor) in pairs.iter().zip(&anchors) {
        if let Some(&target) = anchor_index.get(&*pair.target.to_lowercase()) {
            sets.join(anchor_index[anchor.as_str()], target);
        }
    }
    let mut number_of_root: HashMap<usize, usize> = HashMap::new();
    anchors
        .iter()
        .map(|anchor| {
            let next = number_of_root.len();
            let root = sets.root(anchor_index[anchor.as_str()]);
            *number_of_root.entry(root).or_insert(next)
        })
        .collect()
}

/// What two pairs must share to see each other's targets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Grouping {
    /// Nothing is enough: each row alone.
    Row,
    /// The same anchor in the same context.
    Context,
    /// The same anchor in contexts of the same section (first letter).
    Section,
    /// The same anchor.
    Anchor,
}

/// The rows of each group, groups and rows in order of first appearance.
pub fn grouped_rows(pairs: &[PhrasePair], grouping: Grouping) -> Vec<Vec<usize>> {
    let mut index: HashMap<(&str, &str), usize> = HashMap::new();
    let mut groups: Vec<Vec<usize>> = Vec::new();
    for (row, pair) in pairs.iter().enumerate() {
        let place = match grouping {
            Grouping::Row => pair.id.as_str(),
            Grouping::Context => pair.context.as_str(),
            Grouping::Section => pair.context.get(..1).unwrap_or_default(),
            Grouping::Anchor => "",
        };
        let group = *index.entry((&pair.anchor, place)).or_insert(groups.len());
        if group == groups.len() {
            groups.push(Vec::new());
        }
        groups[group].push(row);
    }
    groups
}

/// Anchors that both sets have: where there is one, what is measured on `right` after training on
/// `left` says nothing about new anchors.
pub fn shared_anchors<'a>(left: &'a [PhrasePair], right: &'a [PhrasePair]) -> Vec<&'a str> {
    let known: HashSet<String> = left.iter().map(|pair| pair.anchor.to_lowercase()).collect();
    let mut shared: Vec<&str> = right.iter().map(|pair| pair.anchor.as_str()).collect();
    shared.sort_unstable();
    shared.dedup();
    shared.retain(|anchor| known.contains(&anchor.to_lowercase()));
    shared
}

/// Union-find with path halving; the root of a set is its smallest member.
#[derive(Debug, Clone)]
pub struct DisjointSets {
    parent: Vec<usize>,
}

impl DisjointSets {
    /// `count` items, each a set of its own.
    pub fn new(count: usize) -> Self {
        Self { parent: (0..count).collect() }
    }

    /// The root of an item's set.
    ///
    /// # Panics
    /// If there is no such item.
    pub fn root(&mut self, mut item: usize) -> usize {
        while self.parent[item] != item {
            self.parent[item] = self.parent[self.parent[item]];
            item = self.parent[item];
        }
        item
    }

    /// Makes the sets of two items one.
    ///
    /// # Panics
    /// If there is no such item.
    pub fn join(&mut self, left: usize, right: usize) {
        let (left, right) = (self.root(left), self.root(right));
        self.parent[left.max(right)] = left.min(right);
    }
}
