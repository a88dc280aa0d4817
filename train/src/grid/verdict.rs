//! Verdicts on claims, their p-values, and the correction for the number of claims.

use std::fmt;

use engram_eval::metric::{MetricInfo, Unit};
use engram_eval::result::Measure;
use engram_eval::significance::{holm, p_value_text};
use serde::Serialize;

use super::report::ClaimReport;

/// The largest p-value of a decided claim: 1 minus the level of the intervals.
const MAX_P_VALUE: f64 = 0.05;

/// The outcome of a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Verdict {
    /// The whole 95 % interval of the difference supports the claim.
    #[serde(rename = "holds")]
    Holds,
    /// The whole interval contradicts the claim.
    #[serde(rename = "fails")]
    Fails,
    /// The interval neither supports nor contradicts the claim.
    #[serde(rename = "not decided")]
    NotDecided,
    /// No run was trained that could test the claim.
    #[serde(rename = "untested")]
    Untested,
}

/// The rule that a claim states about a value: [`Better`](Rule::Better),
/// [`NoWorseBy`](Rule::NoWorseBy) and [`Within`](Rule::Within) about the difference of two
/// configurations.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Rule {
    /// The first configuration is better.
    Better,
    /// The first configuration is better, or worse by at most this margin.
    NoWorseBy(f64),
    /// The configurations differ by at most this margin in either direction.
    Within(f64),
    /// The value is above this threshold.
    Above(f64),
    /// The value is at most this threshold.
    AtMost(f64),
}

impl Rule {
    /// The values of the metric at which the rule begins to hold or to fail.
    fn thresholds(self, higher_is_better: Option<bool>) -> [f64; 2] {
        match self {
            Self::Better => [0.0; 2],
            Self::NoWorseBy(margin) if higher_is_better == Some(false) => [margin; 2],
            Self::NoWorseBy(margin) => [-margin; 2],
            Self::Within(margin) => [-margin, margin],
            Self::Above(threshold) | Self::AtMost(threshold) => [threshold; 2],
        }
    }

    /// The threshold of the rule; `None` for a rule with two thresholds.
    pub fn threshold(self, higher_is_better: Option<bool>) -> Option<f64> {
        let [low, high] = self.thresholds(higher_is_better);
        (low == high).then_some(low)
    }

    /// The values for which the rule holds, such as `> 0`, or `< 0` if lower values are better.
    pub fn text(self, higher_is_better: Option<bool>) -> String {
        let is_lower_better = higher_is_better == Some(false);
        match self {
            Self::Better if is_lower_better => "< 0".to_owned(),
            Self::Better => "> 0".to_owned(),
            Self::NoWorseBy(margin) if is_lower_better => format!("≤ {margin}"),
            Self::NoWorseBy(margin) => format!("≥ −{margin}"),
            Self::Within(margin) => format!("−{margin} to {margin}"),
            Self::Above(threshold) => format!("> {threshold}"),
            Self::AtMost(threshold) => format!("≤ {threshold}"),
        }
    }

    /// The p-value of the verdict on a claim with this rule. `p_value_at` returns the two-sided
    /// p-value of the null hypothesis that the metric is a threshold. A claim of equivalence needs
    /// small p-values at both thresholds to hold, and at the nearer one to fail.
    fn p_value(self, measure: &Measure, p_value_at: impl Fn(f64) -> Option<f64>) -> Option<f64> {
        let [low, high] = self.thresholds(measure.higher_is_better);
        match measure.value {
            value if low < high && value < low => p_value_at(low),
            value if low < high && value <= high => Some(p_value_at(low)?.max(p_value_at(high)?)),
            _ => p_value_at(high),
        }
    }
}

/// A measured value, the verdict on a claim about it, and the p-value of the verdict.
#[derive(Debug, Clone, PartialEq)]
pub struct Test {
    /// The measured value, such as the difference of two configurations.
    pub measure: Measure,
    /// The rule that the claim states.
    pub rule: Rule,
    /// The verdict.
    pub verdict: Verdict,
    /// The p-value of the verdict; `None` for a value without an interval.
    pub p_value: Option<f64>,
}

impl Test {
    /// Tests a rule. `p_value_at` returns the two-sided p-value of the null hypothesis that the
    /// metric is a threshold; see [`engram_eval::significance::p_value`].
    pub fn new(
        measure: Measure,
        rule: Rule,
        p_value_at: impl Fn(&Measure, f64) -> Option<f64>,
    ) -> Self {
        Self {
            verdict: Verdict::of(&measure, rule),
            p_value: rule.p_value(&measure, |threshold| p_value_at(&measure, threshold)),
            rule,
            measure,
        }
    }

