//! Comparison of two systems on the same items.
//!
//! Both systems are scored on the same bootstrap resamples, so the difficulty of each item cancels
//! out. The interval of the difference is usually much narrower than the two separate intervals
//! suggest.

use engram_textfile::shortened;
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use crate::bootstrap::{BootstrapOptions, Resampling, bootstrap_many};
use crate::error::{EvalError, no_rows};
use crate::ids::{FileIds, join};
use crate::items::{Item, Items, PooledMetric, Statistic, same_metric};
use crate::metric::pearson::{self, pearson};
use crate::metric::{MetricInfo, exact_p_value, undefined_reason};
use crate::random::SplitMix64;
use crate::result::{Measure, SCHEMA_VERSION};
use crate::significance;
use crate::table::{TextTable, limits, number, number_in};

/// A metric of system A and of system B on the same items, and the difference.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// The [`SCHEMA_VERSION`] of the program that wrote this comparison.
    pub schema_version: u32,
    /// Names of systems A and B.
    pub systems: [String; 2],
    /// The metric of system A.
    pub a: Measure,
    /// The metric of system B.
    pub b: Measure,
    /// The metric of A minus the metric of B, with the interval of the paired bootstrap.
    pub difference: Measure,
    /// Two-sided p-value of the null hypothesis that there is no difference, from the paired
    /// bootstrap; if the difference is equal in all resamples, by the rule of three. `None` without
    /// resamples, and if the difference is undefined.
    pub p_value: Option<f64>,
    /// Two-sided p-value of the paired permutation test. A permutation swaps the results of the two
    /// systems in random sampling units. The p-value is the share of permutations whose absolute
    /// difference is at least the observed one. There are as many permutations as resamples. `None`
    /// as for `p_value`, and if the metric cannot be computed from swapped results.
    pub permutation_p_value: Option<f64>,
    /// The true difference that these items detect at the 5 % level with 80 % power:
    /// `1.96 + 0.84` standard errors. `None` under the same conditions as `p_value`, and if all
    /// resamples are equal.
    pub detectable_difference: Option<f64>,
    /// The kind of sampling unit of the bootstrap, such as `row`, `group` or `anchor`.
    pub unit: String,
    /// Number of sampling units.
    pub units: usize,
}

impl Comparison {
    /// Formats the comparison as aligned plain text.
    pub fn to_text(&self) -> String {
        let [a, b] = &self.systems;
        let metric = match self.a.unit.label() {
            "" => self.a.metric.clone(),
            unit => format!("{} ({unit})", self.a.metric),
        };
        let mut table = TextTable::new("lrl", &["system", &metric, "interval"]);
        for (name, measure) in
            [(a.as_str(), &self.a), (b, &self.b), ("difference", &self.difference)]
        {
            let interval = measure.interval.as_ref();
            table.push(vec![name.to_owned(), number_in(measure.value, interval), limits(interval)]);
        }
        let sentence = match (self.p_value, self.permutation_p_value) {
            (Some(p), Some(permutation)) => {
                let (p, permutation) = (number(p), number(permutation));
                let (units, unit) = (self.units, &self.unit);
                let (source, detectable) = match self.detectable_difference {
                    Some(difference) => {
                        let difference = number(difference);
                        let text = format!("a true difference of {difference} with 80 % power");
                        ("bootstrap", format!("{units} {unit}s detect {text}"))
                    }
                    None => (
                        "rule of three",
                        format!(
                            "all resamples of the {units} {unit}s are equal, so the interval uses \
                             the rule of three"
                        ),
                    ),
                };
                format!("Two-sided p {p} ({source}), {permutation} (permutation); {detectable}.\n")
            }
            _ => String::new(),
        };
        let reasons = [&self.a, &self.b].into_iter().filter_map(|measure| measure.reason.as_ref());
        let reasons: String = reasons.map(|reason| format!("Warning: {reason}.\n")).collect();
        format!("{table}{sentence}{reasons}")
    }
}

