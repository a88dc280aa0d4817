//! Results of single items: an evaluation writes them, a comparison of two systems reads them.
//!
//! An item is an utterance, a line, an image, a question, a query or a pair of phrases. Each line
//! of the file holds the contribution of one item to a metric. Two such files are enough to compare
//! two systems; one file is enough to compute the metric over any subset of the items.

use std::path::Path;

use engram_textfile::{Object, UniqueIds, message_in_line, non_blank_lines, read_text, shortened};
use serde::{Deserialize, Serialize};

use crate::error::{EvalError, Location, malformed};
use crate::metric::pearson::WeightedPearson;
use crate::metric::registry::{find, function_of_sums};
use crate::metric::{MetricError, MetricInfo, Unit};
use crate::result::ReportOptions;

/// The result of one item.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Item {
    /// Name of the metric.
    pub metric: String,
    /// Version of the metric's definition.
    pub version: u32,
    /// Whether higher is better; `None` for a descriptive value without a direction.
    pub higher_is_better: Option<bool>,
    /// Unit of the metric.
    pub unit: Unit,
    /// Name and version of the text normaliser, or `none`.
    pub normaliser: String,
    /// The item's id.
    pub id: String,
    /// The group of the item, such as its speaker, if intervals resample whole groups; otherwise
    /// `None`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// The item's contribution to the metric.
    pub statistic: Statistic,
}

/// The contribution of one item to a metric, by kind of metric.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Statistic {
    /// The metric is the sum of the numerators divided by the sum of the denominators, such as an
    /// error rate. If the denominators sum to 0, it is the sum of the numerators.
    Ratio {
        /// The item's numerator, such as its number of errors.
        numerator: f64,
        /// The item's denominator, such as its number of reference words.
        denominator: f64,
    },
    /// The metric is Pearson's `r` between gold values and predictions.
    Correlation {
        /// The gold value.
        gold: f64,
        /// The predicted value.
        prediction: f64,
    },
    /// The metric is the mean of the items' values.
    Mean {
        /// The item's value.
        value: f64,
    },
    /// The metric is a function of sums over the items. The function is in
    /// [`METRICS`](crate::metric::registry::METRICS), under the metric's name.
    Sums {
        /// The item's part of each sum, such as its numbers of n-grams and of matches.
        sums: Vec<f64>,
    },
}

/// The items of one system, in file order.
#[derive(Debug, Clone, PartialEq)]
pub struct Items {
    /// The file name, for messages.
    pub file: String,
    /// The items: at least one. All have the same metric and the same kind of statistic.
    pub items: Vec<Item>,
}

impl Items {
    /// Reads a file of items.
    ///
    /// # Errors
    /// as [`Items::parse`]
    pub fn read(path: &Path) -> Result<Self, EvalError> {
        Self::parse(&path.display().to_string(), &read_text(path)?)
    }

    /// Reads items from JSON lines.
    ///
    /// # Errors
    /// [`EvalError::Text`] with the line, also for an empty or duplicate id
    pub fn parse(file: &str, text: &str) -> Result<Self, EvalError> {
        let remedy = "give the items that an evaluation wrote";
        let (mut items, mut ids) = (Vec::<Item>::new(), UniqueIds::with_capacity(0));
        for (line, json) in non_blank_lines(text) {
            let Object(item): Object<Item> = serde_json::from_str(json).map_err(|error| {
                let reason = format!("is not an item of a result: {}", message_in_line(&error));
                malformed(file, line, reason, remedy)
            })?;
            match &item.statistic {
                Statistic::Ratio { numerator, denominator }
                    if *numerator < 0.0 || *denominator < 0.0 =>
                {
                    let reason = format!("has a negative ratio: {numerator} to {denominator}");
                    return Err(malformed(file, line, reason, remedy));
                }
                Statistic::Sums { sums } => {
                    let (metric, count) = (shortened(&item.metric, 60), sums.len());
                    let version = find(&item.metric).map_or(0, |metric| metric.info.version);
                    if function_of_sums(&item.metric, count).is_none() || version != item.version {
                        let reason = format!(
                            "has {count} sums of `{metric}` version {}, which cannot be computed",
                            item.version
                        );
                        return Err(malformed(file, line, reason, remedy));
                    }
                }
                _ => {}
            }
            if let Some(first) = items.first()
                && !same_metric(first, &item)
            {
                let reason = "has a different metric, version or normaliser than the first line";
                return Err(malformed(file, line, reason, remedy));
            }
            ids.add(item.id.clone(), Location::new(file, line))?;
            items.push(item);
        }
        if items.is_empty() {
            return Err(malformed(file, None, "has no items", remedy));
        }
        Ok(Self { file: file.to_owned(), items })
    }
}

