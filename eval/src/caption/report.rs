//! The report of a caption evaluation: metrics with intervals, metrics by domain, and the
//! lowest-scoring images.

use std::collections::HashMap;

use serde::Serialize;

use super::{
    CaptionAnnotations, CaptionMetrics, CaptionOptions, CaptionResults, CaptionScores, METRICS,
    evaluate,
};
use crate::bootstrap::{BootstrapOptions, Resampling, intervals};
use crate::error::EvalError;
use crate::groups::lowest_rows;
use crate::items::{Item, mean_items};
use crate::metric::MetricInfo;
use crate::metric::caption::bleu::BleuStatistics;
use crate::metric::mean::weighted_mean;
use crate::result::{Breakdown, Evaluation, Interval, Measure, ReportOptions};
use crate::text::{self, ScoredText, breakdown, scored_texts_table};

/// Index of CIDEr-D in [`CaptionMetrics::values`].
const CIDER_D: usize = 5;

/// All metrics of an evaluation. The JSON form is [`Evaluation`] with more fields.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CaptionReport {
    /// CIDEr-D (primary) and the other metrics, over all images and by domain.
    #[serde(flatten)]
    pub evaluation: Evaluation,
    /// Warnings about the scores; empty if there are none.
    pub warnings: Vec<String>,
    /// The images with the lowest CIDEr-D, worst first; ties in the order of the annotations.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub worst: Vec<WorstImage>,
    /// CIDEr-D of each image; empty if [`ReportOptions::items`] is false.
    #[serde(skip)]
    pub items: Vec<Item>,
}

/// An image with a low score.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct WorstImage {
    /// The image id.
    pub id: String,
    /// The image's metrics.
    pub metrics: CaptionMetrics,
    /// The predicted caption.
    pub caption: String,
    /// The reference captions.
    pub references: Vec<String>,
}

/// Scores results against annotations. Intervals resample images; CIDEr keeps the document
/// frequencies of the whole data set.
///
/// # Errors
/// as [`evaluate`]; [`EvalError::InvalidOption`]
pub fn report(
    annotations: &CaptionAnnotations,
    results: &CaptionResults,
    caption_options: &CaptionOptions,
    options: &ReportOptions,
) -> Result<CaptionReport, EvalError> {
    options.bootstrap.validate()?;
    let scores = evaluate(annotations, results, caption_options)?;
    let all_images: Vec<usize> = (0..scores.images.len()).collect();
    let mut measures = measures(&scores, &all_images, &scores.corpus, &options.bootstrap);
    let primary = measures.remove(CIDER_D);
    let breakdowns = domain_breakdowns(&scores, &options.bootstrap);
    let mut evaluation = Evaluation::new(primary, measures, breakdowns, options.sources.clone());
    evaluation.normaliser = "ptb, Stanford CoreNLP 3.4.1 as in pycocoevalcap 1.2".to_owned();
    let values: Vec<f64> = scores.images.iter().map(|image| image.metrics.cider_d).collect();
    let ids = scores.images.iter().map(|image| &image.id.0);
    let info = &CaptionMetrics::INFO[CIDER_D];
    let items = mean_items(options, info, &evaluation.normaliser, ids, &values);
    let worst = lowest_rows(&values, f64::INFINITY, options.worst);
    let worst = worst_images(annotations, results, &scores, &worst);
    Ok(CaptionReport { evaluation, warnings: scores.warnings, worst, items })
}

/// The `metrics` of `images`, each with its interval.
fn measures(
    scores: &CaptionScores,
    images: &[usize],
    metrics: &CaptionMetrics,
    options: &BootstrapOptions,
) -> Vec<Measure> {
    let image_values = |metric: usize| -> Vec<f64> {
        images.iter().map(|image| scores.images[*image].metrics.values()[metric]).collect()
    };
    let bleu: Vec<BleuStatistics> =
        images.iter().map(|image| scores.images[*image].bleu_statistics).collect();
    let mean_metrics: Vec<Vec<f64>> = (METRICS - 3..METRICS).map(image_values).collect();
    let resampling = Resampling::by_named_row("image", images.len());
    let intervals = intervals(&resampling, options, |counts| {
        let [bleu_1, bleu_2, bleu_3, bleu_4] = BleuStatistics::of_resample(&bleu, counts).scores();
        let [rouge_l, cider_d, cider] =
            [0, 1, 2].map(|metric| weighted_mean(&mean_metrics[metric], counts));
        [bleu_1, bleu_2, bleu_3, bleu_4, rouge_l, cider_d, cider]
    });
    let measure = |((info, value), interval): ((&MetricInfo, f64), Option<Interval>)| {
        Measure::new(info, images.len(), Ok(value), interval)
    };
    CaptionMetrics::INFO.iter().zip(metrics.values()).zip(intervals).map(measure).collect()
}

/// One table per metric, with one row per domain.
fn domain_breakdowns(scores: &CaptionScores, options: &BootstrapOptions) -> Vec<Breakdown> {
    if scores.domains.is_empty() {
        return Vec::new();
    }
    let domain_measures = |domain: &super::DomainScores| {
        (domain.name.clone(), measures(scores, &domain.images, &domain.metrics, options))
    };
    let domains: Vec<(String, Vec<Measure>)> = scores.domains.iter().map(domain_measures).collect();
    let table = |metric: usize| {
        let rows = domains.iter().map(|(name, measures)| (name.clone(), measures[metric].clone()));
        Breakdown::new("domain", &CaptionMetrics::INFO[metric], rows.collect())
    };
    let order = [CIDER_D].into_iter().chain((0..METRICS).filter(|metric| *metric != CIDER_D));
    order.map(table).collect()
}

fn worst_images(
    annotations: &CaptionAnnotations,
    results: &CaptionResults,
    scores: &CaptionScores,
    order: &[usize],
) -> Vec<WorstImage> {
    if order.is_empty() {
        return Vec::new();
    }
    let annotated: HashMap<_, _> =
        annotations.images.iter().map(|annotated| (&annotated.id, annotated)).collect();
    let results: HashMap<_, _> =
        results.results.iter().map(|result| (&result.image_id, result)).collect();
    let worst_image = |image: &usize| {
        let image = &scores.images[*image];
        let (annotated, result) = (annotated.get(&image.id), results.get(&image.id));
        WorstImage {
            id: image.id.to_string(),
            metrics: image.metrics,
            caption: result.map(|result| result.caption.clone()).unwrap_or_default(),
            references: annotated.map(|image| image.references.clone()).unwrap_or_default(),
        }
    };
    order.iter().map(worst_image).collect()
}

impl CaptionReport {
    /// Formats the report as aligned plain text.
    pub fn to_text(&self) -> String {
        let evaluation = &self.evaluation;
        let heading = format!("Captions, {} images", evaluation.primary.n);
        let scored_texts = self.worst.iter().map(|image| ScoredText {
            id: &image.id,
            value: image.metrics.cider_d,
            text: &image.caption,
            references: &image.references,
        });
        let title = "Lowest-scoring images, by CIDEr-D\n";
        let worst = scored_texts_table(title, ["image", "CIDEr-D", "caption"], scored_texts);
        let parts = evaluation.breakdowns.iter().map(breakdown).chain(worst);
        text::report(&heading, evaluation, &self.warnings, parts)
    }
}
