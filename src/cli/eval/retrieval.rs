//! `engram eval retrieval`: metrics of ranked retrieval.

use clap::Args;
use engram_eval::retrieval::{Cutoffs, evaluate, parse_queries};

use super::super::Outcome;
use super::output;
use super::shared::{IntervalOptions, OutputOptions, read_named, source_file};
use crate::cli::paths::InputFile;

/// Evaluate retrieval: recall, success, reciprocal rank, average precision, nDCG.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  engram eval retrieval --queries queries.jsonl
  engram eval retrieval --queries queries.jsonl -k 1,5,50 --json
  engram eval retrieval --queries queries.jsonl --html report.html

Queries: JSON lines {\"id\", \"ranked\": [best first], \"relevant\": [ids] or {id: gain}}.
The file may be gzipped.")]
pub struct Retrieval {
    /// JSON lines: each query with its retrieved ids and its relevant ids
    #[arg(long, value_name = "FILE")]
    queries: InputFile,
    /// Values of k for recall@k and success@k
    #[arg(short, long = "k", value_name = "K", value_delimiter = ',',
        default_values_t = [1, 5, 10, 20, 100])]
    k: Vec<usize>,
    /// Values of k for nDCG@k
    #[arg(long, value_name = "K", value_delimiter = ',', default_values_t = [10])]
    ndcg: Vec<usize>,
    #[command(flatten)]
    intervals: IntervalOptions,
    #[command(flatten)]
    outputs: OutputOptions,
}

impl Retrieval {
    pub(super) fn run(self) -> anyhow::Result<Outcome> {
        let (file, text) = read_named(&self.queries)?;
        let queries = parse_queries(&file, &text)?;
        let sources = vec![source_file("queries", &self.queries, queries.len())];
        let options = self.outputs.report_options(self.intervals, 0, sources);
        let cutoffs = Cutoffs { recall: self.k, ndcg: self.ndcg };
        let mut report = evaluate(&queries, &cutoffs, &options)?;
        self.outputs.write(&report.items, || report.to_html())?;
        report.worst.clear();
        output::print_report(self.outputs.json, &report, || report.to_text())?;
        Ok(Outcome::Done)
    }
}
