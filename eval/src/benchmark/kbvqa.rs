//! Knowledge-based visual question answering: Encyclopedic-VQA, InfoSeek, M2KR, OK-VQA with
//! passages, ViQuAE and WebQA.
//!
//! A prediction has the id of a question and, depending on the data set, the `answer` of the system
//! and the ids of the passages that it retrieved, best first.
//!
//! ```
//! use engram_eval::benchmark::kbvqa::{Files, KbvqaOptions, SETS, evaluate};
//!
//! let files = Files {
//!     reference: ["evqa.csv", "question,answer,question_type\nHow tall is it?,ten m|10m,automatic\n"],
//!     predictions: ["mine.jsonl", r#"{"id": 0, "answer": "The 10m."}"#],
//!     ..Files::default()
//! };
//! let (kbvqa, options) = (KbvqaOptions::default(), Default::default());
//! let report = evaluate(&SETS[0], &files, &kbvqa, &options)?;
//! assert_eq!(report.evaluation.primary.value, 1.0);
//! # Ok::<(), engram_eval::EvalError>(())
//! ```

mod questions;

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use rayon::prelude::*;
use serde::Deserialize;

use super::answers::{
    contains_words, encyclopedic, encyclopedic_lists_match, lowercase, number_matches, squad,
    word_f1,
};
use super::records::{Record, pairs, quoted, read_records, unique_ids};
use super::{BenchmarkReport, Column, Scores, share};
use crate::error::{EvalError, Location, Need, malformed};
use crate::ids::Id;
use crate::normalise::characters::is_space;
use crate::result::ReportOptions;
use questions::Question;

pub use questions::Files;

/// A data set of questions.
#[derive(Debug)]
pub struct KbvqaSet {
    /// Its name.
    pub name: &'static str,
    primary: &'static str,
    harmonic: &'static [(&'static str, &'static [&'static str])],
    /// Whether each prediction needs an answer.
    needs_answer: bool,
    /// Whether each prediction needs retrieved passages.
    needs_ranked: bool,
    needs_passages: bool,
    /// How the texts of passages are normalised.
    passage: fn(&str) -> String,
    read: fn(&Files<'_>) -> Result<Vec<Question>, EvalError>,
    /// The name and the value of each metric; NaN if the metric does not score the question.
    score: fn(&Case<'_>) -> Values,
}

/// All data sets of questions.
pub static SETS: [KbvqaSet; 6] = [
    KbvqaSet { name: "evqa", primary: "evqa", read: questions::evqa, score: evqa, ..ANSWERS },
    KbvqaSet {
        name: "infoseek",
        primary: "infoseek_final",
        harmonic: &[("infoseek_final", &["infoseek_unseen_question", "infoseek_unseen_entity"])],
        read: questions::infoseek,
        score: infoseek,
        ..ANSWERS
    },
    KbvqaSet { name: "m2kr", primary: "success@5", read: questions::m2kr, ..PASSAGES },
    KbvqaSet {
        name: "okvqa",
        primary: "pseudo_recall@5",
        needs_passages: true,
        read: questions::okvqa,
        score: okvqa,
        ..PASSAGES
    },
    KbvqaSet {
        name: "viquae",
        primary: "f1",
        needs_ranked: false,
        passage: squad,
        read: questions::viquae,
        score: viquae,
        ..PASSAGES
    },
    KbvqaSet {
        name: "webqa",
        primary: "retrieval_f1",
        read: questions::webqa,
        score: webqa,
        ..PASSAGES
    },
];

/// A data set that is scored by answers.
const ANSWERS: KbvqaSet = KbvqaSet {
    name: "",
    primary: "",
    harmonic: &[],
    needs_answer: true,
    needs_ranked: false,
    needs_passages: false,
    passage: lowercase,
    read: questions::m2kr,
    score: m2kr,
};
/// A data set that is scored by retrieved passages.
const PASSAGES: KbvqaSet = KbvqaSet { needs_answer: false, needs_ranked: true, ..ANSWERS };

/// Options of an evaluation of questions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KbvqaOptions {
    /// The primary metric; `None` for that of the data set.
    pub metric: Option<String>,
    /// Whether questions without a prediction are left out; otherwise they are an error.
    pub with_result: bool,
    /// The numbers of first passages for which metrics are reported.
    pub cutoffs: Vec<usize>,
}

impl Default for KbvqaOptions {
    fn default() -> Self {
        Self { metric: None, with_result: false, cutoffs: vec![1, 5, 10, 20, 50, 100] }
    }
}

