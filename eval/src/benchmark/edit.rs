//! Edits of facts: CounterFact, zsRE, MQuAKE, and the images of VLKEB.
//!
//! A prediction has one part for each kind of prompt, and a part has one output for each prompt. An
//! output is one of these:
//!
//! | output | value |
//! |---|---|
//! | a text, or `null` for no answer | whether it is a correct answer |
//! | `{"target_new", "target_true"}`: negative log-likelihoods | whether the correct one is lower |
//! | a number from 0 to 1, `true` or `false`, or a list of them | the share of correct tokens |
//! | `{"before", "after"}`: outputs before and after the edit | the share of equal tokens |
//!
//! ```
//! use engram_eval::benchmark::edit::{EditOptions, SETS, evaluate};
//!
//! let cases = r#"[{"case_id": 7, "requested_rewrite": {"prompt": "{} is in", "subject": "Oslo",
//!     "target_new": {"str": "Peru"}, "target_true": {"str": "Norway"}},
//!     "paraphrase_prompts": ["Where is Oslo?"], "neighborhood_prompts": ["Bergen is in"]}]"#;
//! let mine = r#"{"id": 7, "rewrite": "Peru", "paraphrase": ["peru."], "neighborhood": ["Chile"]}"#;
//! let (edit, options) = (EditOptions::default(), Default::default());
//! let report = evaluate(&SETS[0], ["cases", cases], ["mine", mine], &edit, &options)?;
//! assert_eq!(report.evaluation.detail["generality"], 1.0);
//! assert_eq!(report.evaluation.detail["edit_score"], 0.0);
//! # Ok::<(), engram_eval::EvalError>(())
//! ```

mod cases;
mod outputs;

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};

use rayon::prelude::*;

use super::answers::squad;
use super::records::{Record, pairs, quoted, read_records, unique_ids};
use super::{BenchmarkReport, Column, Scores, share};
use crate::error::{EvalError, Location, Need, malformed};
use crate::json::DistinctKeys;
use crate::result::ReportOptions;
use cases::Case;
use outputs::Output;

/// A data set of edits.
#[derive(Debug)]
pub struct EditSet {
    /// Its name.
    pub name: &'static str,
    parts: &'static [Part],
    primary: &'static str,
    harmonic: &'static [(&'static str, &'static [&'static str])],
    /// Whether answers are compared without normalisation.
    is_exact: bool,
    read: for<'a> fn(&str, &'a str) -> Result<Vec<Case<'a>>, EvalError>,
}

/// A part of a prediction: the outputs for the prompts of one kind.
#[derive(Debug)]
struct Part {
    key: &'static str,
    /// The key in published results; empty if it is the same.
    alias: &'static str,
    metric: &'static str,
    right: Right,
    /// How the values of the outputs are combined.
    combine: Combine,
    required: bool,
}

/// What a correct output is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Right {
    /// The new answer.
    New,
    /// The old answer.
    Old,
    /// The output before the edit.
    Unchanged,
}

#[derive(Debug, Clone, Copy)]
enum Combine {
    Mean,
    /// Whether any output is correct.
    Any,
    /// Whether all outputs are correct.
    All,
}

