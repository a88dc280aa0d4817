//! The folder of a grid, and locks on its runs.

use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};

use engram_durable as durable;
use engram_infer::InferError;

use crate::error::{Result, TrainError};
use crate::run_folder::open_lock;

/// The file that marks the folder of a grid.
const MARKER: &str = ".engram-grid";

/// A run of a grid, locked by this process.
pub(super) struct LockedRun {
    run: PathBuf,
    lock: PathBuf,
    _file: File,
}

/// Creates the folder of a grid, or accepts the folder of an earlier call.
///
/// # Errors
/// [`TrainError::Recipe`] for a folder with other files, which stays unchanged.
pub(super) fn open(path: &Path) -> Result<()> {
    let marker = path.join(MARKER);
    // The marker is checked last: a process that starts this grid at the same time writes it before
    // any other file.
    let has_files = fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_some());
    let is_foreign = has_files && !marker.exists();
    if is_foreign {
        return Err(TrainError::Recipe {
            location: path.display().to_string(),
            reason: "has other files than the runs of a grid; choose a new folder".to_owned(),
        });
    }
    durable::create_folder(path).map_err(TrainError::io(path))?;
    // Needs no temporary file, which another process with this grid would take for a user's.
    durable::open_lock(&marker).map(drop).map_err(TrainError::io(&marker))
}

impl LockedRun {
    /// Locks a run until the value is dropped; `None` if another process has locked it.
    pub(super) fn try_lock(run: &Path) -> Result<Option<Self>> {
        loop {
            let (lock, file) = lock_file(run)?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Ok(None),
                Err(TryLockError::Error(error)) => return Err(TrainError::io(&lock)(error)),
            }
            if durable::is_at(&file, &lock) {
                return Ok(Some(Self { run: run.to_path_buf(), lock, _file: file }));
            }
        }
    }
}

impl Drop for LockedRun {
    fn drop(&mut self) {
        // A run that never started leaves no lock file. A waiting process checks whether the file
        // still exists.
        if !self.run.exists() {
            let _ = fs::remove_file(&self.lock);
        }
    }
}

/// Opens the lock file of a run, in the folder that contains the run. Processes with the same grid
/// use it to divide the runs.
fn lock_file(run: &Path) -> Result<(PathBuf, File)> {
    let path = run.with_extension("lock");
    // The run itself and the folder of its seed.
    if let Some(folder) = run.ancestors().take(2).find(|folder| folder.is_symlink()) {
        return Err(InferError::ForeignFile { path: folder.to_path_buf() }.into());
    }
    if let Some(folder) = path.parent() {
        durable::create_folder(folder).map_err(TrainError::io(folder))?;
    }
    let file = open_lock(&path)?;
    Ok((path, file))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_with_other_files_is_refused_and_an_unstarted_run_leaves_no_files() {
        let parent = tempfile::tempdir().expect("a folder");
        let foreign = parent.path().join("foreign");
        fs::create_dir(&foreign).expect("made");
        fs::write(foreign.join("notes.txt"), "precious").expect("written");
        assert!(open(&foreign).is_err());
        assert_eq!(fs::read_dir(&foreign).expect("a folder").count(), 1);
        let path = parent.path().join("grids/new");
        open(&path).expect("new");
        open(&path).expect("the folder of an earlier call");
        let run = path.join("seed-1/configuration");
        let locked = LockedRun::try_lock(&run).expect("a lock").expect("free");
        assert!(LockedRun::try_lock(&run).expect("a result").is_none());
        drop(locked);
        assert_eq!(fs::read_dir(path.join("seed-1")).expect("a folder").count(), 0);
        // A run that has started keeps its lock file.
        let locked = LockedRun::try_lock(&run).expect("a lock").expect("free");
        fs::create_dir(&run).expect("made");
        drop(locked);
        assert!(path.join("seed-1/configuration.lock").exists() && run.exists());
        for link in ["seed-2", "seed-1/linked"] {
            std::os::unix::fs::symlink(&foreign, path.join(link)).expect("a link");
        }
        for run in ["seed-2/configuration", "seed-1/linked"] {
            assert!(LockedRun::try_lock(&path.join(run)).is_err(), "{run}");
        }
        assert_eq!(fs::read_dir(&foreign).expect("a folder").count(), 1);
    }
}