    /// The result for a claim whose runs were not trained.
    pub fn untested(rule: Rule) -> Self {
        let info = MetricInfo::descriptive("", Unit::Fraction);
        let measure = Measure::new(&info, 0, Err("untested".to_owned()), None);
        Self { measure, rule, verdict: Verdict::Untested, p_value: None }
    }

    /// Tests a rule on a value that was counted and not sampled. Its value alone decides, so it has
    /// no interval.
    pub(super) fn of_count(measure: Measure, rule: Rule) -> Self {
        let measure = Measure { interval: None, ci95: None, ..measure };
        let verdict = Verdict::within([measure.value; 2], measure.higher_is_better, rule);
        Self { measure, rule, verdict, p_value: None }
    }

    /// The values for which the rule holds, such as `> 0`.
    pub fn rule_text(&self) -> String {
        self.rule.text(self.measure.higher_is_better)
    }
}

/// The p-value and the verdict of a claim after Holm's correction for all claims of a report.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Corrected {
    /// The adjusted p-value.
    pub p_value: f64,
    /// The claim's own verdict if the adjusted p-value is at most 0.05; otherwise not decided.
    pub verdict: Verdict,
}

impl Corrected {
    /// Corrects the verdicts of all claims of a report. A claim without a p-value needs no test.
    pub fn correct(claims: &mut [ClaimReport]) {
        let tests = claims.iter_mut().filter(|claim| claim.test.p_value.is_some());
        let mut tests: Vec<&mut ClaimReport> = tests.collect();
        let p_values: Vec<f64> = tests.iter().filter_map(|claim| claim.test.p_value).collect();
        for (claim, p_value) in tests.iter_mut().zip(holm(&p_values)) {
            let is_significant = p_value <= MAX_P_VALUE;
            let verdict = if is_significant { claim.test.verdict } else { Verdict::NotDecided };
            claim.holm = Some(Self { p_value, verdict });
        }
    }
}

impl Verdict {
    /// The verdict for a value, such as a difference. A value without an interval decides nothing.
    pub fn of(value: &Measure, rule: Rule) -> Self {
        match &value.interval {
            Some(interval) => {
                Self::within([interval.low, interval.high], value.higher_is_better, rule)
            }
            None => Self::NotDecided,
        }
    }

    /// The verdict for a value between two bounds. The claim holds if the whole range follows the
    /// rule, and fails if the whole range breaks it. For metrics such as error rates, lower is
    /// better.
    fn within([start, end]: [f64; 2], higher_is_better: Option<bool>, rule: Rule) -> Self {
        let (low, high) = match higher_is_better {
            Some(false) => (-end, -start),
            _ => (start, end),
        };
        let (holds, fails) = match rule {
            Rule::Above(threshold) => (start > threshold, end < threshold),
            Rule::AtMost(threshold) => (end <= threshold, start > threshold),
            Rule::Better => (low > 0.0, high < 0.0),
            Rule::NoWorseBy(margin) => (low >= -margin, high < -margin),
            Rule::Within(margin) => {
                (low >= -margin && high <= margin, low > margin || high < -margin)
            }
        };
        match (holds, fails) {
            (true, _) => Self::Holds,
            (_, true) => Self::Fails,
            _ => Self::NotDecided,
        }
    }

    /// The name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Holds => "holds",
            Self::Fails => "fails",
            Self::NotDecided => "not decided",
            Self::Untested => "untested",
        }
    }
}

impl fmt::Display for Corrected {
    /// Formats the verdict and the adjusted p-value, as `holds (p 0.0120)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.verdict.name(), p_value_text(self.p_value))
    }
}

/// A note on multiple tests for a report with this number of tests.
pub fn multiple_testing_note(tests: usize) -> String {
    format!(
        "Verdicts use each claim's own 95 % interval: if no claim had a true effect, about {:.1} \
         of {tests} would still be decided by chance. After Holm's correction, the probability of \
         one or more such decisions in this report is at most 5 %.",
        tests as f64 * MAX_P_VALUE
    )
}

#[cfg(test)]
mod tests {
    use engram_eval::bootstrap::{BootstrapOptions, Resampling, interval};
    use engram_eval::metric::mean::{mean, weighted_mean};
    use engram_eval::significance::p_value;

    use super::*;

    fn test_of(info: &MetricInfo, values: &[f64], rule: Rule) -> Test {
        let resampling = Resampling::by_row(values.len());
        let statistic = |counts: &[u32]| weighted_mean(values, counts);
        let interval = interval(&resampling, &BootstrapOptions::default(), statistic);
        let measure = Measure::new(info, values.len(), Ok(mean(values)), interval);
        Test::new(measure, rule, |measure, threshold| {
            p_value(measure, threshold, &resampling, statistic)
        })
    }

