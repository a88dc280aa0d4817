//! Evaluation of phrase similarity: gold scores and predictions of (anchor, target, context) rows, joined by id.
//!
//! The primary figure is Pearson's `r` over all rows, as in the patent phrase competition (not per anchor). Rows of one
//! anchor are alike, so intervals draw whole anchors. Pearson does not see a shift or a scale of the predictions;
//! the mean absolute error does, and says something only for predictions on the gold scale.
//!
//! # Source   arXiv 2208.01171; Kaggle "U.S. Patent Phrase to Phrase Matching" (2022)

mod breakdown;
mod join;
mod read;
mod sample;
mod text;
mod worst;

use serde::{Deserialize, Serialize};

pub use read::{parse_gold, parse_predictions, read_gold, read_predictions};
pub use worst::WorstRow;
pub(crate) use worst::z_scores;

use crate::bootstrap::BootstrapOptions;
use crate::compare::{Comparison, compare_pearson};
use crate::error::EvalError;
use crate::items::{Item, Statistic};
use crate::metric::input_warning;
use crate::metric::pearson::pearson;
use crate::result::{Evaluation, FEW_UNITS, Measure, Provenance, SourceFile};
use sample::{PhraseMetric, Sample};

/// One rated pair of phrases.
#[derive(Debug, Clone, PartialEq)]
pub struct GoldRow {
    /// Identifies the row; unique.
    pub id: String,
    /// The phrase that is compared.
    pub anchor: String,
    /// The phrase that it is compared with.
    pub target: String,
    /// Patent class (CPC) in which they are compared; its first letter is the section.
    pub context: String,
    /// The similarity given by the raters: 0, 0.25, 0.5, 0.75 or 1 in the patent data, any finite number here.
    pub score: f64,
    /// The raters' class (synonym, antonym, …) where the data have it.
    pub rating: Option<String>,
    /// Line in the file that it was read from, for error messages.
    pub line: Option<u64>,
}

/// One predicted similarity, on any scale.
#[derive(Debug, Clone, PartialEq)]
pub struct Prediction {
    /// The id of the gold row.
    pub id: String,
    /// The predicted similarity; finite.
    pub score: f64,
    /// Line in the file that it was read from, for error messages.
    pub line: Option<u64>,
}

/// What a resample draws.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ResampleUnit {
    /// All rows of an anchor together; single rows where there is only one anchor.
    #[default]
    Anchor,
    /// Single rows, as if all were independent: intervals come out too narrow.
    Row,
}

/// Settings of [`evaluate`] and [`compare`].
#[derive(Debug, Clone, PartialEq)]
pub struct PhraseOptions {
    /// Resamples, level and seed of the intervals.
    pub bootstrap: BootstrapOptions,
    /// What a resample draws.
    pub unit: ResampleUnit,
    /// How many of the worst rows to list.
    pub worst_rows: usize,
    /// Whether [`PhraseReport::items`] is filled.
    pub items: bool,
    /// The gold file, for messages and for the result.
    pub gold_file: String,
    /// The predictions' file, for messages and for the result.
    pub predictions_file: String,
    /// The run that made the predictions.
    pub provenance: Provenance,
}

impl Default for PhraseOptions {
    fn default() -> Self {
        Self {
            bootstrap: BootstrapOptions::default(),
            unit: ResampleUnit::default(),
            worst_rows: 20,
            items: false,
            gold_file: "gold".to_owned(),
            predictions_file: "predictions".to_owned(),
            provenance: Provenance::default(),
        }
    }
}

/// All figures of a phrase evaluation. Its JSON form is that of [`Evaluation`] with three more fields.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PhraseReport {
    /// Pearson (primary), Spearman, Kendall and mean absolute error; by score, rating, section and anchor.
    #[serde(flatten)]
    pub evaluation: Evaluation,
    /// Number of distinct anchors.
    pub anchors: usize,
    /// What a reader must know before citing the figures; empty when all is well.
    pub warnings: Vec<String>,
    /// The rows that cost the most correlation, worst first.
    pub worst_rows: Vec<WorstRow>,
    /// What each row adds to the primary figure; empty where it was not asked for.
    #[serde(skip)]
    pub items: Vec<Item>,
}

impl PhraseReport {
    /// The report as aligned plain text.
    pub fn to_text(&self) -> String {
        text::render(self)
    }
}

