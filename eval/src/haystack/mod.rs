//! Visual Haystacks: yes/no questions about a few images among many.
//!
//! A reply is correct if it contains the correct answer, "yes" or "no". Three accuracies are
//! reported:
//!
//! | accuracy | definition | a reply with both "yes" and "no" |
//! |---|---|---|
//! | published | mean of the plain accuracy over 100 bootstrap resamples | correct |
//! | plain | share of correct replies | correct |
//! | strict | share of correct replies | wrong |
//!
//! | file | task |
//! |---|---|
//! | [`read`] | reads replies from JSON lines |
//! | `words` | finds "yes" and "no" among the nltk tokens of a reply |
//!
//! # Source   visual-haystacks/vhs_benchmark `utils.py`, `solvers/base_solver.py` (arXiv 2407.13766)
//!
//! ```
//! use engram_eval::haystack::{evaluate, read::parse_replies};
//!
//! let replies = r#"{"id": 1, "answer": "yes", "response": "Yes, there is."}
//! {"id": 2, "answer": "no", "response": "Yes and no."}
//! {"id": 3, "answer": "no", "response": "I cannot tell"}"#;
//! let replies = parse_replies("replies.jsonl", replies)?;
//! let detail = evaluate(&replies, &Default::default())?.evaluation.detail;
//! assert_eq!(detail["accuracy_plain"], 2.0 / 3.0);
//! assert_eq!(detail["accuracy_strict"], 1.0 / 3.0);
//! assert_eq!(detail["compliance"], 2.0 / 3.0);
//! # Ok::<(), engram_eval::EvalError>(())
//! ```

pub mod read;
mod words;

use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use crate::bootstrap::{BootstrapOptions, Resampling, bootstrap, measure_of_mean};
use crate::error::EvalError;
use crate::items::{Item, mean_items};
use crate::metric::mean::{mean, weighted_mean};
use crate::metric::{MetricInfo, Unit};
use crate::result::{Breakdown, Evaluation, Measure, ReportOptions};
use crate::text;
use read::Reply;
use words::contains_yes_no;

/// Number of resamples of the published accuracy.
const PUBLISHED_RESAMPLES: usize = 100;

/// The published accuracy: the mean of the plain accuracy over 100 bootstrap resamples.
pub const ACCURACY: MetricInfo = MetricInfo::higher("haystack_accuracy", Unit::Fraction);
/// The share of replies that contain the correct answer word.
pub const PLAIN: MetricInfo = MetricInfo::higher("accuracy_plain", Unit::Fraction);
/// The share of replies that contain the correct answer word and not the other.
pub const STRICT: MetricInfo = MetricInfo::higher("accuracy_strict", Unit::Fraction);
/// The share of replies that contain "yes" or "no".
pub const COMPLIANCE: MetricInfo = MetricInfo::higher("compliance", Unit::Fraction);

/// All metrics, from 0 to 1.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HaystackReport {
    /// The published accuracy (primary), the plain and the strict accuracy, and compliance: the
    /// share of replies that contain "yes" or "no".
    #[serde(flatten)]
    pub evaluation: Evaluation,
    /// Standard deviation of the published accuracy over its 100 resamples.
    pub standard_deviation: f64,
    /// The plain accuracy of each reply, 0 or 1; empty if [`ReportOptions::items`] is false.
    #[serde(skip)]
    pub items: Vec<Item>,
    /// Wrong replies, then correct replies with both words; each in file order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub worst: Vec<WrongReply>,
    /// Number of all replies that are wrong or contain both words, listed or not.
    #[serde(skip)]
    pub wrong_total: usize,
}

/// A reply that is wrong or contains both words.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WrongReply {
    /// The question id.
    pub id: String,
    /// The question text; empty if the file has none.
    pub question: String,
    /// The correct answer, `yes` or `no`.
    pub answer: String,
    /// The answer words in the reply: `yes`, `no`, `both` or `neither`.
    pub answer_words: String,
    /// The full reply.
    pub response: String,
}

