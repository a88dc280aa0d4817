//! Spearman's rank correlation, equal to `scipy.stats.spearmanr`.

use super::pearson::{pearson, weighted_pearson};
use super::rank::DenseRanks;
use super::registry::{CORRELATION, Metric, RowMetric};
use super::{MetricError, MetricInfo, Unit, check_lengths};

/// Name, version, direction and unit of the metric.
pub const INFO: MetricInfo = MetricInfo::higher("spearman", Unit::Coefficient);
/// The metric in the list of all metrics.
pub(crate) const METRIC: Metric = Metric::of_rows(INFO, "Spearman", CORRELATION, of_rows);

fn of_rows(gold: &[f64], predicted: &[f64]) -> Result<RowMetric, MetricError> {
    let weighted = WeightedSpearman::new(gold, predicted)?;
    Ok(RowMetric::new(spearman(gold, predicted)?, move |counts| weighted.value(counts)))
}

/// Spearman's `ρ`, in `[-1, 1]`: Pearson's `r` of the average ranks.
///
/// NaN for a constant input, a NaN, or fewer than two rows, as in scipy. Infinities are allowed.
///
/// # Errors
/// [`MetricError::LengthMismatch`]
/// # Source   `scipy.stats.spearmanr` 1.17, statistic only
pub fn spearman(x: &[f64], y: &[f64]) -> Result<f64, MetricError> {
    check_lengths(&INFO, x, y)?;
    if x.len() < 2 {
        return Ok(f64::NAN);
    }
    let (Some(x), Some(y)) = (DenseRanks::new(x), DenseRanks::new(y)) else {
        return Ok(f64::NAN);
    };
    let ones = vec![1; x.ranks.len()];
    pearson(&x.average_ranks(&ones), &y.average_ranks(&ones))
}

/// Spearman's `ρ` of a resample in which row `i` occurs `counts[i]` times, in linear time.
///
/// The rows are sorted once; a resample changes only the number of rows with each distinct value.
#[derive(Debug, Clone)]
pub struct WeightedSpearman {
    /// `None` if an input contains NaN: then the value of every resample is NaN.
    ranks: Option<(DenseRanks, DenseRanks)>,
}

impl WeightedSpearman {
    /// Ranks both inputs.
    ///
    /// # Errors
    /// [`MetricError::LengthMismatch`]
    pub fn new(x: &[f64], y: &[f64]) -> Result<Self, MetricError> {
        check_lengths(&INFO, x, y)?;
        Ok(Self { ranks: DenseRanks::new(x).zip(DenseRanks::new(y)) })
    }

    /// `ρ` of the resample; NaN if one of the inputs is constant or contains NaN.
    ///
    /// `counts` has one entry per row; missing entries count as 0.
    pub fn value(&self, counts: &[u32]) -> f64 {
        match &self.ranks {
            Some((x, y)) => {
                weighted_pearson(&x.average_ranks(counts), &y.average_ranks(counts), counts)
            }
            None => f64::NAN,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_weighted_value_equals_that_of_the_expanded_resample() {
        let (x, y) = ([0.0, 0.5, 0.5, 1.0], [2.0, 1.0, 3.0, 3.0]);
        let weighted = WeightedSpearman::new(&x, &y).unwrap();
        let expected = spearman(&[0.0, 0.0, 0.5, 1.0, 1.0], &[2.0, 2.0, 3.0, 3.0, 3.0]).unwrap();
        assert!((weighted.value(&[2, 0, 1, 2]) - expected).abs() < 1e-12);
        assert!(weighted.value(&[0, 3, 1, 0]).is_nan(), "x is constant");
        assert!(spearman(&[], &[]).unwrap().is_nan() && spearman(&[1.0], &[]).is_err());
    }
}
