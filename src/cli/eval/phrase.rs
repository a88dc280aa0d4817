//! `engram eval phrase`: correlations of phrase similarity scores.

use clap::Args;
use engram_eval::phrase::{PhraseOptions, compare, evaluate, read_gold, read_predictions};
use engram_textfile::Input;

use super::super::Outcome;
use super::output;
use super::shared::{IntervalOptions, OutputOptions};
use crate::cli::paths::InputFile;

/// Evaluate phrase similarity: Pearson, Spearman, Kendall; by score, section and anchor.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  engram eval phrase --ref validation.csv --hyp mine.csv
  engram eval phrase --ref validation.csv --hyp mine.csv --baseline cosine.csv
  engram eval phrase --ref validation.csv --hyp mine.csv --json > result.json
  engram eval phrase --ref validation.csv --hyp mine.csv --html report.html")]
pub struct Phrase {
    /// Gold scores: CSV with columns anchor, target, context, score, and optionally id and rating
    #[arg(long = "ref", value_name = "FILE")]
    reference: InputFile,
    /// Predictions of the system: CSV with columns id and score
    #[arg(long, value_name = "FILE")]
    hyp: InputFile,
    /// Predictions of a second system; prints only the comparison of the two
    #[arg(long, value_name = "FILE", conflicts_with_all = ["html", "items"])]
    baseline: Option<InputFile>,
    /// List the N pairs of phrases that lower Pearson's r most
    #[arg(long, default_value_t = 20, value_name = "N", conflicts_with = "baseline")]
    worst: usize,
    #[command(flatten)]
    intervals: IntervalOptions,
    #[command(flatten)]
    outputs: OutputOptions,
}

impl Phrase {
    pub(super) fn run(self) -> anyhow::Result<Outcome> {
        let gold = read_gold(Input::open(&self.reference)?)?;
        let predictions = read_predictions(Input::open(&self.hyp)?)?;
        let options = PhraseOptions {
            gold_file: self.reference.display().to_string(),
            predictions_file: self.hyp.display().to_string(),
            worst_rows: self.outputs.worst_count(self.worst),
            items: self.outputs.needs_items(),
            bootstrap: self.intervals.options(),
            ..PhraseOptions::default()
        };
        if let Some(baseline) = &self.baseline {
            let baseline_predictions = read_predictions(Input::open(baseline)?)?;
            let names = (self.hyp.display().to_string(), baseline.display().to_string());
            let comparison =
                compare(&gold, &names.0, &predictions, &names.1, &baseline_predictions, &options)?;
            output::print_report(self.outputs.json, &comparison, || comparison.to_text())?;
            return Ok(Outcome::Done);
        }
        let mut report = evaluate(&gold, &predictions, &options)?;
        self.outputs.write(&report.items, || report.to_html())?;
        report.worst_rows.truncate(self.worst);
        output::print_report(self.outputs.json, &report, || report.to_text())?;
        Ok(Outcome::Done)
    }
}