/// The comparisons of all pairs of several systems on the same items.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Comparisons {
    /// The [`SCHEMA_VERSION`] of the program that wrote these comparisons.
    pub schema_version: u32,
    /// The names of the systems' files.
    pub systems: Vec<String>,
    /// The comparison of each pair: first with second, first with third, …, second with third, ….
    pub pairs: Vec<Comparison>,
    /// The p-value of each pair, adjusted by [`significance::holm`]. Empty if one is undefined.
    pub holm_p_values: Vec<f64>,
}

impl Comparisons {
    /// Compares all pairs of systems.
    ///
    /// # Errors
    /// as [`compare_items`]
    pub fn new(systems: &[Items], options: &BootstrapOptions) -> Result<Self, EvalError> {
        let pairs = systems.iter().enumerate().flat_map(|(number, a)| {
            systems[number + 1..].iter().map(move |b| compare_items(a, b, options))
        });
        let pairs = pairs.collect::<Result<Vec<_>, _>>()?;
        let p_values: Option<Vec<f64>> = pairs.iter().map(|pair| pair.p_value).collect();
        let holm_p_values = significance::holm(&p_values.unwrap_or_default());
        let systems = systems.iter().map(|items| items.file.clone()).collect();
        Ok(Self { schema_version: SCHEMA_VERSION, systems, pairs, holm_p_values })
    }

    /// The metric of each system.
    pub(crate) fn measures(&self) -> impl Iterator<Item = &Measure> {
        let others = self.pairs.iter().take(self.systems.len().saturating_sub(1));
        self.pairs.first().map(|pair| &pair.a).into_iter().chain(others.map(|pair| &pair.b))
    }

    /// The matrix of differences: the system of the row minus the system of the column, with the
    /// p-value. The diagonal is empty.
    pub(crate) fn matrix(&self) -> Vec<Vec<String>> {
        let count = self.systems.len();
        let cell = |row: usize, column: usize| {
            let (a, b) = (row.min(column), row.max(column));
            let Some(b) = b.checked_sub(a + 1) else { return String::new() };
            let pair = a * (2 * count - a - 1) / 2 + b;
            let difference = self.pairs[pair].difference.value;
            let difference = number(if row < column { difference } else { 0.0 - difference });
            let p_value = self.holm_p_values.get(pair).map(|p| significance::p_value_text(*p));
            p_value.map_or(difference.clone(), |p_value| format!("{difference} ({p_value})"))
        };
        (0..count).map(|row| (0..count).map(|column| cell(row, column)).collect()).collect()
    }

    /// Formats the metric of each system and the matrix of differences as aligned plain text.
    pub fn to_text(&self) -> String {
        let numbers: Vec<String> = (1..=self.systems.len()).map(|n| n.to_string()).collect();
        let metric = self.measures().next().map_or("", |measure| &measure.metric);
        let mut table = TextTable::new("llrl", &["", "system", metric, "interval"]);
        let columns = numbers.iter().map(String::as_str);
        let headings: Vec<&str> = std::iter::once("difference").chain(columns).collect();
        let mut matrix = TextTable::new(&format!("l{}", "r".repeat(numbers.len())), &headings);
        let rows = self.matrix().into_iter().zip(&numbers).zip(&self.systems).zip(self.measures());
        for (((row, number), name), measure) in rows {
            let interval = measure.interval.as_ref();
            let value = number_in(measure.value, interval);
            table.push(vec![number.clone(), name.clone(), value, limits(interval)]);
            matrix.push(std::iter::once(number.clone()).chain(row).collect());
        }
        format!("{table}\n{matrix}{MATRIX_NOTE}\n")
    }
}

/// Explains the matrix of differences.
pub(crate) const MATRIX_NOTE: &str = "A difference is the row minus the column. The p-values are \
    two-sided, from the bootstrap, and adjusted for the number of pairs by Holm's method.";

