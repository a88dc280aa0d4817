//! Per-item results, which `--items` writes and `compare` reads.
//!
//! A line holds the contribution of one item (an utterance, an image, a question, a phrase pair) to
//! a metric. Two systems can be compared pair by pair without their texts. The metric can also be
//! recomputed over any subset of the items.

use std::collections::HashMap;
use std::path::Path;

use engram_textfile::{Object, message_in_line, not_blank, read_text, shortened};
use serde::{Deserialize, Serialize};

use crate::error::{EvalError, Location};
use crate::metric::MetricInfo;
use crate::metric::pearson::WeightedPearson;

/// The result of one item.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Item {
    /// Name of the metric.
    pub metric: String,
    /// Version of the metric's definition.
    pub version: u32,
    /// Direction of the metric.
    pub higher_is_better: Option<bool>,
    /// Name and version of the text normaliser.
    pub normaliser: String,
    /// The item's id.
    pub id: String,
    /// The item's group (speaker, anchor), if intervals resample whole groups.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// The item's contribution to the metric.
    pub statistic: Statistic,
}

/// How a metric is computed from its items.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Statistic {
    /// The sum of the numerators divided by the sum of the denominators (error rates). If the
    /// denominators sum to 0, the sum of the numerators.
    Ratio {
        /// The item's numerator: errors.
        numerator: f64,
        /// The item's denominator: reference words.
        denominator: f64,
    },
    /// Pearson's r of gold and prediction.
    Correlation {
        /// The gold value.
        gold: f64,
        /// The predicted value.
        prediction: f64,
    },
    /// The mean of the items' values.
    Mean {
        /// The item's value.
        value: f64,
    },
}

/// The items of one system, in file order.
#[derive(Debug, Clone, PartialEq)]
pub struct Items {
    /// The file name, for messages.
    pub file: String,
    /// The items; at least one, all with the same metric and the same kind of statistic.
    pub items: Vec<Item>,
}

impl Items {
    /// Reads a file written by `--items`.
    ///
    /// # Errors   [`EvalError::Text`]; as [`Items::parse`]
    pub fn read(path: &Path) -> Result<Self, EvalError> {
        Self::parse(&path.display().to_string(), &read_text(path)?)
    }

    /// Reads items from JSON lines.
    ///
    /// # Errors   [`EvalError::Malformed`] with the line; [`EvalError::DuplicateId`]
    pub fn parse(file: &str, text: &str) -> Result<Self, EvalError> {
        let malformed = |line: Option<u64>, reason: String| EvalError::Malformed {
            location: Location::new(file, line),
            reason,
            remedy: "give a file that `engram eval … --items FILE` wrote",
        };
        let (mut items, mut seen) = (Vec::<Item>::new(), HashMap::new());
        for (line, row) in not_blank(text) {
            let Object(item): Object<Item> = serde_json::from_str(row).map_err(|error| {
                malformed(
                    Some(line),
                    format!("is not an item of a result: {}", message_in_line(&error)),
                )
            })?;
            if let Statistic::Ratio { numerator, denominator } = item.statistic
                && (numerator < 0.0 || denominator < 0.0)
            {
                let reason = format!("has a negative ratio: {numerator} to {denominator}");
                return Err(malformed(Some(line), reason));
            }
            if let Some(first) = items.first()
                && !alike(first, &item)
            {
                let reason = "has a different metric, version or normaliser than the first line";
                return Err(malformed(Some(line), reason.to_owned()));
            }
            if let Some(first) = seen.insert(item.id.clone(), line) {
                let (location, first) = (Location::new(file, line), Location::new(file, first));
                return Err(EvalError::DuplicateId {
                    location,
                    first,
                    id: shortened(&item.id, 60),
                });
            }
            items.push(item);
        }
        if items.is_empty() {
            return Err(malformed(None, "has no items".to_owned()));
        }
        Ok(Self { file: file.to_owned(), items })
    }

    /// Formats the items as JSON lines.
    pub fn to_json_lines(&self) -> String {
        json_lines(&self.items)
    }
}

/// Formats items as JSON lines, which [`Items::parse`] reads.
pub fn json_lines(items: &[Item]) -> String {
    let line = |item: &Item| serde_json::to_string(item).unwrap_or_default() + "\n";
    items.iter().map(line).collect()
}

/// Whether two items have the same metric, version, normaliser and kind of statistic.
pub(crate) fn alike(a: &Item, b: &Item) -> bool {
    let kind = std::mem::discriminant(&a.statistic) == std::mem::discriminant(&b.statistic);
    kind && a.metric == b.metric && a.version == b.version && a.normaliser == b.normaliser
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
            metric: metric.name.to_owned(),
            version: metric.version,
            higher_is_better: metric.higher_is_better,
            normaliser: normaliser.to_owned(),
            id: id.to_owned(),
            group: group.map(str::to_owned),
            statistic,
        }
    }
}

