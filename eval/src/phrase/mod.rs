//! Evaluation of phrase similarity. A row is a pair of phrases (anchor and target) in a context,
//! with a gold score. Predictions are joined with the rows by id.
//!
//! The primary metric is Pearson's `r` over all rows, as in the patent phrase competition (not the
//! mean over anchors). Rows with the same anchor are dependent, so intervals resample whole
//! anchors. Pearson's `r` does not change if the predictions are shifted or scaled. The mean
//! absolute error changes, and is meaningful only for predictions on the scale of the gold scores.
//!
//! # Source   arXiv 2208.01171; Kaggle "U.S. Patent Phrase to Phrase Matching" (2022)

mod breakdown;
mod read;
mod sample;
mod text;
mod worst;

use serde::{Deserialize, Serialize};

use read::predicted_scores;
pub use read::{read_gold, read_predictions};
pub use worst::WorstRow;
pub(crate) use worst::z_scores;

use crate::bootstrap::BootstrapOptions;
use crate::compare::{Comparison, compare_pearson};
use crate::error::EvalError;
use crate::items::{Item, Statistic};
use crate::metric::input_warning;
use crate::metric::pearson::{self, pearson};
use crate::metric::registry::{Metric, row_metrics};
use crate::result::{Evaluation, MIN_UNITS, Measure, SourceFile};
use sample::Sample;

/// One rated pair of phrases.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GoldRow {
    /// The row id, unique in the file.
    pub id: String,
    /// The anchor phrase.
    pub anchor: String,
    /// The target phrase, compared with the anchor.
    pub target: String,
    /// The patent class (CPC) that gives the context; its first letter is the section.
    pub context: String,
    /// The similarity from the raters: 0, 0.25, 0.5, 0.75 or 1 in the patent data, any finite
    /// number here.
    pub score: f64,
    /// The raters' class, such as `Synonym`; `None` if the data have none.
    pub rating: Option<String>,
    /// Line number in the file, for error messages; `None` if unknown.
    pub line: Option<u64>,
}

/// One predicted similarity, on any scale.
#[derive(Debug, Clone, PartialEq)]
pub struct Prediction {
    /// The id of the gold row.
    pub id: String,
    /// The predicted similarity, a finite number.
    pub score: f64,
    /// Line number in the file, for error messages; `None` if unknown.
    pub line: Option<u64>,
}

/// The names of gold values and predictions in messages.
const INPUT_NAMES: [&str; 2] = ["the gold score", "the prediction"];

/// Options for [`evaluate`] and [`compare`].
#[derive(Debug, Clone)]
pub struct PhraseOptions {
    /// Resamples, confidence level and seed of the intervals.
    pub bootstrap: BootstrapOptions,
    /// The metrics. The first one is primary.
    pub metrics: Vec<Metric>,
    /// Number of worst rows to list.
    pub worst_rows: usize,
    /// Whether to fill [`PhraseReport::items`].
    pub items: bool,
    /// The gold file, for messages and for the result.
    pub gold_file: String,
    /// The predictions file, for messages and for the result.
    pub predictions_file: String,
}

impl Default for PhraseOptions {
    fn default() -> Self {
        Self {
            bootstrap: BootstrapOptions::default(),
            metrics: row_metrics().cloned().collect(),
            worst_rows: 20,
            items: false,
            gold_file: "gold".to_owned(),
            predictions_file: "predictions".to_owned(),
        }
    }
}

/// All metrics of a phrase evaluation. The JSON form is [`Evaluation`] with three more fields.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PhraseReport {
    /// Pearson (primary), Spearman, Kendall and mean absolute error; by score, rating, section and
    /// anchor.
    #[serde(flatten)]
    pub evaluation: Evaluation,
    /// Number of distinct anchors.
    pub anchors: usize,
    /// Warnings about the scores; empty if there are none.
    pub warnings: Vec<String>,
    /// The rows that lower the correlation most, worst first.
    pub worst_rows: Vec<WorstRow>,
    /// The gold score and the prediction of each row; empty if [`PhraseOptions::items`] is false.
    #[serde(skip)]
    pub items: Vec<Item>,
}

impl PhraseReport {
    /// Formats the report as aligned plain text.
    pub fn to_text(&self) -> String {
        text::render(self)
    }
}

