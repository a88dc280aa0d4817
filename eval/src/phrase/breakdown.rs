//! The metrics by score class, rating, context section and anchor.

use std::collections::BTreeMap;

use engram_textfile::phrases::SECTIONS;
use rayon::prelude::*;

use super::sample::Sample;
use super::{GoldRow, PhraseOptions};
use crate::metric::mean::MEAN_PREDICTION;
use crate::metric::registry::Metric;
use crate::metric::{mean_absolute_error, pearson, spearman};
use crate::result::{Breakdown, Measure};

/// With more distinct gold scores than this, the scores are treated as continuous, not as classes.
const MAX_CLASSES: usize = 20;

/// All breakdowns: `score` (if the scores are classes), `rating` (if given), `section`, `anchor`.
///
/// Within one score class the gold scores are equal, so a correlation is undefined. Instead, the
/// table has the mean prediction of each class, which shows whether the classes are in order.
/// Anchors are sorted by Pearson's `r`, lowest first, undefined last.
pub(super) fn breakdowns(sample: &Sample, options: &PhraseOptions) -> Vec<Breakdown> {
    let (pearson, error) = (pearson::METRIC, mean_absolute_error::METRIC);
    let partition = |label: &dyn Fn(&GoldRow) -> String| Partition::new(sample, label);
    let mut tables = Vec::new();

    let mut scores = partition(&|row| (row.score + 0.0).to_string());
    if scores.parts.len() <= MAX_CLASSES {
        scores.parts.sort_by(|(_, a), (_, b)| a.gold()[0].total_cmp(&b.gold()[0]));
        tables.extend(scores.tables("score", &[&MEAN_PREDICTION, &error], options));
    }
    if sample.rows().iter().any(|row| row.rating.is_some()) {
        let ratings = partition(&|row| row.rating.clone().unwrap_or_else(|| "(none)".to_owned()));
        tables.extend(ratings.tables("rating", &[&pearson, &MEAN_PREDICTION, &error], options));
    }
    let sections = partition(&|row| section(&row.context));
    tables.extend(sections.tables("section", &[&pearson, &spearman::METRIC, &error], options));

    let anchors = partition(&|row| row.anchor.clone());
    for mut table in anchors.tables("anchor", &[&pearson], options) {
        table.rows.sort_by(|a, b| {
            let undefined_last = a.value.is_nan().cmp(&b.value.is_nan());
            undefined_last.then(a.value.total_cmp(&b.value))
        });
        tables.push(table);
    }
    tables
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
struct Partition<'a> {
    parts: Vec<(String, Sample<'a>)>,
}

impl<'a> Partition<'a> {
    fn new(sample: &Sample<'a>, label: &dyn Fn(&GoldRow) -> String) -> Self {
        let mut positions: BTreeMap<String, Vec<usize>> = BTreeMap::new();
        for (position, row) in sample.rows().iter().enumerate() {
            positions.entry(label(row)).or_default().push(position);
        }
        let subset = |(name, rows): (String, Vec<usize>)| (name, sample.subset(&rows));
        Self { parts: positions.into_iter().map(subset).collect() }
    }

    /// One breakdown per metric.
    fn tables(&self, name: &str, metrics: &[&Metric], options: &PhraseOptions) -> Vec<Breakdown> {
        let table = |metric: &&Metric| {
            let measured: Vec<(String, Measure)> = self
                .parts
                .par_iter()
                .map(|(name, part)| (name.clone(), part.measure(metric, options)))
                .collect();
            Breakdown::new(name, &metric.info, measured)
        };
        metrics.iter().map(table).collect()
    }
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
