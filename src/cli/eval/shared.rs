//! Options and outputs shared by all evaluations.

use std::path::Path;

use clap::Args;
use clap::builder::{StringValueParser, TypedValueParser};
use engram_eval::bootstrap::BootstrapOptions;
use engram_eval::html::WORST_CASES;
use engram_eval::items::{Item, json_lines};
use engram_eval::normalise::Normaliser;
use engram_eval::result::{ReportOptions, SourceFile};
use engram_textfile::{TextError, read_text};

use super::output;
use crate::cli::offered::Offered;
use crate::cli::paths::OutputFile;

/// Options for confidence intervals.
#[derive(Debug, Clone, Copy, Args)]
#[command(next_help_heading = "Intervals")]
pub struct IntervalOptions {
    /// Number of bootstrap resamples, at least 2; 0 turns intervals off
    #[arg(long, value_name = "N", default_value_t = 1000, allow_negative_numbers = true)]
    resamples: usize,
    /// Confidence level of the intervals, between 0 and 1
    #[arg(long, value_name = "LEVEL", default_value_t = 0.95, allow_negative_numbers = true)]
    level: f64,
    /// Random seed of the bootstrap
    #[arg(long, value_name = "N", default_value_t = 1, allow_negative_numbers = true)]
    seed: u64,
}

impl IntervalOptions {
    /// Converts the options to the library's type.
    pub fn options(self) -> BootstrapOptions {
        let Self { resamples, level, seed } = self;
        BootstrapOptions { resamples, level, seed }
    }
}

/// The outputs of an evaluation besides its text report.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Output")]
pub struct OutputOptions {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Write one JSON line per item (utterance, image, question, …), for `engram eval compare`
    #[arg(long, value_name = "FILE")]
    items: Option<OutputFile>,
    /// Write the report as one HTML page; it lists up to 200 of the worst cases, or more if the
    /// command lists more
    #[arg(long, value_name = "FILE")]
    html: Option<OutputFile>,
}

impl OutputOptions {
    /// Whether the user asked for an HTML page.
    pub fn writes_page(&self) -> bool {
        self.html.is_some()
    }

    /// Whether an output needs the scores of single items.
    pub fn needs_items(&self) -> bool {
        self.items.is_some() || self.writes_page()
    }

    /// The number of worst cases to compute: `count`, or more if a page is written.
    pub fn worst_count(&self, count: usize) -> usize {
        if self.writes_page() { count.max(WORST_CASES) } else { count }
    }

    /// The options of an evaluation that lists the `worst` cases.
    pub fn report_options(
        &self,
        intervals: IntervalOptions,
        worst: usize,
        sources: Vec<SourceFile>,
    ) -> ReportOptions {
        ReportOptions {
            bootstrap: intervals.options(),
            items: self.needs_items(),
            worst: self.worst_count(worst),
            sources,
        }
    }

    /// Writes the page and the items file, if requested.
    pub fn write(&self, items: &[Item], page: impl FnOnce() -> String) -> anyhow::Result<()> {
        if let Some(path) = &self.html {
            output::write_atomic(path, page().as_bytes())?;
        }
        if let Some(path) = &self.items {
            output::write_atomic(path, json_lines(items).as_bytes())?;
        }
        Ok(())
    }
}

/// Parses the name of a normaliser. Shell completions offer the names without their options.
pub fn normaliser() -> impl TypedValueParser<Value = Normaliser> {
    let names = ["none", "lowercase", "jiwer-standardize", "basic", "whisper-en"];
    Offered::new(StringValueParser::new().try_map(|name| Normaliser::parse(&name)), names)
}

/// Reads a text file; returns its name for messages, and its text.
pub fn read_named(path: &Path) -> Result<(String, String), TextError> {
    Ok((path.display().to_string(), read_text(path)?))
}

/// Describes an input file with `rows` items, for a report.
pub fn source_file(role: &str, path: &Path, rows: usize) -> SourceFile {
    let (role, path) = (role.to_owned(), path.display().to_string());
    SourceFile { role, path, rows, format: None, columns: None }
}
