//! Pearson's product-moment correlation, equal to `scipy.stats.pearsonr`.

use super::input::constant_value;
use super::registry::{CORRELATION, Metric, RowMetric};
use super::{MetricError, MetricInfo, Unit, check_lengths};

/// Name, version, direction and unit of the metric.
pub const INFO: MetricInfo = MetricInfo::higher("pearson", Unit::Coefficient);
/// The metric in the list of all metrics.
pub(crate) const METRIC: Metric = Metric::of_rows(INFO, "Pearson", CORRELATION, of_rows);

fn of_rows(gold: &[f64], predicted: &[f64]) -> Result<RowMetric, MetricError> {
    let weighted = WeightedPearson::new(gold, predicted)?;
    Ok(RowMetric::new(pearson(gold, predicted)?, move |counts| weighted.value(counts)))
}

/// Pearson's `r` of two inputs of equal length, in `[-1, 1]`.
///
/// `r = Σ (xᵢ-x̄)/‖x-x̄‖ · (yᵢ-ȳ)/‖y-ȳ‖`, clipped to `[-1, 1]`; exactly ±1 for two rows. The norms
/// are computed after division by the largest value, so tiny and huge values neither underflow nor
/// overflow. A constant input or a NaN gives NaN. An infinite norm gives NaN; scipy divides by the
/// infinite norm and returns 0.
///
/// # Errors
/// [`MetricError::LengthMismatch`]; [`MetricError::TooFewRows`] for fewer than 2 rows
/// # Source   `scipy.stats.pearsonr` 1.17, statistic only
///
/// ```
/// let gold = [0.0, 0.25, 0.5, 0.75, 1.0];
/// let predicted = [0.1, 0.2, 0.2, 0.9, 0.8];
/// let r = engram_eval::metric::pearson::pearson(&gold, &predicted)?;
/// assert!((r - 0.8780541105074453).abs() < 1e-12);
/// # Ok::<(), engram_eval::metric::MetricError>(())
/// ```
pub fn pearson(x: &[f64], y: &[f64]) -> Result<f64, MetricError> {
    check_lengths(&INFO, x, y)?;
    if x.len() < 2 {
        return Err(MetricError::TooFewRows { metric: INFO.name, found: x.len(), needed: 2 });
    }
    if constant_value(x).is_some() || constant_value(y).is_some() {
        return Ok(f64::NAN);
    }
    let (x_mean, x_norm) = centred_norm(x);
    let (y_mean, y_norm) = centred_norm(y);
    if x_norm.is_infinite() || y_norm.is_infinite() {
        return Ok(f64::NAN);
    }
    let r = pairwise_sum(0, x.len(), &|i| ((x[i] - x_mean) / x_norm) * ((y[i] - y_mean) / y_norm));
    let r = r.clamp(-1.0, 1.0);
    Ok(if x.len() == 2 { r.round() } else { r })
}

/// The mean of `values` and the Euclidean norm of the centred values; NaN if any value is NaN.
pub(super) fn centred_norm(values: &[f64]) -> (f64, f64) {
    let mean = pairwise_sum(0, values.len(), &|i| values[i]) / values.len() as f64;
    let largest = values.iter().map(|v| (v - mean).abs()).fold(0.0, f64::max);
    let sum_of_squares = pairwise_sum(0, values.len(), &|i| {
        let scaled = (values[i] - mean) / largest;
        scaled * scaled
    });
    (mean, largest * sum_of_squares.sqrt())
}

/// Sums `term(i)` for `i` in `start..end` in numpy's order of addition, so that means are
/// bit-identical to numpy.
fn pairwise_sum(start: usize, end: usize, term: &impl Fn(usize) -> f64) -> f64 {
    const LANES: usize = 8;
    const BLOCK: usize = 128;
    let count = end - start;
    if count < LANES {
        return (start..end).map(term).fold(0.0, |sum, value| sum + value);
    }
    if count > BLOCK {
        let half = count / 2;
        let middle = start + half - half % LANES;
        return pairwise_sum(start, middle, term) + pairwise_sum(middle, end, term);
    }
    let mut lanes: [f64; LANES] = std::array::from_fn(|lane| term(start + lane));
    let lanes_end = end - count % LANES;
    for base in (start + LANES..lanes_end).step_by(LANES) {
        for (lane, sum) in lanes.iter_mut().enumerate() {
            *sum += term(base + lane);
        }
    }
    let [a, b, c, d, e, f, g, h] = lanes;
    let sum = ((a + b) + (c + d)) + ((e + f) + (g + h));
    (lanes_end..end).map(term).fold(sum, |sum, value| sum + value)
}

