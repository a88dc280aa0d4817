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

use engram_eval::aokvqa::{self, AokvqaOptions};
use engram_eval::caption::{self, report};
use engram_eval::result::Measure;
use engram_eval::vqa::{self, VqaOptions};
use engram_textfile::read_text;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::corpus::{Corpus, Example, MetricKind};
use crate::study::StudyResult;

/// The metrics of the examples with one kind of metrics.
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

impl MetricKind {
    /// The metric for model selection; `None` for exact match and recall.
    pub fn primary_metric(&self) -> Option<&'static str> {
        match self {
            Self::Entries => None,
            Self::Captions => Some("cider_d"),
            Self::Vqa(_) => Some("vqa_accuracy"),
            Self::Aokvqa(_) => Some("direct_answer"),
        }
    }

    fn kind(&self) -> (&'static str, [&'static str; 2]) {
        match self {
            Self::Entries => ("entries", ["", ""]),
            Self::Captions => ("captions", ["references", "results"]),
            Self::Vqa(_) => ("vqa", ["annotations", "results"]),
            Self::Aokvqa(_) => ("aokvqa", ["questions", "predictions"]),
        }
    }
}

/// References and answers for each kind of metrics that has examples.
///
/// # Errors
/// Errors of reading a data set's file again.
pub fn references_and_answers(
    corpus: &Corpus,
    asked: &[&Example],
    said: &[String],
) -> StudyResult<Vec<ReferencesAndAnswers>> {
    let mut sides = Vec::new();
    for (place, metric_kind) in corpus.metric_kinds.iter().enumerate() {
        let own = asked.iter().zip(said).filter(|(example, _)| example.metric_kind == place);
        let own: Vec<(&Example, &str)> = own.map(|(one, said)| (*one, said.as_str())).collect();
        let (kind, [people_file, model_file]) = metric_kind.kind();
        let (people, model) = match metric_kind {
            MetricKind::Entries => continue,
            _ if own.is_empty() => continue,
            MetricKind::Captions => captions(&own),
            MetricKind::Vqa(file) => vqa_sides(file, &own)?,
            MetricKind::Aokvqa(file) => aokvqa_sides(file, &own)?,
        };
        let before = corpus.metric_kinds[..place].iter().filter(|one| one.kind().0 == kind).count();
        let name = match before {
            0 => kind.to_owned(),
            before => format!("{kind}-{}", before + 1),
        };
        sides.push(ReferencesAndAnswers {
            references: (format!("{name}-{people_file}.json"), people.to_string()),
            answers: (format!("{name}-{model_file}.json"), model.to_string()),
            kind: metric_kind.clone(),
            name,
        });
    }
    Ok(sides)
}

/// Checks that the references can be evaluated at the end of the run.
///
/// # Errors
/// Errors of the evaluation, with the data set's file.
pub fn check(corpus: &Corpus) -> StudyResult<()> {
    let asked: Vec<&Example> = corpus.validation.iter().chain(&corpus.test).collect();
    for ReferencesAndAnswers { kind, references, .. } in
        references_and_answers(corpus, &asked, &vec![String::new(); asked.len()])?
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
        let ((people_name, people), (model_name, model)) = (&self.references, &self.answers);
        let evaluation = match self.kind {
            MetricKind::Entries => return Err("entries have no reference files".into()),
            MetricKind::Captions => {
                let annotations = caption::parse_annotations(people_name, people.as_bytes())?;
                let results = caption::parse_results(model_name, model.as_bytes())?;
                report::report(annotations, results, &Default::default())?.evaluation
            }
            MetricKind::Vqa(_) => {
                let annotations = vqa::read::parse_annotations(people_name, people)?;
                let results = vqa::read::parse_results(model_name, model)?;
                let (people, model) = ((&**people_name, &*annotations), (&**model_name, &results));
                vqa::evaluate(people, model, &VqaOptions::default())?.evaluation
            }
            MetricKind::Aokvqa(_) => {
                let questions = aokvqa::parse_questions(people_name, people)?;
                let predictions = aokvqa::parse_predictions(model_name, model)?;
                let model = (&**model_name, &predictions);
                aokvqa::evaluate(&questions, model, &AokvqaOptions::default())?.evaluation
            }
        };
        let mut measures = vec![evaluation.primary];
        measures.extend(evaluation.secondary);
        Ok(DatasetMetrics { name: self.name.clone(), measures })
    }
}

fn captions(own: &[(&Example, &str)]) -> (Value, Value) {
    let id = |example: &Example| match example.name.parse::<i64>() {
        Ok(number) => Value::from(number),
        Err(_) => Value::from(&*example.name),
    };
    let images = own.iter().map(|(example, _)| json!({ "id": id(example) }));
    let references = own.iter().flat_map(|(example, _)| {
        example.answers.iter().map(|caption| json!({ "image_id": id(example), "caption": caption }))
    });
    let results =
        own.iter().map(|(example, said)| json!({ "image_id": id(example), "caption": said }));
    let people = json!({
        "images": images.collect::<Vec<Value>>(),
        "annotations": references.collect::<Vec<Value>>(),
    });
    (people, results.collect())
}

/// The items of a list about the given questions, in their order and unchanged.
fn of_questions(
    file: &Path,
    own: &[(&Example, &str)],
    list: Option<&str>,
) -> StudyResult<Vec<Value>> {
    let read: Value = serde_json::from_str(&read_text(file)?)
        .map_err(|error| format!("{}: {error}", file.display()))?;
    let items = match list {
        Some(list) => read.get(list).and_then(Value::as_array),
        None => read.as_array(),
    };
    let id = |item: &Value| match item.get("question_id") {
        Some(Value::String(id)) => Some(id.clone()),
        Some(id) => Some(id.to_string()),
        None => None,
    };
    let by_id: HashMap<String, &Value> =
        items.into_iter().flatten().filter_map(|item| Some((id(item)?, item))).collect();
    let found = own.iter().map(|(example, _)| {
        let missing = || {
            let name = &example.name;
            format!("{}: question {name} is missing now; restore the file", file.display())
        };
        by_id.get(&example.name).map(|item| (*item).clone()).ok_or_else(|| missing().into())
    });
    found.collect()
}

fn vqa_sides(file: &Path, own: &[(&Example, &str)]) -> StudyResult<(Value, Value)> {
    let annotations = of_questions(file, own, Some("annotations"))?;
    let results = annotations.iter().zip(own).map(|(annotation, (_, said))| {
        json!({ "question_id": annotation.get("question_id"), "answer": said })
    });
    let results = results.collect();
    Ok((json!({ "annotations": annotations }), results))
}

fn aokvqa_sides(file: &Path, own: &[(&Example, &str)]) -> StudyResult<(Value, Value)> {
    let questions = of_questions(file, own, None)?;
    let predictions: Map<String, Value> = own
        .iter()
        .map(|(example, said)| (example.name.clone(), json!({ "direct_answer": said })))
        .collect();
    Ok((questions.into(), predictions.into()))
}
