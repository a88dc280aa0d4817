//! The range of each metric, and the interval of a value that is the same in every resample.
//!
//! All sampling units can have the same result: all answers are correct, or two systems give the
//! same answers. Every resample then gives the value of the sample, and the percentile interval is
//! a point. But the sample is finite, so other units may differ. A proportion of 0 or 1 gets its
//! exact interval (Clopper and Pearson). Any other value gets the rule of three: with 95 %
//! confidence, at most a share of `3 / n` of all units differs from the `n` units of the sample,
//! each by at most the range of the metric. (For another level, the 3 is `-ln(1 - level)`.)

use super::registry::find;
use crate::result::Interval;

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

    /// The range of the metric with this name:
    ///
    /// - `NAME_difference`: the range of a difference of two values of `NAME`;
    /// - a metric in [`METRICS`](super::registry::METRICS): its range in that list;
    /// - any other `A_minus_B`: -1 to 1, as for a difference of two fractions;
    /// - any other name: a proportion from 0 to 1.
    fn of(metric: &str) -> Self {
        if let Some(name) = metric.strip_suffix("_difference") {
            let Self { low, high, .. } = Self::of(name);
            return Self::new(low - high, high - low);
        }
        match find(metric) {
            Some(metric) => metric.range,
            None if metric.contains("_minus_") => Self::new(-1.0, 1.0),
            None => Self::proportion(1.0),
        }
    }
}

/// The interval of a value: `bootstrap_interval` if the resamples differ, otherwise an
/// interval computed from the number of units.
pub(crate) fn interval_or_exact(
    metric: &str,
    value: f64,
    bootstrap_interval: Interval,
) -> Interval {
    let Interval { low, high, level, units, .. } = bootstrap_interval;
    // The tolerance is for rounding: correlations of 1 differ in the last bits.
    let is_point = (high - low).abs() <= 1e-12 * value.abs().max(1.0);
    if !is_point || units == 0 {
        return bootstrap_interval;
    }
    let range = Range::of(metric);
    let is_exact = range.proportion && (value == range.low || value == range.high);
    let n = units as f64;
    let (share, name) = if is_exact {
        (1.0 - ((1.0 - level) / 2.0).powf(1.0 / n), "exact binomial")
    } else {
        ((-(1.0 - level).ln() / n).min(1.0), "rule of three")
    };
    let (_, unit) = bootstrap_interval.method.split_once(" by ").unwrap_or(("", "row"));
    Interval {
        low: value - share * (value - range.low).max(0.0),
        high: value + share * (range.high - value).max(0.0),
        method: format!("{name} by {unit}"),
        ..bootstrap_interval
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

    /// `scipy.stats.binomtest(k, n).proportion_ci(0.95, "exact")`, scipy 1.17.
    #[test]
    fn proportions_of_0_and_1_have_exact_intervals() {
        for (units, high) in [
            (1, 0.975),
            (3, 0.707_598_226_178_713_3),
            (10, 0.308_497_107_818_762_94),
            (276, 0.013_276_583_505_416_486),
            (100_000, 3.688_811_415_754_905e-5),
        ] {
            let none_correct = interval_or_exact("exact_match", 0.0, point_interval(0.0, units));
            assert_eq!(
                (none_correct.low, none_correct.method.as_str()),
                (0.0, "exact binomial by question")
            );
            assert!(
                (none_correct.high / high - 1.0).abs() < 1e-9,
                "{units}: {}",
                none_correct.high
            );
            let all_correct =
                interval_or_exact("multiple_choice", 100.0, point_interval(100.0, units));
            assert!(
                (all_correct.low - 100.0 * (1.0 - high)).abs() < 1e-9 && all_correct.high == 100.0
            );
        }
        let level_90 =
            interval_or_exact("success@5", 0.0, Interval { level: 0.9, ..point_interval(0.0, 10) });
        assert!((level_90.high - 0.258_865_55).abs() < 1e-6, "{}", level_90.high);
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
            let interval = interval_or_exact(metric, value, point_interval(value, 100));
            assert_eq!(interval.method, "rule of three by question");
            assert!((interval.low - low).abs() < 1e-5, "{metric}: {}", interval.low);
            assert!((interval.high - high).abs() < 1e-5, "{metric}: {}", interval.high);
        }
        // With fewer than three units, the interval is the whole range.
        assert_eq!(interval_or_exact("wer", 0.0, point_interval(0.0, 2)).high, 1.0);
    }

    #[test]
    fn an_interval_of_different_limits_is_unchanged() {
        let interval = Interval { low: 0.1, high: 0.2, ..point_interval(0.0, 50) };
        assert_eq!(interval_or_exact("wer", 0.15, interval.clone()), interval);
    }
}