#[derive(Deserialize)]
struct Prediction<'a> {
    #[serde(borrow, alias = "data_id", alias = "question_id", alias = "guid")]
    id: Id<'a>,
    #[serde(borrow, default, alias = "prediction")]
    answer: Option<Cow<'a, str>>,
    #[serde(borrow, default, alias = "sources")]
    ranked: Option<Vec<Id<'a>>>,
    /// The probability of BEM, the answer equivalence model, from another program.
    #[serde(default)]
    bem: Option<f64>,
}

/// A question with the prediction of the system.
struct Case<'c> {
    question: &'c Question,
    /// Empty without an answer.
    answer: &'c str,
    ranked: &'c [Id<'c>],
    bem: Option<f64>,
    /// The normalised texts of passages; `None` if there are none.
    passages: Option<&'c HashMap<&'c str, String>>,
    cutoffs: &'c [usize],
    /// Whether the predictions have answers, and whether they have passages.
    has: [bool; 2],
}

const REMEDY: &str = "write one JSON object per question: `id`, and `answer` or `ranked`, the ids \
                      of the retrieved passages";

/// Scores predictions by question id.
///
/// # Errors
/// [`EvalError::Text`] with the line, also for unknown passages and missing answers;
/// [`EvalError::MissingPrediction`], [`EvalError::ExtraPrediction`]; [`EvalError::InvalidOption`]
pub fn evaluate(
    set: &KbvqaSet,
    files: &Files<'_>,
    kbvqa_options: &KbvqaOptions,
    options: &ReportOptions,
) -> Result<BenchmarkReport, EvalError> {
    options.bootstrap.validate()?;
    let mut cutoffs = kbvqa_options.cutoffs.clone();
    cutoffs.sort_unstable();
    cutoffs.dedup();
    if cutoffs.first().is_none_or(|k| *k == 0) {
        return Err(EvalError::InvalidOption {
            option: "k",
            found: format!("{cutoffs:?}"),
            expected: "at least one cut-off, each at least 1",
        });
    }
    let questions = (set.read)(files)?;
    let [file, text] = files.predictions;
    let lines: Vec<Record<'_, Prediction<'_>>> = read_records(file, text, false, REMEDY)?;
    let reference = files.reference[0];
    let question_ids = unique_ids(reference, questions.iter().map(|q| (&*q.id, q.line)))?;
    let line_ids = unique_ids(file, lines.iter().map(|line| (&*line.value.id.0, line.line)))?;
    let pairs = pairs(&question_ids, &line_ids, kbvqa_options.with_result)?;
    let has = [
        set.needs_answer || lines.iter().any(|line| line.value.answer.is_some()),
        set.needs_ranked || lines.iter().any(|line| line.value.ranked.is_some()),
    ];
    let has_bem = lines.iter().any(|line| line.value.bem.is_some());
    lines.iter().try_for_each(|line| check(file, line, has, has_bem))?;
    let texts = match files.passages {
        Some([file, text]) => Some((file, questions::passages(file, text)?)),
        None if set.needs_passages => {
            return Err(EvalError::Needs {
                location: Location::new(reference, None),
                reason: "has answers but no passages".to_owned(),
                remedy: "also give the passages",
                need: Need::Passages,
            });
        }
        None => None,
    };
    let passages = match &texts {
        Some((passage_file, texts)) => {
            let last = cutoffs.iter().chain(&[MRR_CUTOFF]).max().copied().unwrap_or_default();
            let ranked = pairs.iter().map(|(_, line)| &lines[*line]);
            let ids = ranked.flat_map(|line| {
                line.value.ranked.iter().flatten().take(last).map(|id| (line.line, &*id.0))
            });
            let mut wanted: HashMap<&str, u64> = HashMap::new();
            ids.for_each(|(line, id)| _ = wanted.entry(id).or_insert(line));
            let unknown = wanted.iter().filter(|(id, _)| !texts.contains_key(**id));
            if let Some((id, line)) = unknown.min_by_key(|(id, line)| (**line, **id)) {
                let reason = format!("retrieves {}, which is not in {passage_file}", quoted(id));
                return Err(malformed(file, *line, reason, "give the passages that were searched"));
            }
            let normalised = wanted.into_par_iter();
            let normalised = normalised.map(|(id, _)| (id, (set.passage)(&texts[id])));
            Some(normalised.collect::<HashMap<&str, String>>())
        }
        None => None,
    };
    let cases: Vec<Case<'_>> = pairs
        .iter()
        .map(|(question, line)| Case {
            question: &questions[*question],
            answer: lines[*line].value.answer.as_deref().unwrap_or_default(),
            ranked: lines[*line].value.ranked.as_deref().unwrap_or_default(),
            bem: lines[*line].value.bem,
            passages: passages.as_ref(),
            cutoffs: &cutoffs,
            has,
        })
        .collect();
    let scored: Vec<_> = cases.par_iter().with_min_len(16).map(set.score).collect();
    let scored = scored.into_iter().collect::<Result<Vec<_>, _>>()?;
    let names: Vec<Cow<'static, str>> = scored[0].iter().map(|(name, _)| name.clone()).collect();
    if names.is_empty() {
        return Err(EvalError::Needs {
            location: Location::new(file, None),
            reason: "has nothing to score".to_owned(),
            remedy: "give answers, or retrieved passages together with the file of passages",
            need: Need::Passages,
        });
    }
    let column = |(index, name): (usize, Cow<'static, str>)| {
        Column::new(name, scored.iter().map(|values| values[index].1).collect())
    };
    let scores = Scores {
        data: set.name,
        unit: "question",
        normaliser: "none".to_owned(),
        ids: cases.iter().map(|case| Cow::from(&case.question.id)).collect(),
        columns: names.into_iter().enumerate().map(column).collect(),
        harmonic: set.harmonic.to_vec(),
        primary: set.primary,
        groups: vec![
            ("question type", cases.iter().map(|case| Cow::from(&case.question.kind)).collect()),
            ("part", cases.iter().map(|case| Cow::from(&case.question.split)).collect()),
        ],
        by_group: &[],
        clusters: None,
        rows: vec![
            ("questions", questions.len()),
            ("types", questions.len()),
            ("passages", texts.as_ref().map_or(0, |(_, texts)| texts.len())),
            ("predictions", lines.len()),
        ],
        describe: Box::new(|row| {
            let Case { question, answer, ranked, .. } = &cases[row];
            let ids = ranked.iter().take(5).map(|id| id.0.to_string()).collect::<Vec<_>>();
            let output = if answer.is_empty() { ids.join(", ") } else { (*answer).to_owned() };
            let right = question.answers.iter().chain(&question.relevant);
            let range = question.range.map(|[low, high]| format!("{low} to {high}"));
            let right = right.cloned().chain(range).collect();
            (question.text.clone(), output, right)
        }),
    };
    scores.report(kbvqa_options.metric.as_deref(), options)
}