/// Compares two systems by Pearson's `r` between their predictions and the same gold values.
///
/// The p-value is that of [`Distribution::p_value`](crate::bootstrap::Distribution::p_value). It is
/// about 0.05 when a limit of the 95 % interval is 0.
///
/// # Errors
/// [`EvalError::Metric`] for unequal lengths or fewer than 2 rows;
/// [`EvalError::InvalidOption`] for a confidence level outside (0, 1), and for a resampling over a
/// different number of rows
///
/// ```
/// use engram_eval::bootstrap::{BootstrapOptions, Resampling};
///
/// let gold = [0.0, 0.25, 0.5, 0.75, 1.0, 0.5];
/// let good = [0.1, 0.2, 0.6, 0.7, 0.9, 0.5];
/// let poor = [0.5, 0.1, 0.4, 0.9, 0.2, 0.3];
/// let options = BootstrapOptions::default();
/// let by_row = Resampling::by_row(gold.len());
/// let comparison = engram_eval::compare::compare_pearson(&gold, &good, &poor, &by_row, &options)?;
/// assert!(comparison.difference.value > 0.5);
/// # Ok::<(), engram_eval::EvalError>(())
/// ```
pub fn compare_pearson(
    gold: &[f64],
    a: &[f64],
    b: &[f64],
    resampling: &Resampling,
    options: &BootstrapOptions,
) -> Result<Comparison, EvalError> {
    let value_a = pearson_or_reason(gold, a, "system A")?;
    let value_b = pearson_or_reason(gold, b, "system B")?;
    let statistics = |system: &[f64]| -> Vec<Statistic> {
        let pair = |(gold, prediction): (&f64, &f64)| Statistic::Correlation {
            gold: *gold,
            prediction: *prediction,
        };
        gold.iter().zip(system).map(pair).collect()
    };
    let systems = [statistics(a), statistics(b)];
    compare_paired(&pearson::INFO, [value_a, value_b], &systems, resampling, options)
}

/// Compares two systems by their items. Items are joined by id, in the order of A. The sampling
/// units are the groups of A's items, or single items if some item of A has no group.
///
/// # Errors
/// [`EvalError::Incomparable`] for different metrics, versions or normalisers;
/// [`EvalError::MissingPrediction`], [`EvalError::ExtraPrediction`] for ids in one file only;
/// [`EvalError::InvalidOption`]
pub fn compare_items(
    a: &Items,
    b: &Items,
    options: &BootstrapOptions,
) -> Result<Comparison, EvalError> {
    let (Some(first), Some(other)) = (a.items.first(), b.items.first()) else {
        return Err(no_rows(&a.file));
    };
    if !same_metric(first, other) {
        return Err(EvalError::Incomparable {
            a: describe_metric(&a.file, first),
            b: describe_metric(&b.file, other),
        });
    }
    let joined = join(&file_ids(a), &file_ids(b), false)?;
    // The items of B, in the order of A.
    let b_items = joined.into_iter().flatten().map(|row| &b.items[row]);
    let systems: [Vec<Statistic>; 2] = [
        a.items.iter().map(|item| item.statistic.clone()).collect(),
        b_items.map(|item| item.statistic.clone()).collect(),
    ];
    let groups: Option<Vec<_>> = a.items.iter().map(|item| item.group.as_ref()).collect();
    let resampling = match groups {
        Some(groups) => Resampling::by_group("group", &groups),
        None => Resampling::by_row(a.items.len()),
    };
    let info = first.info();
    let ones = vec![1; a.items.len()];
    let value = |statistics: &[Statistic]| -> Result<Result<f64, String>, EvalError> {
        let value = PooledMetric::new(&info.name, statistics)?.value(&ones);
        let reason = || "undefined over these items".to_owned();
        Ok(if value.is_finite() { Ok(value) } else { Err(reason()) })
    };
    let values = [value(&systems[0])?, value(&systems[1])?];
    let mut comparison = compare_paired(&info, values, &systems, &resampling, options)?;
    comparison.systems = [a.file.clone(), b.file.clone()];
    Ok(comparison)
}

fn file_ids(items: &Items) -> FileIds<'_> {
    let rows = (1..).zip(&items.items).map(|(line, item)| (&*item.id, Some(line)));
    FileIds { file: &items.file, rows: rows.collect() }
}

/// Describes the metric of a result, for messages.
fn describe_metric(file: &str, item: &Item) -> String {
    let [metric, normaliser] = [&item.metric, &item.normaliser].map(|name| shortened(name, 60));
    format!("{file} ({metric}, version {}, normaliser {normaliser})", item.version)
}

