//! Evaluation of translations, summaries and other texts, each with one or more references.
//!
//! All metrics of texts in [`METRICS`](crate::metric::registry::METRICS) are computed: chrF and
//! chrF++.
//!
//! ```
//! use engram_eval::normalise::Normaliser;
//! use engram_eval::texts::{Texts, evaluate};
//! use engram_eval::wer::read::Pairs;
//!
//! let hypotheses = ["a cat sat", "two dogs"];
//! let first = Pairs::new(&["a cat sits", "two dogs"], &hypotheses)?;
//! let second = Pairs::new(&["the cat sat", "a pair of dogs"], &hypotheses)?;
//! let texts = Texts::combine(vec![("first", first), ("second", second)])?;
//! let report = evaluate(&texts, "chrf", Normaliser::None, &Default::default())?;
//! assert_eq!(report.evaluation.primary.metric, "chrf");
//! # Ok::<(), engram_eval::EvalError>(())
//! ```

use std::borrow::Cow;
use std::collections::HashMap;

use engram_textfile::shortened;
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use crate::bootstrap::{Resampling, interval};
use crate::error::{EvalError, malformed};
use crate::groups::lowest_rows;
use crate::items::{Item, PooledMetric, Statistic};
use crate::metric::registry::{spelling, text_metrics};
use crate::normalise::Normaliser;
use crate::result::{Evaluation, Measure, ReportOptions};
use crate::text::{ScoredText, report, scored_texts_table};
use crate::wer::read::Pairs;

/// The texts of a system, and the references of each text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Texts<'a> {
    /// The id of each text; for plain lines, the line number from 1.
    pub ids: Vec<Cow<'a, str>>,
    /// The texts of the system.
    pub hypotheses: Vec<Cow<'a, str>>,
    /// The references of each text, in the order of the files.
    pub references: Vec<Vec<Cow<'a, str>>>,
}

impl<'a> Texts<'a> {
    /// Combines several reference files. `files` has the name of each file, and its references
    /// paired with the same hypotheses. The texts are in the order of the first file.
    ///
    /// # Errors
    /// [`EvalError::Text`] for sclite's markup, and for an id that is missing in one
    /// of the files
    pub fn combine(files: Vec<(&str, Pairs<'a>)>) -> Result<Self, EvalError> {
        let mut texts = Self::default();
        for (index, (file, pairs)) in files.into_iter().enumerate() {
            if pairs.markup.references || pairs.markup.hypotheses {
                let reason = "has sclite's markup, or its hypotheses have";
                let remedy = "write plain texts, for example as id<TAB>text";
                return Err(malformed(file, None, reason, remedy));
            }
            if index == 0 {
                texts.ids = pairs.ids;
                texts.hypotheses = pairs.hypotheses;
                texts.references = pairs.references.into_iter().map(|text| vec![text]).collect();
                continue;
            }
            let mut by_id: HashMap<_, _> = pairs.ids.into_iter().zip(pairs.references).collect();
            for (id, references) in texts.ids.iter().zip(&mut texts.references) {
                let missing = || {
                    let reason = format!("has no reference for id `{}`", shortened(id, 60));
                    malformed(file, None, reason, "give the same ids in all reference files")
                };
                references.push(by_id.remove(id).ok_or_else(missing)?);
            }
        }
        Ok(texts)
    }

    fn normalised(&self, normaliser: Normaliser) -> Cow<'_, Self> {
        if normaliser == Normaliser::None {
            return Cow::Borrowed(self);
        }
        let normalise = |texts: &[Cow<'a, str>]| -> Vec<Cow<'a, str>> {
            normaliser.normalise_all(texts).into_iter().map(Cow::Owned).collect()
        };
        Cow::Owned(Self {
            ids: self.ids.clone(),
            hypotheses: normalise(&self.hypotheses),
            references: self.references.iter().map(|references| normalise(references)).collect(),
        })
    }
}

/// All metrics of an evaluation of texts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TextsReport {
    /// The chosen metric (primary) and the other metrics.
    #[serde(flatten)]
    pub evaluation: Evaluation,
    /// Number of references per text; the largest number if the texts differ.
    pub references: usize,
    /// The texts with the lowest scores, worst first, without texts that have the best possible
    /// score.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub worst: Vec<WorstText>,
    /// The sums of each text for the primary metric; empty if [`ReportOptions::items`] is false.
    #[serde(skip)]
    pub items: Vec<Item>,
}

/// A text with a low score.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WorstText {
    /// The id of the text.
    pub id: String,
    /// The primary metric of this text alone.
    pub value: f64,
    /// The text of the system, after normalisation.
    pub hypothesis: String,
    /// The references, after normalisation.
    pub references: Vec<String>,
}

