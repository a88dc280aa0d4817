//! `engram eval`: one subcommand per task, two text tools, and the comparison of two systems.

mod benchmark;
mod caption;
mod formats;
mod haystack;
mod lines;
mod phrase;
mod questions;
mod retrieval;
mod shared;
mod text;
mod wer;

use clap::{Args, Subcommand};
use engram_eval::compare::Comparisons;
use engram_eval::items::Items;

use super::{Outcome, output};
use crate::cli::paths::{InputFile, OutputFile};
use shared::IntervalOptions;

/// Evaluate predictions: WER, chrF, captions, VQA, retrieval, edits of facts, phrase similarity.
#[derive(Debug, Subcommand)]
#[command(after_help = "\
Examples:
  engram eval wer --ref ref.trn --hyp hyp.trn --normalizer whisper-en --align 10
  engram eval text --ref ref.txt --hyp hyp.txt
  engram eval caption --ref captions_val2017.json --hyp mine.json
  engram eval phrase --ref validation.csv --hyp mine.csv --baseline cosine.csv
  engram eval compare a.items.jsonl b.items.jsonl")]
pub enum Eval {
    Wer(wer::Wer),
    Text(text::Text),
    Caption(caption::Caption),
    Vqa(questions::Vqa),
    Aokvqa(questions::Aokvqa),
    Retrieval(retrieval::Retrieval),
    Haystack(haystack::Haystack),
    Edit(benchmark::Edit),
    Forget(benchmark::Forget),
    Kbvqa(benchmark::Kbvqa),
    Phrase(phrase::Phrase),
    Normalize(lines::Normalize),
    Tokenize(lines::Tokenize),
    Compare(Compare),
}

impl Eval {
    /// Runs the command.
    pub fn run(self) -> anyhow::Result<Outcome> {
        match self {
            Self::Wer(command) => command.run(),
            Self::Text(command) => command.run(),
            Self::Caption(command) => command.run(),
            Self::Vqa(command) => command.run(),
            Self::Aokvqa(command) => command.run(),
            Self::Retrieval(command) => command.run(),
            Self::Haystack(command) => command.run(),
            Self::Edit(command) => command.run(),
            Self::Forget(command) => command.run(),
            Self::Kbvqa(command) => command.run(),
            Self::Phrase(command) => command.run(),
            Self::Normalize(command) => command.run(),
            Self::Tokenize(command) => command.run(),
            Self::Compare(command) => command.run(),
        }
    }
}

/// Compare systems on the same items: differences, confidence intervals, p-values.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  engram eval wer --pairs a.jsonl --items a.items.jsonl
  engram eval wer --pairs b.jsonl --items b.items.jsonl
  engram eval compare a.items.jsonl b.items.jsonl
  engram eval compare a.items.jsonl b.items.jsonl c.items.jsonl --html report.html

Two systems give their difference, A minus B. More systems give the differences of all pairs.")]
pub struct Compare {
    /// Items files of the systems, written by `--items` of an evaluation: the same metric over the
    /// same ids
    #[arg(required = true, num_args = 2.., value_name = "FILE")]
    items: Vec<InputFile>,
    #[command(flatten)]
    intervals: IntervalOptions,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Write the report as one HTML page
    #[arg(long, value_name = "FILE")]
    html: Option<OutputFile>,
}

impl Compare {
    fn run(self) -> anyhow::Result<Outcome> {
        let items = self.items.iter().map(|file| Items::read(file));
        let items = items.collect::<Result<Vec<_>, _>>()?;
        let comparisons = Comparisons::new(&items, &self.intervals.options())?;
        if let Some(path) = &self.html {
            output::write_atomic(path, comparisons.to_html().as_bytes())?;
        }
        match &comparisons.pairs[..] {
            [pair] => output::print_report(self.json, pair, || pair.to_text())?,
            _ => output::print_report(self.json, &comparisons, || comparisons.to_text())?,
        }
        Ok(Outcome::Done)
    }
}