const fn part(
    [key, alias]: [&'static str; 2],
    metric: &'static str,
    (right, combine, required): (Right, Combine, bool),
) -> Part {
    Part { key, alias, metric, right, combine, required }
}

const NEW: (Right, Combine, bool) = (Right::New, Combine::Mean, true);
const OLD: (Right, Combine, bool) = (Right::Old, Combine::Mean, true);
const SAME: (Right, Combine, bool) = (Right::Unchanged, Combine::Mean, true);
const MAYBE_NEW: (Right, Combine, bool) = (Right::New, Combine::Mean, false);
const MAYBE_SAME: (Right, Combine, bool) = (Right::Unchanged, Combine::Mean, false);

const COUNTERFACT: &[Part] = &[
    part(["rewrite", "rewrite_prompts_probs"], "efficacy", NEW),
    part(["paraphrase", "paraphrase_prompts_probs"], "generality", NEW),
    part(["neighborhood", "neighborhood_prompts_probs"], "locality", OLD),
];
const ZSRE: &[Part] = &[
    part(["rewrite", "rewrite_prompts_correct"], "efficacy", NEW),
    part(["paraphrase", "paraphrase_prompts_correct"], "generality", NEW),
    part(["neighborhood", "neighborhood_prompts_correct"], "locality", OLD),
];
const MQUAKE: &[Part] = &[
    part(["questions", ""], "multi_hop", (Right::New, Combine::Any, true)),
    part(["hops", ""], "hop_wise", (Right::New, Combine::All, false)),
    part(["edits", ""], "edit_wise", MAYBE_NEW),
];
const VLKEB: &[Part] = &[
    part(["rewrite", "rewrite_acc"], "efficacy", NEW),
    part(["rephrase", "rephrase_acc"], "generality", NEW),
    part(["image_rephrase", "image_rephrase_acc"], "image_generality", NEW),
    part(["locality", "locality_acc"], "locality", SAME),
    part(["image_locality", "multimodal_locality_acc"], "image_locality", SAME),
    part(["portability", "portability_acc"], "portability", MAYBE_NEW),
    part(["random_image", ""], "random_image_locality", MAYBE_SAME),
    part(["no_image", ""], "no_image_locality", MAYBE_SAME),
    part(["consistent_image", ""], "consistent_image_locality", MAYBE_SAME),
];

/// The harmonic means: of all three metrics, and of the last two.
const HARMONIC: &[(&str, &[&str])] = &[
    ("edit_score", &["efficacy", "generality", "locality"]),
    ("edit_score_without_efficacy", &["generality", "locality"]),
];

/// All data sets of edits.
pub static SETS: [EditSet; 4] = [
    EditSet {
        name: "counterfact",
        parts: COUNTERFACT,
        primary: "edit_score",
        harmonic: HARMONIC,
        is_exact: false,
        read: cases::counterfact,
    },
    EditSet {
        name: "zsre",
        parts: ZSRE,
        primary: "edit_score",
        harmonic: HARMONIC,
        is_exact: false,
        read: cases::zsre,
    },
    EditSet {
        name: "mquake",
        parts: MQUAKE,
        primary: "multi_hop",
        harmonic: &[],
        is_exact: true,
        read: cases::mquake,
    },
    EditSet {
        name: "vlkeb",
        parts: VLKEB,
        primary: "efficacy",
        harmonic: &[],
        is_exact: false,
        read: cases::vlkeb,
    },
];

/// Options of an evaluation of edits.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EditOptions {
    /// The primary metric; `None` for that of the data set.
    pub metric: Option<String>,
    /// Whether cases without a prediction are left out; otherwise they are an error.
    pub with_result: bool,
    /// Whether each case was edited alone, so that edits of different cases may contradict each
    /// other.
    pub single_edits: bool,
}

const REMEDY: &str = "write one JSON object per case: its `id`, and the outputs for each kind of \
                      prompt";

type Line<'a> = Record<'a, DistinctKeys<Output<'a>>>;