    /// 100 differences around `centre`.
    fn differences(centre: f64) -> Vec<f64> {
        (0..100).map(|i| centre + f64::from(i * 37 % 100) / 100.0 - 0.495).collect()
    }

    #[test]
    fn verdicts_agree_with_p_values() {
        let higher = MetricInfo::higher("score_difference", Unit::Fraction);
        let lower = MetricInfo::lower("wer_difference", Unit::Fraction);
        for centre in [-0.3, -0.08, -0.03, 0.0, 0.03, 0.08, 0.3] {
            for rule in [
                Rule::Better,
                Rule::NoWorseBy(0.1),
                Rule::Within(0.2),
                Rule::Above(0.1),
                Rule::AtMost(0.05),
            ] {
                for info in [&higher, &lower] {
                    let test = test_of(info, &differences(centre), rule);
                    let is_decided = test.verdict != Verdict::NotDecided;
                    let p_value = test.p_value.unwrap();
                    assert_eq!(is_decided, p_value <= 0.05, "{rule:?} {centre} {p_value}");
                }
            }
        }
    }

    #[test]
    fn a_share_of_0_of_276_does_not_decide_at_most_one_percent() {
        let info = MetricInfo::lower("shown_name_in_text", Unit::Fraction);
        let test = |count| test_of(&info, &vec![0.0; count], Rule::AtMost(0.01));
        let undecided = test(276);
        let interval = undecided.measure.interval.as_ref().unwrap();
        assert_eq!(interval.method, "exact binomial by row");
        assert!((interval.high - 0.013_277).abs() < 1e-6, "{interval:?}");
        assert_eq!(undecided.verdict, Verdict::NotDecided);
        assert!((undecided.p_value.unwrap() - 2.0 * 0.99f64.powi(276)).abs() < 1e-12);
        assert_eq!(test(400).verdict, Verdict::Holds);
        // All of the items.
        assert_eq!(test_of(&info, &[1.0; 10], Rule::AtMost(0.01)).verdict, Verdict::Fails);
        assert_eq!(test_of(&info, &[1.0; 10], Rule::Above(0.5)).verdict, Verdict::Holds);
        assert_eq!(test_of(&info, &[1.0; 4], Rule::Above(0.5)).verdict, Verdict::NotDecided);
    }

    #[test]
    fn holms_correction_can_only_withdraw_a_verdict() {
        let claims = [
            (Some(0.01), Verdict::Holds, Some((0.03, Verdict::Holds))),
            (Some(0.04), Verdict::Holds, Some((0.08, Verdict::NotDecided))),
            (Some(0.001), Verdict::Fails, Some((0.004, Verdict::Fails))),
            (None, Verdict::Holds, None),
            (Some(0.3), Verdict::NotDecided, Some((0.3, Verdict::NotDecided))),
            (None, Verdict::Untested, None),
        ];
        let row = "id = \"a\"\nclaim = \"b\"\nbetter = \"c\"\nworse = \"d\"";
        let claim: super::super::ClaimSettings = toml::from_str(row).unwrap();
        let mut reports: Vec<ClaimReport> = claims
            .iter()
            .map(|(p_value, verdict, _)| {
                let test =
                    Test { p_value: *p_value, verdict: *verdict, ..Test::untested(Rule::Better) };
                claim.with_results(String::new(), test, 1, Vec::new())
            })
            .collect();
        Corrected::correct(&mut reports);
        for (report, (_, _, expected)) in reports.iter().zip(claims) {
            let expected = expected.map(|(p_value, verdict)| Corrected { p_value, verdict });
            assert_eq!(report.holm, expected);
        }
    }

    #[test]
    fn rules_have_a_text_for_the_direction_of_the_metric() {
        for (rule, higher, lower) in [
            (Rule::Better, "> 0", "< 0"),
            (Rule::NoWorseBy(0.01), "≥ −0.01", "≤ 0.01"),
            (Rule::Within(0.01), "−0.01 to 0.01", "−0.01 to 0.01"),
            (Rule::Above(0.5), "> 0.5", "> 0.5"),
            (Rule::AtMost(0.01), "≤ 0.01", "≤ 0.01"),
        ] {
            assert_eq!(
                (rule.text(Some(true)).as_str(), rule.text(Some(false)).as_str()),
                (higher, lower)
            );
        }
        assert_eq!(Rule::NoWorseBy(0.01).threshold(Some(false)), Some(0.01));
        assert_eq!(Rule::Within(0.01).threshold(None), None);
    }
}
