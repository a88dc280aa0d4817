//! The cases of the published files.

use std::borrow::Cow;

use serde::Deserialize;
use serde::de::IgnoredAny;

use super::super::records::{Record, read_records};
use crate::error::EvalError;
use crate::ids::Id;

/// A case: its edits, and its prompts by the part of a prediction.
pub(super) struct Case<'a> {
    pub(super) id: Cow<'a, str>,
    pub(super) line: u64,
    /// What each edit changes, and the new answer.
    pub(super) edits: Vec<(String, Cow<'a, str>)>,
    /// The prompt or the question, for lists of cases.
    pub(super) question: String,
    pub(super) prompts: Vec<Prompts<'a>>,
}

/// The prompts of one part.
pub(super) struct Prompts<'a> {
    /// The key of the part in a prediction.
    pub(super) part: &'static str,
    /// Number of prompts.
    pub(super) count: usize,
    /// The correct answers of each prompt, or one list for all of them.
    pub(super) answers: Vec<Vec<Cow<'a, str>>>,
    /// The number of hops of each prompt; empty if the part has no hops.
    pub(super) hops: Vec<usize>,
}

impl<'a> Prompts<'a> {
    fn new(part: &'static str, count: usize, answers: Vec<Cow<'a, str>>) -> Self {
        Self { part, count, answers: vec![answers], hops: Vec::new() }
    }
}

#[derive(Deserialize)]
struct Target<'a> {
    #[serde(borrow)]
    str: Cow<'a, str>,
}

#[derive(Deserialize)]
struct Rewrite<'a> {
    #[serde(borrow)]
    prompt: Cow<'a, str>,
    #[serde(borrow, default)]
    relation_id: Cow<'a, str>,
    #[serde(borrow)]
    subject: Cow<'a, str>,
    #[serde(borrow)]
    target_new: Target<'a>,
    #[serde(borrow)]
    target_true: Target<'a>,
}

impl<'a> Rewrite<'a> {
    /// The fact that the edit changes, and the new answer.
    fn edit(&self) -> (String, Cow<'a, str>) {
        let relation = if self.relation_id.is_empty() { &self.prompt } else { &self.relation_id };
        (format!("{}, {relation}", self.subject), self.target_new.str.clone())
    }
}

#[derive(Deserialize)]
struct CounterFact<'a> {
    #[serde(borrow)]
    case_id: Id<'a>,
    #[serde(borrow)]
    requested_rewrite: Rewrite<'a>,
    paraphrase_prompts: Vec<IgnoredAny>,
    neighborhood_prompts: Vec<IgnoredAny>,
}

pub(super) fn counterfact<'a>(file: &str, text: &'a str) -> Result<Vec<Case<'a>>, EvalError> {
    let remedy = "give CounterFact's list: [{\"case_id\", \"requested_rewrite\", \
                  \"paraphrase_prompts\", \"neighborhood_prompts\"}]";
    let case = |Record { line, value, .. }: Record<'a, CounterFact<'a>>| {
        let rewrite = &value.requested_rewrite;
        let prompts = |part, count: usize, target: &Target<'a>| {
            Prompts::new(part, count, vec![target.str.clone()])
        };
        let (new, old) = (&rewrite.target_new, &rewrite.target_true);
        Case {
            line,
            edits: vec![rewrite.edit()],
            question: rewrite.prompt.replace("{}", &rewrite.subject),
            prompts: vec![
                prompts("rewrite", 1, new),
                prompts("paraphrase", value.paraphrase_prompts.len(), new),
                prompts("neighborhood", value.neighborhood_prompts.len(), old),
            ],
            id: value.case_id.0,
        }
    };
    Ok(read_records(file, text, false, remedy)?.into_iter().map(case).collect())
}

#[derive(Deserialize)]
struct ZsRe<'a> {
    #[serde(borrow)]
    src: Cow<'a, str>,
    answers: Vec<Cow<'a, str>>,
    #[serde(borrow)]
    loc_ans: Cow<'a, str>,
}

pub(super) fn zsre<'a>(file: &str, text: &'a str) -> Result<Vec<Case<'a>>, EvalError> {
    let remedy = "give zsRE's list: [{\"src\", \"rephrase\", \"answers\", \"loc\", \"loc_ans\"}]";
    let case = |Record { line, key, value }: Record<'a, ZsRe<'a>>| Case {
        id: key,
        line,
        edits: value
            .answers
            .first()
            .map(|new| (value.src.to_string(), new.clone()))
            .into_iter()
            .collect(),
        question: value.src.into_owned(),
        prompts: vec![
            Prompts::new("rewrite", 1, value.answers.clone()),
            Prompts::new("paraphrase", 1, value.answers),
            Prompts::new("neighborhood", 1, vec![value.loc_ans]),
        ],
    };
    Ok(read_records(file, text, false, remedy)?.into_iter().map(case).collect())
}

