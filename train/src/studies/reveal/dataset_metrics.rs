//! Metrics of examples from files, by the rules of their data sets.
//!
//! A run's `test/` has two files per data set: the human references in the data set's format, and
//! the model's answers in its results format. `engram eval` computes the same metrics from them.
//!
//! | data set | references | answers | command |
//! |---|---|---|---|
//! | captions | `captions-references.json` | `captions-results.json` | `engram eval caption` |
//! | VQA, OK-VQA | `vqa-annotations.json` | `vqa-results.json` | `engram eval vqa` |
//! | A-OKVQA | `aokvqa-questions.json` | `aokvqa-predictions.json` | `engram eval aokvqa` |

use std::collections::HashMap;
use std::path::Path;

use engram_eval::caption::{self, report};
use engram_eval::result::{Measure, ReportOptions};
use engram_eval::{aokvqa, vqa};
use engram_infer::reveal::corpus::{Corpus, Example, MetricKind};
use engram_textfile::read_text;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::study::StudyResult;

/// The metrics of the examples from one file of questions, or from all caption files.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DatasetMetrics {
    /// `captions`, `vqa` or `aokvqa`, numbered if there are several files of a kind.
    pub name: String,
    /// The measures, the primary one first.
    pub measures: Vec<Measure>,
}

/// References and answers, as files in the data set's formats.
pub struct ReferencesAndAnswers {
    /// `captions`, `vqa` or `aokvqa`, numbered if there are several files of a kind.
    pub name: String,
    /// The human references: the file's name and content.
    pub references: (String, String),
    /// The model's answers: the file's name and content.
    pub answers: (String, String),
    kind: MetricKind,
}

/// The metric for model selection; `None` for the embedded world, whose metric is exact match.
pub fn primary_metric(kind: &MetricKind) -> Option<&'static str> {
    match kind {
        MetricKind::Entries => None,
        MetricKind::Captions => Some("cider_d"),
        MetricKind::Vqa(_) => Some("vqa_accuracy"),
        MetricKind::Aokvqa(_) => Some("direct_answer"),
    }
}

/// The name of a kind, and the names of its files of references and of answers.
fn names(kind: &MetricKind) -> (&'static str, [&'static str; 2]) {
    match kind {
        MetricKind::Entries => ("entries", ["", ""]),
        MetricKind::Captions => ("captions", ["references", "results"]),
        MetricKind::Vqa(_) => ("vqa", ["annotations", "results"]),
        MetricKind::Aokvqa(_) => ("aokvqa", ["questions", "predictions"]),
    }
}

/// References and answers for each [`MetricKind`] that has examples.
pub(crate) fn references_and_answers(
    corpus: &Corpus,
    examples: &[&Example],
    answers: &[String],
) -> StudyResult<Vec<ReferencesAndAnswers>> {
    let mut pairs = Vec::new();
    for (index, metric_kind) in corpus.metric_kinds.iter().enumerate() {
        let answered =
            examples.iter().zip(answers).filter(|(example, _)| example.metric_kind == index);
        let answered: Vec<(&Example, &str)> =
            answered.map(|(example, answer)| (*example, answer.as_str())).collect();
        let (kind, [references_file, answers_file]) = names(metric_kind);
        let (references, answers) = match metric_kind {
            MetricKind::Entries => continue,
            _ if answered.is_empty() => continue,
            MetricKind::Captions => captions(&answered),
            MetricKind::Vqa(file) => vqa_pair(file, &answered)?,
            MetricKind::Aokvqa(file) => aokvqa_pair(file, &answered)?,
        };
        let earlier_kinds = corpus.metric_kinds[..index].iter();
        let name = match earlier_kinds.filter(|earlier| names(earlier).0 == kind).count() {
            0 => kind.to_owned(),
            num_earlier => format!("{kind}-{}", num_earlier + 1),
        };
        pairs.push(ReferencesAndAnswers {
            references: (format!("{name}-{references_file}.json"), references.to_string()),
            answers: (format!("{name}-{answers_file}.json"), answers.to_string()),
            kind: metric_kind.clone(),
            name,
        });
    }
    Ok(pairs)
}

/// Parses the references of the validation and test examples, so that an invalid file is an error
/// before training.
///
/// # Errors
/// Errors of parsing, with the data set's file.
pub fn check(corpus: &Corpus) -> StudyResult<()> {
    let examples: Vec<&Example> = corpus.validation.iter().chain(&corpus.test).collect();
    for ReferencesAndAnswers { kind, references, .. } in
        references_and_answers(corpus, &examples, &vec![String::new(); examples.len()])?
    {
        match &kind {
            MetricKind::Entries | MetricKind::Captions => {}
            MetricKind::Vqa(file) => {
                vqa::read::parse_annotations(&file.display().to_string(), &references.1)?;
            }
            MetricKind::Aokvqa(file) => {
                aokvqa::parse_questions(&file.display().to_string(), &references.1)?;
            }
        }
    }
    Ok(())
}