/// Returns an error for a prediction without a part that the data set needs, or that other lines
/// have.
fn check(
    file: &str,
    line: &Record<'_, Prediction<'_>>,
    [has_answer, has_ranked]: [bool; 2],
    has_bem: bool,
) -> Result<(), EvalError> {
    let Prediction { id, answer, ranked, bem } = &line.value;
    let missing = [
        (has_answer && answer.is_none(), "answer"),
        (has_ranked && ranked.is_none(), "ranked"),
        (has_bem && bem.is_none(), "bem"),
    ];
    if let Some((_, part)) = missing.into_iter().find(|(is_missing, _)| *is_missing) {
        let reason = format!("question `{}` has no `{part}`", id.for_message());
        let remedy = "add it; an answer may be empty, and a list, too";
        return Err(malformed(file, line.line, reason, remedy));
    }
    if bem.is_some_and(|bem| !(0.0..=1.0).contains(&bem)) {
        return Err(malformed(
            file,
            line.line,
            "has a `bem` outside of 0 to 1",
            "give a probability",
        ));
    }
    let mut seen = HashSet::new();
    if let Some(twice) = ranked.iter().flatten().find(|id| !seen.insert(*id)) {
        let reason = format!("lists {} twice", quoted(&twice.0));
        return Err(malformed(file, line.line, reason, "keep the better of its ranks"));
    }
    Ok(())
}

/// The mean reciprocal rank of ViQuAE counts this number of passages.
const MRR_CUTOFF: usize = 100;

