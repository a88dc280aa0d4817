//! Benchmarks with published rules: edits of facts, and knowledge-based visual question answering.
//!
//! | file | task |
//! |---|---|
//! | [`edit`] | CounterFact, zsRE, MQuAKE, VLKEB |
//! | [`kbvqa`] | Encyclopedic-VQA, InfoSeek, M2KR, OK-VQA, ViQuAE, WebQA |
//! | `answers` | normalises and compares answers as the published scripts do |
//! | `records` | reads the published files, with the line of each record |
//!
//! Both give the values of several metrics for each case. A metric is the mean of its values, or
//! the harmonic mean of other metrics.

pub mod edit;
pub mod kbvqa;

mod answers;
mod records;

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::bootstrap::{Resampling, bootstrap_all, measure_of_mean};
use crate::error::EvalError;
use crate::groups::{lowest_rows, rows_by_label};
use crate::items::{Item, Statistic};
use crate::metric::MetricInfo;
use crate::metric::mean::mean;
use crate::metric::registry::{find, harmonic_mean};
use crate::result::{Breakdown, Evaluation, Interval, Measure, ReportOptions};
use crate::text;

/// All metrics of a benchmark.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BenchmarkReport {
    /// The metrics, with the primary metric by group.
    #[serde(flatten)]
    pub evaluation: Evaluation,
    /// Name of the data set.
    pub data: String,
    /// Warnings about the scores; empty if there are none.
    pub warnings: Vec<String>,
    /// The primary metric of each case that it scores; empty if [`ReportOptions::items`] is false.
    #[serde(skip)]
    pub items: Vec<Item>,
    /// The cases with the lowest value of the first metric that is a mean, worst first, without
    /// those that score 1.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub worst: Vec<WorstCase>,
}

/// A case with a low score.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WorstCase {
    /// The id of the case.
    pub id: String,
    /// The value of the case.
    pub value: f64,
    /// The question or the prompt; empty if the file has none.
    pub question: String,
    /// The output of the system; empty if it has no text.
    pub output: String,
    /// The correct answers.
    pub answers: Vec<String>,
}

/// The values of one metric for all cases.
struct Column {
    info: MetricInfo,
    /// NaN for a case that the metric does not score.
    values: Vec<f64>,
}

impl Column {
    /// A column of the metric with this name, which may have a cut-off.
    fn new(name: impl Into<Cow<'static, str>>, values: Vec<f64>) -> Self {
        Self { info: named(name.into()), values }
    }

    /// The number of scored cases and the sum of their values.
    fn totals(&self) -> (usize, f64) {
        let scored = self.values.iter().filter(|value| !value.is_nan());
        scored.fold((0, 0.0), |(n, sum), value| (n + 1, sum + value))
    }
}

/// The registered metric with this name.
fn named(name: Cow<'static, str>) -> MetricInfo {
    let metric = find(&name).map(|metric| metric.info.renamed(name.clone()));
    metric.unwrap_or_else(|| MetricInfo::higher("unknown", Default::default()).renamed(name))
}