impl ReferencesAndAnswers {
    /// Computes the metrics, as `engram eval` does from the two files.
    ///
    /// # Errors
    /// Errors of the evaluation.
    pub fn measure(&self) -> StudyResult<DatasetMetrics> {
        let ((references_name, references), (answers_name, answers)) =
            (&self.references, &self.answers);
        let options = ReportOptions::default();
        let evaluation = match self.kind {
            MetricKind::Entries => return Err("entries have no reference files".into()),
            MetricKind::Captions => {
                let annotations = caption::parse_annotations(references_name, references)?;
                let results = caption::parse_results(answers_name, answers)?;
                report::report(&annotations, &results, &Default::default(), &options)?.evaluation
            }
            MetricKind::Vqa(_) => {
                let annotations = vqa::read::parse_annotations(references_name, references)?;
                let results = vqa::read::parse_results(answers_name, answers)?;
                vqa::evaluate(
                    references_name,
                    &annotations,
                    answers_name,
                    &results,
                    &Default::default(),
                    &options,
                )?
                .evaluation
            }
            MetricKind::Aokvqa(_) => {
                let questions = aokvqa::parse_questions(references_name, references)?;
                let predictions = aokvqa::parse_predictions(answers_name, answers)?;
                aokvqa::evaluate(&questions, answers_name, &predictions, &options)?.evaluation
            }
        };
        let mut measures = vec![evaluation.primary];
        measures.extend(evaluation.secondary);
        Ok(DatasetMetrics { name: self.name.clone(), measures })
    }
}

/// References and results of captions.
fn captions(answered: &[(&Example, &str)]) -> (Value, Value) {
    let id = |example: &Example| match example.name.parse::<i64>() {
        Ok(number) => Value::from(number),
        Err(_) => Value::from(&*example.name),
    };
    let images = answered.iter().map(|(example, _)| json!({ "id": id(example) }));
    let references = answered.iter().flat_map(|(example, _)| {
        example.answers.iter().map(|caption| json!({ "image_id": id(example), "caption": caption }))
    });
    let results = answered
        .iter()
        .map(|(example, answer)| json!({ "image_id": id(example), "caption": answer }));
    let references = json!({
        "images": images.collect::<Vec<Value>>(),
        "annotations": references.collect::<Vec<Value>>(),
    });
    (references, results.collect())
}

/// The items of the given questions in a data set's file, unchanged, in the order of the questions.
/// `list` is the key of the list of items; `None` if the file is the list.
fn items_of_questions(
    file: &Path,
    answered: &[(&Example, &str)],
    list: Option<&str>,
) -> StudyResult<Vec<Value>> {
    let content: Value = serde_json::from_str(&read_text(file)?)
        .map_err(|error| format!("{}: {error}", file.display()))?;
    let items = match list {
        Some(list) => content.get(list).and_then(Value::as_array),
        None => content.as_array(),
    };
    let id = |item: &Value| match item.get("question_id") {
        Some(Value::String(id)) => Some(id.clone()),
        Some(id) => Some(id.to_string()),
        None => None,
    };
    let by_id: HashMap<String, &Value> =
        items.into_iter().flatten().filter_map(|item| Some((id(item)?, item))).collect();
    let items = answered.iter().map(|(example, _)| {
        let missing = || {
            let name = &example.name;
            format!("{}: question {name} is no longer in the file; restore it", file.display())
        };
        by_id.get(&example.name).map(|item| (*item).clone()).ok_or_else(|| missing().into())
    });
    items.collect()
}

/// Annotations and results of VQA questions.
fn vqa_pair(file: &Path, answered: &[(&Example, &str)]) -> StudyResult<(Value, Value)> {
    let annotations = items_of_questions(file, answered, Some("annotations"))?;
    let results = annotations.iter().zip(answered).map(|(annotation, (_, answer))| {
        json!({ "question_id": annotation.get("question_id"), "answer": answer })
    });
    let results = results.collect();
    Ok((json!({ "annotations": annotations }), results))
}

/// Questions and predictions of A-OKVQA.
fn aokvqa_pair(file: &Path, answered: &[(&Example, &str)]) -> StudyResult<(Value, Value)> {
    let questions = items_of_questions(file, answered, None)?;
    let predictions: Map<String, Value> = answered
        .iter()
        .map(|(example, answer)| (example.name.clone(), json!({ "direct_answer": answer })))
        .collect();
    Ok((questions.into(), predictions.into()))
}