/// Formats items as JSON lines, which [`Items::parse`] reads.
pub fn json_lines(items: &[Item]) -> String {
    let line = |item: &Item| serde_json::to_string(item).unwrap_or_default() + "\n";
    items.iter().map(line).collect()
}

/// The items of a metric that is the mean of `values`, one value for each id; none if the options
/// do not ask for items.
pub(crate) fn mean_items<S: AsRef<str>>(
    options: &ReportOptions,
    info: &MetricInfo,
    normaliser: &str,
    ids: impl IntoIterator<Item = S>,
    values: &[f64],
) -> Vec<Item> {
    let item = |(id, value): (S, &f64)| {
        Item::new(info, normaliser, id.as_ref(), None, Statistic::Mean { value: *value })
    };
    if options.items { ids.into_iter().zip(values).map(item).collect() } else { Vec::new() }
}

/// Whether two items have the same metric, version, normaliser and kind of statistic.
pub(crate) fn same_metric(a: &Item, b: &Item) -> bool {
    let same_kind = std::mem::discriminant(&a.statistic) == std::mem::discriminant(&b.statistic);
    same_kind && a.metric == b.metric && a.version == b.version && a.normaliser == b.normaliser
}

impl Item {
    /// Creates an item of a metric.
    pub fn new(
        metric: &MetricInfo,
        normaliser: &str,
        id: &str,
        group: Option<&str>,
        statistic: Statistic,
    ) -> Self {
        Self {
            metric: metric.name.to_string(),
            version: metric.version,
            higher_is_better: metric.higher_is_better,
            unit: metric.unit,
            normaliser: normaliser.to_owned(),
            id: id.to_owned(),
            group: group.map(str::to_owned),
            statistic,
        }
    }

    /// The metric of this item alone. A correlation of one item is NaN.
    pub fn value(&self) -> f64 {
        let pooled = PooledMetric::new(&self.metric, [&self.statistic]);
        pooled.map_or(f64::NAN, |metric| metric.value(&[1]))
    }

    /// Name, version, direction and unit of the item's metric.
    pub fn info(&self) -> MetricInfo {
        MetricInfo {
            name: self.metric.clone().into(),
            version: self.version,
            higher_is_better: self.higher_is_better,
            unit: self.unit,
        }
    }
}

/// A metric over many items, in a form that is fast to compute on every resample.
#[derive(Debug)]
pub enum PooledMetric {
    /// The metric is a function of sums over the items.
    Sums {
        /// Number of sums.
        count: usize,
        /// `count` sums per item, item after item.
        item_sums: Vec<f64>,
        /// The metric's value from the totals.
        value: fn(&[f64]) -> f64,
    },
    /// The metric is Pearson's `r`.
    Correlation(Box<WeightedPearson>),
}

impl PooledMetric {
    /// Builds the metric from statistics of one kind. Without statistics, its value is NaN.
    ///
    /// # Errors
    /// [`EvalError::Metric`] for a function of sums that is not registered.
    pub fn new<'s>(
        metric: &str,
        statistics: impl IntoIterator<Item = &'s Statistic>,
    ) -> Result<Self, EvalError> {
        let mut statistics = statistics.into_iter().peekable();
        let (count, value): (usize, fn(&[f64]) -> f64) = match statistics.peek() {
            Some(Statistic::Correlation { .. }) => {
                let pair = |statistic: &Statistic| match statistic {
                    Statistic::Correlation { gold, prediction } => Some((*gold, *prediction)),
                    _ => None,
                };
                let (gold, predicted): (Vec<f64>, Vec<f64>) = statistics.filter_map(pair).unzip();
                let pearson = WeightedPearson::new(&gold, &predicted)?;
                return Ok(Self::Correlation(Box::new(pearson)));
            }
            Some(Statistic::Sums { sums }) => {
                let count = sums.len();
                let unknown =
                    || MetricError::UnknownSums { metric: shortened(metric, 60), sums: count };
                (count, function_of_sums(metric, count).ok_or_else(unknown)?)
            }
            Some(Statistic::Ratio { .. }) => (2, ratio),
            Some(Statistic::Mean { .. }) | None => (2, |sums| sums[0] / sums[1]),
        };
        let mut item_sums = Vec::with_capacity(count * statistics.size_hint().0);
        for statistic in statistics {
            match statistic {
                Statistic::Ratio { numerator, denominator } => {
                    item_sums.extend([*numerator, *denominator]);
                }
                Statistic::Mean { value } => item_sums.extend([*value, 1.0]),
                Statistic::Sums { sums } if sums.len() == count => item_sums.extend(sums),
                Statistic::Sums { .. } | Statistic::Correlation { .. } => {
                    item_sums.extend(std::iter::repeat_n(f64::NAN, count));
                }
            }
        }
        Ok(Self::Sums { count, item_sums, value })
    }

    /// The metric of a resample in which item `i` occurs `counts[i]` times.
    pub fn value(&self, counts: &[u32]) -> f64 {
        match self {
            Self::Sums { count: sum_count, item_sums, value } => {
                let mut totals = vec![0.0; *sum_count];
                for (sums, count) in item_sums.chunks_exact(*sum_count).zip(counts) {
                    let times = f64::from(*count);
                    totals.iter_mut().zip(sums).for_each(|(total, sum)| *total += sum * times);
                }
                value(&totals)
            }
            Self::Correlation(pearson) => pearson.value(counts),
        }
    }
}

