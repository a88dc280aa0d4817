//! The page for captions: predicted captions with their reference captions.

use super::cases::{Cases, Cell, Column, Kind, with_references};
use super::numbers::size;
use super::sections::{self, Report};
use super::writer::Html;
use crate::caption::report::{CaptionReport, WorstImage};

const COLUMNS: [Column<'static>; 5] = [
    ("image", Kind::Name),
    ("CIDEr-D", Kind::Number),
    ("ROUGE-L", Kind::Number),
    ("BLEU-1", Kind::Number),
    ("caption and references", Kind::Reading),
];

impl CaptionReport {
    /// The report as a page: metrics, domains, the distribution of [`CaptionReport::items`], and
    /// the images in [`CaptionReport::worst`].
    pub fn to_html(&self) -> String {
        let evaluation = &self.evaluation;
        let values = sections::item_values(&self.items);
        Report {
            title: "Captions",
            lead: format!(
                "{} images, tokens by {}",
                size(evaluation.primary.n),
                evaluation.normaliser
            ),
            evaluation,
            warnings: &self.warnings,
            items: "images",
            value_name: "CIDEr-D of an image",
            values: &values,
            overall: Some("overall"),
            remark: sections::zero_remark(&values, "images", "CIDEr-D"),
            cases: Cases {
                items: "images",
                total: evaluation.primary.n,
                order: "by CIDEr-D",
                columns: &COLUMNS,
                rows: self.worst.iter().map(cells).collect(),
                legend: Html::default(),
            },
        }
        .into_html()
    }
}

fn cells(image: &WorstImage) -> Vec<Cell> {
    let metrics = &image.metrics;
    vec![
        Cell::text(&image.id),
        Cell::number(metrics.cider_d),
        Cell::number(metrics.rouge_l),
        Cell::number(metrics.bleu[0]),
        Cell::Rich(with_references(&image.caption, &image.references)),
    ]
}