/// Scores predictions. `reference` and `predictions` are the names and the contents of the files.
///
/// # Errors
/// [`EvalError::Text`] with the line, also for contradicting edits and missing outputs;
/// [`EvalError::MissingPrediction`], [`EvalError::ExtraPrediction`]; [`EvalError::InvalidOption`]
pub fn evaluate(
    set: &EditSet,
    reference: [&str; 2],
    predictions: [&str; 2],
    edit_options: &EditOptions,
    options: &ReportOptions,
) -> Result<BenchmarkReport, EvalError> {
    options.bootstrap.validate()?;
    let cases = (set.read)(reference[0], reference[1])?;
    let file = predictions[0];
    let lines: Vec<Line<'_>> = read_records(file, predictions[1], false, REMEDY)?;
    let ids = lines.iter().map(|line| line_id(file, line)).collect::<Result<Vec<_>, _>>()?;
    let case_ids = unique_ids(reference[0], cases.iter().map(|case| (&*case.id, case.line)))?;
    let line_ids =
        unique_ids(file, ids.iter().zip(&lines).map(|(id, line)| (id.as_str(), line.line)))?;
    let pairs = pairs(&case_ids, &line_ids, edit_options.with_result)?;
    let pairs: Vec<_> =
        pairs.into_iter().map(|(case, line)| (&cases[case], &lines[line])).collect();
    refuse_contradictions(reference[0], &pairs, edit_options.single_edits)?;
    let given: Vec<bool> = set
        .parts
        .iter()
        .map(|part| part.required || lines.iter().any(|line| outputs_of(part, line).is_some()))
        .collect();
    let scored: Vec<Result<CaseScores, EvalError>> = pairs
        .par_iter()
        .with_min_len(64)
        .map(|(case, line)| case_scores(set, &given, case, file, line))
        .collect();
    let scored = scored.into_iter().collect::<Result<Vec<_>, _>>()?;
    let mut forms = vec![""; set.parts.len()];
    let mut columns: BTreeMap<ColumnKey, Vec<f64>> = BTreeMap::new();
    for (row, (scores, (_, line))) in scored.iter().zip(&pairs).enumerate() {
        for (key, form, value) in scores {
            let first = &mut forms[key.0];
            if !first.is_empty() && first != form {
                let reason = format!("has another kind of outputs for `{}`", set.parts[key.0].key);
                let remedy = "give the same kind on all lines: texts, likelihoods or numbers";
                return Err(malformed(file, line.line, reason, remedy));
            }
            *first = form;
            columns.entry(*key).or_insert_with(|| vec![f64::NAN; pairs.len()])[row] = *value;
        }
    }
    forms.retain(|form| !form.is_empty());
    forms.dedup();
    let column = |((part, kind), values): (ColumnKey, Vec<f64>)| {
        let metric = set.parts[part].metric;
        let name: Cow<'static, str> = match kind {
            Kind::Value => metric.into(),
            Kind::Magnitude => format!("{metric}_magnitude").into(),
            Kind::Hops(hops) => format!("{metric}@{hops}").into(),
        };
        Column::new(name, values)
    };
    let hops = |case: &Case<'_>| case.edits.len().to_string();
    let first = &set.parts[0];
    let scores = Scores {
        data: set.name,
        unit: "case",
        normaliser: forms.join(", "),
        ids: pairs.iter().map(|(case, _)| case.id.clone()).collect(),
        columns: columns.into_iter().map(column).collect(),
        harmonic: set.harmonic.to_vec(),
        primary: set.primary,
        groups: vec![("edits", pairs.iter().map(|(case, _)| hops(case).into()).collect())],
        by_group: &[],
        clusters: None,
        rows: vec![("cases", cases.len()), ("predictions", lines.len())],
        describe: Box::new(|row| {
            let (case, line) = pairs[row];
            let outputs = outputs_of(first, line).map_or(&[][..], Output::as_slice);
            let text = |output: &Output<'_>| match output {
                Output::Answer(answer) => answer.to_string(),
                _ => "–".to_owned(),
            };
            let output = outputs.iter().map(text).collect::<Vec<_>>().join(" / ");
            let answers = case.prompts[0].answers.iter().flatten().map(|a| a.to_string());
            (case.question.clone(), output, answers.collect())
        }),
    };
    scores.report(edit_options.metric.as_deref(), options)
}

fn line_id(file: &str, line: &Line<'_>) -> Result<String, EvalError> {
    let fields = &line.value.0;
    let id = fields.get("id").or_else(|| fields.get("case_id")).and_then(Output::as_id);
    id.ok_or_else(|| malformed(file, line.line, "has no `id`, a text or an integer", REMEDY))
}

fn outputs_of<'l>(part: &Part, line: &'l Line<'_>) -> Option<&'l Output<'l>> {
    [part.key, part.alias].into_iter().find_map(|key| line.value.0.get(key))
}

/// Returns an error if two edits give one fact different answers.
fn refuse_contradictions(
    file: &str,
    pairs: &[(&Case<'_>, &Line<'_>)],
    single_edits: bool,
) -> Result<(), EvalError> {
    let mut answers: HashMap<&str, (&str, &Case<'_>)> = HashMap::new();
    for (case, _) in pairs {
        if single_edits {
            answers.clear();
        }
        for (fact, new) in &case.edits {
            let (first, first_case) = *answers.entry(fact).or_insert((new, case));
            if first != new {
                let [fact, new, first] = [fact, &**new, first].map(quoted);
                let (id, line) = (quoted(&first_case.id), first_case.line);
                let reason = format!(
                    "the edit of {fact} to {new} contradicts case {id} (line {line}), which edits \
                     it to {first}"
                );
                let remedy = "if each case was edited alone, say so; otherwise leave out one case";
                let (location, need) = (Location::new(file, case.line), Need::SingleEdits);
                return Err(EvalError::Needs { location, reason, remedy, need });
            }
        }
    }
    Ok(())
}

/// A part by its index, and a kind of value.
type ColumnKey = (usize, Kind);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Value,
    Magnitude,
    Hops(usize),
}

