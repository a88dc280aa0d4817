//! A page with tables of values and intervals, each on one axis.

use super::forest::{ForestOptions, Row, forest, star_note};
use super::page::Page;
use crate::result::Measure;

/// A table of values under one heading, drawn on one axis.
#[derive(Debug, Clone, Copy)]
pub struct MetricTable<'a> {
    /// The heading.
    pub heading: &'a str,
    /// Heading of the first column: the kind of rows.
    pub row_heading: &'a str,
    /// A note for the reader; may be empty.
    pub note: &'a str,
    /// The name and the measured value of each row.
    pub rows: &'a [(String, Measure)],
    /// A value for comparison, drawn as a dashed line; `None` for no line.
    pub reference: Option<f64>,
}

/// Returns a page with one section per table. `lead` is the text below the title.
///
/// ```
/// use engram_eval::html::{MetricTable, metrics_page};
///
/// let table = MetricTable {
///     heading: "Rows",
///     row_heading: "row",
///     note: "",
///     rows: &[],
///     reference: None,
/// };
/// assert!(metrics_page("Grid", "three seeds", &[table]).starts_with("<!DOCTYPE html>"));
/// ```
pub fn metrics_page(title: &str, lead: &str, tables: &[MetricTable<'_>]) -> String {
    let mut page = Page::new(title, lead);
    for table in tables {
        let rows: Vec<Row<'_>> = table
            .rows
            .iter()
            .map(|(name, measure)| Row { name: name.clone(), ..Row::of_measure(measure) })
            .collect();
        page.section(table.heading, |html| {
            if !table.note.is_empty() {
                html.leaf("p", &[("class", "note")], table.note);
            }
            forest(
                html,
                table.row_heading,
                &rows,
                &ForestOptions { overall: table.reference, show_n: false },
            );
            star_note(html, &rows);
        });
    }
    page.into_html()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metric::{MetricInfo, Unit};

    #[test]
    fn every_value_is_on_the_page_as_text() {
        let info = MetricInfo::higher("exact_match", Unit::Fraction);
        let rows = [("<main>".to_owned(), Measure::new(&info, 10, Ok(0.625), None))];
        let table = MetricTable {
            heading: "Rows",
            row_heading: "row",
            note: "over 3 seeds",
            rows: &rows,
            reference: Some(0.5),
        };
        let page = metrics_page("Grid", "lead", &[table]);
        for part in ["&lt;main&gt;", "0.625", "over 3 seeds", "<svg"] {
            assert!(page.contains(part), "{part}");
        }
    }
}