/// A metric over many items, prepared for recomputation on every resample.
pub(crate) enum PooledMetric {
    Ratio(Vec<[f64; 2]>),
    Mean(Vec<f64>),
    Correlation(Box<WeightedPearson>),
}

impl PooledMetric {
    /// Builds the metric from statistics of one kind.
    pub(crate) fn new(statistics: &[Statistic]) -> Result<Self, EvalError> {
        let (mut ratios, mut values, mut gold, mut predicted) =
            (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for statistic in statistics {
            match *statistic {
                Statistic::Ratio { numerator, denominator } => {
                    ratios.push([numerator, denominator])
                }
                Statistic::Mean { value } => values.push(value),
                Statistic::Correlation { gold: x, prediction } => {
                    gold.push(x);
                    predicted.push(prediction);
                }
            }
        }
        Ok(if !ratios.is_empty() {
            Self::Ratio(ratios)
        } else if !gold.is_empty() {
            Self::Correlation(Box::new(WeightedPearson::new(&gold, &predicted)?))
        } else {
            Self::Mean(values)
        })
    }

    /// The value of the metric with item `i` repeated `times[i]` times.
    pub(crate) fn value(&self, times: &[u32]) -> f64 {
        match self {
            Self::Ratio(ratios) => {
                let (mut above, mut below) = (0.0, 0.0);
                for ([numerator, denominator], times) in ratios.iter().zip(times) {
                    above += numerator * f64::from(*times);
                    below += denominator * f64::from(*times);
                }
                if below == 0.0 { above } else { above / below }
            }
            Self::Mean(values) => {
                let (mut sum, mut count) = (0.0, 0.0);
                for (value, times) in values.iter().zip(times) {
                    sum += value * f64::from(*times);
                    count += f64::from(*times);
                }
                sum / count
            }
            Self::Correlation(pearson) => pearson.value(times),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(id: &str, statistic: Statistic) -> Item {
        let info = MetricInfo { name: "wer", version: 1, higher_is_better: Some(false) };
        Item::new(&info, "none", id, Some("s"), statistic)
    }

    #[test]
    fn items_come_back_from_their_lines() {
        for statistic in [
            Statistic::Ratio { numerator: 2.0, denominator: 10.0 },
            Statistic::Mean { value: 0.5 },
            Statistic::Correlation { gold: 1.0, prediction: 0.75 },
        ] {
            let items = vec![item("a", statistic), item("b", statistic)];
            let written = Items { file: "f".to_owned(), items };
            assert_eq!(Items::parse("f", &written.to_json_lines()).unwrap(), written);
        }
    }

    #[test]
    fn lines_that_are_no_items_are_named() {
        let ratio = Statistic::Ratio { numerator: 2.0, denominator: 10.0 };
        let refused = |items: &[Item]| {
            let text = Items { file: "f".to_owned(), items: items.to_vec() }.to_json_lines();
            Items::parse("f", &text).unwrap_err().to_string()
        };
        assert!(refused(&[]).starts_with("f: has no items"));
        assert!(refused(&[item("a", ratio), item("a", ratio)]).starts_with("f:2: id `a`"));
        let mean = item("b", Statistic::Mean { value: 1.0 });
        assert!(refused(&[item("a", ratio), mean]).starts_with("f:2: has a different metric"));
        let error = Items::parse("f", "\n{\"metric\":1}").unwrap_err().to_string();
        assert!(error.starts_with("f:2: is not an item of a result: invalid type"), "{error}");
        assert!(error.contains("(column 11)") && !error.contains("at line"), "{error}");
        let negative = Statistic::Ratio { numerator: 1.0, denominator: -1.0 };
        assert!(refused(&[item("a", negative)]).starts_with("f:1: has a negative ratio: 1 to -1"));
    }

    #[test]
    fn figures_are_made_of_their_items() {
        let ratio = |numerator, denominator| Statistic::Ratio { numerator, denominator };
        let metric =
            PooledMetric::new(&[ratio(1.0, 4.0), ratio(3.0, 4.0), ratio(2.0, 0.0)]).unwrap();
        assert_eq!(metric.value(&[1, 1, 1]), 0.75);
        assert_eq!(metric.value(&[2, 0, 0]), 0.25);
        assert_eq!(metric.value(&[0, 0, 2]), 4.0);
        let mean = |value| Statistic::Mean { value };
        assert_eq!(PooledMetric::new(&[mean(1.0), mean(4.0)]).unwrap().value(&[1, 2]), 3.0);
    }
}
