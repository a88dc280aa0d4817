//! Deleted facts: the audit of limited memory language models (arXiv 2607.00605).
//!
//! A system with a memory completes each prompt in three states: `FULL` (the whole memory), `DEL-ON`
//! (the fact of the prompt is deleted, the memory is read) and `DEL-OFF` (the memory is not read). The
//! results are JSON lines in the published layout, one line for each prompt and state:
//!
//! ```
//! use engram_eval::benchmark::forget::{Results, evaluate};
//!
//! let line = |state: &str, output: &str| format!(
//!     r#"{{"fact_id": 0, "subject": "Peru", "relation": "Capital", "ground_truth": "Lima",
//!     "prompt": "The capital of Peru is", "state": "{state}", "model_output": "{output}"}}"#)
//!     .replace('\n', " ");
//! let text = [line("FULL", "Lima."), line("DEL-ON", "unknown"), line("DEL-OFF", "Quito")].join("\n");
//! let results = Results { file: "countries/base/prompts_cloze_results.jsonl", text: &text };
//! let report = evaluate(&[results], None, &Default::default())?;
//! assert_eq!(report.evaluation.detail["full_exact_match"], 1.0);
//! assert_eq!(report.evaluation.detail["parametric_leakage"], 0.0);
//! # Ok::<(), engram_eval::EvalError>(())
//! ```
//!
//! # Source   `metrics.py` and `equivalence.py` of the audit

use std::borrow::Cow;
use std::collections::HashMap;

use rayon::prelude::*;
use serde::Deserialize;

use super::answers::word_f1;
use super::records::{Record, quoted, read_records};
use super::{BenchmarkReport, Column, Scores, share};
use crate::error::{EvalError, malformed};
use crate::ids::Id;
use crate::normalise::characters::{character_at, decimal_digit, run_end};
use crate::result::ReportOptions;

/// A file of results. Lines without the database, the topology and the style of the prompts have them
/// from its path, which has the published form `DATABASE/TOPOLOGY/prompts_STYLE_results.jsonl`.
#[derive(Debug, Clone, Copy)]
pub struct Results<'a> {
    /// The path of the file.
    pub file: &'a str,
    /// Its content.
    pub text: &'a str,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
enum State {
    #[serde(rename = "FULL")]
    Full,
    #[serde(rename = "DEL-ON")]
    DelOn,
    #[serde(rename = "DEL-OFF")]
    DelOff,
}

/// The names of the states, in the order of all results.
pub const STATES: [&str; 3] = ["FULL", "DEL-ON", "DEL-OFF"];

/// One prompt in one state.
#[derive(Deserialize)]
struct Row<'a> {
    #[serde(borrow, default)]
    database: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    topology: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    style: Option<Cow<'a, str>>,
    #[serde(borrow)]
    fact_id: Id<'a>,
    state: State,
    #[serde(borrow)]
    subject: Cow<'a, str>,
    #[serde(default)]
    subject_aliases: Vec<Cow<'a, str>>,
    #[serde(borrow)]
    relation: Cow<'a, str>,
    #[serde(default)]
    relation_aliases: Vec<Cow<'a, str>>,
    #[serde(borrow)]
    prompt: Cow<'a, str>,
    #[serde(borrow)]
    ground_truth: Cow<'a, str>,
    #[serde(default)]
    object_aliases: Vec<Cow<'a, str>>,
    #[serde(borrow)]
    model_output: Cow<'a, str>,
    #[serde(borrow, default)]
    retrieval_trace: Option<Trace<'a>>,
}

/// What the system retrieved.
#[derive(Deserialize)]
struct Trace<'a> {
    #[serde(borrow, default)]
    retained_candidates: Vec<Candidate<'a>>,
}

#[derive(Deserialize)]
struct Candidate<'a> {
    #[serde(borrow)]
    subject: Cow<'a, str>,
    #[serde(borrow)]
    relation: Cow<'a, str>,
    #[serde(borrow)]
    object: Cow<'a, str>,
    #[serde(default)]
    supports_target_fact: bool,
}

