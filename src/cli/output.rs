//! Where results go: files written whole, progress on the terminal.

use std::io::Write;
use std::path::Path;

use anyhow::Context;
use atomic_write_file::AtomicWriteFile;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Writes a file beside its place, syncs it, and renames it there.
pub fn write_whole(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    let write = || -> std::io::Result<()> {
        let mut file = AtomicWriteFile::open(path)?;
        file.write_all(bytes)?;
        file.commit()
    };
    write().with_context(|| format!("{}: could not be written", path.display()))
}

/// Prints to standard output, as text or as pretty JSON.
pub fn print_json(value: &impl serde::Serialize) -> anyhow::Result<()> {
    print(&serde_json::to_string_pretty(value)?)
}

/// Prints a text with a final line end.
pub fn print(text: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.trim_end().as_bytes())?;
    out.write_all(b"\n")?;
    Ok(())
}

/// Tells the user something on standard error, unless `quiet`; nobody listening is no error.
pub fn note(text: &str, quiet: bool) {
    if !quiet {
        let _ = writeln!(std::io::stderr(), "{text}");
    }
}

/// A progress bar with the time left; hidden where `quiet`.
pub fn progress_bar(length: usize, unit: &'static str, quiet: bool) -> ProgressBar {
    let bar = ProgressBar::new(length as u64);
    if quiet {
        bar.set_draw_target(ProgressDrawTarget::hidden());
    }
    let template = format!("{{bar:30}} {{pos}}/{{len}} {unit}, {{eta}} left");
    if let Ok(style) = ProgressStyle::with_template(&template) {
        bar.set_style(style);
    }
    bar
}
