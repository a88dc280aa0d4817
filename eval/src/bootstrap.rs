//! The bootstrap: confidence intervals of a metric from resamples of rows, or of groups of rows. A
//! row is one item of the evaluation, such as an utterance, an image or a pair of phrases.
//!
//! A resample is a list of counts: how often each row was drawn. So a metric sorts and groups its
//! rows once for all resamples. Resample `i` has its own random stream, made from the seed and `i`.
//! The result is bit-identical for any number of threads.

use std::hash::Hash;

use rayon::prelude::*;

use crate::error::EvalError;
use crate::groups::rows_by_label;
use crate::metric::MetricInfo;
use crate::metric::mean::{mean, weighted_mean};
use crate::random::SplitMix64;
use crate::result::{Interval, Measure};

/// Maximum number of resamples. More would take memory without a visible effect on an interval.
const MAX_RESAMPLES: usize = 10_000_000;

/// Options of the bootstrap: number of resamples, confidence level and seed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BootstrapOptions {
    /// Number of resamples, at least 2; 0 turns intervals off.
    pub resamples: usize,
    /// Confidence level, above 0 and below 1.
    pub level: f64,
    /// Seed of the random streams.
    pub seed: u64,
}

impl Default for BootstrapOptions {
    fn default() -> Self {
        Self { resamples: 1000, level: 0.95, seed: 1 }
    }
}

impl BootstrapOptions {
    /// Checks that `resamples` is 0 or between 2 and 10,000,000, and that `level` is above 0 and
    /// below 1.
    ///
    /// # Errors
    /// [`EvalError::InvalidOption`]
    pub fn validate(&self) -> Result<(), EvalError> {
        if self.resamples == 1 || self.resamples > MAX_RESAMPLES {
            return Err(EvalError::InvalidOption {
                option: "resamples",
                found: self.resamples.to_string(),
                expected: "0 for no intervals, or 2 to 10000000",
            });
        }
        if self.level > 0.0 && self.level < 1.0 {
            return Ok(());
        }
        Err(EvalError::InvalidOption {
            option: "level",
            found: self.level.to_string(),
            expected: "a number between 0 and 1, such as 0.95",
        })
    }
}

/// The sampling units of a bootstrap: single rows, or whole groups of rows. They are drawn with
/// replacement.
///
/// Rows of one group (the phrases of one anchor, the utterances of one speaker) are not
/// independent. Drawing whole groups keeps the dependence and gives the correct, wider interval.
/// Draw single rows only if the rows have no groups.
#[derive(Debug, Clone)]
pub struct Resampling {
    unit: String,
    rows: usize,
    /// The rows of each group; `None` when single rows are drawn.
    groups: Option<Vec<Vec<u32>>>,
    /// The rows of each group of a second grouping, which is drawn independently; `None` without a
    /// second grouping.
    crossed: Option<Vec<Vec<u32>>>,
}

impl Resampling {
    /// Draws single rows.
    pub fn by_row(rows: usize) -> Self {
        Self { unit: "row".to_owned(), rows, groups: None, crossed: None }
    }

    /// Draws single rows; `unit` is the kind of row, such as `utterance`.
    pub fn by_named_row(unit: &str, rows: usize) -> Self {
        Self { unit: unit.to_owned(), rows, groups: None, crossed: None }
    }

    /// Draws whole groups. `labels` holds the group of each row; `unit` is the kind of group, such
    /// as `anchor`.
    ///
    /// With fewer than two groups, every resample would equal the sample. Single rows are drawn
    /// instead, and [`unit_name`](Self::unit_name) returns `row`.
    pub fn by_group<L: Hash + Eq>(unit: &str, labels: &[L]) -> Self {
        let groups = group_rows(labels);
        if groups.len() < 2 {
            return Self::by_row(labels.len());
        }
        Self { unit: unit.to_owned(), rows: labels.len(), groups: Some(groups), crossed: None }
    }

    /// Draws the groups of two groupings of the same rows independently. The count of a row is the
    /// product of the counts of its two groups.
    ///
    /// Use it for the answers of several runs to the same questions. Answers to one question are
    /// dependent, and answers of one run are dependent. Drawing only questions, or only runs,
    /// ignores one of the two. With few runs, the interval is rough. A grouping with fewer than two
    /// groups is ignored.
    ///
    /// # Source   A. B. Owen, "The pigeonhole bootstrap", Annals of Applied Statistics 1 (2007)
    pub fn by_crossed_groups<L: Hash + Eq, M: Hash + Eq>(
        units: [&str; 2],
        labels: &[L],
        crossed: &[M],
    ) -> Self {
        let (first, second) = (group_rows(labels), group_rows(crossed));
        match (first.len() < 2, second.len() < 2) {
            (_, true) => Self::by_group(units[0], labels),
            (true, false) => Self::by_group(units[1], crossed),
            (false, false) => Self {
                unit: format!("{} and {}", units[0], units[1]),
                rows: labels.len(),
                groups: Some(first),
                crossed: Some(second),
            },
        }
    }

