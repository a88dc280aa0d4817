//! The mean of values per row, and of a bootstrap resample.

use super::registry::{FRACTION, Metric, RowMetric};
use super::{MetricError, MetricInfo, Unit};

/// The mean prediction over the rows of a score class: a descriptive value without a direction.
pub(crate) const MEAN_PREDICTION: Metric = Metric::of_rows(
    MetricInfo::descriptive("mean_prediction", Unit::Points),
    "",
    FRACTION,
    mean_prediction,
);
/// The mean of any values.
pub const MEAN: MetricInfo = MetricInfo::descriptive("mean", Unit::Points);

fn mean_prediction(_: &[f64], predicted: &[f64]) -> Result<RowMetric, MetricError> {
    let predicted = predicted.to_vec();
    Ok(RowMetric::new(mean(&predicted), move |counts| weighted_mean(&predicted, counts)))
}

/// Mean of `values`; NaN if there are none.
pub fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// Mean of a resample in which row `i` occurs `counts[i]` times; NaN if it is empty.
pub fn weighted_mean(values: &[f64], counts: &[u32]) -> f64 {
    let mut total = 0.0;
    let mut sum = 0.0;
    for (&value, &count) in values.iter().zip(counts) {
        total += f64::from(count);
        sum += f64::from(count) * value;
    }
    sum / total
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_weights_and_a_mean_of_nothing_is_nan() {
        assert_eq!(mean(&[1.0, 2.0, 6.0]), 3.0);
        assert_eq!(weighted_mean(&[1.0, 2.0, 6.0], &[2, 1, 0]), 4.0 / 3.0);
        assert!(mean(&[]).is_nan());
        assert!(weighted_mean(&[1.0], &[0]).is_nan());
    }
}