#[derive(Deserialize)]
struct Hop<'a> {
    #[serde(borrow)]
    answer: Cow<'a, str>,
    #[serde(default)]
    answer_alias: Vec<Cow<'a, str>>,
}

impl<'a> Hop<'a> {
    fn answers(self) -> Vec<Cow<'a, str>> {
        std::iter::once(self.answer).chain(self.answer_alias).collect()
    }
}

#[derive(Deserialize)]
struct Mquake<'a> {
    #[serde(borrow)]
    case_id: Id<'a>,
    #[serde(borrow)]
    requested_rewrite: Vec<Rewrite<'a>>,
    questions: Vec<Cow<'a, str>>,
    #[serde(borrow)]
    new_answer: Cow<'a, str>,
    #[serde(default)]
    new_answer_alias: Vec<Cow<'a, str>>,
    #[serde(borrow, default)]
    new_single_hops: Vec<Hop<'a>>,
}

pub(super) fn mquake<'a>(file: &str, text: &'a str) -> Result<Vec<Case<'a>>, EvalError> {
    let remedy = "give MQuAKE's list: [{\"case_id\", \"requested_rewrite\", \"questions\", \
                  \"new_answer\", \"new_answer_alias\", \"new_single_hops\"}]";
    let case = |Record { line, value, .. }: Record<'a, Mquake<'a>>| {
        let answer = Hop { answer: value.new_answer, answer_alias: value.new_answer_alias };
        let rewrites = value.requested_rewrite;
        let new = rewrites.iter().map(|rewrite| vec![rewrite.target_new.str.clone()]);
        let each = |part, answers: Vec<Vec<Cow<'a, str>>>| Prompts {
            part,
            count: answers.len(),
            answers,
            hops: Vec::new(),
        };
        Case {
            id: value.case_id.0,
            line,
            edits: rewrites.iter().map(Rewrite::edit).collect(),
            prompts: vec![
                Prompts::new("questions", value.questions.len(), answer.answers()),
                each("hops", value.new_single_hops.into_iter().map(Hop::answers).collect()),
                each("edits", new.collect()),
            ],
            question: value.questions.into_iter().next().unwrap_or_default().into_owned(),
        }
    };
    Ok(read_records(file, text, false, remedy)?.into_iter().map(case).collect())
}

#[derive(Deserialize)]
struct Vlkeb<'a> {
    #[serde(borrow)]
    src: Cow<'a, str>,
    #[serde(borrow)]
    alt: Cow<'a, str>,
    #[serde(borrow)]
    image: Cow<'a, str>,
    #[serde(borrow, default)]
    port_new: Vec<Port<'a>>,
}

/// A question of portability, with its answer in one of two layouts.
#[derive(Deserialize)]
struct Port<'a> {
    /// Such as `2-hop`; one hop if it is missing.
    #[serde(borrow, default)]
    port_type: Cow<'a, str>,
    #[serde(borrow, default, rename = "Q&A")]
    pair: Option<PortAnswer<'a>>,
    #[serde(borrow, default)]
    port_a: Cow<'a, str>,
}

#[derive(Deserialize)]
struct PortAnswer<'a> {
    #[serde(borrow, rename = "Answer")]
    answer: Cow<'a, str>,
}

/// Cases with an empty answer are left out, as in the published code.
pub(super) fn vlkeb<'a>(file: &str, text: &'a str) -> Result<Vec<Case<'a>>, EvalError> {
    let remedy = "give VLKEB's list: [{\"src\", \"rephrase\", \"alt\", \"image\", \
                  \"image_rephrase\", \"loc\", \"m_loc\", \"port_new\"}]";
    let case = |Record { line, key, value }: Record<'a, Vlkeb<'a>>| {
        let rewrites = ["rewrite", "rephrase", "image_rephrase"];
        let prompts = rewrites.map(|part| Prompts::new(part, 1, vec![value.alt.clone()]));
        let hops = |port: &Port<'a>| port.port_type.split('-').next()?.parse().ok();
        let portability = Prompts {
            part: "portability",
            count: value.port_new.len(),
            hops: value.port_new.iter().map(|port| hops(port).unwrap_or(1)).collect(),
            answers: value
                .port_new
                .into_iter()
                .map(|port| vec![port.pair.map_or(port.port_a, |pair| pair.answer)])
                .collect(),
        };
        Case {
            id: key,
            line,
            edits: vec![(format!("{}, {}", value.image, value.src), value.alt)],
            question: value.src.into_owned(),
            prompts: prompts.into_iter().chain([portability]).filter(|p| p.count > 0).collect(),
        }
    };
    let records = read_records::<Vlkeb<'a>>(file, text, false, remedy)?;
    Ok(records.into_iter().filter(|record| !record.value.alt.is_empty()).map(case).collect())
}
