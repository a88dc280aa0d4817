//! The page for phrase similarity: the pairs of phrases that lower the correlation most.

use super::cases::{Cases, Cell, Column, Kind};
use super::numbers::{fixed, size};
use super::sections::{self, Report};
use super::writer::Html;
use crate::items::Statistic;
use crate::phrase::{PhraseReport, WorstRow, z_scores};

const COLUMNS: [Column<'static>; 7] = [
    ("gold", Kind::Number),
    ("prediction", Kind::Number),
    ("difference", Kind::Number),
    ("context", Kind::Code),
    ("anchor", Kind::Name),
    ("target", Kind::Name),
    ("id", Kind::Name),
];

impl PhraseReport {
    /// The report as a page: metrics, breakdowns, the distribution of [`PhraseReport::items`], and
    /// the rows in [`PhraseReport::worst_rows`].
    pub fn to_html(&self) -> String {
        let evaluation = &self.evaluation;
        let rows = evaluation.primary.n;
        let differences = self.differences();
        let near_count = differences.iter().filter(|difference| difference.abs() <= 0.5).count();
        let remark = format!(
            "Positive: the prediction is too high. {} lie within 0.5 standard deviations.",
            sections::part_of(near_count, differences.len(), "rows")
        );
        let mut legend = Html::default();
        let text = "Difference = prediction − gold score, each in standard deviations from \
                    its mean. Positive: the prediction is too high.";
        legend.leaf("p", &[("class", "note")], text);
        Report {
            title: "Phrase similarity",
            lead: format!("{} rows, {} anchors", size(rows), size(self.anchors)),
            evaluation,
            warnings: &self.warnings,
            items: "rows",
            value_name: "prediction − gold score, in standard deviations",
            values: &differences,
            overall: None,
            remark: Some(remark),
            cases: Cases {
                items: "rows",
                total: rows,
                order: "by absolute difference",
                columns: &COLUMNS,
                rows: self.worst_rows.iter().map(cells).collect(),
                legend,
            },
        }
        .into_html()
    }

    /// Prediction − gold score of each item in standard deviations, as in [`WorstRow::difference`].
    fn differences(&self) -> Vec<f64> {
        let pair = |statistic: &Statistic| match *statistic {
            Statistic::Correlation { gold, prediction } => Some((gold, prediction)),
            _ => None,
        };
        let pairs = self.items.iter().filter_map(|item| pair(&item.statistic));
        let (gold, predicted): (Vec<f64>, Vec<f64>) = pairs.unzip();
        let (Some(gold), Some(predicted)) = (z_scores(&gold), z_scores(&predicted)) else {
            return Vec::new();
        };
        predicted.iter().zip(&gold).map(|(prediction, gold)| prediction - gold).collect()
    }
}

fn cells(row: &WorstRow) -> Vec<Cell> {
    let sign = if row.difference > 0.0 { "+" } else { "" };
    let difference = format!("{sign}{}", fixed(row.difference, 2));
    vec![
        Cell::Number(row.gold, engram_textfile::shortened(&row.gold.to_string(), 8)),
        Cell::number(row.prediction),
        Cell::Number(row.difference, difference),
        Cell::text(&row.context),
        Cell::text(&row.anchor),
        Cell::text(&row.target),
        Cell::text(&row.id),
    ]
}
