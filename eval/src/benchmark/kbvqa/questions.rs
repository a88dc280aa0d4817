//! The questions and the passages of the published files.

use std::borrow::Cow;
use std::collections::HashMap;

use engram_textfile::{Input, Table};
use serde_json::Value;

use super::super::records::{Record, quoted, read_records};
use crate::error::{EvalError, Location, Need, malformed};
use crate::vqa::read::parse_annotations;

/// A question with its answers.
#[derive(Debug, Default)]
pub(super) struct Question {
    pub(super) id: String,
    pub(super) line: u64,
    pub(super) text: String,
    pub(super) answers: Vec<String>,
    /// The range of a numerical answer.
    pub(super) range: Option<[f64; 2]>,
    /// The relevant passages, images or snippets.
    pub(super) relevant: Vec<String>,
    /// The type of question; empty if the data set has none.
    pub(super) kind: String,
    /// The part of the data set; empty if it has none.
    pub(super) split: String,
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

/// The layout of a JSON file of questions: the key of each part; empty if there is none.
struct Layout {
    /// Empty if the file is an object with the ids as keys.
    id: &'static str,
    text: &'static str,
    kind: &'static str,
    split: &'static str,
    /// The lists of answers, of which one is enough: the path, and the key in an element.
    answers: &'static [[&'static str; 2]],
    /// The lists of relevant ids, likewise; all are needed.
    relevant: &'static [[&'static str; 2]],
    remedy: &'static str,
}

const INFOSEEK: Layout = Layout {
    id: "data_id",
    text: "question",
    kind: "",
    split: "data_split",
    answers: &[["/answer_eval", ""]],
    relevant: &[],
    remedy: "give InfoSeek's lines: {\"data_id\", \"question\", \"answer_eval\", \"data_split\"}",
};
const M2KR: Layout = Layout {
    id: "question_id",
    split: "",
    answers: &[["/answers", ""]],
    relevant: &[["/pos_item_ids", ""]],
    remedy: "export M2KR's questions as JSON lines: {\"question_id\", \"answers\", \
             \"pos_item_ids\"}",
    ..INFOSEEK
};
const VIQUAE: Layout = Layout {
    id: "id",
    text: "input",
    split: "",
    answers: &[["/output/answer", ""], ["/output", "answer"]],
    remedy: "give ViQuAE's lines: {\"id\", \"input\", \"output\": {\"answer\": [\"…\"]}}",
    ..INFOSEEK
};
const WEBQA: Layout = Layout {
    id: "",
    text: "Q",
    kind: "Qcate",
    split: "split",
    answers: &[],
    relevant: &[["/img_posFacts", "image_id"], ["/txt_posFacts", "snippet_id"]],
    remedy: "give WebQA_train_val.json: {guid: {\"Q\", \"img_posFacts\", \"txt_posFacts\"}}",
};

/// A text or a number as text; `None` for other values.
fn scalar(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

/// The elements of a list, or their values of a key; `None` without the list.
fn list(value: &Value, [path, key]: [&str; 2]) -> Option<Vec<String>> {
    let element = |element: &Value| scalar(if key.is_empty() { element } else { &element[key] });
    Some(value.pointer(path)?.as_array()?.iter().filter_map(element).collect())
}

fn read([file, text]: [&str; 2], layout: &Layout) -> Result<Vec<(Question, Value)>, EvalError> {
    let question = |Record { line, key, value }: Record<'_, Value>| {
        let missing = |part: &str| malformed(file, line, format!("has no `{part}`"), layout.remedy);
        let text = |key: &str| value[key].as_str().unwrap_or_default().to_owned();
        let id = match layout.id {
            "" => key.into_owned(),
            id => scalar(&value[id]).ok_or_else(|| missing(id))?,
        };
        let answers = layout.answers.iter().find_map(|path| list(&value, *path));
        let mut relevant = Vec::new();
        for path in layout.relevant {
            relevant.extend(list(&value, *path).ok_or_else(|| missing(&path[0][1..]))?);
        }
        let question = Question {
            id,
            line,
            text: text(layout.text),
            answers: match layout.answers {
                [] => Vec::new(),
                [[path, _], ..] => answers.ok_or_else(|| missing(&path[1..]))?,
            },
            relevant,
            kind: text(layout.kind),
            split: text(layout.split),
            range: None,
        };
        Ok((question, value))
    };
    let records = read_records(file, text, layout.id.is_empty(), layout.remedy)?;
    records.into_iter().map(question).collect()
}

type Questions = Result<Vec<Question>, EvalError>;

pub(super) fn m2kr(files: &Files<'_>) -> Questions {
    Ok(read(files.reference, &M2KR)?.into_iter().map(|(question, _)| question).collect())
}

