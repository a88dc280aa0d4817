//! Stratified group folds: all rows of a group are in one fold, and each fold has about the same
//! fraction of each class. The greedy algorithm follows scikit-learn's `StratifiedGroupKFold`: it
//! starts with the groups that have the most uneven class counts, and puts each into the fold
//! that keeps the class fractions most even. [`hold_out`] draws random held-out sets instead, and
//! takes the set with the most even class fractions.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;

use crate::DataError;

/// The number of random held-out sets to compare.
const HOLD_OUT_TRIALS: usize = 64;

/// The two sets of rows of a split, each in ascending order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Split {
    /// Rows for training.
    pub train: Vec<usize>,
    /// Rows for evaluation.
    pub held_out: Vec<usize>,
}

/// Returns the class of a similarity score from 0 to 1, for stratification: `int(score · 4)`, from
/// 0 to 4.
pub fn score_class(score: f32) -> usize {
    (score.clamp(0.0, 1.0) * 4.0) as usize
}

/// Returns the fold (`0..folds`) of each row.
///
/// `classes` and `groups` have one entry per row. `seed` shuffles the groups before the greedy
/// algorithm, and so changes how ties are broken. `None` gives the folds of scikit-learn without
/// shuffling.
///
/// # Errors
/// [`DataError::OutOfRange`] for fewer than 2 folds; [`DataError::TooFewGroups`]
///
/// # Panics
/// If there are more or fewer classes than groups.
pub fn stratified_group_folds(
    classes: &[usize],
    groups: &[usize],
    folds: usize,
    seed: Option<u64>,
) -> Result<Vec<usize>, DataError> {
    if folds < 2 {
        return Err(DataError::out_of_range("the number of folds", folds, "use 2 or more"));
    }
    let mut group_counts = count_classes(classes, groups, folds)?;
    let totals = total_counts(&group_counts);
    if let Some(seed) = seed {
        group_counts.shuffle(&mut ChaCha8Rng::seed_from_u64(seed));
    }
    // The sort is stable: ties stay in the (shuffled) order.
    group_counts.sort_by(|left, right| {
        standard_deviation(&right.counts).total_cmp(&standard_deviation(&left.counts))
    });

    let mut counts_of_fold = vec![vec![0.0; totals.len()]; folds];
    let mut fold_of_group = HashMap::new();
    for group in &group_counts {
        let fold = best_fold(&counts_of_fold, &group.counts, &totals);
        add(&mut counts_of_fold[fold], &group.counts);
        fold_of_group.insert(group.label, fold);
    }
    Ok(groups.iter().map(|group| fold_of_group[group]).collect())
}

/// Returns the split of one fold: its rows are held out, and all other rows are for training.
pub fn split_of_fold(fold_of_row: &[usize], fold: usize) -> Split {
    let (held_out, train) = (0..fold_of_row.len()).partition(|&row| fold_of_row[row] == fold);
    Split { train, held_out }
}

/// Holds out about `fraction` of the rows, in whole groups and with about the same fraction of each
/// class.
///
/// # Errors
/// [`DataError::OutOfRange`] for a fraction outside (0, 1); [`DataError::TooFewGroups`]
///
/// # Panics
/// If there are more or fewer classes than groups.
pub fn hold_out(
    classes: &[usize],
    groups: &[usize],
    fraction: f64,
    seed: u64,
) -> Result<Split, DataError> {
    if !(fraction > 0.0 && fraction < 1.0) {
        let wanted = "use a number between 0 and 1, such as 0.1";
        return Err(DataError::out_of_range("the held-out fraction", fraction, wanted));
    }
    let mut group_counts = count_classes(classes, groups, 2)?;
    let totals = total_counts(&group_counts);
    // The mean absolute difference between the held-out fraction of each class and the requested
    // fraction.
    let distance = |counts: &[f64]| {
        let fractions = counts.iter().zip(&totals).map(|(count, total)| count / total);
        fractions.map(|class_fraction| (class_fraction - fraction).abs()).sum::<f64>()
            / totals.len() as f64
    };
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut best = (f64::INFINITY, HashSet::new());
    for _ in 0..HOLD_OUT_TRIALS {
        group_counts.shuffle(&mut rng);
        // The first group is always held out and the last never, so neither side is empty.
        let mut counts = group_counts[0].counts.clone();
        let mut held_out = HashSet::from([group_counts[0].label]);
        for group in &group_counts[1..group_counts.len() - 1] {
            let mut counts_with_group = counts.clone();
            add(&mut counts_with_group, &group.counts);
            if distance(&counts_with_group) < distance(&counts) {
                counts = counts_with_group;
                held_out.insert(group.label);
            }
        }
        if distance(&counts) < best.0 {
            best = (distance(&counts), held_out);
        }
    }
    let (held_out, train) = (0..groups.len()).partition(|&row| best.1.contains(&groups[row]));
    Ok(Split { train, held_out })
}