/// Evaluates texts against their references, after `normaliser`. `primary_metric` is `chrf` or
/// `chrf++`. Intervals resample texts.
///
/// # Errors
/// [`EvalError::InvalidOption`]; [`EvalError::NothingToEvaluate`] without texts;
/// [`EvalError::LengthMismatch`]
pub fn evaluate(
    texts: &Texts<'_>,
    primary_metric: &str,
    normaliser: Normaliser,
    options: &ReportOptions,
) -> Result<TextsReport, EvalError> {
    options.bootstrap.validate()?;
    let text_count = texts.ids.len();
    if text_count == 0 {
        return Err(EvalError::NothingToEvaluate { items: "texts" });
    }
    if texts.hypotheses.len() != text_count || texts.references.len() != text_count {
        let (references, hypotheses) = (texts.references.len(), texts.hypotheses.len());
        return Err(EvalError::LengthMismatch { references, hypotheses });
    }
    let texts = &*texts.normalised(normaliser);
    let resampling = Resampling::by_named_row("line", text_count);
    let (mut measures, mut primary) = (Vec::new(), None);
    for (metric, of_text) in text_metrics() {
        let sums = |(hypothesis, references): (&Cow<'_, str>, &Vec<Cow<'_, str>>)| {
            let references: Vec<&str> = references.iter().map(|text| &**text).collect();
            Statistic::Sums { sums: of_text(hypothesis, &references) }
        };
        let lines = texts.hypotheses.par_iter().zip(&texts.references).with_min_len(16);
        let statistics: Vec<Statistic> = lines.map(sums).collect();
        let pooled = PooledMetric::new(&metric.info.name, &statistics)?;
        let interval = interval(&resampling, &options.bootstrap, |counts| pooled.value(counts));
        let value = Ok(pooled.value(&vec![1; text_count]));
        let measure = Measure::new(&metric.info, text_count, value, interval);
        if metric.info.name == primary_metric {
            primary = Some((metric, measure, statistics))
        } else {
            measures.push(measure)
        }
    }
    let (metric, primary, statistics) = primary.ok_or_else(|| EvalError::InvalidOption {
        option: "metric",
        found: primary_metric.to_owned(),
        expected: "the name of a metric of texts, such as chrf",
    })?;
    let mut evaluation = Evaluation::new(primary, measures, Vec::new(), options.sources.clone());
    evaluation.normaliser = normaliser.name_and_version();
    let item = |(id, statistic): (&Cow<'_, str>, Statistic)| {
        Item::new(&metric.info, &evaluation.normaliser, id, None, statistic)
    };
    let mut items: Vec<Item> = texts.ids.iter().zip(statistics).map(item).collect();
    let values: Vec<f64> = items.iter().map(Item::value).collect();
    let worst_text = |row: usize| WorstText {
        id: texts.ids[row].to_string(),
        value: values[row],
        hypothesis: texts.hypotheses[row].to_string(),
        references: texts.references[row].iter().map(|text| text.to_string()).collect(),
    };
    let worst = lowest_rows(&values, metric.range.high, options.worst);
    let worst = worst.into_iter().map(worst_text).collect();
    if !options.items {
        items.clear();
    }
    let references = texts.references.iter().map(Vec::len).max().unwrap_or(0);
    Ok(TextsReport { evaluation, references, worst, items })
}

impl TextsReport {
    /// Formats the report as aligned plain text.
    pub fn to_text(&self) -> String {
        let Evaluation { primary, normaliser, .. } = &self.evaluation;
        let heading = format!(
            "Texts, {} lines, references per line: {}, normaliser {normaliser}",
            primary.n, self.references
        );
        let metric = spelling(&primary.metric);
        let scored_texts = self.worst.iter().map(|line| ScoredText {
            id: &line.id,
            value: line.value,
            text: &line.hypothesis,
            references: &line.references,
        });
        let title = format!("Worst lines, by {metric}\n");
        let worst = scored_texts_table(&title, ["line", &metric, "hypothesis"], scored_texts);
        report(&heading, &self.evaluation, &[], worst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wer::read::{TextFormat, join, parse_texts};

    fn pairs<'a>(reference: &'a str, hypothesis: &'a str) -> Pairs<'a> {
        let texts = |text| parse_texts("f", text, TextFormat::Tsv).unwrap();
        join("r", texts(reference), "h", texts(hypothesis)).unwrap()
    }

    #[test]
    fn references_are_combined_by_id() {
        let hypothesis = "1\ta b\n2\tc\n";
        let (first, second) = ("1\tx\n2\tc\n", "2\ty\n1\ta b\n");
        let files =
            vec![("first", pairs(first, hypothesis)), ("second", pairs(second, hypothesis))];
        let texts = Texts::combine(files).unwrap();
        assert_eq!(texts.references, [["x", "a b"], ["c", "y"]]);
        let options = ReportOptions { items: true, worst: 5, ..ReportOptions::default() };
        let report = evaluate(&texts, "chrf", Normaliser::None, &options).unwrap();
        assert_eq!((report.evaluation.primary.value, report.references), (100.0, 2));
        assert!(report.worst.is_empty() && report.items.len() == 2);
        assert_eq!(report.evaluation.primary.interval.unwrap().method, "rule of three by line");
    }

    #[test]
    fn different_ids_markup_and_other_metrics_are_refused() {
        let files = vec![("a", pairs("1\tx\n", "1\tx\n")), ("b", pairs("2\tx\n", "2\tx\n"))];
        assert_eq!(
            Texts::combine(files).unwrap_err().to_string(),
            "b: has no reference for id `1`; give the same ids in all reference files"
        );
        let mut marked = pairs("1\tx\n", "1\tx\n");
        marked.markup.references = true;
        let error = Texts::combine(vec![("a", marked)]).unwrap_err().to_string();
        assert!(error.starts_with("a: has sclite's markup"), "{error}");
        let texts = Texts::combine(vec![("a", pairs("1\tx\n", "1\tx\n"))]).unwrap();
        let evaluated = |texts: &Texts<'_>, metric: &str| {
            evaluate(texts, metric, Normaliser::None, &ReportOptions::default()).unwrap_err()
        };
        let error = evaluated(&texts, "wer").to_string();
        assert!(error.starts_with("option `metric` is wer; expected"), "{error}");
        let error = evaluated(&Texts::default(), "chrf").to_string();
        assert_eq!(error, "there are no texts; give at least one");
    }
}
