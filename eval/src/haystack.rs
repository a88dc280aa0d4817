//! Visual Haystacks: yes-or-no questions about a few pictures among many.
//!
//! The published accuracy is the mean over 100 resamples, and a reply that says both yes and no is right for either.
//! Beside it stand the plain mean, which it only approaches, and the strict one, in which such a reply is wrong.
//!
//! # Source   visual-haystacks/vhs_benchmark `utils.py`, `solvers/base_solver.py` (arXiv 2407.13766). Words are found
//! there by nltk's `word_tokenize`; here a word is what white space divides, without the punctuation at its ends.
//!
//! ```
//! use engram_eval::haystack::{HaystackOptions, evaluate, parse_replies};
//!
//! let replies = r#"{"id": 1, "answer": "yes", "response": "Yes, there is."}
//! {"id": 2, "answer": "no", "response": "Yes and no."}
//! {"id": 3, "answer": "no", "response": "I cannot tell"}"#;
//! let replies = parse_replies("replies.jsonl", replies)?;
//! let detail = evaluate(&replies, &HaystackOptions::default())?.evaluation.detail;
//! assert_eq!(detail["accuracy_plain"], 2.0 / 3.0);
//! assert_eq!(detail["accuracy_strict"], 1.0 / 3.0);
//! assert_eq!(detail["compliance"], 2.0 / 3.0);
//! # Ok::<(), engram_eval::EvalError>(())
//! ```

use std::borrow::Cow;
use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use crate::bootstrap::{BootstrapOptions, Resampling, bootstrap, measure_of_mean};
use crate::error::{EvalError, Place};
use crate::ids::Id;
use crate::items::{Item, Statistic};
use crate::metric::MetricInfo;
use crate::metric::mean::{mean, weighted_mean};
use crate::result::{Evaluation, Measure, Provenance, SourceFile};
use crate::source::json_lines;
use crate::table::shortened;
use crate::text::{figures, sources};

/// Resamples of the published figure.
const PUBLISHED_RESAMPLES: usize = 100;

const ACCURACY: MetricInfo = higher_is_better("haystack_accuracy");
const PLAIN: MetricInfo = higher_is_better("accuracy_plain");
const STRICT: MetricInfo = higher_is_better("accuracy_strict");
const COMPLIANCE: MetricInfo = higher_is_better("compliance");

const fn higher_is_better(name: &'static str) -> MetricInfo {
    MetricInfo { name, version: 1, higher_is_better: Some(true) }
}

/// A question's answer and a system's reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply<'a> {
    /// The question's id; the line number where it has none.
    pub id: Cow<'a, str>,
    /// Whether the right answer is yes.
    pub yes: bool,
    /// The reply.
    pub response: Cow<'a, str>,
}

/// A line: the answer by itself, or as the second turn of the benchmark's `conversations`.
#[derive(Deserialize)]
struct ReplyLine<'a> {
    #[serde(borrow)]
    id: Option<Id<'a>>,
    #[serde(borrow)]
    answer: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    conversations: Vec<Turn<'a>>,
    #[serde(borrow)]
    response: Cow<'a, str>,
}

#[derive(Deserialize)]
struct Turn<'a> {
    #[serde(borrow)]
    value: Cow<'a, str>,
}

/// Settings of [`evaluate`].
#[derive(Debug, Clone, Default, PartialEq)]
pub struct HaystackOptions {
    /// Resamples, level and seed of the intervals; the seed is that of the published figure too.
    pub bootstrap: BootstrapOptions,
    /// Whether [`HaystackReport::items`] is filled.
    pub items: bool,
    /// The files that were read.
    pub sources: Vec<SourceFile>,
}

/// All figures, from 0 to 1.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HaystackReport {
    /// The published accuracy (primary), the plain and the strict one, and how many replies say yes or no at all.
    #[serde(flatten)]
    pub evaluation: Evaluation,
    /// The published accuracy's standard deviation over its 100 resamples.
    pub standard_deviation: f64,
    /// Whether each reply was right; empty where it was not asked for.
    #[serde(skip)]
    pub items: Vec<Item>,
}

/// Reads JSON lines with `response`, and `answer` (`yes` or `no`) or the benchmark's `conversations`.
///
/// # Errors   [`EvalError::Malformed`] with the line; [`EvalError::DoubledId`]
pub fn parse_replies<'a>(file: &str, text: &'a str) -> Result<Vec<Reply<'a>>, EvalError> {
    let lines = json_lines(file, text, |line, reply: ReplyLine<'a>| (line, reply))?;
    let malformed = |line: Option<u64>, reason: String| EvalError::Malformed {
        place: Place::new(file, line),
        reason,
        remedy: "give one JSON object a line: id, answer (yes or no) and response",
    };
    let (mut replies, mut seen) = (Vec::new(), HashMap::new());
    for (line, ReplyLine { id, answer, mut conversations, response }) in lines.into_iter().flatten()
    {
        let turn = || (conversations.len() > 1).then(|| conversations.swap_remove(1).value);
        let Some(answer) = answer.or_else(turn) else {
            return Err(malformed(Some(line), "has no `answer`".to_owned()));
        };
        let yes = match answer.trim().to_lowercase().as_str() {
            "yes" => true,
            "no" => false,
            other => {
                let reason = format!("has the answer `{}`", shortened(other, 40));
                return Err(malformed(Some(line), reason));
            }
        };
        let id = id.map_or_else(|| line.to_string().into(), |id| id.0);
        if let Some(first) = seen.insert(id.clone(), line) {
            let (place, first) = (Place::new(file, line), Place::new(file, first));
            return Err(EvalError::DoubledId { place, first, id: shortened(&id, 60) });
        }
        replies.push(Reply { id, yes, response });
    }
    if replies.is_empty() {
        return Err(malformed(None, "has no replies".to_owned()));
    }
    Ok(replies)
}