/// The first sum divided by the second sum; the first sum if the second is 0.
fn ratio(sums: &[f64]) -> f64 {
    if sums[1] == 0.0 { sums[0] } else { sums[0] / sums[1] }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(id: &str, statistic: Statistic) -> Item {
        Item::new(&crate::wer::report::WER, "none", id, Some("s"), statistic)
    }

    #[test]
    fn items_are_read_back_from_json_lines() {
        for statistic in [
            Statistic::Ratio { numerator: 2.0, denominator: 10.0 },
            Statistic::Mean { value: 0.5 },
            Statistic::Correlation { gold: 1.0, prediction: 0.75 },
        ] {
            let items = vec![item("a", statistic.clone()), item("b", statistic)];
            let written = Items { file: "f".to_owned(), items };
            assert_eq!(Items::parse("f", &json_lines(&written.items)).unwrap(), written);
        }
    }

    #[test]
    fn errors_name_the_line_of_an_invalid_item() {
        let ratio = Statistic::Ratio { numerator: 2.0, denominator: 10.0 };
        let error_message = |items: &[Item]| {
            let text = json_lines(items);
            Items::parse("f", &text).unwrap_err().to_string()
        };
        let mean = item("b", Statistic::Mean { value: 1.0 });
        let negative = item("a", Statistic::Ratio { numerator: 1.0, denominator: -1.0 });
        let ratio = item("a", ratio);
        for (items, expected) in [
            (&[][..], "f: has no items"),
            (&[ratio.clone(), ratio.clone()], "f:2: id `a`"),
            (&[ratio, mean], "f:2: has a different metric"),
            (&[negative], "f:1: has a negative ratio: 1 to -1"),
        ] {
            let error = error_message(items);
            assert!(error.starts_with(expected), "{error}");
        }
        let error = Items::parse("f", "\n{\"metric\":1}").unwrap_err().to_string();
        assert!(error.starts_with("f:2: is not an item of a result: invalid type"), "{error}");
        assert!(error.contains("(column 11)") && !error.contains("at line"), "{error}");
    }

    #[test]
    fn sums_of_an_unknown_metric_are_refused() {
        let parsed = |metric: &str, version: u32, count: usize| {
            let statistic = Statistic::Sums { sums: vec![1.0; count] };
            let item = Item { metric: metric.to_owned(), version, ..item("a", statistic) };
            Items::parse("f", &json_lines(&[item])).map_err(|error| error.to_string())
        };
        assert!(parsed("chrf", 1, 18).is_ok());
        assert_eq!(
            parsed("bleu", 1, 10).unwrap_err(),
            "f:1: has 10 sums of `bleu` version 1, which cannot be computed; give the items \
             that an evaluation wrote"
        );
        assert!(parsed("chrf", 1, 24).is_err() && parsed("chrf", 2, 18).is_err());
        let statistic = Statistic::Sums { sums: vec![1.0] };
        assert!(PooledMetric::new("chrf", [&statistic]).is_err());
    }

    #[test]
    fn metrics_are_computed_from_their_items() {
        let ratio = |numerator, denominator| Statistic::Ratio { numerator, denominator };
        let metric =
            PooledMetric::new("wer", &[ratio(1.0, 4.0), ratio(3.0, 4.0), ratio(2.0, 0.0)]).unwrap();
        assert_eq!(metric.value(&[1, 1, 1]), 0.75);
        assert_eq!(metric.value(&[2, 0, 0]), 0.25);
        assert_eq!(metric.value(&[0, 0, 2]), 4.0);
        let mean = |value| Statistic::Mean { value };
        assert_eq!(PooledMetric::new("", &[mean(1.0), mean(4.0)]).unwrap().value(&[1, 2]), 3.0);
        assert!(PooledMetric::new("", &[]).unwrap().value(&[]).is_nan());
    }
}
