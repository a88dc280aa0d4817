//! Values on which all ranks agree: the start of a run, evaluations and copies of the model.

use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use engram_durable::{FolderWriter, create_new_file};
use engram_models::params::Parameters;
use serde::{Deserialize, Serialize};

use super::{Ranks, failed};
use crate::Stopped;
use crate::checkpoint::Checkpoints;
use crate::error::{Result, TrainError};
use crate::exact::Exact;
use crate::log::LogPosition;
use crate::study::{Evaluation, StudyResult};
use crate::trainer::State;

/// Bytes of a checkpoint that rank 0 sends at a time.
const CHUNK: usize = 64 << 20;

/// A checkpoint that rank 0 sends to the other ranks.
#[derive(Serialize, Deserialize)]
struct Sent {
    name: String,
    /// The files with their lengths in bytes.
    files: Vec<(String, u64)>,
}

/// An evaluation, as a message.
#[derive(Serialize, Deserialize)]
struct SentEvaluation {
    metrics: Vec<(String, Exact)>,
    counts: Vec<(String, u64)>,
}

impl Ranks {
    /// Returns an error unless all ranks have the same description of the run: its recipe and
    /// inputs.
    pub(crate) fn expect_same_run(&self, description: &str) -> Result<()> {
        let descriptions = self.gather(description.to_string())?;
        self.expect_equal(&descriptions, |rank| {
            format!(
                "rank {rank} has another recipe, other data or other weights than rank 0; give all \
                 ranks the same command and the same files"
            )
        })
    }

    /// Returns an error unless all ranks have the same parameters.
    pub(crate) fn expect_same_parameters(&self, parameters: &Parameters) -> Result<()> {
        if self.size() == 1 {
            return Ok(());
        }
        let fingerprints = self.gather(parameters.fingerprint(|_| true)?)?;
        self.expect_equal(&fingerprints, |rank| {
            format!(
                "rank {rank} has other parameters than rank 0; start all ranks on processors of the \
                 same kind, with the same program, and resume the run"
            )
        })
    }

    /// Returns an error unless all values equal the first. `reason` makes its text from the rank
    /// that differs.
    pub(super) fn expect_equal(
        &self,
        values: &[String],
        reason: impl Fn(usize) -> String,
    ) -> Result<()> {
        match values.iter().position(|value| *value != values[0]) {
            None => Ok(()),
            Some(rank) => Err(failed(reason(rank).into())),
        }
    }

    /// Evaluates on rank 0, which may read the shards of all ranks, and returns the result on all
    /// ranks. If rank 0 is asked to stop, all ranks return [`Stopped`].
    pub(crate) fn evaluate(
        &self,
        evaluate: impl FnOnce() -> StudyResult<Evaluation>,
    ) -> StudyResult<Evaluation> {
        if self.size() == 1 {
            return evaluate();
        }
        let sent = self.share_reads(|| {
            if !self.is_first() {
                return Ok(None);
            }
            match evaluate() {
                Ok(Evaluation { metrics, counts }) => {
                    let metrics = metrics.into_iter().map(|(name, value)| (name, Exact(value)));
                    Ok(Some(SentEvaluation { metrics: metrics.collect(), counts }))
                }
                Err(error) if Stopped::is_cause_of(&*error) => Ok(None),
                Err(error) => Err(error),
            }
        })?;
        let SentEvaluation { metrics, counts } = self.broadcast(sent)?.ok_or(Stopped)?;
        let metrics = metrics.into_iter().map(|(name, value)| (name, value.0));
        Ok(Evaluation { metrics: metrics.collect(), counts })
    }

    /// Copies rank 0's checkpoint `restored` into the run folders of the other ranks. Returns each
    /// rank's path of the checkpoint, and the state in it. `None` if rank 0 has no checkpoint.
    pub(crate) fn share_checkpoint(
        &self,
        checkpoints: &Checkpoints,
        restored: Option<(PathBuf, State)>,
    ) -> Result<Option<(PathBuf, State)>> {
        if self.size() == 1 {
            return Ok(restored);
        }
        let sent = match &restored {
            Some((path, _)) => Some(Sent::list(path)?),
            None => None,
        };
        let Some(sent) = self.broadcast(sent)? else { return Ok(None) };
        if let Some((path, _)) = &restored {
            for (name, bytes) in &sent.files {
                self.send_file(&path.join(name), *bytes)?;
            }
            return Ok(restored);
        }
        let target = checkpoints.folder.join(&sent.name);
        let folder = FolderWriter::create(&target).map_err(TrainError::io(&target))?;
        for (name, bytes) in &sent.files {
            self.receive_file(&folder.path().join(name), *bytes)?;
        }
        folder.commit().map_err(TrainError::io(&target))?;
        let received = checkpoints.newest_intact(&mut |_| {})?;
        // The metrics file of this rank is empty.
        Ok(received.map(|(path, state)| (path, State { log: LogPosition::default(), ..state })))
    }

    fn send_file(&self, path: &Path, length: u64) -> Result<()> {
        let mut file = engram_durable::open_file(path).map_err(TrainError::io(path))?;
        for length in chunks(length) {
            let mut bytes = vec![0; length];
            file.read_exact(&mut bytes).map_err(TrainError::io(path))?;
            self.broadcast_bytes(bytes)?;
        }
        Ok(())
    }

    fn receive_file(&self, path: &Path, length: u64) -> Result<()> {
        let mut file = create_new_file(path).map_err(TrainError::io(path))?;
        for _ in chunks(length) {
            let bytes = self.broadcast_bytes(Vec::new())?;
            file.write_all(&bytes).map_err(TrainError::io(path))?;
        }
        Ok(())
    }
}

impl Sent {
    /// The name and the files of a checkpoint.
    fn list(path: &Path) -> Result<Self> {
        let mut files = Vec::new();
        for entry in fs::read_dir(path).map_err(TrainError::io(path))? {
            let entry = entry.map_err(TrainError::io(path))?;
            let length = entry.metadata().map_err(TrainError::io(path))?.len();
            files.push((entry.file_name().to_string_lossy().into_owned(), length));
        }
        files.sort();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Ok(Self { name, files })
    }
}

/// The lengths of the chunks of a file.
fn chunks(length: u64) -> impl Iterator<Item = usize> {
    let full = length / CHUNK as u64;
    let rest = (length % CHUNK as u64) as usize;
    (0..full).map(|_| CHUNK).chain((rest > 0).then_some(rest))
}
