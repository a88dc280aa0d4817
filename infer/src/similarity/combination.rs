//! Combinations of the scores of an ensemble's members.

use std::collections::BTreeSet;

use engram_data::patent::PhrasePair;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How the scores of an ensemble's members are combined.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Combination {
    /// The weighted mean.
    #[default]
    Mean,
    /// Ridge regression on the variants' mean scores and the word overlap of the phrases, fitted on
    /// the held-out rows.
    Stacked,
}

/// Divides rows into `count` groups for cross-fitting, with all rows of an anchor in one group.
pub(super) fn anchor_groups(rows: &[PhrasePair], count: usize) -> Vec<usize> {
    let anchors: BTreeSet<&str> = rows.iter().map(|row| row.anchor.as_str()).collect();
    let anchors: Vec<&str> = anchors.into_iter().collect();
    let group = |row: &PhrasePair| anchors.binary_search(&row.anchor.as_str()).unwrap_or(0) % count;
    rows.iter().map(group).collect()
}

/// Adds scores to sums, element by element.
pub fn add_to(sums: &mut Vec<f64>, scores: &[f64]) {
    sums.resize(scores.len(), 0.0);
    sums.iter_mut().zip(scores).for_each(|(sum, score)| *sum += score);
}

/// The weighted mean of score lists, element by element.
pub fn weighted_mean(weighted: impl Iterator<Item = (f64, Vec<f64>)>) -> Vec<f64> {
    let (mut sums, mut total_weight) = (Vec::new(), 0.0);
    for (weight, mut scores) in weighted {
        scores.iter_mut().for_each(|score| *score *= weight);
        add_to(&mut sums, &scores);
        total_weight += weight;
    }
    sums.into_iter().map(|sum| sum / total_weight).collect()
}