/// Compares two systems, given each system's metric (or the reason why it is undefined) and one
/// statistic per row. A metric of sums must be listed in
/// [`METRICS`](crate::metric::registry::METRICS).
fn compare_paired(
    info: &MetricInfo,
    values: [Result<f64, String>; 2],
    systems: &[Vec<Statistic>; 2],
    resampling: &Resampling,
    options: &BootstrapOptions,
) -> Result<Comparison, EvalError> {
    options.validate()?;
    let rows = systems[0].len();
    if resampling.rows() != rows {
        return Err(EvalError::InvalidOption {
            option: "resampling",
            found: format!("over {} rows", resampling.rows()),
            expected: "one row per item of both systems",
        });
    }
    let [value_a, value_b] = values;
    let difference = value_a.clone().and_then(|a| value_b.clone().map(|b| a - b));
    let metric = &info.name;
    let metrics =
        [PooledMetric::new(metric, &systems[0])?, PooledMetric::new(metric, &systems[1])?];
    let distributions = (options.resamples > 0).then(|| {
        bootstrap_many(resampling, options, |counts| {
            let [a, b] = [metrics[0].value(counts), metrics[1].value(counts)];
            [a, b, a - b]
        })
    });
    let interval = |system: usize| {
        distributions
            .as_ref()
            .map(|distributions| distributions[system].interval(resampling, options))
    };
    let permutation_p_value = match (&difference, options.resamples) {
        (Err(_), _) | (_, 0) => None,
        (Ok(difference), _) => permutation_test(metric, *difference, systems, resampling, options),
    };
    let difference_distribution = distributions
        .as_ref()
        .filter(|_| difference.is_ok())
        .map(|distributions| &distributions[2]);
    let finite = |value: f64| value.is_finite().then_some(value);
    let measure = |value, system| Measure::new(info, rows, value, interval(system));
    let difference_info = info.renamed(format!("{metric}_difference"));
    let difference = Measure::new(&difference_info, rows, difference, interval(2));
    // Equal resamples say nothing about the variance: the p-value is that of the rule of three.
    let constant_p_value = exact_p_value(&difference, 0.0);
    let p_value = match constant_p_value {
        Some(p_value) => Some(p_value),
        None => difference_distribution.and_then(|distribution| finite(distribution.p_value(0.0))),
    };
    Ok(Comparison {
        schema_version: SCHEMA_VERSION,
        systems: ["A", "B"].map(str::to_owned),
        p_value,
        permutation_p_value,
        detectable_difference: difference_distribution
            .filter(|_| constant_p_value.is_none())
            .and_then(|distribution| finite(2.8 * distribution.standard_error())),
        a: measure(value_a, 0),
        b: measure(value_b, 1),
        difference,
        unit: resampling.unit_name().to_owned(),
        units: resampling.units_per_resample(),
    })
}

/// The p-value of the permutation test. In each sampling unit, the statistics of the two systems
/// are swapped with probability 1/2. One is added to the numerator and the denominator, so the
/// p-value is never 0. `None` if the metric cannot be computed from the swapped statistics.
fn permutation_test(
    metric: &str,
    difference: f64,
    systems: &[Vec<Statistic>; 2],
    resampling: &Resampling,
    options: &BootstrapOptions,
) -> Option<f64> {
    let ones = vec![1; systems[0].len()];
    let units = resampling.unit_of_row();
    let at_least_observed = |permutation: u64| -> Result<bool, EvalError> {
        // The seed differs from the bootstrap's, so the random streams are independent.
        let mut random = SplitMix64::stream(!options.seed, permutation);
        let swapped: Vec<bool> =
            (0..resampling.units_per_resample()).map(|_| random.below(2) == 1).collect();
        let value = |system: usize| -> Result<f64, EvalError> {
            let rows = units.iter().enumerate();
            let statistics =
                rows.map(|(row, unit)| &systems[system ^ usize::from(swapped[*unit])][row]);
            Ok(PooledMetric::new(metric, statistics)?.value(&ones))
        };
        let [a, b] = [value(0)?, value(1)?];
        // The tolerance is for rounding: the order of summation changes the last bits.
        Ok((a - b).abs() >= difference.abs() * (1.0 - 1e-12))
    };
    let outcomes: Result<Vec<bool>, EvalError> =
        (0..options.resamples as u64).into_par_iter().map(at_least_observed).collect();
    let count = outcomes.ok()?.into_iter().filter(|at_least_observed| *at_least_observed).count();
    Some((count + 1) as f64 / (options.resamples + 1) as f64)
}