const REMEDY: &str = "write one JSON object per prompt and state: `fact_id`, `subject`, `relation`, \
                      `ground_truth`, `prompt`, `state` (FULL, DEL-ON or DEL-OFF) and `model_output`";

/// A prompt with its results in the order of [`STATES`].
struct Case<'c, 'a> {
    /// The database, the topology and the style; empty if unknown.
    labels: [Cow<'a, str>; 3],
    rows: [&'c Record<'a, Row<'a>>; 3],
}

impl<'a> Case<'_, 'a> {
    fn first(&self) -> &Row<'a> {
        &self.rows[0].value
    }
}

/// Scores the results of a system. `metric` is the primary metric, which [`ReportOptions::items`]
/// writes; by default `full_exact_match`. Intervals resample facts: all prompts about one fact stay
/// together.
///
/// # Errors
/// [`EvalError::Text`] with the line, also for a prompt that lacks a state or has it twice;
/// [`EvalError::InvalidOption`]
pub fn evaluate(
    files: &[Results<'_>],
    metric: Option<&str>,
    options: &ReportOptions,
) -> Result<BenchmarkReport, EvalError> {
    options.bootstrap.validate()?;
    let rows = files.iter().map(|results| read_records(results.file, results.text, false, REMEDY));
    let rows: Vec<Vec<Record<'_, Row<'_>>>> = rows.collect::<Result<_, _>>()?;
    let mut cases = Vec::new();
    for (results, rows) in files.iter().zip(&rows) {
        cases.extend(cases_of(results.file, rows)?);
    }
    if cases.is_empty() {
        return Err(EvalError::NothingToEvaluate { items: "results" });
    }
    let scored: Vec<_> = cases.par_iter().with_min_len(16).map(scores).collect();
    let column = |(index, name): (usize, &&'static str)| {
        Column::new(*name, scored.iter().map(|values| values[index]).collect())
    };
    let label = |part: usize| cases.iter().map(|case| case.labels[part].clone()).collect();
    let id = |case: &Case<'_, '_>| {
        let labels = case.labels.iter().map(|label| &**label).filter(|label| !label.is_empty());
        let id = &*case.first().fact_id.0;
        Cow::from(labels.chain([id]).collect::<Vec<_>>().join("/"))
    };
    // The same fact in another topology is the same fact.
    let fact = |case: &Case<'_, '_>| {
        let row = case.first();
        let parts = [&row.subject, &row.relation, &row.ground_truth].map(|text| normalised(text));
        Cow::from(parts.join("; "))
    };
    let scores = Scores {
        data: "forget",
        unit: "prompt",
        normaliser: "none".to_owned(),
        ids: cases.iter().map(id).collect(),
        columns: METRICS.iter().enumerate().map(column).collect(),
        harmonic: Vec::new(),
        primary: METRICS[0],
        groups: vec![("database", label(0)), ("topology", label(1)), ("prompt style", label(2))],
        by_group: &METRICS[..5],
        clusters: Some(("fact", cases.iter().map(fact).collect())),
        rows: vec![("results", rows.iter().map(Vec::len).sum())],
        describe: Box::new(|row| {
            let case = cases[row].first();
            let right = [&case.ground_truth].into_iter().chain(&case.object_aliases);
            (
                case.prompt.to_string(),
                case.model_output.to_string(),
                right.map(ToString::to_string).collect(),
            )
        }),
    };
    scores.report(metric, options)
}

/// The prompts of a file, each with its three states.
fn cases_of<'c, 'a>(
    file: &'a str,
    rows: &'c [Record<'a, Row<'a>>],
) -> Result<Vec<Case<'c, 'a>>, EvalError> {
    let mut index_of: HashMap<_, usize> = HashMap::new();
    let mut cases: Vec<[Option<&'c Record<'a, Row<'a>>>; 3]> = Vec::new();
    for row in rows {
        let Row { database, topology, style, fact_id, prompt, ground_truth, state, .. } =
            &row.value;
        let key = (database, topology, style, fact_id, prompt, ground_truth);
        let index = *index_of.entry(key).or_insert_with(|| {
            cases.push([None; 3]);
            cases.len() - 1
        });
        if let Some(first) = cases[index][*state as usize].replace(row) {
            let (id, state) = (quoted(&fact_id.0), STATES[*state as usize]);
            let reason =
                format!("fact {id} has {state} for this prompt in line {}, too", first.line);
            return Err(malformed(file, row.line, reason, "keep one result"));
        }
    }
    let of_path = labels(file);
    let complete = |case: [Option<&'c Record<'a, Row<'a>>>; 3]| match case {
        [Some(full), Some(del_on), Some(del_off)] => {
            let Row { database, topology, style, .. } = &full.value;
            let mut labels = of_path.clone();
            for (label, given) in labels.iter_mut().zip([database, topology, style]) {
                if let Some(given) = given {
                    label.clone_from(given);
                }
            }
            Ok(Case { labels, rows: [full, del_on, del_off] })
        }
        _ => {
            let missing = STATES.iter().zip(case).filter(|(_, row)| row.is_none());
            let missing = missing.map(|(name, _)| *name).collect::<Vec<_>>().join(" and ");
            let first = case.into_iter().flatten().next();
            let (line, id) = first.map_or((0, ""), |row| (row.line, &row.value.fact_id.0));
            let reason = format!("fact {} has no result in {missing} for this prompt", quoted(id));
            Err(malformed(file, line, reason, "give a line for each state"))
        }
    };
    cases.into_iter().map(complete).collect()
}

/// The database, the topology and the style of prompts from the path of a file; empty if the path has
/// another form.
fn labels(path: &str) -> [Cow<'_, str>; 3] {
    let mut parts = path.rsplit(['/', '\\']);
    let mut next = || parts.next().unwrap_or_default();
    let (name, topology, database) = (next(), next(), next());
    let stem = name.split_once('.').map_or(name, |(stem, _)| stem);
    let style = stem.strip_suffix("_results").unwrap_or(stem);
    let style = style.strip_prefix("prompts_").unwrap_or(style);
    [database, topology, style].map(Cow::from)
}

/// The metrics; those that the report shows for each group come first.
const METRICS: [&str; 14] = [
    "full_exact_match",
    "del_on_exact_match",
    "parametric_leakage",
    "retrieval_mediated_correctness",
    "retrieval_artifact_rate",
    "full_contains_match",
    "del_on_contains_match",
    "del_off_contains_match",
    "full_unknown_rate",
    "del_on_unknown_rate",
    "del_off_unknown_rate",
    "full_f1",
    "del_on_f1",
    "del_off_f1",
];

/// The values of a prompt in the order of [`METRICS`].
fn scores(case: &Case<'_, '_>) -> [f64; METRICS.len()] {
    let row = |state: usize| &case.rows[state].value;
    let output = [0, 1, 2].map(|state| normalised(&row(state).model_output));
    let right =
        [0, 1, 2].map(|state| normalised_all(&row(state).ground_truth, &row(state).object_aliases));
    let exact = [0, 1, 2].map(|state| right[state].contains(&output[state]));
    let contains = |state: usize| {
        let output = &output[state];
        let overlaps =
            |right: &String| right.contains(output.as_str()) || output.contains(right.as_str());
        share(exact[state] || !output.is_empty() && right[state].iter().any(overlaps))
    };
    let unknown = |state: usize| share(UNKNOWN.contains(&output[state].as_str()));
    let f1 = |state: usize| {
        let right = normalised(&row(state).ground_truth);
        let is_equal = exact[state] || output[state].is_empty() && right.is_empty();
        if is_equal { 1.0 } else { word_f1(&output[state], &right) }
    };
    let [full, del_on, del_off] = exact;
    [
        share(full),
        share(del_on),
        share(del_off),
        share(del_on && !del_off),
        share(del_on && !retains_the_fact(row(1))),
        contains(0),
        contains(1),
        contains(2),
        unknown(0),
        unknown(1),
        unknown(2),
        f1(0),
        f1(1),
        f1(2),
    ]
}

/// Normalised outputs that count as no answer.
const UNKNOWN: [&str; 9] = [
    "",
    "unknown",
    "n a",
    "na",
    "none",
    "no answer",
    "i don't know",
    "i do not know",
    "i don t know",
];

/// Whether the system retrieved an entry that says the same as the fact.
fn retains_the_fact(row: &Row<'_>) -> bool {
    let Some(trace) = &row.retrieval_trace else { return false };
    let fact = FactNames::new(
        [&row.subject, &row.relation, &row.ground_truth],
        [&row.subject_aliases, &row.relation_aliases, &row.object_aliases],
    );
    trace.retained_candidates.iter().any(|candidate| {
        let Candidate { subject, relation, object, supports_target_fact } = candidate;
        *supports_target_fact || fact.are_of([subject, relation, object])
    })
}

/// The names of a fact's subject, relation and object.
#[derive(Debug, Clone)]
pub struct FactNames([Vec<String>; 3]);

impl FactNames {
    /// The names of a fact with the aliases of each name.
    pub fn new<A: AsRef<str>>(names: [&str; 3], aliases: [&[A]; 3]) -> Self {
        let all = |part: usize| normalised_all(names[part], aliases[part]);
        Self([all(0), all(1), all(2)])
    }

    /// Whether an entry of this subject, relation and object says the same as the fact. Deleting the
    /// fact deletes all such entries.
    pub fn are_of(&self, entry: [&str; 3]) -> bool {
        self.0.iter().zip(entry).all(|(names, name)| names.contains(&normalised(name)))
    }
}

/// The normalised names of one thing. Names that are empty then match nothing.
fn normalised_all<A: AsRef<str>>(name: &str, aliases: &[A]) -> Vec<String> {
    let names = [name].into_iter().chain(aliases.iter().map(AsRef::as_ref));
    names.map(normalised).filter(|name| !name.is_empty()).collect()
}

/// The words of a text without case, joined by spaces. A word is a decimal number, or letters, digits
/// and `_`, also with single hyphens and apostrophes inside: `\d+\.\d+|\w+(?:[-']\w+)*`.
fn normalised(text: &str) -> String {
    let text = case_folded(text);
    let mut words = String::with_capacity(text.len());
    let mut at = 0;
    while let Some(c) = character_at(&text, at) {
        let end = decimal_number_end(&text, at).unwrap_or_else(|| {
            let mut end = run_end(&text, at, true);
            while end > at && matches!(character_at(&text, end), Some('-' | '\'')) {
                let next = run_end(&text, end + 1, true);
                if next == end + 1 {
                    break;
                }
                end = next;
            }
            end
        });
        if end > at {
            if !words.is_empty() {
                words.push(' ');
            }
            words.push_str(&text[at..end]);
        }
        at = end.max(at + c.len_utf8());
    }
    words
}

/// The end of a number with a point at byte `start`; `None` if there is none.
fn decimal_number_end(text: &str, start: usize) -> Option<usize> {
    let digits_end = |start: usize| {
        let rest = text[start..].char_indices();
        let mut rest = rest.skip_while(|(_, c)| decimal_digit(*c).is_some());
        rest.next().map_or(text.len(), |(offset, _)| start + offset)
    };
    let point = digits_end(start);
    if point == start || !text[point..].starts_with('.') {
        return None;
    }
    Some(digits_end(point + 1)).filter(|end| *end > point + 1)
}

/// A text without differences of case, for comparisons, like `str.casefold`.
fn case_folded(text: &str) -> String {
    let mut folded = String::with_capacity(text.len());
    for c in text.chars() {
        // The dotless i has the upper case of i, but is another letter.
        if c == 'ı' {
            folded.push(c);
        } else {
            folded.extend(c.to_uppercase().flat_map(char::to_lowercase));
        }
    }
    folded
}