/// Measures predictions against gold rows, joined by id.
///
/// # Errors   [`EvalError::Empty`]; [`EvalError::EmptyId`]; [`EvalError::DoubledId`]; [`EvalError::BadScore`];
/// [`EvalError::MissingPrediction`]; [`EvalError::ExtraPrediction`]; [`EvalError::Metric`] for a single row;
/// [`EvalError::BadOption`]
pub fn evaluate(
    gold: &[GoldRow],
    predictions: &[Prediction],
    options: &PhraseOptions,
) -> Result<PhraseReport, EvalError> {
    let sample = joined(gold, predictions, options)?;
    let measure = |metric| sample.measure(metric, options);
    let primary = measure(PhraseMetric::Pearson);
    let secondary =
        [PhraseMetric::Spearman, PhraseMetric::Kendall, PhraseMetric::MeanAbsoluteError];
    let secondary = secondary.into_iter().map(measure).collect();
    let source = |role: &str, path: &str, rows| SourceFile {
        role: role.to_owned(),
        path: path.to_owned(),
        rows,
    };
    let evaluation = Evaluation::new(
        primary,
        secondary,
        breakdown::all(&sample, options),
        options.provenance.clone(),
        vec![
            source("gold", &options.gold_file, gold.len()),
            source("predictions", &options.predictions_file, predictions.len()),
        ],
    );
    Ok(PhraseReport {
        anchors: sample.anchors(),
        warnings: warnings(&sample, &evaluation, options),
        worst_rows: worst::worst_rows(&sample, options.worst_rows),
        items: if options.items { items(&sample) } else { Vec::new() },
        evaluation,
    })
}

/// Each row with its anchor, which intervals draw whole.
fn items(sample: &Sample<'_>) -> Vec<Item> {
    let info = PhraseMetric::Pearson.info();
    let rows = sample.rows().iter().zip(sample.predicted());
    rows.map(|(row, prediction)| {
        let statistic = Statistic::Correlation { gold: row.score, prediction: *prediction };
        Item::new(&info, "none", &row.id, Some(&row.anchor), statistic)
    })
    .collect()
}

/// The primary figure of [`evaluate`] alone.
///
/// # Errors   as [`evaluate`]
pub fn measure(
    gold: &[GoldRow],
    predictions: &[Prediction],
    options: &PhraseOptions,
) -> Result<Measure, EvalError> {
    Ok(joined(gold, predictions, options)?.measure(PhraseMetric::Pearson, options))
}

/// Gold rows with their predictions, after every check that comes before a figure.
fn joined<'a>(
    gold: &'a [GoldRow],
    predictions: &[Prediction],
    options: &PhraseOptions,
) -> Result<Sample<'a>, EvalError> {
    options.bootstrap.validate()?;
    let predicted = join::join(gold, &options.gold_file, predictions, &options.predictions_file)?;
    let sample = Sample::new(gold.iter().collect(), predicted);
    // A single row is refused; an undefined correlation is reported.
    pearson(sample.gold(), sample.predicted())?;
    Ok(sample)
}

/// Compares the Pearson correlation of two systems on the same gold rows; a system is its file name and predictions.
///
/// # Errors   as [`evaluate`]
pub fn compare(
    gold: &[GoldRow],
    a: (&str, &[Prediction]),
    b: (&str, &[Prediction]),
    options: &PhraseOptions,
) -> Result<Comparison, EvalError> {
    let predicted_a = join::join(gold, &options.gold_file, a.1, a.0)?;
    let predicted_b = join::join(gold, &options.gold_file, b.1, b.0)?;
    let sample = Sample::new(gold.iter().collect(), predicted_a);
    let resampling = sample.resampling(options.unit);
    let (gold, a_scores) = (sample.gold(), sample.predicted());
    let comparison =
        compare_pearson(gold, a_scores, &predicted_b, &resampling, &options.bootstrap)?;
    Ok(Comparison { systems: [a.0, b.0].map(str::to_owned), ..comparison })
}

/// Findings that leave the figures defined but less certain than they look, and the reason of an undefined one.
fn warnings(sample: &Sample, evaluation: &Evaluation, options: &PhraseOptions) -> Vec<String> {
    let mut warnings = Vec::new();
    if let Some(warning) = input_warning(sample.gold(), sample.predicted()) {
        warnings.push(warning.message("the gold score", "the prediction"));
    }
    let Some(interval) = &evaluation.primary.interval else {
        return warnings;
    };
    if options.unit == ResampleUnit::Anchor && sample.anchors() == 1 {
        warnings.push("only one anchor: intervals draw single rows".to_owned());
    } else if interval.units < FEW_UNITS {
        warnings.push(format!("only {} units to draw: intervals are rough", interval.units));
    }
    if interval.undefined_resamples > 0 {
        warnings.push(format!(
            "{} of {} resamples have no Pearson correlation and are left out of its interval",
            interval.undefined_resamples, interval.resamples
        ));
    }
    warnings
}
