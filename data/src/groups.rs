//! Which pairs belong together: groups that no split may cut, and the other targets of an
//! anchor (facts §4.3; the first place of the Kaggle competition did both).

use std::collections::{HashMap, HashSet};

use crate::patent::PhrasePair;

/// The group of each pair, numbered from 0 in order of first appearance.
///
/// Pairs of one anchor are one group. Anchors are merged where one is the target of another:
/// otherwise a model would be judged on a phrase that it was trained on from the other side.
pub fn anchor_groups(pairs: &[PhrasePair]) -> Vec<usize> {
    let mut anchor_index: HashMap<&str, usize> = HashMap::new();
    for pair in pairs {
        let next = anchor_index.len();
        anchor_index.entry(&pair.anchor).or_insert(next);
    }
    let mut sets = DisjointSets::new(anchor_index.len());
    for pair in pairs {
        if let Some(&target) = anchor_index.get(&*pair.target) {
            sets.join(anchor_index[&*pair.anchor], target);
        }
    }
    let mut number_of_root: HashMap<usize, usize> = HashMap::new();
    pairs
        .iter()
        .map(|pair| {
            let next = number_of_root.len();
            let root = sets.root(anchor_index[&*pair.anchor]);
            *number_of_root.entry(root).or_insert(next)
        })
        .collect()
}

/// What two pairs must share to see each other's targets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Grouping {
    /// The same anchor in the same context.
    AnchorContext,
    /// The same anchor in contexts of the same section (first letter).
    AnchorSection,
    /// The same anchor.
    Anchor,
}

impl Grouping {
    fn key(self, pair: &PhrasePair) -> (String, String) {
        let place = match self {
            Self::AnchorContext => pair.context.clone(),
            Self::AnchorSection => pair.context.chars().take(1).collect(),
            Self::Anchor => String::new(),
        };
        (pair.anchor.clone(), place)
    }
}

/// Targets by group, each once, in order of first appearance.
#[derive(Debug, Clone)]
pub struct GroupedTargets {
    grouping: Grouping,
    targets: HashMap<(String, String), Vec<String>>,
}

impl GroupedTargets {
    /// The targets of the pair's group, its own included; empty for an unknown group.
    pub fn targets(&self, pair: &PhrasePair) -> &[String] {
        self.targets.get(&self.grouping.key(pair)).map_or(&[], Vec::as_slice)
    }

    /// The targets of the pair's group without its own.
    pub fn others<'a>(&'a self, pair: &'a PhrasePair) -> impl Iterator<Item = &'a str> {
        let targets = self.targets(pair).iter().map(String::as_str);
        targets.filter(|target| *target != pair.target)
    }
}

/// Collects the targets of all pairs by group.
///
/// Give the rows of all files together: a test row's targets are features, not labels.
pub fn grouped_targets<'a>(
    pairs: impl IntoIterator<Item = &'a PhrasePair>,
    grouping: Grouping,
) -> GroupedTargets {
    let mut targets: HashMap<(String, String), Vec<String>> = HashMap::new();
    let mut seen = HashSet::new();
    for pair in pairs {
        let key = grouping.key(pair);
        if seen.insert((key.clone(), pair.target.clone())) {
            targets.entry(key).or_default().push(pair.target.clone());
        }
    }
    GroupedTargets { grouping, targets }
}

/// Union-find with path halving; the root of a set is its smallest member.
struct DisjointSets {
    parent: Vec<usize>,
}

impl DisjointSets {
    fn new(count: usize) -> Self {
        Self { parent: (0..count).collect() }
    }

    fn root(&mut self, mut item: usize) -> usize {
        while self.parent[item] != item {
            self.parent[item] = self.parent[self.parent[item]];
            item = self.parent[item];
        }
        item
    }

    fn join(&mut self, left: usize, right: usize) {
        let (left, right) = (self.root(left), self.root(right));
        self.parent[left.max(right)] = left.min(right);
    }
}
