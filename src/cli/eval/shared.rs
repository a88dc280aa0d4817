//! Options and outputs that all evaluations share.

use std::path::{Path, PathBuf};

use clap::Args;
use engram_eval::bootstrap::BootstrapOptions;
use engram_eval::html::WORST_CASES;
use engram_eval::items::{Item, Items};
use engram_eval::result::SourceFile;

use super::output;

/// How intervals are made.
#[derive(Debug, Clone, Copy, Args)]
#[command(next_help_heading = "Intervals")]
pub struct Intervals {
    /// Resamples of the bootstrap; 0 turns intervals off
    #[arg(long, value_name = "N", default_value_t = 1000)]
    resamples: usize,
    /// Coverage of the intervals
    #[arg(long, value_name = "SHARE", default_value_t = 0.95)]
    level: f64,
    /// Seed of the resamples
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
}

impl Intervals {
    /// The library's form.
    pub fn options(self) -> BootstrapOptions {
        let Self { resamples, level, seed } = self;
        BootstrapOptions { resamples, level, seed }
    }
}

/// Whether and where a page is written.
#[derive(Debug, Clone, Args)]
pub struct HtmlPage {
    /// Write the report as one HTML page, with the worst cases (at least 200 of them)
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

impl HtmlPage {
    /// Whether there is a page to write, which needs all items.
    pub fn wanted(&self) -> bool {
        self.html.is_some()
    }

    /// How many worst cases are needed, where the terminal shows `count`.
    pub fn worst(&self, count: usize) -> usize {
        if self.wanted() { count.max(WORST_CASES) } else { count }
    }

    /// Writes the page, where one is wanted.
    pub fn write(&self, page: impl FnOnce() -> String) -> anyhow::Result<()> {
        let Some(path) = &self.html else { return Ok(()) };
        output::write_whole(path, page().as_bytes())
    }
}

/// A file that was read.
pub fn source(role: &str, path: &Path, rows: usize) -> SourceFile {
    SourceFile { role: role.to_owned(), path: path.display().to_string(), rows }
}

/// Writes the items where `--items` says.
pub fn write_items(path: Option<&PathBuf>, items: Vec<Item>) -> anyhow::Result<()> {
    let Some(path) = path else { return Ok(()) };
    let items = Items { file: path.display().to_string(), items };
    output::write_whole(path, items.to_json_lines().as_bytes())
}
