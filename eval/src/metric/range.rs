//! The range of each metric, and the interval of a value that is the same in every resample.
//!
//! All sampling units can have the same result: all answers are correct, or two systems give the
//! same answers. Every resample then gives the value of the sample, and the percentile interval is
//! a point. But the sample is finite, so other units may differ. A proportion of 0 or 1 gets its
//! exact interval (Clopper and Pearson). Any other value gets the rule of three: with 95 %
//! confidence, at most a share of `3 / n` of all units differs from the `n` units of the sample,
//! each by at most the range of the metric. (For another level, the 3 is `-ln(1 - level)`.)
//!
//! The p-values here are the inversions of these intervals: at a limit of a 95 % interval, the
//! p-value is 0.05.

use super::registry::find;
use super::{MetricInfo, Unit};
use crate::result::{Interval, Measure};

/// The names of the methods in [`Interval::method`].
const EXACT_BINOMIAL: &str = "exact binomial";
const RULE_OF_THREE: &str = "rule of three";

/// The range of a metric.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Range {
    /// The lowest value.
    pub low: f64,
    /// The highest usual value; an error rate can be higher.
    pub high: f64,
    /// Whether the metric is a proportion: the share of sampling units with some property.
    pub proportion: bool,
}

impl Range {
    /// The range of a metric that is not a proportion.
    pub const fn new(low: f64, high: f64) -> Self {
        Self { low, high, proportion: false }
    }

    /// The range of a proportion, from 0 to `high`.
    pub const fn proportion(high: f64) -> Self {
        Self { low: 0.0, high, proportion: true }
    }

    /// The range of the metric with this name and unit:
    ///
    /// - `NAME_difference`: the range of a difference of two values of `NAME`;
    /// - a metric in [`METRICS`](super::registry::METRICS): its range in that list;
    /// - any other metric in points, or a count: all numbers;
    /// - any other `A_minus_B`: -1 to 1, as for a difference of two fractions;
    /// - any other name: a proportion from 0 to 1.
    pub(crate) fn of(metric: &str, unit: Unit) -> Self {
        if let Some(name) = metric.strip_suffix("_difference") {
            let Self { low, high, .. } = Self::of(name, unit);
            return Self::new(low - high, high - low);
        }
        match (find(metric), unit) {
            (Some(metric), _) => metric.range,
            (None, Unit::Points | Unit::Count) => Self::new(f64::NEG_INFINITY, f64::INFINITY),
            (None, _) if is_difference(metric) => Self::new(-1.0, 1.0),
            (None, _) => Self::proportion(1.0),
        }
    }
}

/// Whether the metric with this name is the difference of two values.
pub(crate) fn is_difference(metric: &str) -> bool {
    metric.ends_with("_difference") || metric.contains("_minus_")
}

/// The interval of a value: `bootstrap_interval` if the resamples differ, otherwise an
/// interval computed from the number of units.
pub(crate) fn interval_or_exact(
    metric: &MetricInfo,
    value: f64,
    bootstrap_interval: Interval,
) -> Interval {
    let Interval { low, high, level, units, .. } = bootstrap_interval;
    // The tolerance is for rounding: correlations of 1 differ in the last bits.
    let is_point = (high - low).abs() <= 1e-12 * value.abs().max(1.0);
    if !is_point || units == 0 {
        return bootstrap_interval;
    }
    let range = Range::of(&metric.name, metric.unit);
    let is_exact = range.proportion && (value == range.low || value == range.high);
    let n = units as f64;
    let (share, name) = if is_exact {
        (1.0 - ((1.0 - level) / 2.0).powf(1.0 / n), EXACT_BINOMIAL)
    } else {
        ((-(1.0 - level).ln() / n).min(1.0), RULE_OF_THREE)
    };
    let (_, unit) = bootstrap_interval.method.split_once(" by ").unwrap_or(("", "row"));
    Interval {
        low: value - share * (value - range.low).max(0.0),
        high: value + share * (range.high - value).max(0.0),
        method: format!("{name} by {unit}"),
        ..bootstrap_interval
    }
}

