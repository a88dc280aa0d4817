//! The metrics by score class, rating, context section and anchor.

use std::collections::BTreeMap;

use engram_textfile::phrases::SECTIONS;
use rayon::prelude::*;

use super::sample::Sample;
use super::{GoldRow, PhraseOptions};
use crate::metric::mean::MEAN_PREDICTION;
use crate::metric::registry::Metric;
use crate::metric::{mean_absolute_error, pearson, spearman};
use crate::result::Breakdown;

/// With more distinct gold scores than this, the scores are treated as continuous, not as classes.
const MAX_CLASSES: usize = 20;

/// All breakdowns: `score` (if the scores are classes), `rating` (if given), `section`, `anchor`.
///
/// Within one score class the gold scores are equal, so a correlation is undefined. Instead, the
/// table has the mean prediction of each class, which shows whether the classes are in order.
/// Anchors are sorted by Pearson's `r`, lowest first, undefined last.
pub(super) fn breakdowns(sample: &Sample, options: &PhraseOptions) -> Vec<Breakdown> {
    let (pearson, error) = (pearson::METRIC, mean_absolute_error::METRIC);
    let mut breakdowns = Vec::new();

    let mut scores = partition(sample, |row| (row.score + 0.0).to_string());
    if scores.len() <= MAX_CLASSES {
        scores.sort_by(|(_, a), (_, b)| a.gold[0].total_cmp(&b.gold[0]));
        breakdowns.extend(tables("score", &scores, &[&MEAN_PREDICTION, &error], options));
    }
    if sample.rows.iter().any(|row| row.rating.is_some()) {
        let rating = |row: &GoldRow| row.rating.clone().unwrap_or_else(|| "(none)".to_owned());
        let metrics = [&pearson, &MEAN_PREDICTION, &error];
        breakdowns.extend(tables("rating", &partition(sample, rating), &metrics, options));
    }
    let sections = partition(sample, |row| section(&row.context));
    let metrics = [&pearson, &spearman::METRIC, &error];
    breakdowns.extend(tables("section", &sections, &metrics, options));

    let anchors = partition(sample, |row| row.anchor.clone());
    for mut table in tables("anchor", &anchors, &[&pearson], options) {
        table.rows.sort_by(|a, b| {
            let undefined_last = a.value.is_nan().cmp(&b.value.is_nan());
            undefined_last.then(a.value.total_cmp(&b.value))
        });
        breakdowns.push(table);
    }
    breakdowns
}

/// The letter and the name of a context's section: `G Physics`. An unknown letter has no name; an
/// empty context is in the section `(none)`.
fn section(context: &str) -> String {
    let Some(letter) = context.chars().next() else {
        return "(none)".to_owned();
    };
    let letter = letter.to_ascii_uppercase();
    match SECTIONS.iter().find(|(section, _)| *section == letter) {
        Some((_, name)) => format!("{letter} {name}"),
        None => letter.to_string(),
    }
}

/// The parts of a sample by label, in the order of the labels.
fn partition<'a>(
    sample: &Sample<'a>,
    label: impl Fn(&GoldRow) -> String,
) -> Vec<(String, Sample<'a>)> {
    let mut positions: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for (position, row) in sample.rows.iter().enumerate() {
        positions.entry(label(row)).or_default().push(position);
    }
    positions.into_iter().map(|(name, rows)| (name, sample.subset(&rows))).collect()
}

/// One breakdown per metric.
fn tables(
    name: &str,
    parts: &[(String, Sample<'_>)],
    metrics: &[&Metric],
    options: &PhraseOptions,
) -> Vec<Breakdown> {
    let table = |metric: &&Metric| {
        let measured =
            |(name, part): &(String, Sample<'_>)| (name.clone(), part.measure(metric, options));
        Breakdown::new(name, &metric.info, parts.par_iter().map(measured).collect())
    };
    metrics.iter().map(table).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_have_names() {
        assert_eq!(section("G06"), "G Physics");
        assert_eq!(section("y02"), "Y Emerging Cross-Sectional Technologies");
        assert_eq!(section("Q99"), "Q");
        assert_eq!(section(""), "(none)");
    }
}
