//! The stable JSON form of an evaluation.
//!
//! A change of names or meanings raises [`SCHEMA_VERSION`]. An undefined value is NaN here and
//! `null` with a `reason` in JSON. It is never 0 and never omitted.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::bootstrap::BootstrapOptions;
use crate::metric::{MetricInfo, Unit, interval_or_exact};
use crate::wer::read::TextFormat;

/// Version of the JSON form written by this crate.
pub const SCHEMA_VERSION: u32 = 1;

/// With fewer sampling units, a percentile interval is rough, and usually too narrow.
pub const MIN_UNITS: usize = 15;

/// A confidence interval and its method.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// Lower limit; NaN if the value is undefined in every resample.
    #[serde(with = "null_for_nan")]
    pub low: f64,
    /// Upper limit; NaN if the value is undefined in every resample.
    #[serde(with = "null_for_nan")]
    pub high: f64,
    /// Confidence level, 0.95 by default.
    pub level: f64,
    /// The method and the sampling unit, such as `percentile bootstrap by anchor`. If all resamples
    /// are equal, the method is `exact binomial` or `rule of three`.
    pub method: String,
    /// Number of sampling units (rows, or groups of rows) in the sample. Below [`MIN_UNITS`], the
    /// interval is rough.
    pub units: usize,
    /// Number of resamples drawn.
    pub resamples: usize,
    /// Number of resamples with an undefined value (NaN), which are ignored.
    pub undefined_resamples: usize,
    /// Seed of the resamples.
    pub seed: u64,
}

impl Interval {
    /// The number of decimals for the limits in a report: `decimals`, or more if the limits would
    /// look equal. With four decimals, for example, both limits of 0 of 100,000 are 0.0000.
    pub fn decimals(&self, decimals: usize) -> usize {
        let differ = |decimals: &usize| {
            format!("{:.decimals$}", self.low) != format!("{:.decimals$}", self.high)
        };
        (decimals..12).find(differ).unwrap_or(decimals)
    }
}

/// One value of a metric, with its definition, its number of rows and its interval.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Measure {
    /// Name of the metric.
    pub metric: String,
    /// Version of the metric's definition.
    pub version: u32,
    /// Whether higher is better; `None` for a descriptive value without a direction.
    pub higher_is_better: Option<bool>,
    /// Unit of the value.
    pub unit: Unit,
    /// The value; NaN if undefined.
    #[serde(with = "null_for_nan")]
    pub value: f64,
    /// The reason why the value is undefined; `None` for a defined value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Lower and upper limit of `interval` if its level is 0.95; `None` without such an interval. A
    /// limit that is not finite is `None`.
    pub ci95: Option<[Option<f64>; 2]>,
    /// Number of rows: utterances, images, questions, …
    pub n: usize,
    /// The interval; `None` without resamples, and for an undefined value.
    pub interval: Option<Interval>,
}

impl Measure {
    /// Creates a measure from a value, or from the reason why it is undefined. A value that is not
    /// finite is undefined. An undefined value has no interval. If all resamples are equal, the
    /// interval becomes exact binomial for a proportion of 0 or 1, and otherwise follows the rule
    /// of three.
    pub fn new(
        metric: &MetricInfo,
        n: usize,
        value: Result<f64, String>,
        interval: Option<Interval>,
    ) -> Self {
        let finite = |value: f64| {
            if value.is_finite() {
                Ok(value)
            } else {
                Err(format!("undefined: the value is {value}"))
            }
        };
        let value = value.and_then(finite);
        let interval = interval.and_then(|bootstrap_interval| {
            Some(interval_or_exact(metric, *value.as_ref().ok()?, bootstrap_interval))
        });
        let finite_limit = |limit: f64| limit.is_finite().then_some(limit);
        let ci95 = interval
            .as_ref()
            .filter(|interval| interval.level == 0.95)
            .map(|interval| [finite_limit(interval.low), finite_limit(interval.high)]);
        Self {
            metric: metric.name.to_string(),
            version: metric.version,
            higher_is_better: metric.higher_is_better,
            unit: metric.unit,
            value: *value.as_ref().unwrap_or(&f64::NAN),
            reason: value.err(),
            ci95,
            n,
            interval,
        }
    }
}

