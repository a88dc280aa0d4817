//! `engram eval edit`, `engram eval forget` and `engram eval kbvqa`: benchmarks with published rules.

use clap::Args;
use clap::builder::PossibleValuesParser;
use engram_eval::EvalError;
use engram_eval::benchmark::BenchmarkReport;
use engram_eval::benchmark::edit::{self, EditOptions};
use engram_eval::benchmark::forget::{self, Results};
use engram_eval::benchmark::kbvqa::{self, Files, KbvqaOptions};
use engram_eval::error::Need;

use super::super::Outcome;
use super::output;
use super::shared::{IntervalOptions, OutputOptions, read_named, source_file};
use crate::cli::paths::InputFile;

/// Evaluate edits of facts: CounterFact, zsRE, MQuAKE, VLKEB.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  engram eval edit --data counterfact --ref counterfact.json --hyp mine.jsonl
  engram eval edit --data mquake --ref MQuAKE-CF-3k-v2.json --hyp mine.jsonl --items mine.items
  engram eval edit --data vlkeb --ref eval_multihop.json --hyp mine.jsonl --html report.html

Predictions: JSON lines with the `id` of a case (its case_id, or its index from 0), and these keys:
  counterfact, zsre  rewrite, paraphrase, neighborhood
  mquake             questions; optional: hops, edits
  vlkeb              rewrite, rephrase, image_rephrase, locality, image_locality; optional:
                     portability, random_image, no_image, consistent_image

Each has a list with one output for each prompt of the case, or the output of its only prompt:
  \"Paris\", null                          an answer of the system; no answer
  {\"target_new\": 4.2, \"target_true\": 7}  negative log-likelihoods of both answers
  0.5, true, [true, false]               the share of correct tokens
  {\"before\": …, \"after\": …}              for locality: outputs before and after the edit

Answers are compared without case, punctuation and articles; those of mquake exactly. Files may be
gzipped.")]
pub struct Edit {
    /// The data set
    #[arg(long, value_name = "NAME", value_parser = PossibleValuesParser::new(
        edit::SETS.each_ref().map(|set| set.name)))]
    data: String,
    /// The published file of cases
    #[arg(long = "ref", value_name = "FILE")]
    reference: InputFile,
    /// Predictions of the system after the edits
    #[arg(long, value_name = "FILE")]
    hyp: InputFile,
    /// Each case was edited alone, so edits of different cases may contradict each other
    #[arg(long)]
    single_edits: bool,
    #[command(flatten)]
    choice: Choice,
}

/// Evaluate deleted facts: the audit of limited memory language models.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  engram answer runs/t1 --audit databases --out results.jsonl
  engram eval forget --hyp results.jsonl
  engram eval forget --hyp results.jsonl --metric parametric_leakage --items mine.items
  engram eval forget --hyp audit/*/*/*_results.jsonl --json

Results: JSON lines in the published layout, one for each prompt and each state (FULL, DEL-ON,
DEL-OFF), with the keys
  fact_id, subject, relation, ground_truth, prompt, state, model_output
  optional: subject_aliases, relation_aliases, object_aliases, and retrieval_trace with
            retained_candidates, a list of {subject, relation, object}
  optional: database, topology, style; by default from the path of the file,
            DATABASE/TOPOLOGY/prompts_STYLE_results.jsonl

Files may be gzipped.")]
pub struct Forget {
    /// Results of the system
    #[arg(long, value_name = "FILE", required = true, num_args = 1..)]
    hyp: Vec<InputFile>,
    /// The primary metric, which `--items` writes
    #[arg(long, value_name = "NAME", default_value = "full_exact_match")]
    metric: String,
    #[command(flatten)]
    intervals: IntervalOptions,
    #[command(flatten)]
    outputs: OutputOptions,
}

/// Evaluate knowledge-based visual questions: E-VQA, InfoSeek, M2KR, OK-VQA, ViQuAE, WebQA.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  engram eval kbvqa --data evqa --ref test.csv --hyp mine.jsonl
  engram eval kbvqa --data infoseek --ref infoseek_val.jsonl --types infoseek_val_qtype.jsonl \\
      --hyp mine.jsonl
  engram eval kbvqa --data m2kr --ref EVQA.jsonl --passages EVQA_passages.jsonl --hyp mine.jsonl
  engram eval kbvqa --data webqa --ref WebQA_train_val.json --hyp mine.jsonl --with-result

Predictions: JSON lines with the `id` of a question (evqa: its index from 0; webqa: its guid), and
  evqa           answer; optional: bem, the probability that BEM gives the answer
  infoseek       answer
  m2kr, okvqa    ranked: the ids of the retrieved passages, best first
  viquae         answer, or ranked with --passages, or both
  webqa          ranked: the ids of the sources