/// Scores the replies. The 100 resamples of the published accuracy have the same seed as those of
/// the intervals.
///
/// # Errors
/// [`EvalError::InvalidOption`], [`EvalError::Pattern`]
pub fn evaluate(
    replies: &[Reply<'_>],
    options: &ReportOptions,
) -> Result<HaystackReport, EvalError> {
    options.bootstrap.validate()?;
    let replies_in_parallel = replies.par_iter().with_min_len(64);
    let words_found: Vec<(bool, bool)> = replies_in_parallel
        .map(|reply| contains_yes_no(&reply.response))
        .collect::<Result<_, _>>()?;
    let scores = |score: &dyn Fn(bool, (bool, bool)) -> bool| -> Vec<f64> {
        let replies =
            replies.iter().zip(&words_found).map(|(reply, words)| score(reply.yes, *words));
        replies.map(|correct| f64::from(u8::from(correct))).collect()
    };
    let correct = scores(&|is_yes, (yes, no)| if is_yes { yes } else { no });
    let strict = scores(&|is_yes, (yes, no)| if is_yes { yes && !no } else { no && !yes });
    let compliance = scores(&|_, (yes, no)| yes || no);
    let resampling = Resampling::by_named_row("question", replies.len());
    let published_options =
        BootstrapOptions { resamples: PUBLISHED_RESAMPLES, ..options.bootstrap };
    let resampled =
        bootstrap(&resampling, &published_options, |counts| weighted_mean(&correct, counts)).values;
    let accuracy = mean(&resampled);
    let squares: Vec<f64> = resampled.iter().map(|value| (value - accuracy).powi(2)).collect();
    let measure = |info: &MetricInfo, values: &[f64]| {
        measure_of_mean(info, "question", values, &options.bootstrap)
    };
    let secondary = vec![
        measure(&PLAIN, &correct),
        measure(&STRICT, &strict),
        measure(&COMPLIANCE, &compliance),
    ];
    let ids = replies.iter().map(|reply| &reply.id);
    let items = mean_items(options, &PLAIN, "none", ids, &correct);
    let primary = Measure { value: accuracy, ..measure(&ACCURACY, &correct) };
    let answers: Vec<&str> = replies.iter().map(answer_name).collect();
    let words: Vec<&str> = words_found.iter().copied().map(answer_words).collect();
    let breakdowns = vec![
        breakdown("correct answer", &answers, &correct, options),
        breakdown("answer words", &words, &correct, options),
    ];
    let mut evaluation = Evaluation::new(primary, secondary, breakdowns, options.sources.clone());
    let standard_deviation = mean(&squares).sqrt();
    evaluation.detail.insert("standard_deviation".to_owned(), standard_deviation.into());
    let mut wrong_or_both: Vec<_> = replies.iter().zip(&words_found).collect();
    wrong_or_both.retain(|(reply, words)| **words != (reply.yes, !reply.yes));
    wrong_or_both.sort_by_key(|(_, words)| **words == (true, true));
    let wrong_reply = |(reply, words): &(&Reply<'_>, &(bool, bool))| WrongReply {
        id: reply.id.to_string(),
        question: reply.question.to_string(),
        answer: answer_name(reply).to_owned(),
        answer_words: answer_words(**words).to_owned(),
        response: reply.response.to_string(),
    };
    Ok(HaystackReport {
        evaluation,
        standard_deviation,
        items,
        worst: wrong_or_both.iter().take(options.worst).map(wrong_reply).collect(),
        wrong_total: wrong_or_both.len(),
    })
}

fn answer_name(reply: &Reply<'_>) -> &'static str {
    if reply.yes { "yes" } else { "no" }
}

fn answer_words(words: (bool, bool)) -> &'static str {
    match words {
        (true, true) => "both",
        (true, false) => "yes",
        (false, true) => "no",
        (false, false) => "neither",
    }
}

/// The plain accuracy of the replies with each label.
fn breakdown(
    name: &str,
    labels: &[&'static str],
    correct: &[f64],
    options: &ReportOptions,
) -> Breakdown {
    let rows = ["yes", "no", "both", "neither"].into_iter().filter_map(|label_name| {
        let with_label = labels.iter().zip(correct).filter(|(label, _)| **label == label_name);
        let values: Vec<f64> = with_label.map(|(_, correct)| *correct).collect();
        let measure = || measure_of_mean(&PLAIN, "question", &values, &options.bootstrap);
        (!values.is_empty()).then(|| (label_name.to_owned(), measure()))
    });
    Breakdown::new(name, &PLAIN, rows.collect())
}

impl HaystackReport {
    /// Formats the report as aligned plain text.
    pub fn to_text(&self) -> String {
        let evaluation = &self.evaluation;
        let heading = format!("Visual Haystacks, {} questions", evaluation.primary.n);
        let accuracy_note = format!(
            "Accuracy is the mean over {PUBLISHED_RESAMPLES} resamples, standard deviation {:.4}\n",
            self.standard_deviation
        );
        let breakdowns = evaluation.breakdowns.iter().map(text::breakdown);
        text::report(&heading, evaluation, &[], [accuracy_note].into_iter().chain(breakdowns))
    }
}
