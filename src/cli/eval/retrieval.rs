//! `engram eval retrieval`: metrics of ranked retrieval.

use clap::Args;
use engram_eval::error::EvalError;
use engram_eval::retrieval::{Cutoffs, evaluate, parse_queries, parse_trec};

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
  engram eval retrieval --queries bm25.run --qrels test.qrels      # TREC

Queries: JSON lines {\"id\", \"ranked\": [best first], \"relevant\": [ids] or {id: gain}}.
With --qrels: a TREC run, `query Q0 entry rank score name`, ranked by score as in trec_eval. Only
queries that are in both files count. The files may be gzipped.")]
pub struct Retrieval {
    /// JSON lines: each query with its retrieved ids and its relevant ids; or a TREC run
    #[arg(long, value_name = "FILE")]
    queries: InputFile,
    /// The relevant entries of a TREC run, as TREC qrels: query, 0, entry, gain
    #[arg(long, value_name = "FILE")]
    qrels: Option<InputFile>,
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
        let (queries, warnings) = match &self.qrels {
            Some(path) => {
                let (qrels_file, qrels) = read_named(path)?;
                parse_trec([&file, &text], [&qrels_file, &qrels])?
            }
            None => (parse_queries(&file, &text).map_err(with_option)?, Vec::new()),
        };
        let role = if self.qrels.is_some() { "TREC run" } else { "queries" };
        let mut sources = vec![source_file(role, &self.queries, queries.len())];
        sources
            .extend(self.qrels.iter().map(|path| source_file("TREC qrels", path, queries.len())));
        let options = self.outputs.report_options(self.intervals, 0, sources);
        let cutoffs = Cutoffs { recall: self.k, ndcg: self.ndcg };
        let mut report = evaluate(&queries, &cutoffs, &options)?;
        report.warnings.extend(warnings);
        self.outputs.write(&report.items, || report.to_html())?;
        report.worst.clear();
        output::print_report(self.outputs.json, &report, || report.to_text())?;
        Ok(Outcome::Done)
    }
}

/// The error with the option that helps.
fn with_option(error: EvalError) -> anyhow::Error {
    let text = error.to_string();
    if text.contains("looks like a TREC run") || text.contains("looks like TREC qrels") {
        return anyhow::anyhow!("{text}: --queries RUN --qrels QRELS");
    }
    error.into()
}
