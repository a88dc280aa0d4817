//! Reads replies from JSON lines.

use std::borrow::Cow;

use engram_textfile::{ONE_OBJECT, UniqueIds, json_lines, shortened};
use serde::Deserialize;

use crate::error::{EvalError, Location, malformed};
use crate::ids::Id;

const REMEDY: &str = "give one JSON object per line: id, answer (yes or no) and response";

/// A question's correct answer and a system's reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply<'a> {
    /// The question id; the line number if the file has none.
    pub id: Cow<'a, str>,
    /// Whether the correct answer is yes.
    pub yes: bool,
    /// The question text; empty if the file has none.
    pub question: Cow<'a, str>,
    /// The full reply.
    pub response: Cow<'a, str>,
}

/// A line: `answer` and `response` as plain fields, or in the format of the benchmark's scripts.
#[derive(Deserialize)]
struct ReplyLine<'a> {
    #[serde(borrow)]
    id: Option<Id<'a>>,
    #[serde(borrow, default)]
    question: Cow<'a, str>,
    #[serde(borrow)]
    answer: Option<Cow<'a, str>>,
    /// The question and its answer.
    #[serde(borrow, default)]
    conversations: Vec<Turn<'a>>,
    #[serde(borrow)]
    response: Option<Cow<'a, str>>,
    #[serde(borrow)]
    result: Option<ReplyResult<'a>>,
}

#[derive(Deserialize)]
struct Turn<'a> {
    #[serde(borrow)]
    value: Cow<'a, str>,
}

#[derive(Deserialize)]
struct ReplyResult<'a> {
    #[serde(borrow)]
    response: Cow<'a, str>,
}

/// Reads JSON lines with `answer` (`yes` or `no`) and `response`, or with the `conversations` and
/// `result` of the benchmark's scripts.
///
/// # Errors
/// [`EvalError::Text`] with the line, also for a duplicate id
pub fn parse_replies<'a>(file: &str, text: &'a str) -> Result<Vec<Reply<'a>>, EvalError> {
    let lines = json_lines(file, text, ONE_OBJECT, |line, reply: ReplyLine<'a>| (line, reply))?;
    let (mut replies, mut ids) = (Vec::new(), UniqueIds::with_capacity(0));
    for (line, reply_line) in lines.into_iter().flatten() {
        let refuse = |reason: String| Err(malformed(file, line, reason, REMEDY));
        let id = reply_line.id.map_or_else(|| line.to_string().into(), |id| id.0);
        let mut turns = reply_line.conversations.into_iter().map(|turn| turn.value);
        let (first_turn, second_turn) = (turns.next(), turns.next());
        let Some(answer) = reply_line.answer.or(second_turn) else {
            return refuse("has no `answer`".to_owned());
        };
        let yes = match answer.trim().to_lowercase().as_str() {
            "yes" => true,
            "no" => false,
            other => return refuse(format!("has the answer `{}`", shortened(other, 40))),
        };
        let Some(response) =
            reply_line.response.or(reply_line.result.map(|result| result.response))
        else {
            return refuse("has no `response`".to_owned());
        };
        let question = if reply_line.question.is_empty() { first_turn } else { None }
            .unwrap_or(reply_line.question);
        ids.add(id.clone(), Location::new(file, line))?;
        replies.push(Reply { id, yes, question, response });
    }
    if replies.is_empty() {
        return Err(malformed(file, None, "has no replies", REMEDY));
    }
    Ok(replies)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_benchmark_are_read() {
        let turns =
            r#""conversations": [{"from": "human", "value": "is there?"}, {"value": "no"}]"#;
        for reply in [r#""response": "No""#, r#""result": {"response": "No", "log": 1}"#] {
            let text = format!("{{{turns}, {reply}}}");
            let replies = parse_replies("f", &text).unwrap();
            let Reply { id, yes, question, response } = &replies[0];
            assert_eq!((&**id, *yes, &**question, &**response), ("1", false, "is there?", "No"));
        }
    }

    #[test]
    fn errors_name_the_line() {
        let row = r#"{"id": 1, "answer": "no", "response": ""}"#;
        for (text, expected) in [
            (r#"{"response": "no"}"#, "f:1: has no `answer`"),
            (r#"{"answer": "no"}"#, "f:1: has no `response`"),
            (r#"{"answer": "maybe", "response": "no"}"#, "f:1: has the answer `maybe`"),
            ("", "f: has no replies"),
            (&*format!("{row}\n{row}"), "f:2: id `1` was already given"),
        ] {
            let error = parse_replies("f", text).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{error}");
        }
    }
}