/// Scores predictions against gold rows, joined by id.
///
/// # Errors
/// [`EvalError::Text`] without rows, and for an empty or duplicate id;
/// [`EvalError::MissingPrediction`]; [`EvalError::ExtraPrediction`];
/// [`EvalError::Metric`] for a single row; [`EvalError::InvalidOption`]
pub fn evaluate(
    gold: &[GoldRow],
    predictions: &[Prediction],
    options: &PhraseOptions,
) -> Result<PhraseReport, EvalError> {
    let sample = joined_sample(gold, predictions, options)?;
    let mut measures: Vec<Measure> =
        options.metrics.iter().map(|metric| sample.measure(metric, options)).collect();
    let primary = measures.remove(0);
    let source = |role: &str, path: &str, rows| SourceFile {
        role: role.to_owned(),
        path: path.to_owned(),
        rows,
        format: None,
        columns: None,
    };
    let evaluation = Evaluation::new(
        primary,
        measures,
        breakdown::breakdowns(&sample, options),
        vec![
            source("gold", &options.gold_file, gold.len()),
            source("predictions", &options.predictions_file, predictions.len()),
        ],
    );
    Ok(PhraseReport {
        anchors: sample.anchors(),
        warnings: warnings(&sample, &evaluation),
        worst_rows: worst::worst_rows(&sample, options.worst_rows),
        items: if options.items { items(&sample) } else { Vec::new() },
        evaluation,
    })
}

/// One item per row, with the anchor as its group: intervals resample whole anchors.
fn items(sample: &Sample<'_>) -> Vec<Item> {
    let rows = sample.rows.iter().zip(&sample.predicted);
    rows.map(|(row, prediction)| {
        let statistic = Statistic::Correlation { gold: row.score, prediction: *prediction };
        Item::new(&pearson::INFO, "none", &row.id, Some(&row.anchor), statistic)
    })
    .collect()
}

/// Computes only the primary metric of [`evaluate`]: Pearson's `r` with its interval.
///
/// # Errors
/// as [`evaluate`]
pub fn measure(
    gold: &[GoldRow],
    predictions: &[Prediction],
    options: &PhraseOptions,
) -> Result<Measure, EvalError> {
    Ok(joined_sample(gold, predictions, options)?.measure(&pearson::METRIC, options))
}

/// Joins gold rows and predictions, and runs all checks that precede the metrics.
fn joined_sample<'a>(
    gold: &'a [GoldRow],
    predictions: &[Prediction],
    options: &PhraseOptions,
) -> Result<Sample<'a>, EvalError> {
    options.bootstrap.validate()?;
    let predicted =
        predicted_scores(gold, &options.gold_file, predictions, &options.predictions_file)?;
    let sample = Sample::new(gold.iter().collect(), predicted);
    // Returns an error for a single row. An undefined correlation is not an error.
    pearson(&sample.gold, &sample.predicted)?;
    Ok(sample)
}

/// Compares Pearson's `r` of two systems on the same gold rows. `name_a` and `name_b` are the names
/// of the files of predictions; the result has them as names of the systems.
///
/// # Errors
/// as [`evaluate`]
pub fn compare(
    gold: &[GoldRow],
    name_a: &str,
    a: &[Prediction],
    name_b: &str,
    b: &[Prediction],
    options: &PhraseOptions,
) -> Result<Comparison, EvalError> {
    let predicted_a = predicted_scores(gold, &options.gold_file, a, name_a)?;
    let predicted_b = predicted_scores(gold, &options.gold_file, b, name_b)?;
    let sample = Sample::new(gold.iter().collect(), predicted_a);
    let Sample { gold, predicted, .. } = &sample;
    let resampling = sample.resampling();
    let comparison =
        compare_pearson(gold, predicted, &predicted_b, &resampling, &options.bootstrap)?;
    Ok(Comparison { systems: [name_a, name_b].map(str::to_owned), ..comparison })
}

/// The reason for an undefined or inaccurate correlation, and warnings about its interval.
fn warnings(sample: &Sample<'_>, evaluation: &Evaluation) -> Vec<String> {
    let mut warnings = Vec::new();
    let inputs = [&*sample.gold, &*sample.predicted];
    warnings.extend(input_warning(inputs, INPUT_NAMES).map(|warning| warning.message));
    let Some(interval) = &evaluation.primary.interval else {
        return warnings;
    };
    if sample.anchors() == 1 {
        warnings.push("only one anchor: intervals resample single rows".to_owned());
    } else if interval.units < MIN_UNITS {
        warnings.push(format!("only {} sampling units: intervals are rough", interval.units));
    }
    if interval.undefined_resamples > 0 {
        warnings.push(format!(
            "{} of {} resamples have no Pearson correlation and are excluded from its interval",
            interval.undefined_resamples, interval.resamples
        ));
    }
    warnings
}
