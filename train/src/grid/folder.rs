//! The folder of a grid, and locks on its runs.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use engram_durable as durable;
use fs4::fs_std::FileExt;

use crate::error::{Result, TrainError};
use crate::run_folder::open_lock;

/// The file that marks the folder of a grid.
const MARKER: &str = ".engram-grid";
/// The reports in a grid's folder.
const REPORTS: [&str; 3] = ["grid.json", "grid.md", "grid.html"];

/// The folder of a grid, which this process may write to.
pub(super) struct GridFolder {
    path: PathBuf,
    /// Whether the folder was missing or empty before.
    is_new: bool,
}

/// A run of a grid, locked by this process.
pub(super) struct LockedRun {
    run: PathBuf,
    lock: PathBuf,
    _file: File,
}

impl GridFolder {
    /// Creates the folder, or opens the folder of an earlier call.
    ///
    /// # Errors
    /// [`TrainError::Recipe`] for a folder with other files, which stays unchanged.
    pub(super) fn open(path: &Path) -> Result<Self> {
        let is_new = !path.exists() || is_unused(path)?;
        durable::create_folder(path).map_err(TrainError::io(path))?;
        let marker = path.join(MARKER);
        // Needs no temporary file, which another process with this grid would take for a user's.
        durable::open_lock(&marker).map_err(TrainError::io(&marker))?;
        Ok(Self { path: path.to_path_buf(), is_new })
    }

    /// Cleans up after a grid that failed before its first run started: removes the folder if it
    /// was missing or empty before and holds only the marker and empty folders of seeds.
    pub(super) fn remove_if_unused(&self) -> Result<()> {
        if !self.is_new {
            return Ok(());
        }
        let names = names(&self.path)?;
        let is_empty_seed = |name: &String| is_seed(name) && is_empty(&self.path.join(name));
        if !names.iter().all(|name| name == MARKER || is_empty_seed(name)) {
            return Ok(());
        }
        for name in names.iter().filter(|name| *name != MARKER) {
            // Fails if another process has started a run meanwhile.
            let _ = fs::remove_dir(self.path.join(name));
        }
        if names_are(&self.path, &[MARKER])? {
            let marker = self.path.join(MARKER);
            durable::remove_file(&marker).map_err(TrainError::io(&marker))?;
            let _ = fs::remove_dir(&self.path);
        }
        Ok(())
    }
}

/// Whether a folder is empty; `false` for the folder of a grid.
///
/// # Errors
/// [`TrainError::Recipe`] if the folder has files and is not the folder of a grid.
fn is_unused(path: &Path) -> Result<bool> {
    let names = names(path)?;
    if names.is_empty() {
        return Ok(true);
    }
    // Older versions did not write a marker.
    let is_grid_file = |name: &String| is_seed(name) || REPORTS.contains(&name.as_str());
    if names.iter().any(|name| name == MARKER) || names.iter().all(is_grid_file) {
        return Ok(false);
    }
    Err(TrainError::Recipe {
        location: path.display().to_string(),
        reason: "has other files than the runs of a grid; choose a new folder".to_owned(),
    })
}

/// Whether a folder name is `seed-` and digits.
fn is_seed(name: &str) -> bool {
    name.strip_prefix("seed-")
        .is_some_and(|seed| !seed.is_empty() && seed.bytes().all(|byte| byte.is_ascii_digit()))
}

/// The names of a folder's entries, in any order.
fn names(folder: &Path) -> Result<Vec<String>> {
    let entries = fs::read_dir(folder).map_err(TrainError::io(folder))?;
    let names = entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
    names.collect::<std::io::Result<_>>().map_err(TrainError::io(folder))
}

fn names_are(folder: &Path, expected: &[&str]) -> Result<bool> {
    Ok(names(folder)? == expected)
}

fn is_empty(folder: &Path) -> bool {
    names(folder).is_ok_and(|names| names.is_empty())
}

impl LockedRun {
    /// Locks a run until the value is dropped; `None` if another process has locked it.
    pub(super) fn try_lock(run: &Path) -> Result<Option<Self>> {
        loop {
            let (lock, file) = lock_file(run)?;
            if !file.try_lock_exclusive().map_err(TrainError::io(&lock))? {
                return Ok(None);
            }
            if durable::is_at(&file, &lock) {
                return Ok(Some(Self { run: run.to_path_buf(), lock, _file: file }));
            }
        }
    }

    /// Locks a run, waiting for other processes.
    pub(super) fn wait_for(run: &Path) -> Result<Self> {
        loop {
            let (lock, file) = lock_file(run)?;
            file.lock_exclusive().map_err(TrainError::io(&lock))?;
            if durable::is_at(&file, &lock) {
                return Ok(Self { run: run.to_path_buf(), lock, _file: file });
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
    fn a_folder_with_other_files_is_refused_and_an_older_grid_is_accepted() {
        let parent = tempfile::tempdir().expect("a folder");
        for name in ["notes.txt", "seed-data", "seed-", "seed-1x"] {
            let folder = parent.path().join(format!("with-{name}"));
            fs::create_dir(&folder).expect("made");
            fs::write(folder.join(name), "precious").expect("written");
            assert!(GridFolder::open(&folder).is_err(), "{name}");
            assert_eq!(names(&folder).expect("names"), [name]);
        }
        let older_grid = parent.path().join("older_grid");
        fs::create_dir_all(older_grid.join("seed-1")).expect("made");
        fs::write(older_grid.join("grid.json"), "{}").expect("written");
        GridFolder::open(&older_grid)
            .expect("a grid of an older version")
            .remove_if_unused()
            .expect("the folder");
        assert_eq!(names(&older_grid).expect("names").len(), 3);
    }

    #[test]
    fn a_grid_leaves_no_files_unless_a_run_has_started() {
        let parent = tempfile::tempdir().expect("a folder");
        let path = parent.path().join("grids/new");
        let folder = GridFolder::open(&path).expect("new");
        let run = path.join("seed-1/configuration");
        let locked = LockedRun::try_lock(&run).expect("a lock").expect("free");
        assert!(LockedRun::try_lock(&run).expect("a result").is_none());
        drop(locked);
        folder.remove_if_unused().expect("the folder");
        assert!(!path.exists());
        // A run that has started stays.
        let folder = GridFolder::open(&path).expect("new");
        let locked = LockedRun::wait_for(&run).expect("a lock");
        fs::create_dir(&run).expect("made");
        drop(locked);
        folder.remove_if_unused().expect("the folder");
        assert!(path.join("seed-1/configuration.lock").exists() && run.exists());
    }
}
