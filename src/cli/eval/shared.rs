//! Options and outputs that all evaluations share.

use std::path::{Path, PathBuf};

use clap::Args;
use engram_eval::bootstrap::BootstrapOptions;
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