type Values = Result<Vec<(Cow<'static, str>, f64)>, EvalError>;

/// # Source   `evaluation_utils.py` of Encyclopedic-VQA; a reference that is empty after
/// normalisation matches nothing, where the script stops
fn evqa(case: &Case<'_>) -> Values {
    let Case { question, answer, bem, .. } = case;
    let normalised = encyclopedic(answer);
    let matches = |reference: &String| {
        if question.kind == "multi_answer" {
            return encyclopedic_lists_match(reference, answer).unwrap_or(false);
        }
        let reference = encyclopedic(reference);
        !reference.is_empty() && reference == normalised
    };
    let exact = question.answers.iter().any(matches);
    let bem = bem.map(|bem| ("evqa".into(), share(exact || bem >= 0.5)));
    Ok(bem.into_iter().chain([("evqa_em".into(), share(exact))]).collect())
}

/// # Source   `infoseek_eval.py` of InfoSeek
fn infoseek(case: &Case<'_>) -> Values {
    let Case { question, answer, .. } = case;
    let correct = match question.range {
        Some(range) => number_matches(answer, range)?,
        None => {
            let answer = squad(answer);
            question.answers.iter().any(|reference| squad(reference) == answer)
        }
    };
    let of_split = |split: &str| if question.split == split { share(correct) } else { f64::NAN };
    Ok(vec![
        ("infoseek".into(), share(correct)),
        ("infoseek_unseen_question".into(), of_split("unseen question")),
        ("infoseek_unseen_entity".into(), of_split("unseen entity")),
    ])
}

/// Whether one of the first `k` passages is relevant, for each `k`. Passages are looked at in order
/// up to the first relevant one.
fn at_cutoffs(
    name: &str,
    case: &Case<'_>,
    is_relevant: impl Fn(&Id<'_>) -> bool,
) -> Vec<(Cow<'static, str>, f64)> {
    let last = case.cutoffs.last().copied().unwrap_or_default();
    let first = case.ranked.iter().take(last).position(is_relevant);
    let success = |k: &usize| share(first.is_some_and(|first| first < *k));
    case.cutoffs.iter().map(|k| (format!("{name}@{k}").into(), success(k))).collect()
}

/// # Source   the evaluation script of PreFLMR
fn m2kr(case: &Case<'_>) -> Values {
    let mut values = at_cutoffs("success", case, |id| {
        case.question.relevant.iter().any(|relevant| *relevant == id.0)
    });
    values.extend(okvqa(case)?);
    Ok(values)
}

/// # Source   the evaluation script of PreFLMR
fn okvqa(case: &Case<'_>) -> Values {
    let Some(passages) = case.passages else { return Ok(Vec::new()) };
    let answers = case.question.answers.iter();
    let answers: Vec<String> = answers.map(|a| lowercase(a.trim_matches(is_space))).collect();
    Ok(at_cutoffs("pseudo_recall", case, |id| {
        let text = passages.get(&*id.0);
        text.is_some_and(|text| answers.iter().any(|answer| text.contains(answer.as_str())))
    }))
}

/// # Source   `eval_downstream.py` of KILT, and `find_relevant` of ViQuAE with the metrics of ranx
fn viquae(case: &Case<'_>) -> Values {
    let Case { question, answer, ranked, cutoffs, .. } = case;
    let [has_answer, has_ranked] = case.has;
    let references: Vec<String> = question.answers.iter().map(|answer| squad(answer)).collect();
    let mut values = Vec::new();
    if has_answer {
        let is_given = !answer.trim_matches(is_space).is_empty();
        let answer = squad(answer);
        let exact = is_given && references.contains(&answer);
        let f1 = references.iter().map(|reference| word_f1(&answer, reference)).fold(0.0, f64::max);
        values.push(("f1".into(), f1));
        values.push(("exact_match".into(), share(exact)));
    }
    if let Some(passages) = case.passages.filter(|_| has_ranked) {
        let has_answer = |id: &Id<'_>| {
            let text = passages.get(&*id.0);
            text.is_some_and(|text| references.iter().any(|answer| contains_words(text, answer)))
        };
        let relevant: Vec<bool> = ranked.iter().take(MRR_CUTOFF).map(has_answer).collect();
        let rank = relevant.iter().position(|relevant| *relevant);
        let reciprocal = rank.map_or(0.0, |rank| 1.0 / (rank + 1) as f64);
        values.push((format!("mrr@{MRR_CUTOFF}").into(), reciprocal));
        let precision = |k: &usize| {
            let hits = relevant.iter().take(*k).filter(|relevant| **relevant).count();
            (format!("precision@{k}").into(), hits as f64 / *k as f64)
        };
        values.extend(cutoffs.iter().map(precision));
        values.extend(at_cutoffs("success", case, has_answer));
    }
    Ok(values)
}

/// # Source   the baseline of WebQA, which adds 1e-5 to each denominator
fn webqa(case: &Case<'_>) -> Values {
    const SMALL: f64 = 1e-5;
    let Case { question, ranked, .. } = case;
    let common = ranked
        .iter()
        .filter(|id| question.relevant.iter().any(|relevant| *relevant == id.0))
        .count() as f64;
    let precision = common / (ranked.len() as f64 + SMALL);
    let recall = common / (question.relevant.len() as f64 + SMALL);
    Ok(vec![
        ("retrieval_f1".into(), 2.0 * precision * recall / (precision + recall + SMALL)),
        ("retrieval_precision".into(), precision),
        ("retrieval_recall".into(), recall),
    ])
}
