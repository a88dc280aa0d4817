//! Options and outputs that all evaluations share.

use std::path::{Path, PathBuf};

use clap::Args;
use engram_eval::bootstrap::BootstrapOptions;
use engram_eval::html::WORST_CASES;
use engram_eval::items::{Item, json_lines};
use engram_eval::result::SourceFile;

use super::output;

/// How intervals are made.
#[derive(Debug, Clone, Copy, Args)]
#[command(next_help_heading = "Intervals")]
pub struct Intervals {
    /// Resamples of the bootstrap; 0 turns intervals off
    #[arg(long, value_name = "N", default_value_t = 1000, allow_negative_numbers = true)]
    resamples: usize,
    /// Coverage of the intervals
    #[arg(long, value_name = "SHARE", default_value_t = 0.95, allow_negative_numbers = true)]
    level: f64,
    /// Seed of the resamples
    #[arg(long, value_name = "N", default_value_t = 1, allow_negative_numbers = true)]
    seed: u64,
}

impl Intervals {
    /// The library's form.
    pub fn options(self) -> BootstrapOptions {
        let Self { resamples, level, seed } = self;
        BootstrapOptions { resamples, level, seed }
    }
}

/// What is written, and where.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Output")]
pub struct Outputs {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Write what each item adds to the primary figure, for `engram eval compare`
    #[arg(long, value_name = "FILE")]
    items: Option<PathBuf>,
    /// Write the report as one HTML page, with the worst cases (at least 200 of them)
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

impl Outputs {
    /// Whether there is a page to write.
    pub fn page(&self) -> bool {
        self.html.is_some()
    }

    /// Whether each item's part is needed: for its file, or for the page.
    pub fn items(&self) -> bool {
        self.items.is_some() || self.page()
    }

    /// How many worst cases are needed, where the terminal shows `count`.
    pub fn worst(&self, count: usize) -> usize {
        if self.page() { count.max(WORST_CASES) } else { count }
    }

    /// Writes the files that are wanted.
    pub fn write(&self, items: &[Item], page: impl FnOnce() -> String) -> anyhow::Result<()> {
        if let Some(path) = &self.html {
            output::write_whole(path, page().as_bytes())?;
        }
        if let Some(path) = &self.items {
            output::write_whole(path, json_lines(items).as_bytes())?;
        }
        Ok(())
    }
}

/// A file that was read.
pub fn source(role: &str, path: &Path, rows: usize) -> SourceFile {
    SourceFile { role: role.to_owned(), path: path.display().to_string(), rows }
}
