//! Parts of plain text reports that all evaluations share.

use std::fmt::Write as _;

use engram_textfile::shortened;

use crate::result::{Breakdown, BreakdownRow, Evaluation, Interval, MIN_UNITS};
use crate::table::{TextTable, limits, number, number_in};

/// Maximum width of a group name, in characters.
const GROUP_WIDTH: usize = 40;
/// Maximum width of a scored text, in characters; the JSON report has the whole text.
const TEXT_WIDTH: usize = 200;

/// Formats a report: a heading with the input files, the metrics, the warnings and `parts`, with
/// blank lines between them.
pub(crate) fn report(
    heading: &str,
    evaluation: &Evaluation,
    warnings: &[String],
    parts: impl IntoIterator<Item = String>,
) -> String {
    let heading = format!("{heading}\n{}", sources(evaluation));
    let warnings = warnings.iter().map(|warning| format!("Warning: {warning}.\n"));
    let paragraphs = [heading, metrics(evaluation)].into_iter().chain(warnings).chain(parts);
    paragraphs.collect::<Vec<_>>().join("\n")
}

/// Formats the list of input files, with the formats as which they were read.
pub(crate) fn sources(evaluation: &Evaluation) -> String {
    let mut text = String::new();
    for source in &evaluation.sources {
        let format = source.read_as().map_or_else(String::new, |format| format!(" ({format})"));
        let _ = writeln!(text, "{:<12} {}{format}", source.role, source.path);
    }
    text
}

/// Formats the values with their intervals as a table, followed by the method of the intervals.
pub(crate) fn metrics(evaluation: &Evaluation) -> String {
    let measures = || std::iter::once(&evaluation.primary).chain(&evaluation.secondary);
    let first_interval = measures().find_map(|measure| measure.interval.as_ref());
    let interval_heading = first_interval.map_or_else(|| "interval".to_owned(), interval_heading);
    // Fractions and coefficients need no unit.
    let has_units = measures().any(|measure| !measure.unit.label().is_empty());
    let mut table = if has_units {
        TextTable::new("lrlll", &["metric", "value", "unit", &interval_heading, "better"])
    } else {
        TextTable::new("lrll", &["metric", "value", &interval_heading, "better"])
    };
    for measure in measures() {
        let better =
            measure.higher_is_better.map_or("", |higher| if higher { "higher" } else { "lower" });
        let mut cells = vec![
            words(&measure.metric),
            number_in(measure.value, measure.interval.as_ref()),
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
            "Intervals: {}, {} resamples, seed {}; * rough: fewer than {MIN_UNITS} sampling units.\n",
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
    format!("By {}\n{}", table.name, group_table(table, table.rows.iter(), GROUP_WIDTH))
}

/// The tables of one grouping, each of another metric, as one table. Several metrics have no
/// intervals there, because a line would be too long.
pub(crate) fn breakdowns(tables: &[Breakdown]) -> String {
    let [first, ..] = tables else { return String::new() };
    if tables.len() == 1 {
        return breakdown(first);
    }
    let metrics: Vec<String> = tables.iter().map(|table| words(&table.metric)).collect();
    let header = [&first.name, "n"].into_iter().chain(metrics.iter().map(String::as_str));
    let columns = format!("lr{}", "r".repeat(metrics.len()));
    let mut text = TextTable::new(&columns, &header.collect::<Vec<_>>());
    for row in &first.rows {
        let value = |table: &Breakdown| {
            let row = table.rows.iter().find(|other| other.name == row.name);
            row.map_or(String::new(), |row| number_in(row.value, row.interval.as_ref()))
        };
        let values = tables.iter().map(value);
        let name = shortened(&row.name, GROUP_WIDTH);
        text.push([name, row.n.to_string()].into_iter().chain(values).collect());
    }
    format!("By {}\n{text}", first.name)
}

/// A table of some groups of a breakdown, with names of at most `width` characters.
pub(crate) fn group_table<'r>(
    table: &Breakdown,
    groups: impl Iterator<Item = &'r BreakdownRow>,
    width: usize,
) -> TextTable {
    let mut text = TextTable::new("lrrl", &[&table.name, "n", &words(&table.metric), "interval"]);
    for row in groups {
        let (value, limits) =
            (number_in(row.value, row.interval.as_ref()), limits(row.interval.as_ref()));
        text.push(vec![shortened(&row.name, width), row.n.to_string(), value, limits]);
    }
    text
}

/// A text with its score and its references.
pub(crate) struct ScoredText<'a> {
    pub(crate) id: &'a str,
    pub(crate) value: f64,
    pub(crate) text: &'a str,
    pub(crate) references: &'a [String],
}

/// Formats texts with their scores, each as a table; `None` without texts. `kind` names the id
/// (`image`), and `role` the text (`caption`).
pub(crate) fn scored_texts_table<'a>(
    title: &str,
    [kind, metric, role]: [&str; 3],
    texts: impl Iterator<Item = ScoredText<'a>>,
) -> Option<String> {
    let mut tables = String::new();
    for ScoredText { id, value, text, references } in texts {
        let id = shortened(id, TEXT_WIDTH);
        let mut table = TextTable::new("ll", &[kind, &id]);
        table.push(vec![metric.to_owned(), number(value)]);
        table.push(vec![role.to_owned(), shortened(text, TEXT_WIDTH)]);
        for reference in references {
            table.push(vec!["reference".to_owned(), shortened(reference, TEXT_WIDTH)]);
        }
        let _ = writeln!(tables, "{table}");
    }
    (!tables.is_empty()).then(|| format!("{title}{tables}"))
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