Passages: JSON lines {\"passage_id\", \"passage_content\"}. Files may be gzipped.")]
pub struct Kbvqa {
    /// The data set
    #[arg(long, value_name = "NAME", value_parser = PossibleValuesParser::new(
        kbvqa::SETS.each_ref().map(|set| set.name)))]
    data: String,
    /// The published file of questions
    #[arg(long = "ref", value_name = "FILE")]
    reference: InputFile,
    /// Question types of infoseek
    #[arg(long, value_name = "FILE")]
    types: Option<InputFile>,
    /// Passages that were searched (m2kr, okvqa, viquae)
    #[arg(long, value_name = "FILE")]
    passages: Option<InputFile>,
    /// Predictions of the system
    #[arg(long, value_name = "FILE")]
    hyp: InputFile,
    /// Values of k for success@k, pseudo_recall@k and precision@k
    #[arg(short, long = "k", value_name = "K", value_delimiter = ',',
        default_values_t = KbvqaOptions::default().cutoffs)]
    k: Vec<usize>,
    #[command(flatten)]
    choice: Choice,
}

/// What is scored, and the reports.
#[derive(Debug, Args)]
struct Choice {
    /// Evaluate only cases that have a prediction; without it, a missing prediction is an error
    #[arg(long)]
    with_result: bool,
    /// The primary metric, which `--items` writes [default: depends on the data set]
    #[arg(long, value_name = "NAME")]
    metric: Option<String>,
    #[command(flatten)]
    intervals: IntervalOptions,
    #[command(flatten)]
    outputs: OutputOptions,
}

impl Edit {
    pub(super) fn run(self) -> anyhow::Result<Outcome> {
        let (reference, predictions) = (read_named(&self.reference)?, read_named(&self.hyp)?);
        let Some(set) = edit::SETS.iter().find(|set| set.name == self.data) else {
            anyhow::bail!("no data set `{}`", self.data);
        };
        let Choice { with_result, metric, intervals, outputs } = self.choice;
        let edit_options = EditOptions { metric, with_result, single_edits: self.single_edits };
        let sources = vec![
            source_file("cases", &self.reference, 0),
            source_file("predictions", &self.hyp, 0),
        ];
        let options = outputs.report_options(intervals, 0, sources);
        let [reference, predictions] =
            [&reference, &predictions].map(|(file, text)| [file.as_str(), text]);
        let report = edit::evaluate(set, reference, predictions, &edit_options, &options);
        print(report, &outputs)
    }
}

impl Forget {
    pub(super) fn run(self) -> anyhow::Result<Outcome> {
        let files = self.hyp.iter().map(|file| read_named(file)).collect::<Result<Vec<_>, _>>()?;
        let results = files.iter().map(|(file, text)| Results { file, text });
        let results: Vec<Results<'_>> = results.collect();
        let sources = self.hyp.iter().map(|file| source_file("results", file, 0)).collect();
        let options = self.outputs.report_options(self.intervals, 0, sources);
        print(forget::evaluate(&results, Some(&self.metric), &options), &self.outputs)
    }
}

impl Kbvqa {
    pub(super) fn run(self) -> anyhow::Result<Outcome> {
        let (reference, predictions) = (read_named(&self.reference)?, read_named(&self.hyp)?);
        let optional = |file: &Option<InputFile>| file.as_ref().map(|file| read_named(file));
        let types = optional(&self.types).transpose()?;
        let passages = optional(&self.passages).transpose()?;
        let Some(set) = kbvqa::SETS.iter().find(|set| set.name == self.data) else {
            anyhow::bail!("no data set `{}`", self.data);
        };
        let files = Files {
            reference: [&reference.0, &reference.1],
            types: types.as_ref().map(|(file, text)| [file.as_str(), text]),
            passages: passages.as_ref().map(|(file, text)| [file.as_str(), text]),
            predictions: [&predictions.0, &predictions.1],
        };
        let Choice { with_result, metric, intervals, outputs } = self.choice;
        let kbvqa_options = KbvqaOptions { metric, with_result, cutoffs: self.k };
        let given = [
            ("questions", Some(&self.reference)),
            ("types", self.types.as_ref()),
            ("passages", self.passages.as_ref()),
            ("predictions", Some(&self.hyp)),
        ];
        let given = given.into_iter().filter_map(|(role, file)| Some((role, file?)));
        let sources = given.map(|(role, file)| source_file(role, file, 0)).collect();
        let options = outputs.report_options(intervals, 0, sources);
        print(kbvqa::evaluate(set, &files, &kbvqa_options, &options), &outputs)
    }
}

/// Writes the outputs; an error names the option that helps.
fn print(
    report: Result<BenchmarkReport, EvalError>,
    outputs: &OutputOptions,
) -> anyhow::Result<Outcome> {
    let mut report = report.map_err(|error| {
        let option = match &error {
            EvalError::MissingPrediction { .. } => {
                "; --with-result scores only cases that have one"
            }
            EvalError::Needs { need: Need::SingleEdits, .. } => ": --single-edits",
            EvalError::Needs { need: Need::QuestionTypes, .. } => ": --types FILE",
            EvalError::Needs { need: Need::Passages, .. } => ": --passages FILE",
            _ => "",
        };
        anyhow::anyhow!("{error}{option}")
    })?;
    outputs.write(&report.items, || report.to_html())?;
    report.worst.clear();
    output::print_report(outputs.json, &report, || report.to_text())?;
    Ok(Outcome::Done)
}