/// The two-sided p-value of the null hypothesis that the metric is `threshold`, if the measure's
/// interval is exact or follows the rule of three; `None` for any other interval.
pub(crate) fn exact_p_value(measure: &Measure, threshold: f64) -> Option<f64> {
    let interval = measure.interval.as_ref()?;
    let (method, _) = interval.method.split_once(" by ")?;
    let (range, value, n) =
        (Range::of(&measure.metric, measure.unit), measure.value, interval.units as f64);
    let distance = (threshold - value).abs();
    // The share of all units that has to differ from the sample for the metric to be `threshold`.
    let share = match if threshold > value { range.high - value } else { value - range.low } {
        _ if distance == 0.0 => 0.0,
        largest_distance => distance / largest_distance.max(0.0),
    };
    match method {
        EXACT_BINOMIAL => Some((2.0 * (1.0 - share.min(1.0)).powf(n)).min(1.0)),
        RULE_OF_THREE => Some((-share * n).exp()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point_interval(value: f64, units: usize) -> Interval {
        Interval {
            low: value,
            high: value,
            level: 0.95,
            method: "percentile bootstrap by question".to_owned(),
            units,
            resamples: 1000,
            undefined_resamples: 0,
            seed: 1,
        }
    }

    fn fraction(metric: &'static str) -> MetricInfo {
        MetricInfo::descriptive(metric, Unit::Fraction)
    }

    /// The fixture has the intervals and the p-values of `scipy.stats.binomtest`.
    #[test]
    fn proportions_of_0_and_1_are_as_in_scipy() {
        let cases = include_str!("../../tests/reference/binomial_scipy.json");
        let cases: Vec<serde_json::Value> = serde_json::from_str(cases).unwrap();
        assert!(cases.len() > 20);
        for case in cases {
            let number = |key: &str| case[key].as_f64().unwrap();
            let (units, level, threshold) =
                (case["n"].as_u64().unwrap() as usize, number("level"), number("threshold"));
            let interval_of = |info: &MetricInfo, value: f64| {
                let bootstrap_interval = Interval { level, ..point_interval(value, units) };
                let measure = Measure::new(info, units, Ok(value), Some(bootstrap_interval));
                let interval = measure.interval.clone().unwrap();
                assert_eq!(interval.method, "exact binomial by question");
                (measure, interval)
            };
            let assert_near = |actual: f64, expected: f64| {
                assert!((actual / expected - 1.0).abs() < 1e-9, "{case}: {actual}");
            };
            let share = MetricInfo::higher("exact_match", Unit::Fraction);
            let (none_correct, interval) = interval_of(&share, 0.0);
            assert_eq!(interval.low, 0.0);
            assert_near(interval.high, number("high"));
            assert_near(exact_p_value(&none_correct, threshold).unwrap(), number("p_value"));
            let (all_correct, interval) = interval_of(&crate::aokvqa::MULTIPLE_CHOICE, 100.0);
            assert_eq!(interval.high, 100.0);
            assert_near(100.0 - interval.low, 100.0 * number("high"));
            let p_value = exact_p_value(&all_correct, 100.0 * (1.0 - threshold)).unwrap();
            assert_near(p_value, number("p_value"));
        }
    }

    #[test]
    fn the_p_value_at_a_limit_is_one_minus_the_level() {
        for (metric, value) in [
            ("exact_match", 0.0),
            ("exact_match", 1.0),
            ("wer", 0.0),
            ("wer", 0.25),
            ("pearson_difference", 0.0),
        ] {
            let info = fraction(metric);
            let point = Interval { level: 0.9, ..point_interval(value, 40) };
            let measure = Measure::new(&info, 40, Ok(value), Some(point));
            let interval = measure.interval.clone().unwrap();
            for limit in [interval.low, interval.high].into_iter().filter(|limit| *limit != value) {
                let p_value = exact_p_value(&measure, limit).unwrap();
                assert!((p_value - 0.1).abs() < 1e-9, "{metric} {value} {limit}: {p_value}");
                let beyond = exact_p_value(&measure, value + 2.0 * (limit - value)).unwrap();
                assert!(beyond < 0.02, "{metric} {value}: {beyond}");
            }
            assert_eq!(exact_p_value(&measure, value), Some(1.0));
        }
        let spread = Interval { low: 0.1, high: 0.2, ..point_interval(0.0, 50) };
        let info = MetricInfo::lower("wer", Unit::Fraction);
        assert_eq!(exact_p_value(&Measure::new(&info, 50, Ok(0.15), Some(spread)), 0.3), None);
    }

    #[test]
    fn other_metrics_follow_the_rule_of_three() {
        for (metric, value, low, high) in [
            ("wer", 0.0, 0.0, 0.02996),
            ("wer", 1.0, 0.97004, 1.0),
            ("wer", 1.5, 1.45506, 1.5),
            ("recall@10", 0.5, 0.48502, 0.51498),
            ("cider_d", 0.0, 0.0, 0.29957),
            ("pearson", 1.0, 0.94009, 1.0),
            ("pearson_difference", 0.0, -0.05991, 0.05991),
            ("vqa_accuracy_difference", 0.0, -2.99573, 2.99573),
            ("follow_minus_stay", 1.0, 0.94009, 1.0),
            ("recall@10_difference", 0.0, -0.02996, 0.02996),
            ("chrf", 0.0, 0.0, 2.99573),
            ("chrf++_difference", 0.0, -2.99573, 2.99573),
        ] {
            let info = fraction(metric);
            let interval = interval_or_exact(&info, value, point_interval(value, 100));
            assert_eq!(interval.method, "rule of three by question");
            assert!((interval.low - low).abs() < 1e-5, "{metric}: {}", interval.low);
            assert!((interval.high - high).abs() < 1e-5, "{metric}: {}", interval.high);
        }
        // A score without a known range can be any number.
        let nats = MetricInfo::descriptive("random_minus_gradient", Unit::Points);
        let interval = interval_or_exact(&nats, 0.5, point_interval(0.5, 100));
        assert_eq!((interval.low, interval.high), (f64::NEG_INFINITY, f64::INFINITY));
        // With fewer than three units, the interval is the whole range.
        assert_eq!(interval_or_exact(&fraction("wer"), 0.0, point_interval(0.0, 2)).high, 1.0);
    }
}