pub(super) fn webqa(files: &Files<'_>) -> Questions {
    Ok(read(files.reference, &WEBQA)?.into_iter().map(|(question, _)| question).collect())
}

pub(super) fn viquae(files: &Files<'_>) -> Questions {
    let question = |(mut question, _): (Question, Value)| {
        question.answers.retain(|answer| !answer.trim().is_empty());
        if question.answers.is_empty() {
            let [file, _] = files.reference;
            return Err(malformed(file, question.line, "has no answers", VIQUAE.remedy));
        }
        Ok(question)
    };
    read(files.reference, &VIQUAE)?.into_iter().map(question).collect()
}

pub(super) fn infoseek(files: &Files<'_>) -> Questions {
    let [file, _] = files.reference;
    let Some([types_file, types]) = files.types else {
        let remedy = "also give the file of question types, infoseek_val_qtype.jsonl";
        let (location, reason) = (Location::new(file, None), "has no question types".to_owned());
        return Err(EvalError::Needs { location, reason, remedy, need: Need::QuestionTypes });
    };
    let remedy = "give InfoSeek's lines: {\"data_id\", \"question_type\"}";
    let types: Vec<Record<'_, Value>> = read_records(types_file, types, false, remedy)?;
    let kind = |row: &Record<'_, Value>| {
        Some((scalar(&row.value["data_id"])?, scalar(&row.value["question_type"])?))
    };
    let kinds: HashMap<String, String> = types.iter().filter_map(kind).collect();
    let question = |(mut question, value): (Question, Value)| {
        let error = |reason: &str| Err(malformed(file, question.line, reason, INFOSEEK.remedy));
        let Some(kind) = kinds.get(&question.id) else {
            let reason = format!("has no question type of {}", quoted(&question.id));
            return Err(malformed(types_file, None, reason, "give the types of the same split"));
        };
        if kind.eq_ignore_ascii_case("numerical") {
            let limit = |index: usize| value["answer_eval"][0]["range"][index].as_f64();
            let (Some(low), Some(high)) = (limit(0), limit(1)) else {
                return error("has a numerical question without `range` in `answer_eval`");
            };
            question.range = Some([low, high]);
        } else if question.answers.is_empty() {
            return error("has no texts in `answer_eval`");
        }
        question.kind.clone_from(kind);
        let is_known = question.split.ends_with("unseen_question");
        question.split = if is_known { "unseen question" } else { "unseen entity" }.to_owned();
        Ok(question)
    };
    read(files.reference, &INFOSEEK)?.into_iter().map(question).collect()
}

/// The question types of Encyclopedic-VQA.
const EVQA_TYPES: [&str; 4] = ["templated", "automatic", "multi_answer", "2_hop"];

pub(super) fn evqa(files: &Files<'_>) -> Questions {
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
            id: questions.len().to_string(),
            line: table.line(),
            text: table.field(question).to_owned(),
            answers: table.field(answer).split('|').map(str::to_owned).collect(),
            kind: kind.to_owned(),
            split: if kind == "2_hop" { "two hops" } else { "single hop" }.to_owned(),
            ..Question::default()
        });
    }
    Ok(questions)
}

pub(super) fn okvqa(files: &Files<'_>) -> Questions {
    let annotations = parse_annotations(files.reference[0], files.reference[1])?;
    let question = |annotation: crate::vqa::read::Annotation<'_>| {
        let answers = annotation.answers.iter().map(|human| human.answer.to_string()).collect();
        Question { id: annotation.question_id.0.into(), answers, ..Question::default() }
    };
    Ok(annotations.into_iter().map(question).collect())
}

/// Reads passages: their texts by id. Without ids, the index of a passage is its id.
pub(super) fn passages(file: &str, text: &str) -> Result<HashMap<String, String>, EvalError> {
    let remedy = "give passages as JSON lines: {\"passage_id\", \"passage_content\"}";
    let records: Vec<Record<'_, Value>> = read_records(file, text, false, remedy)?;
    let mut passages = HashMap::with_capacity(records.len());
    for Record { line, key, value } in records {
        let find = |keys: &[&str]| keys.iter().find_map(|key| scalar(&value[*key]));
        let id = find(&["passage_id", "id", "kid", "index"]).map_or(key, Cow::from).into_owned();
        let Some(text) = find(&["passage_content", "text", "passage"]) else {
            return Err(malformed(file, line, "has no `passage_content`", remedy));
        };
        if passages.contains_key(&id) {
            let reason = format!("has the passage {} a second time", quoted(&id));
            return Err(malformed(file, line, reason, "keep one of them"));
        }
        passages.insert(id, text);
    }
    Ok(passages)
}
