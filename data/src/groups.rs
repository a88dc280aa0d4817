//! Two groupings of phrase pairs: pairs that must be on the same side of a split, and pairs of one
//! anchor whose targets are added to each other's model input ("other targets"). The winner of the
//! Kaggle competition on phrase matching used both.

use std::collections::{HashMap, HashSet};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::patent::PhrasePair;

/// Returns the group of each pair, numbered from 0 in order of first appearance.
///
/// Pairs with the same anchor, ignoring case, form one group. Two anchors are merged if one is a
/// target of the other. Otherwise a held-out pair could contain a phrase from training with anchor
/// and target swapped.
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
    let mut group_of_root: HashMap<usize, usize> = HashMap::new();
    anchors
        .iter()
        .map(|anchor| {
            let next = group_of_root.len();
            let root = sets.root(anchor_index[anchor.as_str()]);
            *group_of_root.entry(root).or_insert(next)
        })
        .collect()
}

/// The fields that two pairs must share to have each other's targets in their model input.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Grouping {
    /// Each pair is its own group, so there are no other targets.
    Row,
    /// The same anchor in the same context.
    Context,
    /// The same anchor in contexts of the same section (first letter).
    Section,
    /// The same anchor.
    Anchor,
}

/// Returns the rows (indices in `pairs`) of each group. Groups and rows are in order of first
/// appearance.
pub fn grouped_rows(pairs: &[PhrasePair], grouping: Grouping) -> Vec<Vec<usize>> {
    let mut group_of_key: HashMap<(&str, &str), usize> = HashMap::new();
    let mut groups: Vec<Vec<usize>> = Vec::new();
    for (row, pair) in pairs.iter().enumerate() {
        let key = match grouping {
            Grouping::Row => pair.id.as_str(),
            Grouping::Context => pair.context.as_str(),
            Grouping::Section => pair.context.get(..1).unwrap_or_default(),
            Grouping::Anchor => "",
        };
        let group = *group_of_key.entry((&pair.anchor, key)).or_insert(groups.len());
        if group == groups.len() {
            groups.push(Vec::new());
        }
        groups[group].push(row);
    }
    groups
}

/// Returns the anchors that both sets contain, ignoring case and as written in `right`. If there
/// are any, training on `left` and evaluating on `right` does not measure generalization to new
/// anchors.
pub fn shared_anchors<'a>(left: &'a [PhrasePair], right: &'a [PhrasePair]) -> Vec<&'a str> {
    let left_anchors: HashSet<String> =
        left.iter().map(|pair| pair.anchor.to_lowercase()).collect();
    let mut shared: Vec<&str> = right.iter().map(|pair| pair.anchor.as_str()).collect();
    shared.sort_unstable();
    shared.dedup();
    shared.retain(|anchor| left_anchors.contains(&anchor.to_lowercase()));
    shared
}

/// Union-find with path halving; the root of a set is its smallest member.
#[derive(Debug, Clone)]
pub struct DisjointSets {
    parent: Vec<usize>,
}

impl DisjointSets {
    /// Creates `count` sets of one item each.
    pub fn new(count: usize) -> Self {
        Self { parent: (0..count).collect() }
    }

    /// Returns the root of an item's set.
    ///
    /// # Panics
    /// If the item is out of range.
    pub fn root(&mut self, mut item: usize) -> usize {
        while self.parent[item] != item {
            self.parent[item] = self.parent[self.parent[item]];
            item = self.parent[item];
        }
        item
    }

    /// Merges the sets of two items.
    ///
    /// # Panics
    /// If an item is out of range.
    pub fn join(&mut self, left: usize, right: usize) {
        let (left, right) = (self.root(left), self.root(right));
        self.parent[left.max(right)] = left.min(right);
    }
}
