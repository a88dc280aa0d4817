//! The page for benchmarks: the cases with the lowest scores, with their outputs and answers.

use super::cases::{Cases, Cell, Column, Kind, truncated, with_references};
use super::numbers::size;
use super::sections::{self, Report};
use super::writer::Html;
use crate::benchmark::{BenchmarkReport, WorstCase};
use crate::metric::registry::spelling;

/// Maximum length of a question, in characters.
const TEXT_WIDTH: usize = 600;

const COLUMNS: [Column<'static>; 4] = [
    ("case", Kind::Name),
    ("value", Kind::Number),
    ("question", Kind::Reading),
    ("output and correct answers", Kind::Reading),
];

impl BenchmarkReport {
    /// The report as a page: all metrics, groups, the distribution of
    /// [`items`](BenchmarkReport::items), and the cases in [`worst`](BenchmarkReport::worst).
    pub fn to_html(&self) -> String {
        let evaluation = &self.evaluation;
        let primary = spelling(&evaluation.primary.metric);
        let values = sections::item_values(&self.items);
        Report {
            title: &format!("Benchmark {}", self.data),
            lead: format!("{} cases", size(evaluation.primary.n)),
            evaluation,
            warnings: &[],
            items: "cases",
            value_name: &format!("{primary} of a case"),
            values: &values,
            overall: Some("overall"),
            remark: sections::zero_remark(&values, "cases", &primary),
            cases: Cases {
                items: "cases below 1",
                total: values.iter().filter(|value| **value < 1.0).count(),
                order: "by value",
                columns: &COLUMNS,
                rows: self.worst.iter().map(cells).collect(),
                legend: Html::default(),
            },
        }
        .into_html()
    }
}

fn cells(case: &WorstCase) -> Vec<Cell> {
    vec![
        Cell::text(&case.id),
        Cell::number(case.value),
        Cell::Text(truncated(&case.question, TEXT_WIDTH)),
        Cell::Rich(with_references(&case.output, &case.answers)),
    ]
}
