//! Reads VQA v2 and OK-VQA files: annotations, results and questions.

use std::borrow::Cow;
use std::collections::HashMap;

use engram_textfile::Object;
use serde::Deserialize;

use super::human_answers::{HumanAnswer, deserialize_answers};
use crate::error::{EvalError, malformed};
use crate::ids::Id;
use crate::json::{objects, parse, parse_list};

/// A question with its human answers.
#[derive(Debug, Clone, Deserialize)]
pub struct Annotation<'a> {
    /// The question id.
    #[serde(borrow)]
    pub question_id: Id<'a>,
    /// The question type, such as `how many`; empty if the file has none.
    #[serde(borrow, default)]
    pub question_type: Cow<'a, str>,
    /// The answer type: `yes/no`, `number` or `other`; empty if the file has none.
    #[serde(borrow, default)]
    pub answer_type: Cow<'a, str>,
    /// Human answers, usually ten.
    #[serde(borrow, deserialize_with = "deserialize_answers")]
    pub answers: Box<[HumanAnswer<'a>]>,
}

#[derive(Deserialize)]
struct Annotations<'a> {
    #[serde(borrow, deserialize_with = "objects")]
    annotations: Vec<Annotation<'a>>,
}

#[derive(Deserialize)]
struct Answer<'a> {
    #[serde(borrow)]
    question_id: Id<'a>,
    #[serde(borrow)]
    answer: Cow<'a, str>,
}

/// Reads annotations,
/// `{"annotations": [{"question_id", "question_type", "answer_type", "answers"}]}`.
///
/// # Errors
/// [`EvalError::Text`]
pub fn parse_annotations<'a>(file: &str, text: &'a str) -> Result<Vec<Annotation<'a>>, EvalError> {
    let remedy = "give the annotations of VQA v2 or OK-VQA: {\"annotations\": [{\"question_id\", \
                  \"answers\": [{\"answer\"}]}]}";
    let Object(Annotations { annotations }) = parse(file, text, remedy)?;
    let remedy = "give every question at least one answer";
    if annotations.is_empty() {
        return Err(malformed(file, None, "has no annotations", remedy));
    }
    let unanswered = annotations.iter().find(|annotation| annotation.answers.is_empty());
    if let Some(Annotation { question_id, .. }) = unanswered {
        let reason = format!("question `{}` has no answers", question_id.for_message());
        return Err(malformed(file, None, reason, remedy));
    }
    refuse_duplicates(file, annotations.iter().map(|annotation| &annotation.question_id))?;
    Ok(annotations)
}

/// Reads results, `[{"question_id", "answer"}]`.
///
/// # Errors
/// [`EvalError::Text`]
pub fn parse_results<'a>(
    file: &str,
    text: &'a str,
) -> Result<HashMap<Id<'a>, Cow<'a, str>>, EvalError> {
    let remedy = "give results as [{\"question_id\": …, \"answer\": \"…\"}]";
    let answers: Vec<Answer<'a>> = parse_list(file, text, remedy)?;
    refuse_duplicates(file, answers.iter().map(|answer| &answer.question_id))?;
    Ok(answers.into_iter().map(|answer| (answer.question_id, answer.answer)).collect())
}

/// The text of each question, by its id.
pub type Questions<'a> = HashMap<Id<'a>, Cow<'a, str>>;

#[derive(Deserialize)]
struct QuestionFile<'a> {
    #[serde(borrow, deserialize_with = "objects")]
    questions: Vec<Question<'a>>,
}

#[derive(Deserialize)]
struct Question<'a> {
    #[serde(borrow)]
    question_id: Id<'a>,
    #[serde(borrow)]
    question: Cow<'a, str>,
}

/// Reads questions, `{"questions": [{"question_id", "question"}]}`.
///
/// # Errors
/// [`EvalError::Text`]
pub fn parse_questions<'a>(file: &str, text: &'a str) -> Result<Questions<'a>, EvalError> {
    let remedy = "give questions as {\"questions\": [{\"question_id\", \"question\"}]}";
    let Object(QuestionFile { questions }) = parse(file, text, remedy)?;
    refuse_duplicates(file, questions.iter().map(|question| &question.question_id))?;
    Ok(questions.into_iter().map(|question| (question.question_id, question.question)).collect())
}

/// Returns an error for a question with two entries.
pub(crate) fn refuse_duplicates<'i, 'a: 'i>(
    file: &str,
    ids: impl Iterator<Item = &'i Id<'a>>,
) -> Result<(), EvalError> {
    let mut entry_by_id = HashMap::new();
    for (entry, id) in ids.enumerate() {
        if let Some(first) = entry_by_id.insert(id, entry) {
            let (id, first, entry) = (id.for_message(), first + 1, entry + 1);
            let reason = format!("has the question `{id}` twice (entries {first} and {entry})");
            return Err(malformed(file, None, reason, "keep one of them"));
        }
    }
    Ok(())
}
