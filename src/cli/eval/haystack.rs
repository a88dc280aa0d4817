//! `engram eval haystack`: the accuracy of replies to Visual Haystacks.

use clap::Args;
use engram_eval::haystack::evaluate;
use engram_eval::haystack::read::parse_replies;

use super::super::Outcome;
use super::output;
use super::shared::{IntervalOptions, OutputOptions, read_named, source_file};
use crate::cli::paths::InputFile;

/// Evaluate Visual Haystacks: accuracy on yes/no questions about a few images among many.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  engram eval haystack --hyp replies.jsonl
  engram eval haystack --hyp replies.jsonl.gz --html report.html

Replies: JSON lines {\"id\", \"answer\": \"yes\" or \"no\", \"response\"}. The benchmark's scripts write
one file per question; join them with:
  jq -c . results/*.json > replies.jsonl")]
pub struct Haystack {
    /// JSON lines: each question with its correct answer and the system's reply
    #[arg(long, value_name = "FILE")]
    hyp: InputFile,
    #[command(flatten)]
    intervals: IntervalOptions,
    #[command(flatten)]
    outputs: OutputOptions,
}

impl Haystack {
    pub(super) fn run(self) -> anyhow::Result<Outcome> {
        let (file, text) = read_named(&self.hyp)?;
        let replies = parse_replies(&file, &text)?;
        let sources = vec![source_file("replies", &self.hyp, replies.len())];
        let options = self.outputs.report_options(self.intervals, 0, sources);
        let mut report = evaluate(&replies, &options)?;
        self.outputs.write(&report.items, || report.to_html())?;
        report.worst.clear();
        output::print_report(self.outputs.json, &report, || report.to_text())?;
        Ok(Outcome::Done)
    }
}