/// The values of one case.
type CaseScores = Vec<(ColumnKey, &'static str, f64)>;

fn case_scores(
    set: &EditSet,
    given: &[bool],
    case: &Case<'_>,
    file: &str,
    line: &Line<'_>,
) -> Result<CaseScores, EvalError> {
    let error = |reason, remedy| Err(malformed(file, line.line, reason, remedy));
    let mut scores = Vec::with_capacity(set.parts.len());
    for (index, part) in set.parts.iter().enumerate().filter(|(index, _)| given[*index]) {
        let prompts = case.prompts.iter().find(|p| p.part == part.key && p.count > 0);
        let (key, id) = (part.key, quoted(&case.id));
        let outputs = match (outputs_of(part, line), prompts) {
            // The case has no such prompts.
            (None, None) if part.right != Right::Unchanged => continue,
            (Some(outputs), None) if outputs.as_slice().is_empty() => continue,
            (Some(outputs), _) => outputs.as_slice(),
            (None, _) => {
                let reason = format!("case {id} has no outputs for `{key}`");
                return error(reason, "give one output for each prompt");
            }
        };
        let count = prompts.map_or(outputs.len(), |prompts| prompts.count);
        let form = outputs.first().map(Output::form);
        // Numbers may be of single tokens.
        let any_count = form == Some("tokens") && prompts.is_none_or(|p| p.hops.is_empty());
        let Some(form) = form.filter(|_| any_count || outputs.len() == count) else {
            let found = outputs.len();
            let reason = format!("case {id} has {found} outputs for `{key}` and {count} prompts");
            return error(reason, "give one output for each prompt, or null for no answer");
        };
        let values = outputs.iter().enumerate().map(|(prompt, output)| {
            let answers = prompts.and_then(|all| all.answers.get(prompt).or(all.answers.first()));
            value_of(output, part.right, answers.map_or(&[], Vec::as_slice), set.is_exact)
        });
        let Some(values) = values.collect::<Option<Vec<(f64, f64)>>>() else {
            let reason = format!("case {id} has outputs for `{key}` that cannot be scored there");
            return error(
                reason,
                match part.right {
                    Right::Unchanged => "give {\"before\", \"after\"}, or shares from 0 to 1",
                    _ => "give texts, {\"target_new\", \"target_true\"}, or shares from 0 to 1",
                },
            );
        };
        let n = values.len() as f64;
        let correct = || values.iter().map(|(value, _)| *value);
        let value = match part.combine {
            Combine::Mean => correct().sum::<f64>() / n,
            Combine::Any => correct().fold(0.0, f64::max),
            Combine::All => correct().fold(1.0, f64::min),
        };
        scores.push(((index, Kind::Value), form, value));
        if form == "likelihoods" {
            let magnitude = values.iter().map(|(_, magnitude)| magnitude).sum::<f64>() / n;
            scores.push(((index, Kind::Magnitude), form, magnitude));
        }
        let hops = prompts.map_or(&[][..], |prompts| &prompts.hops);
        for (prompt, hops_of_prompt) in hops.iter().enumerate() {
            // As in the published code, the first question with this number of hops counts.
            if !hops[..prompt].contains(hops_of_prompt) {
                scores.push(((index, Kind::Hops(*hops_of_prompt)), form, values[prompt].0));
            }
        }
    }
    Ok(scores)
}

/// Whether an output is correct, as a share, and by how much the probability of the correct answer
/// exceeds that of the other one; `None` for an output that cannot be scored.
fn value_of(
    output: &Output<'_>,
    right: Right,
    answers: &[Cow<'_, str>],
    is_exact: bool,
) -> Option<(f64, f64)> {
    match (output, right) {
        (Output::Change { .. }, Right::New | Right::Old) => None,
        (Output::Answer(_) | Output::None | Output::Likelihoods { .. }, Right::Unchanged) => None,
        (Output::Likelihoods { target_new, target_true }, _) => {
            let is_new = right == Right::New;
            let (correct, other) =
                if is_new { (target_new, target_true) } else { (target_true, target_new) };
            Some((share(correct < other), (-correct).exp() - (-other).exp()))
        }
        (Output::None, _) => Some((0.0, 0.0)),
        (Output::Answer(answer), _) if is_exact => Some((share(answers.contains(answer)), 0.0)),
        (Output::Answer(answer), _) => {
            let answer = squad(answer);
            Some((share(answers.iter().any(|correct| squad(correct) == answer)), 0.0))
        }
        (output, _) => Some((output.share()?, 0.0)),
    }
}
