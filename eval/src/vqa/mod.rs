//! Visual question answering: VQA v2 and OK-VQA accuracy, equal to the official script.
//!
//! | file | task |
//! |---|---|
//! | `accuracy` | scores one answer |
//! | [`answer`] | normalises an answer as the script does |
//! | `contractions` | the script's contraction table |
//! | [`human_answers`] | compact storage of human answers |
//! | [`read`] | reads annotations and results from JSON |
//!
//! ```
//! use engram_eval::vqa::{VqaOptions, evaluate, read};
//!
//! let annotations = r#"{"annotations": [{"question_id": 1, "question_type": "what", "answer_type": "other",
//!     "answers": [{"answer": "a cat", "answer_id": 1}, {"answer": "cat", "answer_id": 2},
//!                 {"answer": "the cat", "answer_id": 3}, {"answer": "dog", "answer_id": 4}]}]}"#;
//! let annotations = read::parse_annotations("annotations", annotations)?;
//! let results = read::parse_results("results", r#"[{"question_id": 1, "answer": "Cat."}]"#)?;
//! let report = evaluate("annotations", &annotations, "results", &results, &VqaOptions::default())?;
//! // Each of the four is compared with the other three: 2/3, 2/3, 2/3 and 1.
//! assert!((report.evaluation.primary.value - 75.0).abs() < 1e-12);
//! # Ok::<(), engram_eval::EvalError>(())
//! ```

mod accuracy;
pub mod answer;
mod contractions;
pub mod human_answers;
pub mod read;

use std::borrow::Cow;
use std::collections::HashMap;

use engram_textfile::shortened;
use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::bootstrap::{BootstrapOptions, measure_of_mean};
use crate::error::EvalError;
use crate::groups::rows_by_label;
use crate::ids::{FileIds, Id, join};
use crate::items::{Item, Statistic};
use crate::metric::{MetricInfo, Unit};
use crate::result::{Breakdown, Evaluation, SourceFile};
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

/// Options for [`evaluate`].
#[derive(Debug, Clone, PartialEq, Default)]
pub struct VqaOptions<'a> {
    /// Resamples, confidence level and seed of the intervals.
    pub bootstrap: BootstrapOptions,
    /// Number of lowest-scoring questions to list.
    pub worst: usize,
    /// Whether to fill [`VqaReport::items`].
    pub items: bool,
    /// The question texts, for [`VqaReport::worst`]; may be empty.
    pub questions: Questions<'a>,
    /// The input files.
    pub sources: Vec<SourceFile>,
}

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
    /// The accuracy of each question; empty if [`VqaOptions::items`] is false.
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

/// Scores results against annotations, by question id. The file names are for messages.
///
/// # Errors
/// [`EvalError::MissingPrediction`], [`EvalError::ExtraPrediction`] for questions in one
/// file only; [`EvalError::Empty`] without questions; [`EvalError::InvalidOption`]
pub fn evaluate<'n, 'a>(
    annotation_file: &str,
    annotations: &'n [Annotation<'a>],
    result_file: &str,
    results: &HashMap<Id<'a>, Cow<'a, str>>,
    options: &VqaOptions<'_>,
) -> Result<VqaReport, EvalError> {
    options.bootstrap.validate()?;
    if annotations.is_empty() {
        return Err(EvalError::Empty { file: annotation_file.to_owned() });
    }
    let mut results: Vec<(&Id<'_>, &Cow<'_, str>)> = results.iter().collect();
    results.sort_unstable();
    let (result_ids, answers): (Vec<_>, Vec<_>) = results.into_iter().unzip();
    let questions = annotations.iter().map(|annotation| (&*annotation.question_id.0, None));
    let questions = FileIds { file: annotation_file, rows: questions.collect() };
    let result_ids = result_ids.into_iter().map(|id| (&*id.0, None)).collect();
    let joined = join(&questions, &FileIds { file: result_file, rows: result_ids }, false)?;
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
    let accuracies = |table: &Breakdown| -> Value {
        let named_value =
            |row: &crate::result::BreakdownRow| (row.name.clone(), Value::from(row.value));
        table.rows.iter().map(named_value).collect::<Map<String, Value>>().into()
    };
    let (by_question, by_answer) = (accuracies(&breakdowns[0]), accuracies(&breakdowns[1]));
    let primary = measure(&scores);
    let value = primary.value;
    let mut evaluation = Evaluation::new(primary, Vec::new(), breakdowns, options.sources.clone());
    evaluation.normaliser = "vqa, GT-Vision-Lab/VQA a013f00".to_owned();
    evaluation.detail = Map::from_iter([
        ("accuracy".to_owned(), Value::from(value)),
        ("per_question_type".to_owned(), by_question),
        ("per_answer_type".to_owned(), by_answer),
    ]);
    let item = |(annotation, score): (&Annotation<'_>, &f64)| {
        let (id, statistic) = (&annotation.question_id.0, Statistic::Mean { value: *score });
        Item::new(&INFO, &evaluation.normaliser, id, None, statistic)
    };
    let items = if options.items {
        annotations.iter().zip(&scores).map(item).collect()
    } else {
        Vec::new()
    };
    let worst = worst_questions(annotations, &scores, &predicted, options);
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

fn worst_questions(
    annotations: &[Annotation<'_>],
    scores: &[f64],
    predicted: &[&str],
    options: &VqaOptions<'_>,
) -> Vec<WorstQuestion> {
    let mut order: Vec<usize> = (0..scores.len()).filter(|row| scores[*row] < 100.0).collect();
    order.sort_by(|a, b| scores[*a].total_cmp(&scores[*b]));
    order.truncate(options.worst);
    let question = |row: usize| {
        let annotation = &annotations[row];
        WorstQuestion {
            id: annotation.question_id.0.to_string(),
            accuracy: scores[row],
            question: options
                .questions
                .get(&annotation.question_id)
                .map_or_else(String::new, |question| question.to_string()),
            answer: predicted[row].to_owned(),
            human_answers: count_answers(annotation.answers.iter().map(|human| &*human.answer)),
        }
    };
    order.into_iter().map(question).collect()
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