/// One row of a [`Breakdown`]: the value of the metric for one group of rows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BreakdownRow {
    /// Name of the group, such as an anchor or a question type.
    pub name: String,
    /// Number of rows in the group.
    pub n: usize,
    /// The value over the rows of the group; NaN if undefined.
    #[serde(with = "null_for_nan")]
    pub value: f64,
    /// The reason why the value is undefined; `None` for a defined value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The interval; `None` without resamples, and for an undefined value.
    pub interval: Option<Interval>,
}

/// The values of one metric for each group of rows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Breakdown {
    /// Name of the grouping, such as `section`.
    pub name: String,
    /// Name of the metric.
    pub metric: String,
    /// Version of the metric's definition.
    pub version: u32,
    /// Whether higher is better; `None` for a descriptive value without a direction.
    pub higher_is_better: Option<bool>,
    /// Unit of the values.
    pub unit: Unit,
    /// One row per group.
    pub rows: Vec<BreakdownRow>,
}

impl Breakdown {
    /// Builds a table from the name and the value of each group. All values must be of `metric`.
    pub fn new(name: &str, metric: &MetricInfo, groups: Vec<(String, Measure)>) -> Self {
        let row = |(name, measure): (String, Measure)| BreakdownRow {
            name,
            n: measure.n,
            value: measure.value,
            reason: measure.reason,
            interval: measure.interval,
        };
        Self {
            name: name.to_owned(),
            metric: metric.name.to_string(),
            version: metric.version,
            higher_is_better: metric.higher_is_better,
            unit: metric.unit,
            rows: groups.into_iter().map(row).collect(),
        }
    }
}

/// An input file of an evaluation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceFile {
    /// The role of the file in the evaluation, such as `references` or `predictions`.
    pub role: String,
    /// The path as given by the user.
    pub path: String,
    /// Number of rows read from it.
    pub rows: usize,
    /// The format in which texts were read; `None` for other files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub format: Option<TextFormat>,
    /// The columns that were read, such as "id from `path`, text from `sentence`"; `None` if they
    /// have the names of the parts, and without columns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub columns: Option<String>,
}

impl SourceFile {
    /// The format with the columns, such as "tsv, id from `path`"; `None` without a format.
    pub fn read_as(&self) -> Option<String> {
        let columns = self.columns.as_ref().map(|columns| format!(", {columns}"));
        Some(self.format?.name() + &columns.unwrap_or_default())
    }
}

/// Options that most evaluations share.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ReportOptions {
    /// Resamples, confidence level and seed of the intervals.
    pub bootstrap: BootstrapOptions,
    /// Whether the report has the result of each item.
    pub items: bool,
    /// Number of the worst cases to list.
    pub worst: usize,
    /// The input files.
    pub sources: Vec<SourceFile>,
}

/// One evaluation: the primary value, the secondary values and their origin.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Evaluation {
    /// The [`SCHEMA_VERSION`] of the program that wrote this evaluation.
    pub schema_version: u32,
    /// The primary value.
    #[serde(flatten)]
    pub primary: Measure,
    /// Every value by its metric name, the primary value first, `null` for NaN. Some evaluations
    /// add counts or have other names.
    pub detail: Map<String, Value>,
    /// The values of the other metrics.
    pub secondary: Vec<Measure>,
    /// The values of groups of rows; empty for evaluations without groups.
    pub breakdowns: Vec<Breakdown>,
    /// Name and version of the text normaliser or the tokenizer, or `none`.
    pub normaliser: String,
    /// The input files.
    pub sources: Vec<SourceFile>,
}

