//! `engram eval haystack`.

use std::path::PathBuf;

use clap::Args;
use engram_eval::haystack::{HaystackOptions, evaluate, parse_replies};
use engram_eval::source::read_text;

use super::super::Outcome;
use super::output;
use super::shared::{Intervals, source, write_items};

/// Visual Haystacks: yes-or-no questions about a few pictures among many.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  engram eval haystack --replies replies.jsonl

Replies: JSON lines {\"id\", \"answer\": \"yes\" or \"no\", \"response\"}, or the benchmark's entries with a
`response`.")]
pub struct Haystack {
    /// Questions with their answers and the system's replies
    #[arg(long, value_name = "FILE")]
    replies: PathBuf,
    #[command(flatten)]
    intervals: Intervals,
    /// Write whether each reply was right, for `engram eval compare`
    #[arg(long, value_name = "FILE")]
    items: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Haystack {
    pub(super) fn run(self) -> anyhow::Result<Outcome> {
        let text = read_text(&self.replies)?;
        let replies = parse_replies(&self.replies.display().to_string(), &text)?;
        let options = HaystackOptions {
            bootstrap: self.intervals.options(),
            items: self.items.is_some(),
            sources: vec![source("replies", &self.replies, replies.len())],
        };
        let mut report = evaluate(&replies, &options)?;
        write_items(self.items.as_ref(), std::mem::take(&mut report.items))?;
        output::print_report(self.json, &report, || report.to_text())?;
        Ok(Outcome::Done)
    }
}
