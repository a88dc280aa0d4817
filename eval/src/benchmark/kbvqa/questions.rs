//! The questions and the passages of the published files.

use std::borrow::Cow;
use std::collections::HashMap;

use engram_textfile::{Input, Table};
use serde::Deserialize;
use serde_json::Value;

use super::super::records::{Record, quoted, read_records};
use crate::error::{EvalError, malformed};
use crate::ids::Id;
use crate::vqa::read::parse_annotations;

/// A question with its answers.
#[derive(Debug, Default)]
pub(super) struct Question<'a> {
    pub(super) id: Cow<'a, str>,
    pub(super) line: u64,
    pub(super) text: Cow<'a, str>,
    pub(super) answers: Vec<Cow<'a, str>>,
    /// The range of a numerical answer.
    pub(super) range: Option<[f64; 2]>,
    /// The relevant passages, images or snippets.
    pub(super) relevant: Vec<Cow<'a, str>>,
    /// The type of question; empty if the data set has none.
    pub(super) kind: Cow<'a, str>,
    /// The part of the data set; empty if it has none.
    pub(super) split: Cow<'a, str>,
}

/// The files of a data set: names and contents.
#[derive(Debug, Clone, Copy, Default)]
pub struct Files<'a> {
    /// The published questions.
    pub reference: [&'a str; 2],
    /// InfoSeek's file of question types.
    pub types: Option<[&'a str; 2]>,
    /// Passages, with the texts in which answers are searched.
    pub passages: Option<[&'a str; 2]>,
    /// The predictions.
    pub predictions: [&'a str; 2],
}

type Questions<'a> = Result<Vec<Question<'a>>, EvalError>;

/// The question types of Encyclopedic-VQA.
const EVQA_TYPES: [&str; 4] = ["templated", "automatic", "multi_answer", "2_hop"];

pub(super) fn evqa<'a>(files: &Files<'a>) -> Questions<'a> {
    let [file, text] = files.reference;
    let mut table = Table::csv(Input::new(file, text.as_bytes())?)?;
    let [question, answer, kind] = table.columns(["question", "answer", "question_type"])?;
    let mut questions = Vec::new();
    while table.advance()? {
        let kind = table.field(kind);
        if !EVQA_TYPES.contains(&kind) {
            let reason = format!("has the question type `{kind}`");
            let remedy = "use templated, automatic, multi_answer or 2_hop";
            return Err(table.error(reason, remedy).into());
        }
        questions.push(Question {
            id: questions.len().to_string().into(),
            line: table.line(),
            text: table.field(question).to_owned().into(),
            answers: table.field(answer).split('|').map(|a| a.to_owned().into()).collect(),
            kind: kind.to_owned().into(),
            split: if kind == "2_hop" { "two hops" } else { "single hop" }.into(),
            ..Question::default()
        });
    }
    Ok(questions)
}

#[derive(Deserialize)]
struct InfoSeek<'a> {
    #[serde(borrow)]
    data_id: Id<'a>,
    #[serde(borrow, default)]
    question: Cow<'a, str>,
    answer_eval: Value,
    #[serde(borrow)]
    data_split: Cow<'a, str>,
}

#[derive(Deserialize)]
struct QuestionType<'a> {
    #[serde(borrow)]
    data_id: Id<'a>,
    #[serde(borrow)]
    question_type: Cow<'a, str>,
}

pub(super) fn infoseek<'a>(files: &Files<'a>) -> Questions<'a> {
    let Some([types_file, types]) = files.types else {
        let remedy = "also give the file of question types, infoseek_val_qtype.jsonl";
        return Err(malformed(files.reference[0], None, "has no question types", remedy));
    };
    let remedy = "give InfoSeek's lines: {\"data_id\", \"question_type\"}";
    let types: Vec<Record<'a, QuestionType<'a>>> = read_records(types_file, types, false, remedy)?;
    let kinds: HashMap<Id<'a>, Cow<'a, str>> =
        types.into_iter().map(|row| (row.value.data_id, row.value.question_type)).collect();
    let remedy = "give InfoSeek's lines: {\"data_id\", \"question\", \"answer_eval\", \
                  \"data_split\"}";
    let [file, text] = files.reference;
    let question = |Record { line, value, .. }: Record<'a, InfoSeek<'a>>| {
        let InfoSeek { data_id, question, answer_eval, data_split } = value;
        let error = |reason: &str| Err(malformed(file, line, reason, remedy));
        let Some(kind) = kinds.get(&data_id).cloned() else {
            let reason = format!("has no question type of `{}`", data_id.for_message());
            return Err(malformed(types_file, None, reason, "give the types of the same split"));
        };
        let (mut answers, mut range) = (Vec::new(), None);
        if kind.eq_ignore_ascii_case("numerical") {
            let first = if answer_eval.is_array() { &answer_eval[0] } else { &answer_eval };
            let limit = |index: usize| first["range"][index].as_f64();
            match (limit(0), limit(1)) {
                (Some(low), Some(high)) => range = Some([low, high]),
                _ => return error("has a numerical question without `range` in `answer_eval`"),
            }
        } else {
            let texts = answer_eval.as_array().map_or(&[][..], Vec::as_slice);
            answers.extend(texts.iter().filter_map(|a| Some(Cow::from(a.as_str()?.to_owned()))));
            if answers.is_empty() {
                return error("has no texts in `answer_eval`");
            }
        }
        let is_known = data_split.ends_with("unseen_question");
        let split = if is_known { "unseen question" } else { "unseen entity" }.into();
        let (id, text) = (data_id.0, question);
        Ok(Question { id, line, text, answers, range, kind, split, ..Question::default() })
    };
    read_records(file, text, false, remedy)?.into_iter().map(question).collect()
}