/// The scores of all cases of a benchmark.
struct Scores<'s> {
    data: &'static str,
    /// The kind of case: `case` or `question`.
    unit: &'static str,
    /// How the outputs were scored.
    normaliser: String,
    ids: Vec<Cow<'s, str>>,
    columns: Vec<Column>,
    /// The harmonic means, each with the names of its metrics.
    harmonic: Vec<(&'static str, &'static [&'static str])>,
    /// The primary metric, unless the user names another one.
    primary: &'static str,
    /// Groupings of the cases: the name, and the group of each case.
    groups: Vec<(&'static str, Vec<Cow<'s, str>>)>,
    warnings: Vec<String>,
    /// The question, the output and the correct answers of a case.
    describe: Box<dyn Fn(usize) -> (String, String, Vec<String>) + 's>,
}

impl Scores<'_> {
    /// Computes the metrics; `metric` is the name of the primary one, if the user chose it.
    fn report(
        self,
        metric: Option<&str>,
        options: &ReportOptions,
    ) -> Result<BenchmarkReport, EvalError> {
        let index_of = |name: &str| self.columns.iter().position(|c| c.info.name == name);
        let harmonic: Vec<(MetricInfo, Vec<usize>)> = self
            .harmonic
            .iter()
            .filter_map(|(name, parts)| {
                let parts = parts.iter().map(|part| index_of(part)).collect::<Option<Vec<_>>>()?;
                Some((named((*name).into()), parts))
            })
            .collect();
        let infos: Vec<&MetricInfo> =
            harmonic.iter().map(|(info, _)| info).chain(self.columns.iter().map(|c| &c.info)).collect();
        let wanted = metric.unwrap_or(self.primary);
        let primary = infos.iter().position(|info| info.name == wanted);
        let primary = match (primary, metric) {
            (Some(primary), _) => primary,
            (None, None) => 0,
            (None, Some(metric)) => {
                let names: Vec<&str> = infos.iter().map(|info| &*info.name).collect();
                return Err(EvalError::InvalidOption {
                    option: "metric",
                    found: format!("`{metric}`; the metrics here are {}", names.join(", ")),
                    expected: "one of them",
                });
            }
        };
        let mut measures = self.measures(&harmonic, &infos, options);
        // The column of the lists of cases and groups.
        let listed = primary.checked_sub(harmonic.len()).unwrap_or_else(|| match &*harmonic {
            [(_, parts), ..] => parts[0],
            [] => 0,
        });
        let Column { info, values } = &self.columns[listed];
        let breakdowns = self.groups.iter().filter_map(|(name, labels)| {
            let group = |(label, rows): (&Cow<'_, str>, Vec<usize>)| {
                let values: Vec<f64> =
                    rows.into_iter().map(|row| values[row]).filter(|v| !v.is_nan()).collect();
                let measure = measure_of_mean(info, self.unit, &values, &options.bootstrap);
                (label.to_string(), measure)
            };
            let groups = rows_by_label(labels);
            let groups: Vec<_> =
                groups.into_iter().map(group).filter(|(_, measure)| measure.n > 0).collect();
            (groups.len() > 1).then(|| Breakdown::new(name, info, groups))
        });
        let breakdowns = breakdowns.collect();
        let parts = match harmonic.get(primary) {
            Some((_, parts)) => parts.clone(),
            None => vec![listed],
        };
        let items = self.items(infos[primary], &parts, options);
        let worst = lowest_rows(values, 1.0, options.worst).into_iter().map(|row| {
            let (question, output, answers) = (self.describe)(row);
            let id = self.ids[row].to_string();
            WorstCase { id, value: values[row], question, output, answers }
        });
        let worst = worst.collect();
        let primary = measures.remove(primary);
        let mut evaluation =
            Evaluation::new(primary, measures, breakdowns, options.sources.clone());
        evaluation.normaliser = self.normaliser;
        let (data, warnings) = (self.data.to_owned(), self.warnings);
        Ok(BenchmarkReport { evaluation, data, warnings, items, worst })
    }

    /// The harmonic means and the means, all on the same resamples.
    fn measures(
        &self,
        harmonic: &[(MetricInfo, Vec<usize>)],
        infos: &[&MetricInfo],
        options: &ReportOptions,
    ) -> Vec<Measure> {
        let totals: Vec<(usize, f64)> = self.columns.iter().map(Column::totals).collect();
        // Without missing values, the number of values in a resample is known.
        let zeros_for_nan = |column: &Column| -> Vec<f64> {
            column.values.iter().map(|v| if v.is_nan() { 0.0 } else { *v }).collect()
        };
        let values: Vec<Vec<f64>> = self.columns.iter().map(zeros_for_nan).collect();
        let rows = self.ids.len();
        let weights = |(column, (n, _)): (&Column, &(usize, f64))| {
            let weight = |value: &f64| f64::from(u8::from(!value.is_nan()));
            (*n < rows).then(|| column.values.iter().map(weight).collect::<Vec<f64>>())
        };
        let weights: Vec<_> = self.columns.iter().zip(&totals).map(weights).collect();
        let weighted = |values: &[f64], counts: &[u32]| -> f64 {
            values.iter().zip(counts).map(|(value, count)| value * f64::from(*count)).sum()
        };
        let metrics_of = |totals: &[(f64, f64)]| -> Vec<f64> {
            let of_parts = |(_, parts): &(MetricInfo, Vec<usize>)| {
                let sums: Vec<f64> =
                    parts.iter().flat_map(|part| [totals[*part].1, totals[*part].0]).collect();
                harmonic_mean(&sums)
            };
            harmonic.iter().map(of_parts).chain(totals.iter().map(|(n, sum)| sum / n)).collect()
        };
        let resampling = Resampling::by_named_row(self.unit, rows);
        let distributions = bootstrap_all(&resampling, &options.bootstrap, infos.len(), |counts| {
            let totals = values.iter().zip(&weights).map(|(values, weights)| {
                let n = weights.as_ref().map_or(rows as f64, |weights| weighted(weights, counts));
                (n, weighted(values, counts))
            });
            metrics_of(&totals.collect::<Vec<_>>())
        });
        let exact: Vec<(f64, f64)> = totals.iter().map(|(n, sum)| (*n as f64, *sum)).collect();
        let scored = |index: usize| match index.checked_sub(harmonic.len()) {
            Some(column) => totals[column].0,
            None => rows,
        };
        let measure = |(index, value): (usize, f64)| {
            let n = scored(index);
            let interval = (options.bootstrap.resamples > 0).then(|| Interval {
                units: n,
                ..distributions[index].interval(&resampling, &options.bootstrap)
            });
            let value = if value.is_nan() { Err(no_cases(self.unit)) } else { Ok(value) };
            Measure::new(infos[index], n, value, interval)
        };
        metrics_of(&exact).into_iter().enumerate().map(measure).collect()
    }

    /// The items of the primary metric: the values of its columns `parts`.
    fn items(&self, info: &MetricInfo, parts: &[usize], options: &ReportOptions) -> Vec<Item> {
        if !options.items {
            return Vec::new();
        }
        let values_of = |row: usize| parts.iter().map(move |part| self.columns[*part].values[row]);
        let item = |(row, id): (usize, &Cow<'_, str>)| {
            let value = mean(&values_of(row).collect::<Vec<_>>());
            let statistic = match parts {
                [_] if value.is_nan() => return None,
                [_] => Statistic::Mean { value },
                _ => {
                    let sums = |v: f64| if v.is_nan() { [0.0, 0.0] } else { [v, 1.0] };
                    Statistic::Sums { sums: values_of(row).flat_map(sums).collect() }
                }
            };
            Some(Item::new(info, &self.normaliser, id, None, statistic))
        };
        self.ids.iter().enumerate().filter_map(item).collect()
    }
}

fn no_cases(unit: &str) -> String {
    format!("undefined: there is no {unit} of this kind")
}

impl BenchmarkReport {
    /// Formats the report as aligned plain text.
    pub fn to_text(&self) -> String {
        let heading = format!("{}, {} cases", self.data, self.evaluation.primary.n);
        let groups = self.evaluation.breakdowns.iter().map(text::breakdown);
        text::report(&heading, &self.evaluation, &self.warnings, groups)
    }
}
