//! A-OKVQA accuracy: direct answers and multiple choice.
//!
//! A direct answer is free text. It scores `min(1, matches / 3)`, where `matches` is the number of
//! equal human answers (each question has ten). A multiple-choice answer scores 1 if it is the
//! correct choice. Answers are compared without normalisation. Questions with difficult direct
//! answers count for multiple choice only. A question without a prediction scores 0.
//!
//! # Source   allenai/aokvqa `evaluation/eval_predictions.py`
//!
//! ```
//! use engram_eval::aokvqa::{evaluate, parse_predictions, parse_questions};
//!
//! let questions = r#"[{"question_id": "q", "choices": ["cat", "dog"], "correct_choice_idx": 1,
//!     "direct_answers": ["dog", "dog", "puppy"], "difficult_direct_answer": false}]"#;
//! let questions = parse_questions("questions", questions)?;
//! let predictions = r#"{"q": {"direct_answer": "dog", "multiple_choice": "dog"}}"#;
//! let predictions = parse_predictions("predictions", predictions)?;
//! let report = evaluate(&questions, "predictions", &predictions, &Default::default())?;
//! assert_eq!(report.evaluation.detail["multiple_choice"], 100.0);
//! assert!((report.evaluation.primary.value - 200.0 / 3.0).abs() < 1e-12);
//! # Ok::<(), engram_eval::EvalError>(())
//! ```

use std::borrow::Cow;
use std::collections::HashMap;

use engram_textfile::{Object, shortened};
use serde::{Deserialize, Serialize};

use crate::bootstrap::measure_of_mean;
use crate::error::{EvalError, malformed};
use crate::groups::lowest_rows;
use crate::ids::{FileIds, Id, join};
use crate::items::{Item, mean_items};
use crate::json::{DistinctKeys, parse, parse_list};
use crate::metric::{MetricInfo, Unit};
use crate::result::{Evaluation, Measure, ReportOptions};
use crate::text;
use crate::vqa::count_answers;
use crate::vqa::read::refuse_duplicates;

/// The mean accuracy of direct answers.
pub const DIRECT_ANSWER: MetricInfo = MetricInfo::higher("direct_answer", Unit::Percent);
/// The share of questions for which the correct choice was selected.
pub const MULTIPLE_CHOICE: MetricInfo = MetricInfo::higher("multiple_choice", Unit::Percent);

/// A question of the data set.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Question<'a> {
    /// The question id.
    #[serde(borrow)]
    pub question_id: Id<'a>,
    /// The question text; empty if the file has none.
    #[serde(borrow, default)]
    pub question: Cow<'a, str>,
    /// The answer choices.
    #[serde(borrow)]
    pub choices: Vec<Cow<'a, str>>,
    /// Index of the correct choice.
    pub correct_choice_idx: usize,
    /// Human answers.
    #[serde(borrow)]
    pub direct_answers: Vec<Cow<'a, str>>,
    /// Whether the human answers disagree too much to score a direct answer (called "difficult").
    pub difficult_direct_answer: bool,
}

/// A system's prediction for one question.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Prediction<'a> {
    /// The free-text answer; `None` if only a choice is predicted.
    #[serde(borrow, default)]
    pub direct_answer: Option<Cow<'a, str>>,
    /// The text of the selected choice; `None` if only a direct answer is predicted.
    #[serde(borrow, default)]
    pub multiple_choice: Option<Cow<'a, str>>,
}

/// The accuracies, from 0 to 100.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AokvqaReport {
    /// The accuracy of direct answers and of multiple choice, each only if some prediction has such
    /// an answer. The first of them is primary.
    #[serde(flatten)]
    pub evaluation: Evaluation,
    /// Warnings about the scores; empty if there are none.
    pub warnings: Vec<String>,
    /// The primary metric of each question that it scores; empty if [`ReportOptions::items`] is
    /// false.
    #[serde(skip)]
    pub items: Vec<Item>,
    /// The questions with the lowest primary metric, without those that score 100; ties in file
    /// order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub worst: Vec<WrongAnswer>,
}

