//! Mean absolute error.

use super::mean::{mean, weighted_mean};
use super::registry::{FRACTION, Metric, RowMetric};
use super::{MetricError, MetricInfo, Unit, check_lengths};

const INFO: MetricInfo = MetricInfo::lower("mean_absolute_error", Unit::Points);

/// `Σ |xᵢ-yᵢ| / n`, 0 or more. It is meaningful only if both inputs are on the same scale.
pub(crate) const METRIC: Metric = Metric::of_rows(INFO, "", FRACTION, of_rows);

fn of_rows(gold: &[f64], predicted: &[f64]) -> Result<RowMetric, MetricError> {
    check_lengths(&INFO, gold, predicted)?;
    let errors: Vec<f64> = gold.iter().zip(predicted).map(|(x, y)| (x - y).abs()).collect();
    Ok(RowMetric::new(mean(&errors), move |counts| weighted_mean(&errors, counts)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_is_the_mean_absolute_difference() {
        let metric = of_rows(&[0.0, 1.0], &[0.5, 0.75]).unwrap();
        assert_eq!((metric.value, (metric.of_resample)(&[0, 2])), (0.375, 0.25));
        assert!(of_rows(&[0.0], &[]).is_err());
    }
}