/// The class counts of one group, and the group's label in `groups`.
struct GroupCounts {
    label: usize,
    counts: Vec<f64>,
}

fn count_classes(
    classes: &[usize],
    groups: &[usize],
    parts: usize,
) -> Result<Vec<GroupCounts>, DataError> {
    assert_eq!(classes.len(), groups.len(), "each row has a class and a group");
    // Only classes that occur are counted.
    let index_of_class = indices(classes);
    let index_of_group = indices(groups);
    if index_of_group.len() < parts {
        return Err(DataError::TooFewGroups { groups: index_of_group.len(), parts });
    }
    let mut group_counts: Vec<GroupCounts> = index_of_group
        .keys()
        .map(|&label| GroupCounts { label, counts: vec![0.0; index_of_class.len()] })
        .collect();
    for (class, group) in classes.iter().zip(groups) {
        group_counts[index_of_group[group]].counts[index_of_class[class]] += 1.0;
    }
    Ok(group_counts)
}

/// Returns each label that occurs, with its index in ascending order.
fn indices(labels: &[usize]) -> BTreeMap<usize, usize> {
    let present: BTreeSet<usize> = labels.iter().copied().collect();
    present.into_iter().zip(0..).collect()
}

fn total_counts(group_counts: &[GroupCounts]) -> Vec<f64> {
    let mut totals = vec![0.0; group_counts[0].counts.len()];
    for group in group_counts {
        add(&mut totals, &group.counts);
    }
    totals
}

/// Returns the fold that keeps the class fractions most even; ties go to the fold with the fewest
/// rows.
fn best_fold(counts_of_fold: &[Vec<f64>], group: &[f64], totals: &[f64]) -> usize {
    let mut best = 0;
    let mut least_spread = f64::INFINITY;
    let mut fewest_rows = f64::INFINITY;
    for fold in 0..counts_of_fold.len() {
        let spread_of_class = |class: usize| {
            let fractions: Vec<f64> = (0..counts_of_fold.len())
                .map(|other| {
                    let added = if other == fold { group[class] } else { 0.0 };
                    (counts_of_fold[other][class] + added) / totals[class]
                })
                .collect();
            standard_deviation(&fractions)
        };
        let spread = (0..totals.len()).map(spread_of_class).sum::<f64>() / totals.len() as f64;
        let rows: f64 = counts_of_fold[fold].iter().sum();
        let equal = (spread - least_spread).abs() <= 1e-8 + 1e-5 * least_spread;
        if spread < least_spread || (equal && rows < fewest_rows) {
            best = fold;
            least_spread = spread;
            fewest_rows = rows;
        }
    }
    best
}

fn add(counts: &mut [f64], added: &[f64]) {
    for (count, added) in counts.iter_mut().zip(added) {
        *count += added;
    }
}

/// Returns the population standard deviation.
fn standard_deviation(values: &[f64]) -> f64 {
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    let variance =
        values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / values.len() as f64;
    variance.sqrt()
}
