//! Mean absolute error.

use super::mean::mean;
use super::{MetricError, MetricInfo, Unit, check_lengths};

/// Name, version, direction and unit of the metric.
pub const INFO: MetricInfo = MetricInfo::lower("mean_absolute_error", Unit::Points);

/// `Σ |xᵢ-yᵢ| / n`, 0 or more; NaN if there are no rows.
///
/// The error is meaningful only if both inputs are on the same scale.
///
/// # Errors
/// [`MetricError::LengthMismatch`]
pub fn mean_absolute_error(x: &[f64], y: &[f64]) -> Result<f64, MetricError> {
    absolute_errors(x, y).map(|errors| mean(&errors))
}

/// `|xᵢ-yᵢ|` of each row.
///
/// # Errors
/// [`MetricError::LengthMismatch`]
pub fn absolute_errors(x: &[f64], y: &[f64]) -> Result<Vec<f64>, MetricError> {
    check_lengths(&INFO, x, y)?;
    Ok(x.iter().zip(y).map(|(x, y)| (x - y).abs()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_is_the_mean_absolute_difference() {
        assert_eq!(mean_absolute_error(&[0.0, 1.0], &[0.5, 0.75]).unwrap(), 0.375);
        assert!(mean_absolute_error(&[0.0], &[]).is_err());
    }
}
