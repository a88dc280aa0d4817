//! `engram eval caption`: metrics of image captions.

use clap::Args;
use engram_eval::EvalError;
use engram_eval::caption::report::report;
use engram_eval::caption::{
    CaptionOptions, parse_annotations, parse_document_frequency, parse_results,
};

use super::super::Outcome;
use super::output;
use super::shared::{IntervalOptions, OutputOptions, read_named, source_file};
use crate::cli::paths::InputFile;

/// Evaluate captions: BLEU, ROUGE-L, CIDEr-D and CIDEr, over all images and by domain.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  engram eval caption --ref captions_val2017.json --hyp mine.json
  engram eval caption --ref nocaps_val.json --hyp mine.json --worst 20
  engram eval caption --ref nocaps_val.json --hyp mine.json --html report.html
  engram eval caption --ref some.json --hyp mine.json --df coco_df.json --json

References: COCO or NoCaps annotations ({\"images\", \"annotations\"}). If images have domains, each
domain also gets scores.
Results: [{\"image_id\", \"caption\"}].
Files may be gzipped. METEOR and SPICE need Java and are not included.")]
pub struct Caption {
    /// Annotations with reference captions, in the format of COCO or NoCaps
    #[arg(long = "ref", value_name = "FILE")]
    reference: InputFile,
    /// Results: one caption per image
    #[arg(long, value_name = "FILE")]
    hyp: InputFile,
    /// Evaluate only images that have a result; without it, a missing result is an error
    #[arg(long)]
    with_result: bool,
    /// JSON file with document frequencies for CIDEr [default: computed from the references]
    #[arg(long, value_name = "FILE")]
    df: Option<InputFile>,
    /// Compute CIDEr of each domain with the document frequencies of its own images [default: of
    /// all images]
    #[arg(long, conflicts_with = "df")]
    domain_df: bool,
    /// List the N images with the lowest CIDEr-D
    #[arg(long, value_name = "N", default_value_t = 0)]
    worst: usize,
    #[command(flatten)]
    intervals: IntervalOptions,
    #[command(flatten)]
    outputs: OutputOptions,
}

impl Caption {
    pub(super) fn run(self) -> anyhow::Result<Outcome> {
        let annotations = parsed(&self.reference, parse_annotations)?;
        let results = parsed(&self.hyp, parse_results)?;
        let df = self.df.as_ref();
        let document_frequency = df.map(|df| parsed(df, parse_document_frequency)).transpose()?;
        let caption_options = CaptionOptions {
            only_with_result: self.with_result,
            document_frequency,
            own_frequencies: self.domain_df,
        };
        let sources = vec![
            source_file("references", &self.reference, annotations.images.len()),
            source_file("results", &self.hyp, results.results.len()),
        ];
        let options = self.outputs.report_options(self.intervals, self.worst, sources);
        let report = report(&annotations, &results, &caption_options, &options);
        let mut report = report.map_err(|error| match error {
            EvalError::MissingPrediction { .. } => {
                anyhow::anyhow!("{error}; --with-result evaluates only images that have one")
            }
            error => error.into(),
        })?;
        self.outputs.write(&report.items, || report.to_html())?;
        report.worst.truncate(self.worst);
        output::print_report(self.outputs.json, &report, || report.to_text())?;
        Ok(Outcome::Done)
    }
}

/// Reads and parses a file.
fn parsed<T>(
    path: &InputFile,
    parse: fn(&str, &str) -> Result<T, EvalError>,
) -> Result<T, EvalError> {
    let (file, text) = read_named(path)?;
    parse(&file, &text)
}
