//! The run folder: one writer at a time, and never two runs in one place.
//!
//! Start-up, in this order of precedence:
//! 1. the folder is missing or empty: a new run, with or without `resume`;
//! 2. it holds a run that ended before its first checkpoint, and `resume` is not given: nothing is
//!    lost, so a new run;
//! 3. it holds something else and `resume` is not given: refused;
//! 4. it holds another recipe than the present one: refused;
//! 5. it holds checkpoints: the newest whole one is continued (all damaged: refused);
//! 6. it holds none, because the run died before the first: the run starts again from nothing.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use fs4::fs_std::FileExt;

use crate::checkpoint::{self, write_file};
use crate::error::{Result, TrainError};

const LOCK: &str = ".lock";
const RECIPE: &str = "recipe.toml";

/// A run folder that this process may write to as long as it holds this.
pub(crate) struct RunFolder {
    path: PathBuf,
    _lock: File,
}

impl RunFolder {
    /// Takes the folder for a run of this resolved recipe.
    pub(crate) fn open(path: &Path, resume: bool, recipe: &str) -> Result<Self> {
        fs::create_dir_all(path).map_err(TrainError::io(path))?;
        let lock = lock(path)?;
        let folder = Self { path: path.to_path_buf(), _lock: lock };
        let stored = path.join(RECIPE);
        if folder.is_empty()? || (!resume && folder.has_unstarted_run()) {
            write_file(&stored, recipe.as_bytes())?;
        } else if !resume {
            return Err(TrainError::RunExists { run: path.to_path_buf() });
        } else {
            let before = fs::read_to_string(&stored).map_err(TrainError::io(&stored))?;
            refuse_another_recipe(path, &before, recipe)?;
        }
        Ok(folder)
    }

    /// The folder.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether all that is here is a run that never wrote a checkpoint.
    fn has_unstarted_run(&self) -> bool {
        let checkpoints = self.path.join(checkpoint::FOLDER);
        let none = fs::read_dir(checkpoints).map_or(true, |mut entries| entries.next().is_none());
        self.path.join(RECIPE).is_file() && none
    }

    fn is_empty(&self) -> Result<bool> {
        let mut entries = fs::read_dir(&self.path).map_err(TrainError::io(&self.path))?.flatten();
        Ok(entries.all(|entry| entry.file_name() == LOCK))
    }
}

fn lock(run: &Path) -> Result<File> {
    let path = run.join(LOCK);
    let mut file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&path)
        .map_err(TrainError::io(&path))?;
    let free = file.try_lock_exclusive().map_err(TrainError::io(&path))?;
    if !free {
        let holder = fs::read_to_string(&path).unwrap_or_default().trim().to_string();
        return Err(TrainError::Locked { run: run.to_path_buf(), holder });
    }
    file.set_len(0).map_err(TrainError::io(&path))?;
    writeln!(file, "{}", std::process::id()).map_err(TrainError::io(&path))?;
    Ok(file)
}

fn refuse_another_recipe(run: &Path, before: &str, now: &str) -> Result<()> {
    if before == now {
        return Ok(());
    }
    let missing = "nothing";
    let differs = |from: &str, other: &str| {
        let all: Vec<&str> = other.lines().collect();
        from.lines().find(|line| !all.contains(line)).map(str::to_string)
    };
    let (was, is) = (differs(before, now), differs(now, before));
    let line = was.as_ref().or(is.as_ref()).cloned().unwrap_or_default();
    let key = line.split('=').next().unwrap_or_default().trim().to_string();
    let value = |line: Option<String>| {
        let value = line.and_then(|line| Some(line.split_once('=')?.1.trim().to_string()));
        value.unwrap_or_else(|| missing.to_string())
    };
    Err(TrainError::RecipeChanged { run: run.to_path_buf(), key, was: value(was), now: value(is) })
}
