//! Formats the report as aligned plain text.

use engram_textfile::shortened;

use super::{PhraseReport, WorstRow};
use crate::result::{Breakdown, BreakdownRow, Interval, MIN_UNITS};
use crate::table::{TextTable, limits, number, number_in};
use crate::text::{self, words};

/// Number of lowest and of highest anchors in the text; the JSON report has all anchors.
const ANCHORS_SHOWN: usize = 5;
/// Maximum length of a phrase in a table, in characters.
const PHRASE_WIDTH: usize = 32;

/// The whole report, one paragraph per table.
pub(super) fn render(report: &PhraseReport) -> String {
    let evaluation = &report.evaluation;
    let (rows, anchors) = (evaluation.primary.n, report.anchors);
    let heading = format!("Phrase similarity, {rows} rows, {anchors} anchors");
    let groupings = evaluation.breakdowns.chunk_by(|a, b| a.name == b.name);
    let tables = groupings.map(|grouping| match grouping {
        [anchors] if anchors.name == "anchor" => worst_and_best_anchors(anchors),
        tables => metrics_table(tables, evaluation.primary.interval.as_ref()),
    });
    let worst = (!report.worst_rows.is_empty()).then(|| worst_rows(&report.worst_rows));
    text::report(&heading, evaluation, &report.warnings, tables.chain(worst))
}

/// Merges tables with the same groups into one table, with two columns per metric: its value and
/// its interval.
///
/// An interval gets a star if it has too few sampling units. It also gets a star if its group has a
/// single anchor: it then resamples rows, although `overall` resamples anchors.
fn metrics_table(tables: &[Breakdown], overall: Option<&Interval>) -> String {
    let limits_with_star = |interval: &Interval| {
        let other_method = overall.is_some_and(|overall| overall.method != interval.method);
        let star = if other_method && interval.units >= MIN_UNITS { "*" } else { "" };
        limits(Some(interval)) + star
    };
    let metrics: Vec<String> = tables.iter().map(|table| words(&table.metric)).collect();
    let mut headings = vec![tables[0].name.as_str(), "n"];
    headings.extend(metrics.iter().flat_map(|metric| [metric.as_str(), "interval"]));
    let mut table = TextTable::new(&("lr".to_owned() + &"rl".repeat(metrics.len())), &headings);
    for (position, group) in tables[0].rows.iter().enumerate() {
        let mut cells = vec![shortened(&group.name, PHRASE_WIDTH + 8), group.n.to_string()];
        for row in tables.iter().filter_map(|table| table.rows.get(position)) {
            let limits = row.interval.as_ref().map_or_else(String::new, limits_with_star);
            cells.extend([number_in(row.value, row.interval.as_ref()), limits]);
        }
        table.push(cells);
    }
    format!("By {}\n{table}", tables[0].name)
}

fn worst_and_best_anchors(table: &Breakdown) -> String {
    let (undefined, defined): (Vec<&BreakdownRow>, Vec<&BreakdownRow>) =
        table.rows.iter().partition(|row| row.value.is_nan());
    let metric = words(&table.metric);
    let best_start = defined.len().saturating_sub(ANCHORS_SHOWN).max(ANCHORS_SHOWN);
    let worst = defined.iter().take(ANCHORS_SHOWN);
    let shown = worst.chain(defined.iter().skip(best_start)).copied();
    let text = text::group_table(table, shown, PHRASE_WIDTH);
    let mean = defined.iter().map(|row| row.value).sum::<f64>() / defined.len() as f64;
    format!(
        "By {}, worst and best {ANCHORS_SHOWN} of {}; mean {metric} {}, undefined for {}\n{text}",
        table.name,
        table.rows.len(),
        number(mean),
        undefined.len(),
    )
}

fn worst_rows(rows: &[WorstRow]) -> String {
    let headings = ["gold", "prediction", "difference", "context", "anchor", "target", "id"];
    let mut table = TextTable::new("rrrllll", &headings);
    for row in rows {
        table.push(vec![
            row.gold.to_string(),
            number(row.prediction),
            format!("{:+.2}", row.difference),
            shortened(&row.context, PHRASE_WIDTH),
            shortened(&row.anchor, PHRASE_WIDTH),
            shortened(&row.target, PHRASE_WIDTH),
            shortened(&row.id, PHRASE_WIDTH),
        ]);
    }
    format!("Worst {} rows, by prediction − gold in standard deviations\n{table}", rows.len())
}
