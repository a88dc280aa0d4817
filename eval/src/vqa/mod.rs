//! Visual question answering: VQA v2 and OK-VQA accuracy, equal to the official script.
//!
//! | file | task |
//! |---|---|
//! | `accuracy` | scores one answer |
//! | [`answer`] | normalises an answer as the script does |
//! | [`human_answers`] | compact storage of human answers |
//! | [`read`] | reads annotations and results from JSON |
//!
//! ```
//! use engram_eval::vqa::{evaluate, read};
//!
//! let annotations = r#"{"annotations": [{"question_id": 1, "question_type": "what", "answer_type": "other",
//!     "answers": [{"answer": "a cat", "answer_id": 1}, {"answer": "cat", "answer_id": 2},
//!                 {"answer": "the cat", "answer_id": 3}, {"answer": "dog", "answer_id": 4}]}]}"#;
//! let annotations = read::parse_annotations("annotations", annotations)?;
//! let results = read::parse_results("results", r#"[{"question_id": 1, "answer": "Cat."}]"#)?;
//! let (questions, options) = Default::default();
//! let report =
//!     evaluate("annotations", &annotations, "results", &results, &questions, &options)?;
//! // Each of the four is compared with the other three: 2/3, 2/3, 2/3 and 1.
//! assert!((report.evaluation.primary.value - 75.0).abs() < 1e-12);
//! # Ok::<(), engram_eval::EvalError>(())
//! ```

mod accuracy;
pub mod answer;
pub mod human_answers;
pub mod read;

use std::borrow::Cow;
use std::collections::HashMap;

use engram_textfile::shortened;
use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::bootstrap::measure_of_mean;
use crate::error::{EvalError, no_rows};
use crate::groups::{lowest_rows, rows_by_label};
use crate::ids::{FileIds, Id, join};
use crate::items::{Item, mean_items};
use crate::metric::{MetricInfo, Unit};
use crate::result::{Breakdown, Evaluation, ReportOptions};
use crate::text::{self, breakdown};
use accuracy::Scorer;
use read::{Annotation, Questions};

pub use accuracy::accuracy;

/// VQA v2 accuracy, from 0 to 100.
pub const INFO: MetricInfo = MetricInfo::higher("vqa_accuracy", Unit::Percent);

/// Maximum length of an answer in the text report, in characters; the JSON report has the full
/// answer.
const ANSWER_WIDTH: usize = 60;
/// Maximum number of distinct human answers per question in the text report.
const ANSWERS_SHOWN: usize = 10;

/// All metrics of an evaluation. The JSON form is [`Evaluation`] with more fields.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct VqaReport {
    /// The accuracy, also by question type and by answer type.
    #[serde(flatten)]
    pub evaluation: Evaluation,
    /// The questions with the lowest accuracy, worst first, without those that score 100; ties in
    /// the order of the annotations.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub worst: Vec<WorstQuestion>,
    /// The accuracy of each question; empty if [`ReportOptions::items`] is false.
    #[serde(skip)]
    pub items: Vec<Item>,
}

/// A question with a low accuracy.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WorstQuestion {
    /// The question id.
    pub id: String,
    /// The question's accuracy, from 0 to 100.
    pub accuracy: f64,
    /// The question text; empty if no question file was given.
    pub question: String,
    /// The predicted answer.
    pub answer: String,
    /// Human answers with their counts, most frequent first.
    pub human_answers: Vec<(String, u64)>,
}

