//! `engram eval`: one subcommand per task, two text tools, and the comparison of two systems.

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
use engram_eval::compare::compare_items;
use engram_eval::items::Items;

use super::{Outcome, output};
use crate::cli::paths::InputFile;
use shared::IntervalOptions;

/// Evaluate predictions: WER, chrF, captions, VQA, retrieval, phrase similarity.
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
            Self::Phrase(command) => command.run(),
            Self::Normalize(command) => command.run(),
            Self::Tokenize(command) => command.run(),
            Self::Compare(command) => command.run(),
        }
    }
}

/// Compare two systems on the same items: difference, confidence interval, p-values.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  engram eval wer --pairs a.jsonl --items a.items.jsonl
  engram eval wer --pairs b.jsonl --items b.items.jsonl
  engram eval compare a.items.jsonl b.items.jsonl")]
pub struct Compare {
    /// Items file of system A, written by `--items` of an evaluation
    a: InputFile,
    /// Items file of system B: the same metric over the same ids
    b: InputFile,
    #[command(flatten)]
    intervals: IntervalOptions,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Compare {
    fn run(self) -> anyhow::Result<Outcome> {
        let (a, b) = (Items::read(&self.a)?, Items::read(&self.b)?);
        let comparison = compare_items(&a, &b, &self.intervals.options())?;
        output::print_report(self.json, &comparison, || comparison.to_text())?;
        Ok(Outcome::Done)
    }
}
