//! Compact storage of human answers: a data set has millions of them.

use std::borrow::Cow;
use std::collections::HashMap;

use foldhash::fast::RandomState;
use serde::{Deserialize, Deserializer};

use crate::ids::Id;
use crate::json::{Text, objects};

/// One human answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HumanAnswer<'a> {
    /// The answer.
    pub answer: Cow<'a, str>,
    /// Index, among the answers to the question, of the first answer with the same id, confidence
    /// and raw answer. If their `answer` is equal too, the script takes them for one answer.
    pub first_equal: u32,
}

/// An answer as written in the file.
#[derive(Deserialize)]
struct WrittenAnswer<'a> {
    #[serde(borrow)]
    answer: Cow<'a, str>,
    #[serde(borrow, default)]
    answer_id: Option<Id<'a>>,
    #[serde(borrow, default)]
    answer_confidence: Option<Text<'a>>,
    #[serde(borrow, default)]
    raw_answer: Option<Text<'a>>,
}

/// The fields that distinguish two equal answers: id, confidence, and the raw answer.
type DistinguishingFields<'w, 'a> =
    (&'w Option<Id<'a>>, &'w Option<Text<'a>>, &'w Option<Text<'a>>);

impl<'a> WrittenAnswer<'a> {
    fn distinguishing_fields(&self) -> DistinguishingFields<'_, 'a> {
        (&self.answer_id, &self.answer_confidence, &self.raw_answer)
    }
}

/// Reads the answers to a question; for `deserialize_with`.
pub(super) fn deserialize_answers<'de: 'a, 'a, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Box<[HumanAnswer<'a>]>, D::Error> {
    let written: Vec<WrittenAnswer<'a>> = objects(deserializer)?;
    let first_equal = first_equal(&written);
    let answers = written.into_iter().zip(first_equal);
    Ok(answers
        .map(|(written, first_equal)| HumanAnswer { answer: written.answer, first_equal })
        .collect())
}

/// For each answer, the index of the first answer with the same id, confidence and raw answer.
fn first_equal(written: &[WrittenAnswer<'_>]) -> Vec<u32> {
    let mut first_indices =
        HashMap::with_capacity_and_hasher(written.len(), RandomState::default());
    let indexed_answers = written.iter().zip(0..);
    indexed_answers
        .map(|(answer, index)| {
            *first_indices.entry(answer.distinguishing_fields()).or_insert(index)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Deserialize)]
    struct Question<'a> {
        #[serde(borrow, deserialize_with = "deserialize_answers")]
        answers: Box<[HumanAnswer<'a>]>,
    }

    fn first_indices(answers: &[&str]) -> Vec<u32> {
        let text = format!("{{\"answers\": [{}]}}", answers.join(","));
        let question: Question<'_> = serde_json::from_str(&text).unwrap();
        assert!(question.answers.iter().all(|answer| matches!(answer.answer, Cow::Borrowed(_))));
        question.answers.iter().map(|answer| answer.first_equal).collect()
    }

    #[test]
    fn answers_are_distinguished_by_id_confidence_and_raw_answer() {
        let written = [
            r#"{"answer": "a"}"#,
            r#"{"answer": "b", "answer_id": 1}"#,
            r#"{"answer": "c", "answer_id": "1", "answer_confidence": null}"#,
            r#"{"answer": "d", "answer_id": 1, "answer_confidence": "yes"}"#,
            r#"{"answer": "e", "answer_id": 1, "raw_answer": "yes"}"#,
            r#"{"answer": "f", "raw_answer": "yes", "answer_id": 1}"#,
            r#"{"answer": "g", "other": 5}"#,
        ];
        assert_eq!(first_indices(&written), [0, 1, 1, 3, 4, 4, 0]);
    }
}
