//! Exact match and recall of answers, with intervals over images.

use engram_data::messages::counted;
use std::collections::BTreeMap;

use engram_eval::bootstrap::{BootstrapOptions, Resampling, interval};
use engram_eval::metric::mean::{mean, weighted_mean};
use engram_eval::metric::{MetricInfo, Unit};
use engram_eval::result::Measure;
use engram_infer::reveal::answers::Answers;
use engram_infer::reveal::corpus::{Corpus, Example};
use engram_infer::reveal::is_correct;
use serde::{Deserialize, Serialize};

use crate::study::Evaluation;

/// The fraction of questions whose lower-cased answer equals a reference answer.
const EXACT_MATCH: MetricInfo = MetricInfo::higher("exact_match", Unit::Fraction);
/// The fraction of questions whose own entry (the entry with the answer) is retrieved first.
const RECALL_AT_1: MetricInfo = MetricInfo::higher("recall_at_1", Unit::Fraction);
/// The fraction of questions whose own entry is among the first ten retrieved entries.
const RECALL_AT_10: MetricInfo = MetricInfo::higher("recall_at_10", Unit::Fraction);

/// The metrics of a set of questions.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct QuestionMetrics {
    /// The name of the set: `all`, a part (`held_out`), or a part and a source (`held_out, kg`).
    pub questions: String,
    /// The fraction of correct answers.
    pub exact_match: Measure,
    /// The fraction of questions whose own entry is retrieved first.
    pub recall_at_1: Measure,
    /// The fraction of questions whose own entry is among the first ten retrieved entries.
    pub recall_at_10: Measure,
}

/// The name of the set of all questions.
pub const ALL: &str = "all";

impl QuestionMetrics {
    /// Measures questions about facts that only the memory contains: all, by part, and by part and
    /// source. Intervals resample whole images.
    pub(crate) fn of_parts(corpus: &Corpus, examples: &[&Example], answers: &Answers) -> Vec<Self> {
        let mut parts: BTreeMap<String, Vec<usize>> = BTreeMap::new();
        for (i, example) in examples.iter().enumerate().filter(|(_, example)| example.made_up) {
            parts.entry(ALL.to_owned()).or_default().push(i);
            let part = example.part.name();
            parts.entry(part.to_owned()).or_default().push(i);
            if let Some(index) = example.own_entry {
                let source = &corpus.items[index].entry.source;
                parts.entry(format!("{part}, {source}")).or_default().push(i);
            }
        }
        parts
            .into_iter()
            .map(|(questions, indices)| Self::of(questions, corpus, examples, answers, &indices))
            .collect()
    }

    /// The metrics for the trainer: `exact_match` of all questions, `exact_match/held_out`, ….
    pub fn evaluation(metrics_of_parts: &[Self]) -> Evaluation {
        let (mut metrics, mut counts) = (Vec::new(), Vec::new());
        for metrics_of_part in metrics_of_parts {
            let part = match metrics_of_part.questions.as_str() {
                ALL => String::new(),
                part => format!("/{}", part.replace(", ", "/")),
            };
            for measure in [
                &metrics_of_part.exact_match,
                &metrics_of_part.recall_at_1,
                &metrics_of_part.recall_at_10,
            ] {
                if measure.reason.is_none() {
                    metrics.push((format!("{}{part}", measure.metric), measure.value));
                }
            }
            counts.push((format!("questions{part}"), metrics_of_part.exact_match.n as u64));
        }
        Evaluation { metrics, counts }
    }

    /// Measures the set `questions`, which has the examples at the indices `indices`.
    pub fn of(
        questions: String,
        corpus: &Corpus,
        examples: &[&Example],
        answers: &Answers,
        indices: &[usize],
    ) -> Self {
        let images: Vec<Option<usize>> =
            indices.iter().map(|index| examples[*index].group.or(examples[*index].image)).collect();
        let resampling = Resampling::by_group("image", &images);
        let options = BootstrapOptions::default();
        // Recall is undefined without a memory, and recall@10 with fewer than ten entries.
        let max_retrieved =
            indices.iter().map(|index| answers.retrieved[*index].len()).max().unwrap_or(0);
        let measure = |info: &MetricInfo, k: usize, is_success: &dyn Fn(usize) -> bool| {
            let values: Vec<f64> =
                indices.iter().map(|index| if is_success(*index) { 1.0 } else { 0.0 }).collect();
            let interval = interval(&resampling, &options, |counts| weighted_mean(&values, counts));
            let value = if max_retrieved < k {
                Err(format!("only {} retrieved, not {k}", counted(max_retrieved, "entry")))
            } else {
                Ok(mean(&values))
            };
            Measure::new(info, values.len(), value, interval)
        };
        let is_retrieved = |index: usize, k: usize| {
            let own_entry = examples[index].own_entry.map(|index| corpus.items[index].entry.id);
            answers.retrieved[index].iter().take(k).any(|id| Some(*id) == own_entry)
        };
        Self {
            exact_match: measure(&EXACT_MATCH, 0, &|index| {
                is_correct(&answers.texts[index], &examples[index].answers)
            }),
            recall_at_1: measure(&RECALL_AT_1, 1, &|index| is_retrieved(index, 1)),
            recall_at_10: measure(&RECALL_AT_10, 10, &|index| is_retrieved(index, 10)),
            questions,
        }
    }
}
