//! `metrics.jsonl`, which is identical for runs with the same recipe, data and seed, and
//! `timing.jsonl`, which depends on the machine's speed.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use engram_durable as durable;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use crate::error::{Result, TrainError};
use crate::exact::Exact;

/// The metrics file of a run.
pub const METRICS: &str = "metrics.jsonl";

/// `metrics.jsonl`, the file of metrics that depend only on recipe, seed and data.
pub(crate) struct Metrics {
    path: PathBuf,
    file: File,
    bytes: u64,
    /// The hash of these bytes.
    hash: Sha256,
}

/// The content of the metrics file at a checkpoint.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct LogPosition {
    bytes: u64,
    sha256: String,
}

impl Metrics {
    /// Opens the file and truncates it to its content at a checkpoint (the default for a new run).
    pub(crate) fn open(run: &Path, position: &LogPosition) -> Result<Self> {
        let path = run.join(METRICS);
        let file = durable::append_to(&path).map_err(TrainError::io(&path))?;
        let mut metrics = Self { path, file, bytes: 0, hash: Sha256::new() };
        metrics.truncate(position)?;
        Ok(metrics)
    }

    /// Appends one line.
    pub(crate) fn write(&mut self, line: &Value) -> Result<()> {
        let line = format!("{line}\n");
        self.file.write_all(line.as_bytes()).map_err(TrainError::io(&self.path))?;
        self.bytes += line.len() as u64;
        self.hash.update(line.as_bytes());
        Ok(())
    }

    /// Truncates the file to a former content.
    pub(crate) fn truncate(&mut self, position: &LogPosition) -> Result<()> {
        let mut hash = Sha256::new();
        let former = engram_durable::open_file(&self.path).map_err(TrainError::io(&self.path))?;
        let bytes = io::copy(&mut former.take(position.bytes), &mut hash)
            .map_err(TrainError::io(&self.path))?;
        let is_former = bytes == 0 || format!("{:x}", hash.clone().finalize()) == position.sha256;
        if bytes < position.bytes || !is_former {
            let reason = format!(
                "its first {} bytes are not those of the checkpoint; restore the file, or start a \
                 new run",
                position.bytes
            );
            return Err(TrainError::BadCheckpoint { path: self.path.clone(), reason });
        }
        self.file.set_len(bytes).map_err(TrainError::io(&self.path))?;
        (self.bytes, self.hash) = (bytes, hash);
        Ok(())
    }

    /// The content of the file.
    pub(crate) fn position(&self) -> LogPosition {
        LogPosition { bytes: self.bytes, sha256: format!("{:x}", self.hash.clone().finalize()) }
    }

    /// Syncs all lines to disk.
    pub(crate) fn sync(&self) -> Result<()> {
        self.file.sync_all().map_err(TrainError::io(&self.path))
    }
}

/// Sums over the steps since the last log line. Losses and norms are sums over completed steps.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Window {
    steps: u64,
    skipped: u64,
    examples: u64,
    tokens: u64,
    loss: Exact,
    gradient_norm: Exact,
    parts: Vec<(String, Exact)>,
}

impl Window {
    /// Adds a completed step.
    pub(crate) fn add(
        &mut self,
        loss: f64,
        gradient_norm: f64,
        examples: usize,
        tokens: usize,
        parts: &[(String, f64)],
    ) {
        self.steps += 1;
        self.examples += examples as u64;
        self.tokens += tokens as u64;
        self.loss.0 += loss;
        self.gradient_norm.0 += gradient_norm;
        for (name, value) in parts {
            match self.parts.iter_mut().find(|(existing, _)| existing == name) {
                Some((_, sum)) => sum.0 += value,
                None => self.parts.push((name.clone(), Exact(*value))),
            }
        }
    }

    /// Counts a skipped step.
    pub(crate) fn skip(&mut self) {
        self.skipped += 1;
    }

    /// Whether there was no step, completed or skipped, since the last line.
    pub(crate) fn is_empty(&self) -> bool {
        self.steps + self.skipped == 0
    }

    /// The mean loss, or `None` without a completed step.
    pub(crate) fn mean_loss(&self) -> Option<f64> {
        (self.steps > 0).then(|| self.loss.0 / self.steps as f64)
    }

    /// The numbers of examples and tokens.
    pub(crate) fn example_and_token_counts(&self) -> (u64, u64) {
        (self.examples, self.tokens)
    }

    /// The values of the log line by name: means over the steps, and sums of counts.
    pub(crate) fn values(&self, learning_rate: f64) -> Map<String, Value> {
        let mean = |sum: Exact| (self.steps > 0).then(|| sum.0 / self.steps as f64);
        let mut values = Map::new();
        let mut put = |name: &str, value: Value| values.insert(name.to_string(), value);
        put("loss", json!(mean(self.loss)));
        put("learning_rate", json!(learning_rate));
        put("gradient_norm", json!(mean(self.gradient_norm)));
        put("examples", json!(self.examples));
        put("tokens", json!(self.tokens));
        if self.skipped > 0 {
            put("skipped_steps", json!(self.skipped));
        }
        for (name, sum) in &self.parts {
            put(&format!("loss/{name}"), json!(mean(*sum)));
        }
        values
    }
}

/// `timing.jsonl`, the file of training speeds.
pub(crate) struct Timing {
    path: PathBuf,
    file: File,
    timer_start: Instant,
}

impl Timing {
    /// Opens the file. A resumed run appends to it.
    pub(crate) fn open(run: &Path) -> Result<Self> {
        let path = run.join("timing.jsonl");
        let file = durable::append_to(&path).map_err(TrainError::io(&path))?;
        Ok(Self { file, path, timer_start: Instant::now() })
    }

    /// Syncs all lines to disk.
    pub(crate) fn sync(&self) -> Result<()> {
        self.file.sync_all().map_err(TrainError::io(&self.path))
    }

    /// Restarts the timer, so that the time of an evaluation does not count.
    pub(crate) fn restart(&mut self) {
        self.timer_start = Instant::now();
    }

    /// Appends a line with the speed since the last line. Returns examples and tokens per second.
    pub(crate) fn write(&mut self, step: u64, examples: u64, tokens: u64) -> Result<(f64, f64)> {
        let seconds = self.timer_start.elapsed().as_secs_f64().max(1e-9);
        let speeds = (examples as f64 / seconds, tokens as f64 / seconds);
        let line = json!({
            "step": step,
            "seconds": seconds,
            "examples_per_second": speeds.0,
            "tokens_per_second": speeds.1,
        });
        // One write per line makes half-written lines after a kill unlikely.
        let line = format!("{line}\n");
        self.file.write_all(line.as_bytes()).map_err(TrainError::io(&self.path))?;
        self.restart();
        Ok(speeds)
    }
}
