//! Joined gold rows and predictions, and each metric with its interval.

use std::collections::HashSet;

use super::{GoldRow, PhraseOptions, ResampleUnit};
use crate::bootstrap::{Resampling, interval};
use crate::metric::kendall::{self, WeightedKendall, kendall_tau_b};
use crate::metric::mean::{MEAN_PREDICTION, mean, weighted_mean};
use crate::metric::mean_absolute_error::{self, absolute_errors};
use crate::metric::pearson::{self, WeightedPearson, pearson};
use crate::metric::spearman::{self, WeightedSpearman, spearman};
use crate::metric::{MetricError, MetricInfo, undefined_reason};
use crate::result::Measure;

/// The metrics of a phrase evaluation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PhraseMetric {
    Pearson,
    Spearman,
    Kendall,
    MeanAbsoluteError,
    MeanPrediction,
}

impl PhraseMetric {
    pub(super) fn info(self) -> MetricInfo {
        match self {
            Self::Pearson => pearson::INFO,
            Self::Spearman => spearman::INFO,
            Self::Kendall => kendall::INFO,
            Self::MeanAbsoluteError => mean_absolute_error::INFO,
            Self::MeanPrediction => MEAN_PREDICTION,
        }
    }
}

/// A metric's value, and a function that recomputes it on a resample.
type ValueAndFunction = (f64, Box<dyn Fn(&[u32]) -> f64 + Sync>);

/// Gold rows with their predicted scores, in the same order.
#[derive(Debug)]
pub(super) struct Sample<'a> {
    rows: Vec<&'a GoldRow>,
    gold: Vec<f64>,
    predicted: Vec<f64>,
}

impl<'a> Sample<'a> {
    /// Creates a sample. `rows` and `predicted` must have the same order and length.
    pub(super) fn new(rows: Vec<&'a GoldRow>, predicted: Vec<f64>) -> Self {
        let gold = rows.iter().map(|row| row.score).collect();
        Self { rows, gold, predicted }
    }

    /// The sample of the rows at `positions`.
    pub(super) fn subset(&self, positions: &[usize]) -> Self {
        let rows = positions.iter().map(|&i| self.rows[i]).collect();
        Self::new(rows, positions.iter().map(|&i| self.predicted[i]).collect())
    }

    pub(super) fn rows(&self) -> &[&'a GoldRow] {
        &self.rows
    }

    pub(super) fn gold(&self) -> &[f64] {
        &self.gold
    }

    pub(super) fn predicted(&self) -> &[f64] {
        &self.predicted
    }

    /// Number of distinct anchors.
    pub(super) fn anchors(&self) -> usize {
        self.rows.iter().map(|row| row.anchor.as_str()).collect::<HashSet<_>>().len()
    }

    /// The sampling units of the bootstrap: whole anchors or single rows. With only one anchor,
    /// single rows.
    pub(super) fn resampling(&self, unit: ResampleUnit) -> Resampling {
        match unit {
            ResampleUnit::Row => Resampling::by_row(self.rows.len()),
            ResampleUnit::Anchor => {
                let anchors: Vec<&str> = self.rows.iter().map(|row| row.anchor.as_str()).collect();
                Resampling::by_group("anchor", &anchors)
            }
        }
    }

    /// Computes the metric with its interval, or the reason why it is undefined.
    pub(super) fn measure(&self, metric: PhraseMetric, options: &PhraseOptions) -> Measure {
        let (info, n) = (metric.info(), self.rows.len());
        match self.value_and_function(metric) {
            Err(error) => Measure::new(&info, n, Err(format!("undefined: {error}")), None),
            Ok((value, _)) if value.is_nan() => {
                let names = ("the gold score", "the prediction");
                let reason = undefined_reason(&self.gold, &self.predicted, names.0, names.1);
                Measure::new(&info, n, Err(reason), None)
            }
            Ok((value, of_resample)) => {
                let resampling = self.resampling(options.unit);
                let interval = interval(&resampling, &options.bootstrap, of_resample);
                Measure::new(&info, n, Ok(value), interval)
            }
        }
    }

    fn value_and_function(&self, metric: PhraseMetric) -> Result<ValueAndFunction, MetricError> {
        let (gold, predicted) = (self.gold.as_slice(), self.predicted.as_slice());
        Ok(match metric {
            PhraseMetric::Pearson => {
                let weighted = WeightedPearson::new(gold, predicted)?;
                (pearson(gold, predicted)?, Box::new(move |counts| weighted.value(counts)))
            }
            PhraseMetric::Spearman => {
                let weighted = WeightedSpearman::new(gold, predicted)?;
                (spearman(gold, predicted)?, Box::new(move |counts| weighted.value(counts)))
            }
            PhraseMetric::Kendall => {
                let weighted = WeightedKendall::new(gold, predicted)?;
                (kendall_tau_b(gold, predicted)?, Box::new(move |counts| weighted.value(counts)))
            }
            PhraseMetric::MeanAbsoluteError => {
                let errors = absolute_errors(gold, predicted)?;
                (mean(&errors), Box::new(move |counts| weighted_mean(&errors, counts)))
            }
            PhraseMetric::MeanPrediction => {
                let predicted = predicted.to_vec();
                (mean(&predicted), Box::new(move |counts| weighted_mean(&predicted, counts)))
            }
        })
    }
}