/// Pearson's `r`, or the reason why it is undefined.
fn pearson_or_reason(
    gold: &[f64],
    system: &[f64],
    name: &str,
) -> Result<Result<f64, String>, EvalError> {
    let r = pearson(gold, system)?;
    let reason = || undefined_reason([gold, system], ["the gold score", name]);
    Ok(if r.is_nan() { Err(reason()) } else { Ok(r) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wer::report::WER;

    /// `row_count` gold values and the predictions of two systems, with noise of size `noise_a` and
    /// `noise_b`.
    fn systems(row_count: usize, noise_a: f64, noise_b: f64) -> [Vec<f64>; 3] {
        let wave = |row: usize, step: f64| (row as f64 * step).sin();
        let gold: Vec<f64> = (0..row_count).map(|row| wave(row, 12.9898)).collect();
        let noisy = |noise: f64, step: f64| -> Vec<f64> {
            gold.iter().enumerate().map(|(row, g)| g + noise * wave(row, step)).collect()
        };
        let (a, b) = (noisy(noise_a, 78.233), noisy(noise_b, 37.719));
        [gold, a, b]
    }

    fn compare(systems: &[Vec<f64>; 3]) -> Comparison {
        let [gold, a, b] = systems;
        let by_row = Resampling::by_row(gold.len());
        compare_pearson(gold, a, b, &by_row, &BootstrapOptions::default()).unwrap()
    }

    #[test]
    fn only_a_clear_difference_is_significant() {
        let clear = compare(&systems(300, 0.3, 1.0));
        let interval = clear.difference.interval.clone().unwrap();
        assert!(interval.low > 0.0 && clear.p_value.unwrap() < 0.01, "{clear:?}");
        assert!(clear.permutation_p_value.unwrap() < 0.01);
        assert!((clear.a.value - clear.b.value - clear.difference.value).abs() < 1e-15);

        let text = clear.to_text();
        assert!(text.starts_with("system      pearson  interval\nA"), "{text}");
        assert!(text.contains("; 300 rows detect a true difference of 0.0"), "{text}");

        let alike = compare(&systems(300, 0.6, 0.6));
        let interval = alike.difference.interval.clone().unwrap();
        assert!(interval.low < 0.0 && interval.high > 0.0, "{alike:?}");
        assert!(alike.p_value.unwrap() > 0.05 && alike.permutation_p_value.unwrap() > 0.05);
    }

    #[test]
    fn a_system_does_not_differ_from_itself() {
        let [gold, a, _] = systems(50, 0.5, 0.5);
        let same = compare(&[gold, a.clone(), a]);
        let interval = same.difference.interval.clone().unwrap();
        // At most 3 of 50 units differ, each by up to 2.
        assert_eq!((same.difference.value, interval.method), (0.0, "rule of three by row".into()));
        assert!((interval.low + 0.1198).abs() < 1e-4 && (interval.high - 0.1198).abs() < 1e-4);
        assert_eq!((same.p_value, same.permutation_p_value), (Some(1.0), Some(1.0)));
        assert_eq!(same.detectable_difference, None);
        let text = same.to_text();
        assert!(text.contains("all resamples of the 50 rows are equal"), "{text}");
    }

    #[test]
    fn an_equal_difference_of_all_items_is_not_certain() {
        let [a, b] = [2, 1].map(|errors| results("x", &[errors; 100], "none"));
        let comparison = compare_items(&a, &b, &BootstrapOptions::default()).unwrap();
        let interval = comparison.difference.interval.as_ref().unwrap();
        assert_eq!(interval.method, "rule of three by group");
        // The 20 speakers allow 3 in 20 to differ by up to 1.1.
        assert!((interval.low - (0.1 - 0.14979 * 1.1)).abs() < 1e-4, "{interval:?}");
        let p_value = comparison.p_value.unwrap();
        assert!((p_value - (-20.0 * 0.1 / 1.1f64).exp()).abs() < 1e-9, "{p_value}");
        assert_eq!(comparison.detectable_difference, None);
    }

    #[test]
    fn a_resampling_of_other_rows_is_refused() {
        let [gold, a, b] = systems(20, 0.5, 0.5);
        let options = BootstrapOptions::default();
        let error = compare_pearson(&gold, &a, &b, &Resampling::by_row(19), &options).unwrap_err();
        assert_eq!(
            error.to_string(),
            "option `resampling` is over 19 rows; expected one row per item of both systems"
        );
    }

    #[test]
    fn a_constant_system_has_a_reason_and_no_p_value() {
        let [gold, a, _] = systems(20, 0.5, 0.5);
        let constant = compare(&[gold, a, vec![0.5; 20]]);
        assert_eq!(
            constant.b.reason.as_deref(),
            Some("undefined: system B is constant (always 0.5)")
        );
        assert!(constant.difference.value.is_nan() && constant.p_value.is_none());
        assert!(constant.a.interval.is_some());
        assert!(constant.to_text().contains("Warning: undefined: system B is constant"));
    }

    fn results(file: &str, errors: &[u64], normaliser: &str) -> Items {
        let item = |(row, errors): (usize, &u64)| {
            let statistic = Statistic::Ratio { numerator: *errors as f64, denominator: 10.0 };
            let group = format!("speaker {}", row / 5);
            Item::new(&WER, normaliser, &row.to_string(), Some(&group), statistic)
        };
        let items = errors.iter().enumerate().map(item).collect();
        Items { file: file.to_owned(), items }
    }

    #[test]
    fn results_are_joined_by_id_and_compared() {
        let worse: Vec<u64> = (0..100).map(|row| 2 + row % 3).collect();
        let better: Vec<u64> = (0..100).map(|row| 1 + row % 2).collect();
        let a = results("a", &worse, "none");
        let mut b = results("b", &better, "none");
        b.items.reverse();
        let options = BootstrapOptions::default();
        let comparison = compare_items(&a, &b, &options).unwrap();
        let Comparison { a: rate, b: other, difference, unit, units, .. } = &comparison;
        assert!((rate.value - 0.299).abs() < 1e-12 && (other.value - 0.15).abs() < 1e-12);
        assert_eq!((&*rate.metric, &**unit, *units), ("wer", "group", 20));
        assert_eq!(difference.metric, "wer_difference");
        assert!(comparison.p_value.unwrap() < 0.01);
        assert!(comparison.permutation_p_value.unwrap() < 0.01);

        for (b, expected) in [
            (results("b", &better, "basic"), "b (wer, version 1, normaliser basic)"),
            (results("b", &better[..9], "basic"), "b (wer, version 1, normaliser basic)"),
            (results("b", &better[..99], "none"), "b: no prediction for id `99`"),
            (results("b", &[1; 101], "none"), "b:101: id `100` is not in a"),
        ] {
            let error = compare_items(&a, &b, &options).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn several_systems_are_compared_in_pairs() {
        let system = |(file, n): (&str, u64)| {
            results(file, &(0..100).map(|row| 1 + row % n).collect::<Vec<_>>(), "none")
        };
        let systems = [("<a>", 3), ("b", 2), ("c", 4)].map(system);
        let all = Comparisons::new(&systems, &BootstrapOptions::default()).unwrap();
        let matrix = all.matrix();
        for (row, column, expected) in [
            (0, 1, "0.0490 (p "),
            (1, 0, "-0.0490 (p "),
            (0, 2, "-0.0510 (p "),
            (1, 2, "-0.1000 (p "),
        ] {
            assert!(matrix[row][column].starts_with(expected), "{matrix:?}");
        }
        let (text, page) = (all.to_text(), all.to_html());
        assert!(text.starts_with("   system     wer  interval\n1  <a>     0.1990  ["), "{text}");
        assert!(text.contains("\ndifference ") && text.ends_with("Holm's method.\n"), "{text}");
        assert!(page.contains("&lt;a&gt; − b") && page.contains("-0.1000 (p "), "{page}");
    }
}
