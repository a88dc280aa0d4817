//! P-values that agree with a measure's interval, and Holm's correction for several tests.

use crate::bootstrap::{BootstrapOptions, Resampling, bootstrap};
use crate::metric::exact_p_value;
use crate::result::Measure;

/// With fewer resamples than this beyond the threshold, the p-value needs more resamples.
const FEW_RESAMPLES: f64 = 10.0;
/// The factor of the number of resamples for small p-values. Holm's correction multiplies p-values
/// by the number of tests: the smallest p-value of 1000 resamples, 0.002, could not be significant
/// among 26 tests.
const MORE_RESAMPLES: usize = 10;

/// Two-sided p-value of the null hypothesis that the metric is `threshold`. It has the same source
/// as the interval of `measure`, so it is about `1 - level` if the threshold is a limit of the
/// interval:
///
/// - an exact interval: the exact binomial test;
/// - the rule of three: the inverted rule, `exp(-units * share)`, where `share` is the share of all
///   units that has to differ from the sample for the metric to be `threshold`;
/// - a bootstrap interval: the resamples of the interval, as in
///   [`Distribution::p_value`](crate::bootstrap::Distribution::p_value). If fewer than ten of them
///   lie beyond the threshold, ten times as many resamples are drawn.
///
/// `statistic` computes the metric from one count per row, as for the interval. The result is
/// `None` if the measure has no interval, or if no resample has a defined value.
pub fn p_value(
    measure: &Measure,
    threshold: f64,
    resampling: &Resampling,
    statistic: impl Fn(&[u32]) -> f64 + Sync,
) -> Option<f64> {
    let interval = measure.interval.as_ref()?;
    if let Some(p_value) = exact_p_value(measure, threshold) {
        return Some(p_value);
    }
    let of_resamples = |resamples: usize| {
        let options = BootstrapOptions { resamples, level: interval.level, seed: interval.seed };
        bootstrap(resampling, &options, &statistic).p_value(threshold)
    };
    let p_value = of_resamples(interval.resamples);
    let is_small = p_value * interval.resamples as f64 <= 2.0 * FEW_RESAMPLES;
    let p_value =
        if is_small { of_resamples(MORE_RESAMPLES * interval.resamples) } else { p_value };
    p_value.is_finite().then_some(p_value)
}

/// Adjusts the p-values of several tests by Holm's method, in the order of `p_values`. If every
/// test with an adjusted p-value of at most 0.05 is called significant, the probability of any
/// wrong call is at most 0.05, whether or not the tests are independent.
///
/// # Source   S. Holm, "A simple sequentially rejective multiple test procedure", Scandinavian
/// Journal of Statistics 6 (1979)
pub fn holm(p_values: &[f64]) -> Vec<f64> {
    let mut ascending: Vec<usize> = (0..p_values.len()).collect();
    ascending.sort_by(|a, b| p_values[*a].total_cmp(&p_values[*b]));
    let mut adjusted = vec![0.0; p_values.len()];
    let mut largest = 0.0f64;
    for (rank, index) in ascending.into_iter().enumerate() {
        let remaining_tests = (p_values.len() - rank) as f64;
        largest = largest.max((remaining_tests * p_values[index]).min(1.0));
        adjusted[index] = largest;
    }
    adjusted
}

/// Formats a p-value, as `p 0.0123`.
pub fn p_value_text(p_value: f64) -> String {
    if p_value < 0.0001 { "p < 0.0001".to_owned() } else { format!("p {p_value:.4}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bootstrap::interval;
    use crate::metric::mean::{mean, weighted_mean};
    use crate::metric::{MetricInfo, Unit};

    #[test]
    fn holm_is_as_in_statsmodels() {
        let cases = include_str!("../tests/reference/holm_statsmodels.json");
        let cases: Vec<serde_json::Value> = serde_json::from_str(cases).unwrap();
        assert!(cases.len() >= 10);
        for case in cases {
            let numbers = |key: &str| -> Vec<f64> {
                case[key].as_array().unwrap().iter().map(|p| p.as_f64().unwrap()).collect()
            };
            let adjusted = holm(&numbers("p_values"));
            for (actual, expected) in adjusted.iter().zip(numbers("adjusted")) {
                assert!((actual - expected).abs() < 1e-15, "{case}: {adjusted:?}");
            }
        }
        assert!(holm(&[]).is_empty());
    }

    /// The mean of 60 values with an interval, and its p-value at a threshold.
    fn test_of(values: &[f64], threshold: f64) -> (Measure, f64) {
        let info = MetricInfo::higher("score", Unit::Fraction);
        let resampling = Resampling::by_row(values.len());
        let statistic = |counts: &[u32]| weighted_mean(values, counts);
        let interval = interval(&resampling, &BootstrapOptions::default(), statistic);
        let measure = Measure::new(&info, values.len(), Ok(mean(values)), interval);
        let p_value = p_value(&measure, threshold, &resampling, statistic).unwrap();
        (measure, p_value)
    }

    #[test]
    fn p_values_agree_with_the_interval() {
        let values: Vec<f64> = (0..60).map(|i| f64::from(i * 37 % 60) / 60.0).collect();
        let limits = test_of(&values, 0.0).0.interval.unwrap();
        for (limit, outward) in [(limits.low, -0.01), (limits.high, 0.01)] {
            assert!((test_of(&values, limit).1 - 0.05).abs() < 0.005);
            assert!(test_of(&values, limit + outward).1 < 0.05);
            assert!(test_of(&values, limit - outward).1 > 0.05);
        }
        // Small p-values come from ten times as many resamples.
        assert_eq!(test_of(&values, 0.1).1, 2.0 / 10_001.0);
        // Equal values have the p-value of the exact interval.
        assert_eq!(test_of(&[0.0; 10], 0.5).1, 2.0 * 0.5f64.powi(10));
    }

    #[test]
    fn a_small_p_value_is_not_printed_as_0() {
        assert_eq!(
            [0.012_34, 0.000_1, 1e-9].map(p_value_text),
            ["p 0.0123", "p 0.0001", "p < 0.0001"]
        );
    }

    #[test]
    fn a_measure_without_an_interval_has_no_p_value() {
        let info = MetricInfo::higher("score", Unit::Fraction);
        let measure = Measure::new(&info, 3, Ok(0.5), None);
        assert_eq!(p_value(&measure, 0.0, &Resampling::by_row(3), |_| 0.5), None);
    }
}