    /// The kind of sampling unit: `row`, or the name given at construction.
    pub fn unit_name(&self) -> &str {
        &self.unit
    }

    /// Number of rows in the sample.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of sampling units in one resample: rows, or groups of the first grouping.
    pub fn units_per_resample(&self) -> usize {
        self.groups.as_ref().map_or(self.rows, Vec::len)
    }

    /// The index of the sampling unit of each row.
    pub(crate) fn unit_of_row(&self) -> Vec<usize> {
        let mut units: Vec<usize> = (0..self.rows).collect();
        for (unit, rows) in self.groups.iter().flatten().enumerate() {
            rows.iter().for_each(|row| units[*row as usize] = unit);
        }
        units
    }

    /// The text of [`Interval::method`], such as `percentile bootstrap by speaker`.
    pub fn method(&self) -> String {
        format!("percentile bootstrap by {}", self.unit)
    }

    /// Fills `counts` with the number of times that each row is in one resample.
    fn draw(&self, random: &mut SplitMix64, counts: &mut [u32]) {
        counts.fill(0);
        match &self.groups {
            None => (0..self.rows).for_each(|_| counts[random.below(self.rows)] += 1),
            Some(groups) => {
                for _ in 0..groups.len() {
                    for &row in &groups[random.below(groups.len())] {
                        counts[row as usize] += 1;
                    }
                }
            }
        }
        if let Some(crossed) = &self.crossed {
            let mut group_counts = vec![0; crossed.len()];
            (0..crossed.len()).for_each(|_| group_counts[random.below(crossed.len())] += 1);
            for (rows, group_count) in crossed.iter().zip(group_counts) {
                rows.iter().for_each(|row| counts[*row as usize] *= group_count);
            }
        }
    }
}

/// The rows of each label.
fn group_rows<L: Hash + Eq>(labels: &[L]) -> Vec<Vec<u32>> {
    let rows = |(_, rows): (&L, Vec<usize>)| rows.into_iter().map(|row| row as u32).collect();
    rows_by_label(labels).into_iter().map(rows).collect()
}

/// The values of a metric over all resamples.
#[derive(Debug, Clone, PartialEq)]
pub struct Distribution {
    /// The defined values, in ascending order.
    pub values: Vec<f64>,
    /// Number of resamples with the value NaN, such as the correlation of a constant resample.
    pub undefined: usize,
}

/// Computes the metric `statistic` on every resample, in parallel. `statistic` takes one count per
/// row: how often the row was drawn.
pub fn bootstrap(
    resampling: &Resampling,
    options: &BootstrapOptions,
    statistic: impl Fn(&[u32]) -> f64 + Sync,
) -> Distribution {
    let [distribution] = bootstrap_many(resampling, options, |counts| [statistic(counts)]);
    distribution
}

/// Like [`bootstrap`], for several metrics on the same resamples.
pub(crate) fn bootstrap_many<const K: usize>(
    resampling: &Resampling,
    options: &BootstrapOptions,
    statistics: impl Fn(&[u32]) -> [f64; K] + Sync,
) -> [Distribution; K] {
    let values = resampled_values(resampling, options, statistics);
    std::array::from_fn(|statistic| Distribution::new(values.iter().map(|all| all[statistic])))
}

/// Like [`bootstrap_many`], for a number of metrics that is not known in advance.
pub(crate) fn bootstrap_all(
    resampling: &Resampling,
    options: &BootstrapOptions,
    metrics: usize,
    statistics: impl Fn(&[u32]) -> Vec<f64> + Sync,
) -> Vec<Distribution> {
    let values = resampled_values(resampling, options, statistics);
    let distribution = |metric| Distribution::new(values.iter().map(|all| all[metric]));
    (0..metrics).map(distribution).collect()
}

fn resampled_values<V: Send>(
    resampling: &Resampling,
    options: &BootstrapOptions,
    statistics: impl Fn(&[u32]) -> V + Sync,
) -> Vec<V> {
    (0..options.resamples as u64)
        .into_par_iter()
        .map_init(
            || vec![0; resampling.rows],
            |counts, resample| {
                resampling.draw(&mut SplitMix64::stream(options.seed, resample), counts);
                statistics(counts)
            },
        )
        .collect()
}

