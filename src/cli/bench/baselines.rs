//! Benchmarks of faiss and usearch in a Python child process.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::Context;
use serde::Deserialize;

use super::super::output;

/// The Python process that runs faiss and usearch.
pub(super) struct Baselines {
    process: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    /// Names of the available indexes, such as `faiss-flat`.
    pub(super) indexes: Vec<String>,
    /// Versions and build times of the libraries.
    pub(super) about: String,
}

/// The first line that the process prints.
#[derive(Deserialize)]
struct Hello {
    indexes: Vec<String>,
    about: serde_json::Map<String, serde_json::Value>,
}

impl Baselines {
    /// Starts the process. Prints a warning and returns `None` if Python or NumPy is missing, or if
    /// both faiss and usearch are missing.
    pub(super) fn start(
        python: &str,
        folder: &Path,
        width: usize,
        hnsw: bool,
    ) -> anyhow::Result<Option<Self>> {
        let mut command = Command::new(python);
        command.arg("-c").arg(include_str!("../../../memory/benches/baselines.py"));
        command.args([folder.join("keys.f32"), folder.join("queries.f32")]);
        command.arg(width.to_string());
        command.arg(rayon::current_num_threads().to_string());
        command.args(hnsw.then_some("hnsw"));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let warn_skipped = || {
            let note = format!(
                "SKIPPED: {python} has no numpy, or neither faiss nor usearch; give --python"
            );
            output::warn(&note);
        };
        let Ok(mut process) = command.spawn() else {
            warn_skipped();
            return Ok(None);
        };
        let pipes = process.stdin.take().zip(process.stdout.take());
        let (input, output) = pipes.context("the Python process has no pipes")?;
        let mut output = BufReader::new(output);
        let mut line = String::new();
        output.read_line(&mut line)?;
        let Ok(Hello { indexes, about }) = serde_json::from_str(&line) else {
            warn_skipped();
            return Ok(None);
        };
        let about: Vec<String> =
            about.iter().map(|(name, value)| format!("{name} {value}")).collect();
        Ok(Some(Self { process, input, output, indexes, about: about.join(", ") }))
    }

    /// Searches all queries for `k` keys each. Returns the seconds and the recall, from 0 to 1.
    pub(super) fn search(&mut self, name: &str, k: usize) -> anyhow::Result<(f64, f64)> {
        writeln!(self.input, "{name} {k}")?;
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        let mut numbers = line.split_whitespace().map(str::parse::<f64>);
        match (numbers.next(), numbers.next()) {
            (Some(Ok(seconds)), Some(Ok(recall))) => Ok((seconds, recall)),
            _ => anyhow::bail!("{name} failed in the Python process"),
        }
    }
}

impl Drop for Baselines {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