/// Scores results against annotations, by question id. The file names are for messages. The
/// question texts are for [`VqaReport::worst`], and may be missing.
///
/// # Errors
/// [`EvalError::MissingPrediction`], [`EvalError::ExtraPrediction`] for questions in one
/// file only; [`EvalError::Text`] without questions; [`EvalError::InvalidOption`]
pub fn evaluate<'n, 'a>(
    annotation_file: &str,
    annotations: &'n [Annotation<'a>],
    result_file: &str,
    results: &HashMap<Id<'a>, Cow<'a, str>>,
    questions: &Questions<'_>,
    options: &ReportOptions,
) -> Result<VqaReport, EvalError> {
    options.bootstrap.validate()?;
    if annotations.is_empty() {
        return Err(no_rows(annotation_file));
    }
    let mut results: Vec<(&Id<'_>, &Cow<'_, str>)> = results.iter().collect();
    results.sort_unstable();
    let (result_ids, answers): (Vec<_>, Vec<_>) = results.into_iter().unzip();
    let ids = annotations.iter().map(|annotation| &*annotation.question_id.0);
    let ids = FileIds::without_lines(annotation_file, ids);
    let result_ids = FileIds::without_lines(result_file, result_ids.into_iter().map(|id| &*id.0));
    let joined = join(&ids, &result_ids, false)?;
    let predicted: Vec<&str> =
        joined.into_iter().flatten().map(|index| &**answers[index]).collect();
    let scores: Vec<f64> = annotations
        .par_iter()
        .zip(&predicted)
        .with_min_len(64)
        .map_init(Scorer::default, |scorer, (annotation, predicted)| {
            100.0 * scorer.accuracy(predicted, &annotation.answers)
        })
        .collect();
    let measure = |scores: &[f64]| measure_of_mean(&INFO, "question", scores, &options.bootstrap);
    let breakdown_by = |name: &str, label: fn(&'n Annotation<'a>) -> &'n str| {
        let group_measure = |(label, rows): (&str, Vec<usize>)| {
            let scores: Vec<f64> = rows.into_iter().map(|row| scores[row]).collect();
            (label.to_owned(), measure(&scores))
        };
        let groups = rows_by_label(annotations.iter().map(label));
        Breakdown::new(name, &INFO, groups.into_iter().map(group_measure).collect())
    };
    let breakdowns = vec![
        breakdown_by("question type", |annotation| &annotation.question_type),
        breakdown_by("answer type", |annotation| &annotation.answer_type),
    ];
    let accuracies = |table: &Breakdown| -> Map<String, Value> {
        table.rows.iter().map(|row| (row.name.clone(), row.value.into())).collect()
    };
    let [by_question, by_answer] = [0, 1].map(|table: usize| accuracies(&breakdowns[table]));
    let primary = measure(&scores);
    let value = primary.value;
    let mut evaluation = Evaluation::new(primary, Vec::new(), breakdowns, options.sources.clone());
    evaluation.normaliser = "vqa, GT-Vision-Lab/VQA a013f00".to_owned();
    evaluation.detail = Map::from_iter([
        ("accuracy".to_owned(), Value::from(value)),
        ("per_question_type".to_owned(), by_question.into()),
        ("per_answer_type".to_owned(), by_answer.into()),
    ]);
    let ids = annotations.iter().map(|annotation| &annotation.question_id.0);
    let items = mean_items(options, &INFO, &evaluation.normaliser, ids, &scores);
    let worst_question = |row: usize| {
        let annotation = &annotations[row];
        let question = questions.get(&annotation.question_id);
        WorstQuestion {
            id: annotation.question_id.0.to_string(),
            accuracy: scores[row],
            question: question.map(Cow::to_string).unwrap_or_default(),
            answer: predicted[row].to_owned(),
            human_answers: count_answers(annotation.answers.iter().map(|human| &*human.answer)),
        }
    };
    let worst = lowest_rows(&scores, 100.0, options.worst);
    let worst = worst.into_iter().map(worst_question).collect();
    Ok(VqaReport { evaluation, worst, items })
}

/// The distinct answers with their counts, most frequent first.
pub(crate) fn count_answers<'a>(answers: impl Iterator<Item = &'a str>) -> Vec<(String, u64)> {
    let mut counts: Vec<(String, u64)> = Vec::new();
    let mut index: HashMap<&str, usize> = HashMap::new();
    for answer in answers {
        let position = *index.entry(answer).or_insert(counts.len());
        match counts.get_mut(position) {
            Some((_, count)) => *count += 1,
            None => counts.push((answer.to_owned(), 1)),
        }
    }
    counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    counts
}

impl VqaReport {
    /// Formats the report as aligned plain text.
    pub fn to_text(&self) -> String {
        let evaluation = &self.evaluation;
        let line = |worst: &WorstQuestion| {
            let human = worst.human_answers.iter().take(ANSWERS_SHOWN);
            let human =
                human.map(|(answer, n)| format!("{:?} ×{n}", shortened(answer, ANSWER_WIDTH)));
            let human = human.collect::<Vec<_>>().join(", ");
            let (id, accuracy) = (shortened(&worst.id, ANSWER_WIDTH), worst.accuracy);
            let question = shortened(&worst.question, 2 * ANSWER_WIDTH);
            let answer = shortened(&worst.answer, ANSWER_WIDTH);
            format!("{id}  {accuracy:.0}  {question} {answer:?} against {human}\n")
        };
        let worst = (!self.worst.is_empty()).then(|| self.worst.iter().map(line).collect());
        let heading = format!("VQA accuracy in per cent, {} questions", evaluation.primary.n);
        let parts = evaluation.breakdowns.iter().map(breakdown).chain(worst);
        text::report(&heading, evaluation, &[], parts)
    }
}