/// A question with a low score.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WrongAnswer {
    /// The question id.
    pub id: String,
    /// The question text.
    pub question: String,
    /// The predicted free-text answer; `None` if not predicted.
    pub direct_answer: Option<String>,
    /// Accuracy of the direct answer, from 0 to 100; `None` if the question has difficult direct
    /// answers.
    pub direct_accuracy: Option<f64>,
    /// The selected choice; `None` if not predicted.
    pub choice: Option<String>,
    /// Accuracy of the selected choice: 100 if correct, otherwise 0.
    pub choice_accuracy: f64,
    /// The correct choice.
    pub correct_choice: String,
    /// Human answers with their counts, most frequent first.
    pub human_answers: Vec<(String, u64)>,
}

/// Reads the questions of a split with answers.
///
/// # Errors
/// [`EvalError::Text`]
pub fn parse_questions<'a>(file: &str, text: &'a str) -> Result<Vec<Question<'a>>, EvalError> {
    let remedy = "give a split of A-OKVQA that has answers, such as aokvqa_v1p0_val.json";
    let questions: Vec<Question<'a>> = parse_list(file, text, remedy)?;
    if questions.is_empty() {
        return Err(malformed(file, None, "has no questions", remedy));
    }
    refuse_duplicates(file, questions.iter().map(|question| &question.question_id))?;
    for question in &questions {
        let (index, choices) = (question.correct_choice_idx, question.choices.len());
        if index >= choices {
            let id = question.question_id.for_message();
            let reason = format!("question `{id}` has no choice {index}: it has {choices} choices");
            return Err(malformed(file, None, reason, remedy));
        }
    }
    Ok(questions)
}

/// Reads predictions, `{"question_id": {"direct_answer": …, "multiple_choice": …}}`. Either field
/// may be missing.
///
/// # Errors
/// [`EvalError::Text`]
pub fn parse_predictions<'a>(
    file: &str,
    text: &'a str,
) -> Result<HashMap<String, Prediction<'a>>, EvalError> {
    let remedy = "give predictions as {\"question_id\": {\"direct_answer\": \"…\", \
                  \"multiple_choice\": \"…\"}}";
    let DistinctKeys(predictions): DistinctKeys<Object<Prediction<'a>>> =
        parse(file, text, remedy)?;
    Ok(predictions.into_iter().map(|(id, Object(prediction))| (id, prediction)).collect())
}

