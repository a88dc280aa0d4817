//! Joined gold rows and predictions, and each metric with its interval.

use std::collections::HashSet;

use super::{GoldRow, INPUT_NAMES, PhraseOptions};
use crate::bootstrap::{Resampling, interval};
use crate::metric::registry::Metric;
use crate::metric::undefined_reason;
use crate::result::Measure;

/// Gold rows with their predicted scores, in the same order.
#[derive(Debug)]
pub(super) struct Sample<'a> {
    pub(super) rows: Vec<&'a GoldRow>,
    pub(super) gold: Vec<f64>,
    pub(super) predicted: Vec<f64>,
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

    /// Number of distinct anchors.
    pub(super) fn anchors(&self) -> usize {
        self.rows.iter().map(|row| row.anchor.as_str()).collect::<HashSet<_>>().len()
    }

    /// The sampling units of the bootstrap: whole anchors. With only one anchor, single rows.
    pub(super) fn resampling(&self) -> Resampling {
        let anchors: Vec<&str> = self.rows.iter().map(|row| row.anchor.as_str()).collect();
        Resampling::by_group("anchor", &anchors)
    }

    /// Computes a metric of gold values and predictions with its interval, or the reason why it is
    /// undefined.
    pub(super) fn measure(&self, metric: &Metric, options: &PhraseOptions) -> Measure {
        let undefined = |reason| Measure::new(&metric.info, self.rows.len(), Err(reason), None);
        let Some(of_rows) = metric.of_rows else {
            return undefined("undefined: not a metric of gold scores and predictions".to_owned());
        };
        match of_rows(&self.gold, &self.predicted) {
            Err(error) => undefined(format!("undefined: {error}")),
            Ok(computed) if computed.value.is_nan() => {
                undefined(undefined_reason([&self.gold, &self.predicted], INPUT_NAMES))
            }
            Ok(computed) => {
                let resampling = self.resampling();
                let interval = interval(&resampling, &options.bootstrap, computed.of_resample);
                Measure::new(&metric.info, self.rows.len(), Ok(computed.value), interval)
            }
        }
    }
}