/// Pearson's `r` of a resample in which row `i` occurs `counts[i]` times.
///
/// Equals [`pearson`] of the expanded resample up to rounding.
#[derive(Debug, Clone)]
pub struct WeightedPearson {
    x: Vec<f64>,
    y: Vec<f64>,
}

impl WeightedPearson {
    /// Prepares the two inputs: both are centred and divided by their norm, which does not change
    /// `r`.
    ///
    /// # Errors
    /// [`MetricError::LengthMismatch`]
    pub fn new(x: &[f64], y: &[f64]) -> Result<Self, MetricError> {
        check_lengths(&INFO, x, y)?;
        Ok(Self { x: standardised(x), y: standardised(y) })
    }

    /// `r` of the resample; NaN if one of the inputs is constant or the resample is empty.
    ///
    /// `counts` has one entry per row; missing entries count as 0.
    pub fn value(&self, counts: &[u32]) -> f64 {
        weighted_pearson(&self.x, &self.y, counts)
    }
}

/// Centres `values` and divides them by their norm; a constant input stays constant.
fn standardised(values: &[f64]) -> Vec<f64> {
    if constant_value(values).is_some() {
        return vec![0.0; values.len()];
    }
    let (mean, norm) = centred_norm(values);
    values.iter().map(|v| (v - mean) / norm).collect()
}

/// Weighted `r` in two passes: first the means, then the centred sums.
pub(super) fn weighted_pearson(x: &[f64], y: &[f64], counts: &[u32]) -> f64 {
    let Some(first_row) = x.iter().zip(counts).position(|(_, &count)| count > 0) else {
        return f64::NAN;
    };
    let rows = || x.iter().zip(y).zip(counts).map(|((&x, &y), &count)| (x, y, f64::from(count)));
    let (mut total, mut x_sum, mut y_sum) = (0.0, 0.0, 0.0);
    let (mut x_varies, mut y_varies) = (false, false);
    for (x_row, y_row, weight) in rows() {
        total += weight;
        x_sum += weight * x_row;
        y_sum += weight * y_row;
        x_varies |= (weight > 0.0) & (x_row != x[first_row]);
        y_varies |= (weight > 0.0) & (y_row != y[first_row]);
    }
    if !(x_varies && y_varies) {
        return f64::NAN;
    }
    let (x_mean, y_mean) = (x_sum / total, y_sum / total);
    let (mut xx, mut yy, mut xy) = (0.0, 0.0, 0.0);
    for (x_row, y_row, weight) in rows() {
        let (dx, dy) = (x_row - x_mean, y_row - y_mean);
        xx += weight * dx * dx;
        yy += weight * dy * dy;
        xy += weight * dx * dy;
    }
    (xy / (xx.sqrt() * yy.sqrt())).clamp(-1.0, 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_weighted_value_equals_that_of_the_expanded_resample() {
        let x = [0.0, 0.25, 0.5, 0.75, 1.0, 0.25];
        let y = [3.0, 1.0, 4.0, 1.0, 5.0, 9.0];
        let counts = [2, 0, 1, 3, 0, 1];
        let expanded = |values: &[f64]| -> Vec<f64> {
            let copies = values.iter().zip(counts);
            copies.flat_map(|(&v, count)| std::iter::repeat_n(v, count as usize)).collect()
        };
        let expected = pearson(&expanded(&x), &expanded(&y)).unwrap();
        let weighted = WeightedPearson::new(&x, &y).unwrap();
        assert!((weighted.value(&counts) - expected).abs() < 1e-12);
        assert!(WeightedPearson::new(&x, &y[1..]).is_err());
        assert!(weighted.value(&[0; 6]).is_nan());
        assert!(weighted.value(&[4, 0, 0, 0, 0, 0]).is_nan());
        assert!(weighted.value(&[0, 1, 0, 1, 0, 0]).is_nan(), "y is 1 in both rows");
    }

    #[test]
    fn an_infinite_norm_gives_nan() {
        for x in [vec![1.7e308, -1.7e308], vec![1.7e308, -1.7e308, 1.7e308]] {
            assert!(pearson(&x, &x).unwrap().is_nan(), "{x:?}");
        }
        assert_eq!(pearson(&[1e308, -1e307], &[1.0, 2.0]).unwrap(), -1.0);
    }
}
