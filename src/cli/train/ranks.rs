//! The ranks of a training command: the processes that `mpirun` starts.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use anyhow::Context;
use engram_durable::{create_new_file, rename};
use engram_train::TrainError;
use engram_train::distributed::Ranks;
use tempfile::TempDir;

use super::super::interrupt::Resume;
use super::super::{Outcome, log};

/// This process among the ranks of a training command.
pub(super) struct RankSession {
    ranks: Ranks,
    resume: Resume,
    /// The run folder of a rank other than 0. It is removed at the end. If a rank is lost, the next
    /// training on this machine removes it.
    scratch: Option<Scratch>,
    #[cfg(feature = "mpi")]
    mpi: Option<engram_train_mpi::Mpi>,
}

impl RankSession {
    /// Connects to the other ranks if a launcher has started several. Ranks other than 0 print only
    /// errors. `run` is the command's run folder.
    #[cfg(feature = "mpi")]
    pub(super) fn start(run: &Path) -> anyhow::Result<Self> {
        let size = launched_ranks();
        let resume = Resume::new(Some(run.to_path_buf())).on_ranks(size);
        let how_to_resume = resume.clone();
        let mpi = engram_train_mpi::Mpi::start(move |rank, lost| {
            let message = how_to_resume.message();
            tracing::error!("rank {rank} {lost}; {message}");
        });
        let mpi = mpi.map_err(|error| anyhow::anyhow!("cannot start MPI: {error}"))?;
        let ranks = mpi.as_ref().map(engram_train_mpi::Mpi::ranks).unwrap_or_default();
        anyhow::ensure!(
            size == 1 || ranks.size() == size,
            "the launcher has started {size} processes, but MPI connects {}; use mpirun, or `srun \
             --mpi=pmix`, of the MPI library that this program is built with",
            ranks.size()
        );
        Ok(Self { scratch: scratch(&ranks)?, ranks, resume, mpi })
    }

    /// A single rank. It is an error if a launcher has started several.
    #[cfg(not(feature = "mpi"))]
    pub(super) fn start(run: &Path) -> anyhow::Result<Self> {
        let size = launched_ranks();
        anyhow::ensure!(
            size == 1,
            "mpirun has started {size} processes, but this program is built without MPI; build it \
             with `--features mpi`, or start it without mpirun"
        );
        let ranks = Ranks::default();
        let resume = Resume::new(Some(run.to_path_buf())).on_ranks(size);
        Ok(Self { scratch: scratch(&ranks)?, ranks, resume })
    }

    /// The ranks for training.
    pub(super) fn ranks(&self) -> Ranks {
        self.ranks.clone()
    }

    /// How to continue the command.
    pub(super) fn resume(&self) -> Resume {
        self.resume.clone()
    }

    /// The run folder of this rank: `run` on rank 0, a temporary folder on the others.
    pub(super) fn run_folder(&self, run: &Path) -> PathBuf {
        match &self.scratch {
            Some(scratch) => scratch.folder.path().join("run"),
            None => run.to_path_buf(),
        }
    }

    /// Ends the command on this rank. Waits for the other ranks, or tells them of an error.
    pub(super) fn finish(self, result: anyhow::Result<Outcome>) -> anyhow::Result<Outcome> {
        let (rank, size) = (self.ranks.rank(), self.ranks.size());
        let is_end = |error: &anyhow::Error| {
            matches!(error.downcast_ref(), Some(TrainError::OtherRank { .. }))
        };
        let result = match result {
            Err(error) if is_end(&error) => Ok(Outcome::Done),
            // Most errors occur on all ranks. Rank 0 prints them, and its end ends the other ranks.
            Err(error) if rank > 0 => {
                std::thread::sleep(std::time::Duration::from_secs(1));
                Err(error.context(format!("rank {rank} of {size}")))
            }
            result => result,
        };
        #[cfg(feature = "mpi")]
        if let (Ok(_), Some(mpi)) = (&result, self.mpi) {
            mpi.finish();
        }
        result
    }
}

/// The number of processes that a launcher has started, from the environment variables of Open MPI
/// and Slurm.
fn launched_ranks() -> usize {
    let names = ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"];
    let size = |name: &&str| std::env::var(name).ok()?.parse().ok();
    names.iter().find_map(size).unwrap_or(1)
}

/// The start of the names of temporary folders.
const PREFIX: &str = "engram-rank-";
/// The file in a temporary folder that its process locks.
const LOCK: &str = "rank.lock";

/// A temporary folder of this process.
struct Scratch {
    folder: TempDir,
    /// Locked until the process ends, however it ends.
    _lock: File,
}

impl Scratch {
    fn create(rank: usize) -> io::Result<Self> {
        let folder = tempfile::Builder::new().prefix(&format!("{PREFIX}{rank}-")).tempdir()?;
        // The file is locked before it gets its name, so that no other process can lock it first.
        let unnamed = folder.path().join("new.lock");
        let lock = create_new_file(&unnamed)?;
        lock.lock()?;
        rename(&unnamed, &folder.path().join(LOCK))?;
        Ok(Self { folder, _lock: lock })
    }
}

/// Removes the temporary folders of processes that were killed.
fn remove_left_folders() {
    let Ok(entries) = fs::read_dir(std::env::temp_dir()) else { return };
    for entry in entries.flatten() {
        let is_left = || {
            let lock = engram_durable::open_file(entry.path().join(LOCK)).ok()?;
            lock.try_lock().ok()
        };
        if entry.file_name().to_string_lossy().starts_with(PREFIX) && is_left().is_some() {
            // A folder that cannot be removed does no harm.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// Silences a rank other than 0 and creates its run folder.
fn scratch(ranks: &Ranks) -> anyhow::Result<Option<Scratch>> {
    if ranks.rank() == 0 {
        return Ok(None);
    }
    log::silence();
    remove_left_folders();
    Scratch::create(ranks.rank()).context("cannot create a temporary folder for the rank").map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_folder_of_a_process_that_has_ended_is_removed() {
        let held = Scratch::create(1).expect("a folder");
        let Scratch { folder, _lock } = Scratch::create(2).expect("a folder");
        let left = folder.keep();
        drop(_lock);
        let foreign = tempfile::Builder::new().prefix(PREFIX).tempdir().expect("a folder");
        remove_left_folders();
        assert!(held.folder.path().join(LOCK).exists());
        assert!(!left.exists());
        assert!(foreign.path().exists());
    }
}
