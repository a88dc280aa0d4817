//! The rows that lower the correlation most.

use serde::{Deserialize, Serialize};

use super::sample::Sample;
use crate::metric::mean::mean;

/// A row, and the z-scores of its gold score and its prediction.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WorstRow {
    /// The row id.
    pub id: String,
    /// The anchor phrase.
    pub anchor: String,
    /// The target phrase.
    pub target: String,
    /// The patent class (CPC) that gives the context.
    pub context: String,
    /// The gold score.
    pub gold: f64,
    /// The prediction as given.
    pub prediction: f64,
    /// Gold score in standard deviations from the mean gold score.
    pub gold_z: f64,
    /// Prediction in standard deviations from the mean prediction.
    pub prediction_z: f64,
    /// `prediction_z - gold_z`: positive if the model overrates the similarity.
    pub difference: f64,
}

/// The `count` rows with the largest absolute difference of z-scores, worst first. No rows if all
/// gold scores are equal or all predictions are equal.
///
/// The mean of the squared differences is `2(1 - r)`, so a row's squared difference is proportional
/// to its share of `1 - r`.
pub(super) fn worst_rows(sample: &Sample, count: usize) -> Vec<WorstRow> {
    let (gold_z, prediction_z) = (z_scores(&sample.gold), z_scores(&sample.predicted));
    let (Some(gold_z), Some(prediction_z)) = (gold_z, prediction_z) else {
        return Vec::new();
    };
    let difference = |i: usize| prediction_z[i] - gold_z[i];
    let mut order: Vec<usize> = (0..gold_z.len()).collect();
    order.sort_by(|&a, &b| difference(b).abs().total_cmp(&difference(a).abs()));
    order.truncate(count);
    let worst_row = |i: usize| {
        let row = sample.rows[i];
        WorstRow {
            id: row.id.clone(),
            anchor: row.anchor.clone(),
            target: row.target.clone(),
            context: row.context.clone(),
            gold: row.score,
            prediction: sample.predicted[i],
            gold_z: gold_z[i],
            prediction_z: prediction_z[i],
            difference: difference(i),
        }
    };
    order.into_iter().map(worst_row).collect()
}

/// Z-scores, with the standard deviation that divides by `n`; `None` if all values are equal.
pub(crate) fn z_scores(values: &[f64]) -> Option<Vec<f64>> {
    let mean_value = mean(values);
    let squares: Vec<f64> = values.iter().map(|v| (v - mean_value).powi(2)).collect();
    let standard_deviation = mean(&squares).sqrt();
    (standard_deviation > 0.0)
        .then(|| values.iter().map(|v| (v - mean_value) / standard_deviation).collect())
}
