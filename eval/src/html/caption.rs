//! The page for captions: predicted captions with their reference captions.

use super::cases::{Cases, Cell, Column, Kind, with_references};
use super::numbers::size;
use super::page::Page;
use super::sections::{self, Words};
use super::writer::Html;
use crate::caption::report::{CaptionReport, WorstImage};

const WORDS: Words<'static> = Words { value_name: "CIDEr-D of an image", items: "images" };

const COLUMNS: [Column<'static>; 5] = [
    Column { heading: "image", kind: Kind::Name },
    Column { heading: "CIDEr-D", kind: Kind::Number },
    Column { heading: "ROUGE-L", kind: Kind::Number },
    Column { heading: "BLEU-1", kind: Kind::Number },
    Column { heading: "caption and references", kind: Kind::Reading },
];

impl CaptionReport {
    /// The report as a page: metrics, domains, the distribution of [`CaptionReport::items`], and
    /// the images in [`CaptionReport::worst`].
    pub fn to_html(&self) -> String {
        let evaluation = &self.evaluation;
        let lead =
            format!("{} images, tokens by {}", size(evaluation.primary.n), evaluation.normaliser);
        let mut page = Page::new("Captions", &lead);
        sections::first_sections(&mut page, evaluation, &self.warnings, WORDS);
        let values: Vec<f64> = self.items.iter().map(sections::item_value).collect();
        let zero_count = values.iter().filter(|value| **value == 0.0).count();
        let remark = (zero_count > 0).then(|| {
            format!(
                "{} have a CIDEr-D of 0.",
                sections::part_of(zero_count, values.len(), WORDS.items)
            )
        });
        let overall = Some(("overall", evaluation.primary.value));
        sections::distribution(&mut page, &values, WORDS, overall, remark);
        sections::breakdowns(&mut page, evaluation);
        Cases {
            items: WORDS.items,
            total: evaluation.primary.n,
            order: "by CIDEr-D",
            columns: &COLUMNS,
            rows: self.worst.iter().map(cells).collect(),
            legend: Html::default(),
        }
        .write(&mut page);
        page.into_html()
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
