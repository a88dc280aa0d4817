//! `engram eval text`: chrF and chrF++ of texts.

use std::path::PathBuf;

use clap::Args;
use clap::builder::PossibleValuesParser;
use engram_eval::metric::registry::text_metrics;
use engram_eval::normalise::Normaliser;
use engram_eval::texts::{Texts, evaluate};
use engram_textfile::read_text;

use super::super::Outcome;
use super::formats::{FORMATS, FormatOptions, text_file};
use super::output;
use super::shared::{IntervalOptions, OutputOptions, normaliser, source_file};
use crate::cli::paths::InputFile;

/// Evaluate translations and other texts: chrF and chrF++.
#[derive(Debug, Args)]
#[command(after_help = format!("\
Examples:
  engram eval text --ref ref.txt --hyp hyp.txt
  engram eval text --ref first.txt --ref second.txt --hyp hyp.txt --worst 20
  engram eval text --ref ref.tsv --hyp hyp.tsv --metric chrf++ --items a.items.jsonl
  engram eval text --pairs pairs.jsonl --html report.html --json

With several --ref, each text is scored against the reference with the highest score.

{FORMATS}"))]
pub struct Text {
    /// Reference texts; give several files for several references per text
    #[arg(long = "ref", value_name = "FILE", requires = "hyp", required_unless_present = "pairs")]
    reference: Vec<InputFile>,
    /// Texts of the system
    #[arg(long, value_name = "FILE", requires = "reference")]
    hyp: Option<InputFile>,
    /// References and texts of the system in one file: JSON lines, CSV or TSV
    #[arg(long, value_name = "FILE", conflicts_with_all = ["reference", "hyp"])]
    pairs: Option<InputFile>,
    #[command(flatten)]
    formats: FormatOptions,
    /// Primary metric, also for `--worst`, `--items` and the distribution in `--html`
    #[arg(long, value_name = "NAME", default_value = "chrf", value_parser = metric_names())]
    metric: String,
    /// Normalise the texts first: none, lowercase, jiwer-standardize, basic (+remove-diacritics,
    /// +split-letters), whisper-en
    #[arg(long, value_name = "NAME", default_value = "none", value_parser = normaliser(),
        hide_possible_values = true)]
    normalizer: Normaliser,
    /// List the N texts with the lowest scores
    #[arg(long, value_name = "N", default_value_t = 0)]
    worst: usize,
    #[command(flatten)]
    intervals: IntervalOptions,
    #[command(flatten)]
    outputs: OutputOptions,
}

fn metric_names() -> PossibleValuesParser {
    PossibleValuesParser::new(text_metrics().map(|(metric, _)| &*metric.info.name))
}

impl Text {
    pub(super) fn run(self) -> anyhow::Result<Outcome> {
        let reference_paths = self.pairs.iter().chain(&self.reference);
        let references = reference_paths
            .map(|path| text_file(path))
            .map(|path| Ok((path.clone(), path.display().to_string(), read_text(&path)?)))
            .collect::<anyhow::Result<Vec<_>>>()?;
        let hyp = match &self.hyp {
            Some(path) => Some((text_file(path), read_text(text_file(path))?)),
            None => None,
        };
        let (mut files, mut formats) = (Vec::with_capacity(references.len()), Vec::new());
        for (path, name, text) in &references {
            let pairs = match &hyp {
                Some((hyp, hyp_text)) => self.formats.parse_two_files(path, text, hyp, hyp_text)?,
                None => self.formats.parse_one_file(path, text)?,
            };
            formats.push(pairs.formats);
            files.push((name.as_str(), pairs));
        }
        let texts = Texts::combine(files)?;
        let role = if self.pairs.is_some() { "pairs" } else { "references" };
        let rows = texts.ids.len();
        let hyp_format = formats.last().map(|formats| formats[1]);
        let formats = formats.iter().map(|formats| formats[0]).chain(hyp_format);
        let files = references.iter().map(|(path, _, text)| (role, path, text));
        let files = files.chain(hyp.iter().map(|(path, text)| ("hypotheses", path, text)));
        let describe = |((role, path, text), format): ((&str, &PathBuf, &String), _)| {
            self.formats.describe(source_file(role, path, rows), text, format)
        };
        let sources = files.zip(formats).map(describe).collect::<Result<_, _>>()?;
        let options = self.outputs.report_options(self.intervals, self.worst, sources);
        let mut report = evaluate(&texts, &self.metric, self.normalizer, &options)?;
        self.outputs.write(&report.items, || report.to_html())?;
        report.worst.truncate(self.worst);
        output::print_report(self.outputs.json, &report, || report.to_text())?;
        Ok(Outcome::Done)
    }
}
