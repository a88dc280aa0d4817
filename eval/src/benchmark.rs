//! Benchmarks with published rules: edits and deletions of facts, and knowledge-based visual question
//! answering.
//!
//! | file | task |
//! |---|---|
//! | [`edit`] | CounterFact, zsRE, MQuAKE, VLKEB |
//! | [`forget`] | the audit of limited memory language models: deleted facts |
//! | [`kbvqa`] | Encyclopedic-VQA, InfoSeek, M2KR, OK-VQA, ViQuAE, WebQA |
//! | `answers` | normalises and compares answers as the published scripts do |
//! | `records` | reads the published files, with the line of each record |
//!
//! All give the values of several metrics for each case. A metric is the mean of its values, or
//! the harmonic mean of other metrics.

pub mod edit;
pub mod forget;
pub mod kbvqa;

mod answers;
mod records;

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::bootstrap::{Resampling, bootstrap_all};
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
}

/// The value of an item of a share of items: 1 or 0.
fn share(is_counted: bool) -> f64 {
    f64::from(u8::from(is_counted))
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
    /// The metrics that are reported for each group; empty for the primary one.
    by_group: &'static [&'static str],
    /// What intervals resample together: the name, and the group of each case. `None` for cases.
    clusters: Option<(&'static str, Vec<Cow<'s, str>>)>,
    /// The number of rows of each input file, by its role in the sources.
    rows: Vec<(&'static str, usize)>,
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
        let infos: Vec<&MetricInfo> = harmonic
            .iter()
            .map(|(info, _)| info)
            .chain(self.columns.iter().map(|c| &c.info))
            .collect();
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
        // The column of the list of cases.
        let listed = primary.checked_sub(harmonic.len()).unwrap_or_else(|| match &*harmonic {
            [(_, parts), ..] => parts[0],
            [] => 0,
        });
        let values = &self.columns[listed].values;
        let by_group = self.by_group.iter().filter_map(|name| index_of(name));
        let by_group: Vec<usize> = match self.by_group {
            [] => vec![listed],
            _ => by_group.collect(),
        };
        let (mut measures, breakdowns) = self.measures(&harmonic, &infos, &by_group, options);
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
        let mut sources = options.sources.clone();
        for source in &mut sources {
            let rows = self.rows.iter().find(|(role, _)| source.role == *role);
            source.rows = rows.map_or(source.rows, |(_, rows)| *rows);
        }
        let mut evaluation = Evaluation::new(primary, measures, breakdowns, sources);
        evaluation.normaliser = self.normaliser;
        Ok(BenchmarkReport { evaluation, data: self.data.to_owned(), items, worst })
    }

    /// The harmonic means, the means, and the means of the columns `by_group` for each group, all on
    /// the same resamples.
    fn measures(
        &self,
        harmonic: &[(MetricInfo, Vec<usize>)],
        infos: &[&MetricInfo],
        by_group: &[usize],
        options: &ReportOptions,
    ) -> (Vec<Measure>, Vec<Breakdown>) {
        let rows = self.ids.len();
        let resampling = match &self.clusters {
            Some((unit, labels)) => Resampling::by_group(unit, labels),
            None => Resampling::by_named_row(self.unit, rows),
        };
        let groups = self.groups.iter().map(|(_, labels)| rows_by_label(labels));
        let groups: Vec<_> = groups.map(|g| if g.len() > 1 { g } else { Vec::new() }).collect();
        // Each grouping with each of its columns.
        let tables: Vec<(usize, &Column)> = (0..groups.len())
            .flat_map(|grouping| by_group.iter().map(move |c| (grouping, &self.columns[*c])))
            .collect();
        let columns = self.columns.iter().map(|column| Scored::new(&column.values, 0..rows));
        let of_groups = tables.iter().flat_map(|(grouping, column)| {
            let groups = groups[*grouping].iter();
            groups.map(|(_, rows)| Scored::new(&column.values, rows.iter().copied()))
        });
        let scored: Vec<Scored> = columns.chain(of_groups).collect();
        let metrics_of = |counts: &[u32]| -> Vec<f64> {
            let totals: Vec<[f64; 2]> = scored.iter().map(|scored| scored.totals(counts)).collect();
            let of_parts = |(_, parts): &(MetricInfo, Vec<usize>)| {
                let sums: Vec<f64> = parts.iter().flat_map(|part| totals[*part]).collect();
                harmonic_mean(&sums)
            };
            harmonic.iter().map(of_parts).chain(totals.iter().map(|[sum, n]| sum / n)).collect()
        };
        let values = metrics_of(&vec![1; rows]);
        let distributions =
            bootstrap_all(&resampling, &options.bootstrap, values.len(), metrics_of);
        let measure = |(index, info): (usize, &MetricInfo)| {
            let column = index.checked_sub(harmonic.len());
            let n = column.map_or(rows, |column| scored[column].values.len());
            let interval = (options.bootstrap.resamples > 0).then(|| {
                let interval = distributions[index].interval(&resampling, &options.bootstrap);
                let units =
                    column.filter(|_| self.clusters.is_none()).map_or(interval.units, |_| n);
                Interval { units, ..interval }
            });
            let reason = || format!("undefined: there is no {} of this kind", self.unit);
            let value = Some(values[index]).filter(|value| !value.is_nan()).ok_or_else(reason);
            Measure::new(info, n, value, interval)
        };
        let measures = infos.iter().enumerate().map(|(index, info)| measure((index, info)));
        let measures = measures.collect();
        let mut index = infos.len()..;
        let mut breakdown = |(grouping, column): &(usize, &Column)| {
            let labels = groups[*grouping].iter().zip(&mut index);
            let rows = labels.map(|((name, _), i)| (name.to_string(), measure((i, &column.info))));
            let rows: Vec<_> = rows.filter(|(_, measure)| measure.n > 0).collect();
            let (name, _) = self.groups[*grouping];
            (rows.len() > 1).then(|| Breakdown::new(name, &column.info, rows))
        };
        let breakdowns = tables.iter().filter_map(&mut breakdown).collect();
        (measures, breakdowns)
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
            let cluster = self.clusters.as_ref().map(|(_, labels)| &*labels[row]);
            Some(Item::new(info, &self.normaliser, id, cluster, statistic))
        };
        self.ids.iter().enumerate().filter_map(item).collect()
    }
}

