//! Parts of plain text reports that all evaluations share.

use std::fmt::Write as _;

use engram_textfile::shortened;

use crate::result::{Breakdown, Evaluation, Interval};
use crate::table::{Align, TextTable, limits, number};

/// Maximum width of a group name, in characters.
const GROUP_WIDTH: usize = 40;
/// Maximum width of a scored text, in characters; the JSON report has the whole text.
const TEXT_WIDTH: usize = 200;

/// Formats the list of input files.
pub(crate) fn sources(evaluation: &Evaluation) -> String {
    let mut text = String::new();
    for source in &evaluation.sources {
        let _ = writeln!(text, "{:<12} {}", source.role, source.path);
    }
    text
}

/// Formats the values with their intervals as a table, followed by the method of the intervals.
pub(crate) fn metrics(evaluation: &Evaluation) -> String {
    let measures = || std::iter::once(&evaluation.primary).chain(&evaluation.secondary);
    let first_interval = measures().find_map(|measure| measure.interval.as_ref());
    let interval_heading = first_interval.map_or_else(|| "interval".to_owned(), interval_heading);
    let mut columns = vec![
        ("metric", Align::Left),
        ("value", Align::Right),
        (&interval_heading, Align::Left),
        ("better", Align::Left),
    ];
    // Fractions and coefficients need no unit.
    let has_units = measures().any(|measure| !measure.unit.label().is_empty());
    if has_units {
        columns.insert(2, ("unit", Align::Left));
    }
    let mut table = TextTable::new(&columns);
    for measure in measures() {
        let better =
            measure.higher_is_better.map_or("", |higher| if higher { "higher" } else { "lower" });
        let mut cells = vec![
            words(&measure.metric),
            number(measure.value),
            limits(measure.interval.as_ref()),
            better.to_owned(),
        ];
        if has_units {
            cells.insert(2, measure.unit.label().to_owned());
        }
        table.push(cells);
    }
    let mut methods: Vec<&str> = Vec::new();
    for method in measures().filter_map(|measure| Some(&*measure.interval.as_ref()?.method)) {
        if !methods.contains(&method) {
            methods.push(method);
        }
    }
    let method = match first_interval {
        Some(interval) => format!(
            "Intervals: {}, {} resamples, seed {}; * rough: too few sampling units.\n",
            methods.join(" and "),
            interval.resamples,
            interval.seed
        ),
        None => String::new(),
    };
    format!("{table}{method}")
}

/// Formats a breakdown as a table.
pub(crate) fn breakdown(table: &Breakdown) -> String {
    let metric = words(&table.metric);
    let mut text = TextTable::new(&[
        (table.name.as_str(), Align::Left),
        ("n", Align::Right),
        (metric.as_str(), Align::Right),
        ("interval", Align::Left),
    ]);
    for row in &table.rows {
        text.push(vec![
            shortened(&row.name, GROUP_WIDTH),
            row.n.to_string(),
            number(row.value),
            limits(row.interval.as_ref()),
        ]);
    }
    format!("By {}\n{text}", table.name)
}

/// A text with its score and its references.
pub(crate) struct ScoredText<'a> {
    /// The kind of id, such as `image`.
    pub(crate) kind: &'a str,
    pub(crate) id: &'a str,
    pub(crate) metric: &'a str,
    pub(crate) value: f64,
    /// The kind of text, such as `caption`.
    pub(crate) role: &'a str,
    pub(crate) text: &'a str,
    pub(crate) references: &'a [String],
}

impl ScoredText<'_> {
    /// Formats the text as a table.
    pub(crate) fn to_table(&self) -> String {
        let id = shortened(self.id, TEXT_WIDTH);
        let mut table = TextTable::new(&[(self.kind, Align::Left), (&id, Align::Left)]);
        table.push(vec![self.metric.to_owned(), number(self.value)]);
        table.push(vec![self.role.to_owned(), shortened(self.text, TEXT_WIDTH)]);
        for reference in self.references {
            table.push(vec!["reference".to_owned(), shortened(reference, TEXT_WIDTH)]);
        }
        format!("{table}\n")
    }
}

/// The metric name with spaces: `mean_absolute_error` becomes `mean absolute error`.
pub(crate) fn words(metric: &str) -> String {
    metric.replace('_', " ")
}

/// The heading `95 % interval`.
pub(crate) fn interval_heading(interval: &Interval) -> String {
    let percent = (interval.level * 1e6).round() / 1e4;
    format!("{percent} % interval")
}