/// Whether a reply says yes, and whether it says no.
fn says(response: &str) -> (bool, bool) {
    let lower = response.to_lowercase();
    let words = lower.split_whitespace();
    let words = words.map(|word| word.trim_matches(|c: char| !c.is_alphanumeric()));
    words.fold((false, false), |(yes, no), word| (yes || word == "yes", no || word == "no"))
}

/// The figures of replies.
///
/// # Errors   [`EvalError::BadOption`]
pub fn evaluate(
    replies: &[Reply<'_>],
    options: &HaystackOptions,
) -> Result<HaystackReport, EvalError> {
    options.bootstrap.validate()?;
    let column = |score: &dyn Fn(bool, (bool, bool)) -> bool| -> Vec<f64> {
        let scores = replies.iter().map(|reply| score(reply.yes, says(&reply.response)));
        scores.map(|right| f64::from(u8::from(right))).collect()
    };
    let right = column(&|wanted, (yes, no)| if wanted { yes } else { no });
    let strict = column(&|wanted, (yes, no)| if wanted { yes && !no } else { no && !yes });
    let compliance = column(&|_, (yes, no)| yes || no);
    let resampling = Resampling::by_item("question", replies.len());
    let published = BootstrapOptions { resamples: PUBLISHED_RESAMPLES, ..options.bootstrap };
    let drawn = bootstrap(&resampling, &published, |times| weighted_mean(&right, times)).values;
    let accuracy = mean(&drawn);
    let squares: Vec<f64> = drawn.iter().map(|value| (value - accuracy).powi(2)).collect();
    let plain = |info: &MetricInfo, values: &[f64]| {
        measure_of_mean(info, "question", values, &options.bootstrap)
    };
    let secondary =
        vec![plain(&PLAIN, &right), plain(&STRICT, &strict), plain(&COMPLIANCE, &compliance)];
    let item = |(reply, right): (&Reply<'_>, &f64)| {
        Item::new(&PLAIN, "none", &reply.id, None, Statistic::Mean { value: *right })
    };
    let items = match options.items {
        true => replies.iter().zip(&right).map(item).collect(),
        false => Vec::new(),
    };
    let primary = Measure { value: accuracy, ..plain(&ACCURACY, &right) };
    let (provenance, sources) = (Provenance::default(), options.sources.clone());
    let mut evaluation = Evaluation::new(primary, secondary, Vec::new(), provenance, sources);
    let standard_deviation = mean(&squares).sqrt();
    evaluation.detail.insert("standard_deviation".to_owned(), standard_deviation.into());
    Ok(HaystackReport { evaluation, standard_deviation, items })
}

impl HaystackReport {
    /// The report as aligned plain text.
    pub fn to_text(&self) -> String {
        let evaluation = &self.evaluation;
        let questions = evaluation.primary.n;
        let heading = format!("Visual Haystacks, {questions} questions\n{}", sources(evaluation));
        let deviation = format!(
            "The accuracy is the mean of {PUBLISHED_RESAMPLES} resamples, standard deviation {:.4}\n",
            self.standard_deviation
        );
        [heading, figures(evaluation), deviation].join("\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_are_read_for_their_words() {
        for (response, wanted) in [
            ("Yes.", (true, false)),
            ("(no)", (false, true)),
            ("Yes, or no?", (true, true)),
            ("nothing, yesterday", (false, false)),
            ("", (false, false)),
        ] {
            assert_eq!(says(response), wanted, "{response:?}");
        }
    }

    #[test]
    fn the_benchmarks_own_entries_are_read() {
        let text = r#"{"conversations": [{"from": "human", "value": "is there?"},
            {"from": "gpt", "value": "no"}], "response": "No"}"#;
        let text = text.replace('\n', " ");
        let replies = parse_replies("f", &text).unwrap();
        assert_eq!((replies[0].yes, &*replies[0].id), (false, "1"));
        let refused = |text: &str| parse_replies("f", text).unwrap_err().to_string();
        assert!(refused(r#"{"response": "no"}"#).starts_with("f:1: has no `answer`"));
        assert!(refused(r#"{"answer": "maybe", "response": "no"}"#).contains("answer `maybe`"));
        assert!(refused("").starts_with("f: has no replies"));
    }
}