/// The values of the cases that are scored.
struct Scored {
    /// The rows of the values; `None` for all rows.
    rows: Option<Vec<usize>>,
    values: Vec<f64>,
}

impl Scored {
    fn new(values: &[f64], rows: impl Iterator<Item = usize>) -> Self {
        let rows: Vec<usize> = rows.filter(|row| !values[*row].is_nan()).collect();
        let scored = rows.iter().map(|row| values[*row]).collect();
        Self { rows: (rows.len() < values.len()).then_some(rows), values: scored }
    }

    /// The sum and the number of the values of a resample.
    fn totals(&self, counts: &[u32]) -> [f64; 2] {
        let add = |[sum, total]: [f64; 2], (count, value): (u32, &f64)| {
            let count = f64::from(count);
            [sum + count * value, total + count]
        };
        match &self.rows {
            None => counts.iter().copied().zip(&self.values).fold([0.0; 2], add),
            Some(rows) => {
                let counts = rows.iter().map(|row| counts[*row]);
                counts.zip(&self.values).fold([0.0; 2], add)
            }
        }
    }
}

impl BenchmarkReport {
    /// Formats the report as aligned plain text.
    pub fn to_text(&self) -> String {
        let heading = format!("{}, {} cases", self.data, self.evaluation.primary.n);
        // The tables of one grouping follow each other.
        let tables = self.evaluation.breakdowns.chunk_by(|a, b| a.name == b.name);
        text::report(&heading, &self.evaluation, &[], tables.map(text::breakdowns))
    }
}