/// The percentile interval of the metric `statistic`; `None` with 0 resamples.
///
/// # Source   B. Efron, R. Tibshirani, "An Introduction to the Bootstrap", ch. 13
///
/// ```
/// use engram_eval::bootstrap::{BootstrapOptions, Resampling, interval};
/// use engram_eval::metric::mean::weighted_mean;
///
/// let accuracy = [1.0, 0.0, 1.0, 1.0, 0.0, 1.0];
/// let speaker = ["a", "a", "b", "b", "c", "c"];
/// let resampling = Resampling::by_group("speaker", &speaker);
/// let interval = interval(&resampling, &BootstrapOptions::default(), |counts| {
///     weighted_mean(&accuracy, counts)
/// });
/// assert!(interval.is_some_and(|i| i.low <= 4.0 / 6.0 && 4.0 / 6.0 <= i.high));
/// ```
pub fn interval(
    resampling: &Resampling,
    options: &BootstrapOptions,
    statistic: impl Fn(&[u32]) -> f64 + Sync,
) -> Option<Interval> {
    let [interval] = intervals(resampling, options, |counts| [statistic(counts)]);
    interval
}

/// Like [`interval`], for several metrics on the same resamples.
pub(crate) fn intervals<const K: usize>(
    resampling: &Resampling,
    options: &BootstrapOptions,
    statistics: impl Fn(&[u32]) -> [f64; K] + Sync,
) -> [Option<Interval>; K] {
    if options.resamples == 0 {
        return [const { None }; K];
    }
    let distributions = bootstrap_many(resampling, options, statistics);
    distributions.map(|distribution| Some(distribution.interval(resampling, options)))
}

/// The mean of `values` with its interval; `unit` is the kind of value, such as `question`.
pub(crate) fn measure_of_mean(
    info: &MetricInfo,
    unit: &str,
    values: &[f64],
    options: &BootstrapOptions,
) -> Measure {
    let resampling = Resampling::by_named_row(unit, values.len());
    let interval = interval(&resampling, options, |counts| weighted_mean(values, counts));
    Measure::new(info, values.len(), Ok(mean(values)), interval)
}

impl Distribution {
    fn new(values: impl ExactSizeIterator<Item = f64>) -> Self {
        let resamples = values.len();
        let mut values: Vec<f64> = values.filter(|value| !value.is_nan()).collect();
        values.sort_unstable_by(f64::total_cmp);
        Self { undefined: resamples - values.len(), values }
    }

    /// The central interval with the share `options.level` of the values. Its limits are NaN if
    /// there are no values.
    pub fn interval(&self, resampling: &Resampling, options: &BootstrapOptions) -> Interval {
        let tail = (1.0 - options.level) / 2.0;
        Interval {
            low: self.quantile(tail),
            high: self.quantile(1.0 - tail),
            level: options.level,
            method: resampling.method(),
            units: resampling.units_per_resample(),
            resamples: options.resamples,
            undefined_resamples: self.undefined,
            seed: options.seed,
        }
    }

    /// The quantile at `q`, interpolated like `numpy.quantile`; NaN if there are no values.
    pub fn quantile(&self, q: f64) -> f64 {
        let Some(last) = self.values.len().checked_sub(1) else {
            return f64::NAN;
        };
        let position = q.clamp(0.0, 1.0) * last as f64;
        let below = position.floor() as usize;
        let (low, high) = (self.values[below], self.values[(below + 1).min(last)]);
        low + (high - low) * position.fract()
    }

    /// Standard deviation of the values (with `n - 1`); NaN for fewer than two values.
    pub fn standard_error(&self) -> f64 {
        let n = self.values.len() as f64;
        let mean = self.values.iter().sum::<f64>() / n;
        let squares: f64 = self.values.iter().map(|v| (v - mean).powi(2)).sum();
        if self.values.len() < 2 { f64::NAN } else { (squares / (n - 1.0)).sqrt() }
    }