impl Evaluation {
    /// Builds an evaluation without a text normaliser.
    pub fn new(
        primary: Measure,
        secondary: Vec<Measure>,
        breakdowns: Vec<Breakdown>,
        sources: Vec<SourceFile>,
    ) -> Self {
        let detail = std::iter::once(&primary)
            .chain(&secondary)
            .map(|measure| (measure.metric.clone(), Value::from(measure.value)))
            .collect();
        Self {
            schema_version: SCHEMA_VERSION,
            primary,
            detail,
            secondary,
            breakdowns,
            normaliser: "none".to_owned(),
            sources,
        }
    }
}

/// Writes NaN as `null` and reads it back.
mod null_for_nan {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub fn serialize<S: Serializer>(value: &f64, serializer: S) -> Result<S::Ok, S::Error> {
        value.is_finite().then_some(*value).serialize(serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
        Ok(Option::deserialize(deserializer)?.unwrap_or(f64::NAN))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metric::{mean_absolute_error, pearson};

    fn interval(level: f64) -> Interval {
        Interval {
            low: 0.25,
            high: f64::NAN,
            level,
            method: "percentile bootstrap by row".to_owned(),
            units: 3,
            resamples: 10,
            undefined_resamples: 3,
            seed: 1,
        }
    }

    #[test]
    fn nan_is_written_as_null_with_a_reason_and_read_back() {
        let primary =
            Measure::new(&pearson::INFO, 3, Err("constant".to_owned()), Some(interval(0.95)));
        let error =
            Measure::new(&mean_absolute_error::METRIC.info, 3, Ok(0.5), Some(interval(0.95)));
        let part = Measure::new(&pearson::INFO, 1, Err("one row".to_owned()), None);
        let table = Breakdown::new("section", &pearson::INFO, vec![("A".to_owned(), part)]);
        let written = Evaluation::new(primary, vec![error], vec![table], Vec::new());
        let json = serde_json::to_value(&written).unwrap();
        assert_eq!(json["value"], Value::Null);
        assert_eq!(json["reason"], "constant");
        assert_eq!(json["interval"], Value::Null);
        assert_eq!(
            json["detail"],
            serde_json::json!({"pearson": null, "mean_absolute_error": 0.5})
        );
        assert_eq!(json["secondary"][0]["ci95"], serde_json::json!([0.25, null]));
        assert_eq!(json["breakdowns"][0]["rows"][0]["reason"], "one row");

        let read: Evaluation = serde_json::from_value(json.clone()).unwrap();
        assert!(read.primary.value.is_nan());
        assert_eq!(serde_json::to_value(&read).unwrap(), json);
    }

    #[test]
    fn an_infinite_value_has_a_reason_too() {
        for (value, reason) in [(f64::INFINITY, "inf"), (f64::NAN, "NaN")] {
            let measure = Measure::new(&pearson::INFO, 2, Ok(value), Some(interval(0.95)));
            assert!(measure.value.is_nan() && measure.interval.is_none());
            assert_eq!(measure.reason, Some(format!("undefined: the value is {reason}")));
        }
    }

    #[test]
    fn limits_do_not_look_equal_in_a_report() {
        let of_limits = |low, high| Interval { low, high, ..interval(0.95) };
        assert_eq!(of_limits(0.0, 0.0133).decimals(4), 4);
        let rare = of_limits(0.0, 3.688_811e-5);
        assert_eq!(rare.decimals(4), 5);
        assert_eq!(crate::table::limits(Some(&rare)), "[0.00000, 0.00004]*");
        assert_eq!(crate::table::number_in(1.2e-5, Some(&rare)), "0.00001");
        assert_eq!(of_limits(f64::NAN, f64::NAN).decimals(4), 4);
    }

    #[test]
    fn ci95_is_only_a_95_percent_interval() {
        let measure = Measure::new(&pearson::INFO, 3, Ok(0.5), Some(interval(0.9)));
        assert_eq!(measure.ci95, None);
        assert!(measure.interval.is_some());
    }
}