#[derive(Deserialize)]
struct M2kr<'a> {
    #[serde(borrow)]
    question_id: Id<'a>,
    #[serde(borrow, default)]
    question: Cow<'a, str>,
    #[serde(default)]
    answers: Vec<Cow<'a, str>>,
    #[serde(borrow)]
    pos_item_ids: Vec<Id<'a>>,
}

pub(super) fn m2kr<'a>(files: &Files<'a>) -> Questions<'a> {
    let remedy = "export the questions of M2KR as JSON lines: {\"question_id\", \"question\", \
                  \"answers\", \"pos_item_ids\"}";
    let question = |Record { line, value, .. }: Record<'a, M2kr<'a>>| Question {
        id: value.question_id.0,
        line,
        text: value.question,
        answers: value.answers,
        relevant: value.pos_item_ids.into_iter().map(|id| id.0).collect(),
        ..Question::default()
    };
    let records = read_records(files.reference[0], files.reference[1], false, remedy)?;
    Ok(records.into_iter().map(question).collect())
}

pub(super) fn okvqa<'a>(files: &Files<'a>) -> Questions<'a> {
    let annotations = parse_annotations(files.reference[0], files.reference[1])?;
    let question = |annotation: crate::vqa::read::Annotation<'a>| {
        let mut answers: Vec<Cow<'a, str>> =
            annotation.answers.iter().map(|human| human.answer.clone()).collect();
        answers.sort_unstable();
        answers.dedup();
        Question { id: annotation.question_id.0, answers, ..Question::default() }
    };
    Ok(annotations.into_iter().map(question).collect())
}

#[derive(Deserialize)]
struct ViQuae<'a> {
    #[serde(borrow)]
    id: Id<'a>,
    #[serde(borrow, default)]
    input: Cow<'a, str>,
    output: KiltOutput<'a>,
}

/// The answers: of ViQuAE as one object, of KILT as a list.
#[derive(Deserialize)]
#[serde(untagged)]
enum KiltOutput<'a> {
    One { answer: Vec<Cow<'a, str>> },
    Many(Vec<KiltAnswer<'a>>),
}

#[derive(Deserialize)]
struct KiltAnswer<'a> {
    answer: Option<Cow<'a, str>>,
}

pub(super) fn viquae<'a>(files: &Files<'a>) -> Questions<'a> {
    let remedy = "give ViQuAE's lines: {\"id\", \"input\", \"output\": {\"answer\": [\"…\"]}}";
    let [file, text] = files.reference;
    let question = |Record { line, value, .. }: Record<'a, ViQuae<'a>>| {
        let answers = match value.output {
            KiltOutput::One { answer } => answer,
            KiltOutput::Many(list) => list.into_iter().filter_map(|output| output.answer).collect(),
        };
        let answers: Vec<_> =
            answers.into_iter().filter(|answer| !answer.trim().is_empty()).collect();
        if answers.is_empty() {
            return Err(malformed(file, line, "has no answers", remedy));
        }
        let (id, text) = (value.id.0, value.input);
        Ok(Question { id, line, text, answers, ..Question::default() })
    };
    read_records(file, text, false, remedy)?.into_iter().map(question).collect()
}

#[derive(Deserialize)]
struct WebQa<'a> {
    #[serde(borrow, default, rename = "Q")]
    question: Cow<'a, str>,
    #[serde(borrow, default, rename = "Qcate")]
    category: Cow<'a, str>,
    #[serde(borrow, default)]
    split: Cow<'a, str>,
    #[serde(borrow, rename = "img_posFacts")]
    images: Vec<Fact<'a>>,
    #[serde(borrow, rename = "txt_posFacts")]
    snippets: Vec<Fact<'a>>,
}

#[derive(Deserialize)]
struct Fact<'a> {
    #[serde(borrow, alias = "image_id", alias = "snippet_id")]
    id: Id<'a>,
}

pub(super) fn webqa<'a>(files: &Files<'a>) -> Questions<'a> {
    let remedy = "give WebQA_train_val.json: {guid: {\"Q\", \"img_posFacts\", \"txt_posFacts\"}}";
    let question = |Record { line, key, value }: Record<'a, WebQa<'a>>| Question {
        id: key,
        line,
        text: value.question,
        relevant: value.images.into_iter().chain(value.snippets).map(|fact| fact.id.0).collect(),
        kind: value.category,
        split: value.split,
        ..Question::default()
    };
    let records = read_records(files.reference[0], files.reference[1], true, remedy)?;
    Ok(records.into_iter().map(question).collect())
}

#[derive(Deserialize)]
struct Passage<'a> {
    #[serde(borrow, alias = "passage_id", alias = "kid", alias = "index")]
    id: Option<Id<'a>>,
    #[serde(borrow, alias = "passage_content", alias = "passage")]
    text: Cow<'a, str>,
}

/// Reads passages: their texts by id. Without ids, the index of a passage is its id.
pub(super) fn passages<'a>(
    file: &str,
    text: &'a str,
) -> Result<HashMap<Cow<'a, str>, Cow<'a, str>>, EvalError> {
    let remedy = "give passages as JSON lines: {\"passage_id\", \"passage_content\"}";
    let records: Vec<Record<'a, Passage<'a>>> = read_records(file, text, false, remedy)?;
    let mut passages = HashMap::with_capacity(records.len());
    for Record { line, key, value } in records {
        let id = value.id.map_or(key, |id| id.0);
        if passages.contains_key(&id) {
            let reason = format!("has the passage {} a second time", quoted(&id));
            return Err(malformed(file, line, reason, "keep one of them"));
        }
        passages.insert(id, value.text);
    }
    Ok(passages)
}
