//! `engram eval`.

mod caption;
mod haystack;
mod lines;
mod phrase;
mod questions;
mod retrieval;
mod shared;
mod wer;

use clap::{Args, Subcommand};
use engram_eval::compare::compare_items;
use engram_eval::items::Items;
use std::path::PathBuf;

use super::{Outcome, output};
use shared::Intervals;

/// Measure predictions.
#[derive(Debug, Subcommand)]
pub enum Eval {
    /// Speech: word and character error rate, alignments, confusions, rare words
    Wer(wer::Wer),
    /// Captions: BLEU, ROUGE-L, CIDEr-D and CIDEr, over all images and by domain
    Caption(caption::Caption),
    /// Visual questions: the accuracy of VQA v2 and OK-VQA
    Vqa(questions::Vqa),
    /// Visual questions: A-OKVQA, direct answers and multiple choice
    Aokvqa(questions::Aokvqa),
    /// Retrieval: recall, success, reciprocal rank, average precision, nDCG
    Retrieval(retrieval::Retrieval),
    /// Visual Haystacks: yes-or-no questions about a few pictures among many
    Haystack(haystack::Haystack),
    /// Phrase similarity: Pearson, Spearman, Kendall, by class, section and anchor
    Phrase(phrase::Phrase),
    /// Put each line of standard input through a text normaliser
    Normalize(lines::Normalize),
    /// Divide each line of standard input into tokens, as captions are
    Tokenize(lines::Tokenize),
    /// Two systems on the same items: difference, interval, p values
    Compare(Compare),
}

impl Eval {
    /// Runs the command.
    pub fn run(self) -> anyhow::Result<Outcome> {
        match self {
            Self::Wer(command) => command.run(),
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

/// Two systems on the same items: difference, interval, p values.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  engram eval wer --pairs a.jsonl --items a.items.jsonl
  engram eval wer --pairs b.jsonl --items b.items.jsonl
  engram eval compare a.items.jsonl b.items.jsonl")]
pub struct Compare {
    /// Items of system A, as `--items` wrote them
    a: PathBuf,
    /// Items of system B
    b: PathBuf,
    #[command(flatten)]
    intervals: Intervals,
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