/// Scores predictions by question id. `file` is the name of the predictions file, for messages.
///
/// # Errors
/// [`EvalError::ExtraPrediction`] for a prediction without a question;
/// [`EvalError::Text`] for a choice that the question does not have, and for predictions
/// without any answer; [`EvalError::NothingToEvaluate`] without questions;
/// [`EvalError::InvalidOption`]
pub fn evaluate(
    questions: &[Question<'_>],
    file: &str,
    predictions: &HashMap<String, Prediction<'_>>,
    options: &ReportOptions,
) -> Result<AokvqaReport, EvalError> {
    options.bootstrap.validate()?;
    if questions.is_empty() {
        return Err(EvalError::NothingToEvaluate { items: "questions" });
    }
    let ids = questions.iter().map(|question| &*question.question_id.0);
    let ids = FileIds::without_lines("the questions", ids);
    let mut predicted_ids = FileIds::without_lines(file, predictions.keys().map(|id| &**id));
    predicted_ids.rows.sort_unstable();
    join(&ids, &predicted_ids, true)?;
    let score = |question| ScoredQuestion::new(question, file, predictions);
    let scored: Vec<ScoredQuestion<'_>> = questions.iter().map(score).collect::<Result<_, _>>()?;

    let any_prediction = |has: fn(&Prediction<'_>) -> bool| predictions.values().any(has);
    let mut metrics: Vec<(MetricInfo, Accuracy)> = Vec::new();
    if any_prediction(|prediction| prediction.direct_answer.is_some()) {
        metrics.push((DIRECT_ANSWER, |scored| scored.direct_accuracy));
    }
    if any_prediction(|prediction| prediction.multiple_choice.is_some()) {
        metrics.push((MULTIPLE_CHOICE, |scored| Some(scored.choice_accuracy)));
    }
    let Some((primary_info, primary_accuracy)) = metrics.first() else {
        let reason = "has no `direct_answer` and no `multiple_choice`";
        return Err(malformed(file, None, reason, "give at least one of them for each question"));
    };
    let measure = |(info, accuracy): &(MetricInfo, Accuracy)| {
        let values: Vec<f64> = scored.iter().filter_map(accuracy).collect();
        if values.is_empty() {
            let reason = "undefined: every question has difficult direct answers".to_owned();
            Measure::new(info, 0, Err(reason), None)
        } else {
            measure_of_mean(info, "question", &values, &options.bootstrap)
        }
    };
    let mut measures: Vec<Measure> = metrics.iter().map(measure).collect();
    let primary = measures.remove(0);
    // The questions that the primary metric scores.
    let (rows, values): (Vec<&ScoredQuestion<'_>>, Vec<f64>) =
        scored.iter().filter_map(|scored| Some((scored, primary_accuracy(scored)?))).unzip();
    let ids = rows.iter().map(|scored| &scored.question.question_id.0);
    let items = mean_items(options, primary_info, "none", ids, &values);
    let worst = lowest_rows(&values, 100.0, options.worst);
    let worst = worst.into_iter().map(|row| rows[row].wrong_answer()).collect();
    let warnings = match scored.iter().filter(|scored| scored.prediction.is_none()).count() {
        0 => Vec::new(),
        n => vec![format!("{n} of {} questions have no prediction and score 0", questions.len())],
    };
    let evaluation = Evaluation::new(primary, measures, Vec::new(), options.sources.clone());
    Ok(AokvqaReport { evaluation, warnings, items, worst })
}

/// A question, its prediction, and the accuracies of the direct answer and of the selected choice.
struct ScoredQuestion<'s> {
    question: &'s Question<'s>,
    prediction: Option<&'s Prediction<'s>>,
    /// `None` if the question has difficult direct answers.
    direct_accuracy: Option<f64>,
    choice_accuracy: f64,
}

/// A metric of one question; `None` if the metric does not score the question.
type Accuracy = fn(&ScoredQuestion<'_>) -> Option<f64>;

impl<'s> ScoredQuestion<'s> {
    fn new(
        question: &'s Question<'s>,
        file: &str,
        predictions: &'s HashMap<String, Prediction<'s>>,
    ) -> Result<Self, EvalError> {
        let id = &*question.question_id.0;
        let prediction = predictions.get(id);
        let answer = prediction.and_then(|prediction| prediction.direct_answer.as_ref());
        let matches = question.direct_answers.iter().filter(|human| Some(*human) == answer).count();
        let chosen = prediction.and_then(|prediction| prediction.multiple_choice.as_ref());
        if let Some(chosen) = chosen.filter(|chosen| !question.choices.contains(chosen)) {
            let (chosen, id) = (shortened(chosen, 60), shortened(id, 60));
            let reason =
                format!("chooses `{chosen}` for `{id}`, but the question has no such choice");
            return Err(malformed(file, None, reason, "copy the text of one choice exactly"));
        }
        let correct =
            chosen.is_some() && chosen == question.choices.get(question.correct_choice_idx);
        Ok(Self {
            question,
            prediction,
            direct_accuracy: (!question.difficult_direct_answer)
                .then_some(100.0 * (matches as f64 / 3.0).min(1.0)),
            choice_accuracy: if correct { 100.0 } else { 0.0 },
        })
    }

    fn wrong_answer(&self) -> WrongAnswer {
        let Self { question, prediction, .. } = self;
        let text = |answer: Option<&Cow<'_, str>>| answer.map(|answer| answer.to_string());
        WrongAnswer {
            id: question.question_id.0.to_string(),
            question: question.question.to_string(),
            direct_answer: text(prediction.and_then(|given| given.direct_answer.as_ref())),
            direct_accuracy: self.direct_accuracy,
            choice: text(prediction.and_then(|given| given.multiple_choice.as_ref())),
            choice_accuracy: self.choice_accuracy,
            correct_choice: question.choices[question.correct_choice_idx].to_string(),
            human_answers: count_answers(question.direct_answers.iter().map(|answer| &**answer)),
        }
    }
}

impl AokvqaReport {
    /// Formats the report as aligned plain text.
    pub fn to_text(&self) -> String {
        text::report("A-OKVQA accuracy in per cent", &self.evaluation, &self.warnings, [])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUESTIONS: &str = r#"[
        {"question_id": "a", "choices": ["x", "y"], "correct_choice_idx": 0,
         "direct_answers": ["x", "x", "x", "X"], "difficult_direct_answer": false},
        {"question_id": "b", "choices": ["x", "y"], "correct_choice_idx": 1,
         "direct_answers": ["y"], "difficult_direct_answer": true},
        {"question_id": "c", "choices": ["x", "y"], "correct_choice_idx": 1,
         "direct_answers": ["y", "z"], "difficult_direct_answer": false}]"#;

    fn report(predictions: &str) -> Result<AokvqaReport, EvalError> {
        let predictions = parse_predictions("p", predictions)?;
        evaluate(&parse_questions("q", QUESTIONS)?, "p", &predictions, &ReportOptions::default())
    }

    #[test]
    fn difficult_questions_count_for_multiple_choice_only() {
        let report = report(
            r#"{"a": {"direct_answer": "x", "multiple_choice": "x"},
                "b": {"direct_answer": "y", "multiple_choice": "x"}}"#,
        )
        .unwrap();
        assert_eq!((report.evaluation.primary.value, report.evaluation.primary.n), (50.0, 2));
        let choice = &report.evaluation.secondary[0];
        assert!((choice.value - 100.0 / 3.0).abs() < 1e-12 && choice.n == 3);
        assert_eq!(report.warnings, ["1 of 3 questions have no prediction and score 0"]);
    }

    #[test]
    fn a_metric_over_no_questions_has_a_reason() {
        let difficult = QUESTIONS.replace("false", "true");
        let predictions = parse_predictions("p", r#"{"a": {"direct_answer": "x"}}"#).unwrap();
        let questions = parse_questions("q", &difficult).unwrap();
        let report = evaluate(&questions, "p", &predictions, &ReportOptions::default()).unwrap();
        let primary = report.evaluation.primary;
        assert!(primary.value.is_nan() && primary.interval.is_none());
        assert_eq!(
            primary.reason.as_deref(),
            Some("undefined: every question has difficult direct answers")
        );
        assert!(evaluate(&[], "p", &predictions, &ReportOptions::default()).is_err());
    }

    #[test]
    fn bad_questions_are_refused() {
        let index = QUESTIONS.replace("\"correct_choice_idx\": 1", "\"correct_choice_idx\": 2");
        for (text, expected) in [
            (&*index, "q: question `b` has no choice 2: it has 2 choices"),
            (&*QUESTIONS.replace("\"c\"", "\"a\""), "q: has the question `a` twice (entries 1"),
            ("[[\"a\", [], 0, [], true]]", "expected an object"),
        ] {
            let error = parse_questions("q", text).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn bad_predictions_are_refused() {
        for (predictions, expected) in [
            (r#"{"d": {}}"#, "p: id `d` is not in the questions"),
            (r#"{"a": {"multiple_choice": "z"}}"#, "no such choice"),
            (r#"{"a": {}}"#, "has no `direct_answer`"),
            ("{\"a\": {},\n\"a\": {}}", "p:2: is not as expected: `a` appears twice"),
            (r#"{"a": ["x", "x"]}"#, "expected an object"),
            (r#"{"a": {"answer": "x"}}"#, "p:1: is not as expected"),
        ] {
            let error = report(predictions).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