    /// Two-sided p-value of the null hypothesis that the metric is `threshold`: twice the smaller
    /// of the shares of values `<= threshold` and `>= threshold`, at most 1.
    ///
    /// One is added to the numerator and the denominator of the share, so the p-value is never 0.
    /// It is NaN if there are no values.
    pub fn p_value(&self, threshold: f64) -> f64 {
        if self.values.is_empty() {
            return f64::NAN;
        }
        let at_most = self.values.iter().filter(|&&v| v <= threshold).count();
        let at_least = self.values.iter().filter(|&&v| v >= threshold).count();
        let tail = (at_most.min(at_least) + 1) as f64 / (self.values.len() + 1) as f64;
        (2.0 * tail).min(1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(count: usize) -> Vec<f64> {
        let mut random = SplitMix64::stream(7, 0);
        (0..count).map(|_| random.below(1000) as f64 / 1000.0).collect()
    }

    #[test]
    fn standard_error_of_a_mean_is_sigma_over_root_n() {
        let values = noise(400);
        let options = BootstrapOptions { resamples: 4000, ..Default::default() };
        let mean = values.iter().sum::<f64>() / 400.0;
        let sigma = (values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / 400.0).sqrt();
        let by_row = bootstrap(&Resampling::by_row(400), &options, |c| weighted_mean(&values, c));
        assert!((by_row.standard_error() / (sigma / 20.0) - 1.0).abs() < 0.05);

        // Each value is repeated four times: the groups carry no more information than 400 rows.
        let copies: Vec<f64> = values.iter().flat_map(|&v| [v; 4]).collect();
        let labels: Vec<usize> = (0..1600).map(|row| row / 4).collect();
        let groups = Resampling::by_group("copy", &labels);
        let by_group = bootstrap(&groups, &options, |c| weighted_mean(&copies, c));
        assert!((by_group.standard_error() / (sigma / 20.0) - 1.0).abs() < 0.05);
        let naive = bootstrap(&Resampling::by_row(1600), &options, |c| weighted_mean(&copies, c));
        assert!((naive.standard_error() / (sigma / 40.0) - 1.0).abs() < 0.05);
    }

    #[test]
    fn whole_groups_are_drawn() {
        let resampling = Resampling::by_group("speaker", &["a", "b", "a", "c", "b", "a"]);
        assert_eq!((resampling.unit_name(), resampling.units_per_resample()), ("speaker", 3));
        let is_whole = bootstrap(&resampling, &BootstrapOptions::default(), |c| {
            let sum = c[0] + c[1] + c[3];
            f64::from(u8::from(c[0] == c[2] && c[2] == c[5] && c[1] == c[4] && sum == 3))
        });
        assert_eq!(is_whole.quantile(0.0), 1.0);
        assert_eq!(Resampling::by_group("speaker", &["a", "a"]).unit_name(), "row");
    }

    #[test]
    fn crossed_groups_use_both_groupings() {
        // Three runs, one of them worse on every question: drawing only questions misses the
        // difference.
        let run = |row: usize| row % 3;
        let values: Vec<f64> = noise(300)
            .into_iter()
            .enumerate()
            .map(|(row, x)| f64::from(u8::from(run(row) > 0)) + x / 10.0)
            .collect();
        let questions: Vec<usize> = (0..300).map(|row| row / 3).collect();
        let runs: Vec<usize> = (0..300).map(run).collect();
        let error = |resampling: &Resampling| {
            let options = BootstrapOptions::default();
            bootstrap(resampling, &options, |c| weighted_mean(&values, c)).standard_error()
        };
        let by_question = Resampling::by_group("question", &questions);
        let crossed = Resampling::by_crossed_groups(["question", "run"], &questions, &runs);
        assert_eq!(crossed.method(), "percentile bootstrap by question and run");
        assert!(error(&crossed) > 5.0 * error(&by_question));
        // A grouping with one group is ignored.
        let one_run = Resampling::by_crossed_groups(["question", "run"], &questions, &[0; 300]);
        assert_eq!((one_run.unit_name(), error(&one_run)), ("question", error(&by_question)));
        let one_question = Resampling::by_crossed_groups(["question", "run"], &[0; 300], &runs);
        assert_eq!((one_question.unit_name(), one_question.units_per_resample()), ("run", 3));
    }

    #[test]
    fn invalid_options_are_refused() {
        for level in [0.0, 1.0, -1.0, f64::NAN, f64::INFINITY] {
            assert!(BootstrapOptions { level, ..Default::default() }.validate().is_err());
        }
        let too_many = BootstrapOptions { resamples: usize::MAX, ..Default::default() };
        let error = too_many.validate().unwrap_err().to_string();
        assert!(error.starts_with("option `resamples` is 18446744073709551615"), "{error}");
        // One resample has no spread, so its interval would be a point.
        let too_few = BootstrapOptions { resamples: 1, ..Default::default() };
        assert!(too_few.validate().is_err());
    }

    #[test]
    fn quantiles_are_interpolated_and_p_values_are_never_0() {
        let distribution = |values: &[f64]| Distribution { values: values.to_vec(), undefined: 0 };
        assert_eq!(distribution(&[0.0, 1.0, 2.0, 10.0]).quantile(0.5), 1.5);
        assert_eq!(distribution(&[0.0, 1.0, 2.0, 10.0]).quantile(1.0), 10.0);
        assert_eq!(distribution(&[1.0; 99]).p_value(0.0), 0.02);
        assert_eq!(distribution(&[-1.0, 1.0]).p_value(0.0), 1.0);
        assert_eq!(distribution(&[0.0; 5]).p_value(0.0), 1.0);
    }
}
