//! The run folder. It has one writer at a time and holds one run.
//!
//! Rules at start, in order of precedence:
//! 1. The folder is missing or empty: start a new run, with or without `resume`.
//! 2. It holds other files but no run (`recipe.toml` and `inputs.json`): error.
//! 3. It holds a run with a symbolic link in the place of a folder that the run writes: error.
//! 4. It holds a run that ended before its first checkpoint: start a new run; nothing is lost.
//! 5. It holds a run, and `resume` is not given: error.
//! 6. It holds a run whose checkpoints were removed: error.
//! 7. The run's recipe or inputs differ from the current ones: error.
//! 8. Otherwise, continue from the newest intact checkpoint. If all are damaged: error.
//!
//! After an error of rules 2 to 7, the folder is unchanged.

mod own;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, TryLockError};
use std::io::Write;
use std::path::{Path, PathBuf};

use engram_data::DataError;
use engram_durable as durable;
use engram_infer::InferError;
use engram_infer::finished_run::{RECIPE, SUMMARY, WEIGHTS};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use toml::Value;

use crate::checkpoint::{self, write_file};
use crate::error::{Result, TrainError};
use crate::log::METRICS;
use crate::program::Program;
use crate::recipe::identity;
pub(crate) use own::{is_run, sweep_names};

const LOCK: &str = ".lock";
/// The file with the hashes of the inputs. Like the recipe, it is written when the run starts.
pub(crate) const INPUTS: &str = "inputs.json";

/// Reads the summary of a finished run.
///
/// # Errors
/// [`TrainError::Io`]; [`DataError::Malformed`] for a summary that is broken or of another version.
pub(crate) fn read_summary<T: DeserializeOwned>(path: &Path) -> Result<T> {
    let bytes = engram_durable::read_file(path).map_err(TrainError::io(path))?;
    serde_json::from_slice(&bytes).map_err(|error| {
        TrainError::from(DataError::Malformed {
            path: path.to_path_buf(),
            place: None,
            reason: error.to_string(),
            remedy: "it is broken or of another version; remove the run's folder and train it again",
        })
    })
}

/// The failed conditions of the recipe's `[check]` for a finished run of any study.
///
/// # Errors
/// [`TrainError::Io`]; [`DataError::Malformed`] for a summary that is broken or of another version.
pub fn check_failures(run: &Path) -> Result<Vec<String>> {
    #[derive(Deserialize)]
    struct Checked {
        check_failures: Vec<String>,
    }
    Ok(read_summary::<Checked>(&run.join(SUMMARY))?.check_failures)
}

/// The hash of a finished run's recipe, of any study.
pub(crate) fn recipe_hash(run: &Path) -> Result<String> {
    #[derive(Deserialize)]
    struct Hashed {
        recipe_hash: String,
    }
    Ok(read_summary::<Hashed>(&run.join(SUMMARY))?.recipe_hash)
}

/// A run's inputs other than its recipe (data rows, weights, tokenizer): names and SHA-256 hashes.
pub type Inputs = BTreeMap<String, String>;

/// A run folder. The process may write to it as long as it holds this value.
pub(crate) struct RunFolder {
    path: PathBuf,
    /// The run's inputs other than its recipe.
    pub(crate) inputs: Inputs,
    _lock: File,
}

/// How a run starts in a folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Start {
    /// From its first step.
    New,
    /// From its newest checkpoint.
    Resumed,
}

impl RunFolder {
    /// Checks the folder by the rules of this module, locks it and removes temporary files of a
    /// killed process. A new run gets its recipe, inputs and list of programs; a resumed run gets
    /// an updated list of programs. `recipe` is the resolved recipe.
    ///
    /// # Errors
    /// [`TrainError::NoRun`], [`TrainError::RunExists`], [`TrainError::CheckpointsGone`];
    /// [`TrainError::Refused`] for another recipe or another input; [`TrainError::Locked`] if
    /// another process writes to the folder; [`TrainError::Io`]
    pub(crate) fn open(path: &Path, resume: bool, recipe: &str, inputs: &Inputs) -> Result<Self> {
        // The folder is checked twice. The first check leaves a rejected folder unchanged. The
        // second check runs under the lock, because another process may have started a run
        // meanwhile.
        if path.exists() {
            if is_run(path)
                && let Some(holder) = own::holder(path)
            {
                return Err(TrainError::Locked { run: path.to_path_buf(), holder });
            }
            start_in(path, resume, recipe, inputs)?;
        }
        durable::create_folder(path).map_err(TrainError::io(path))?;
        let lock = lock(path)?;
        let start = start_in(path, resume, recipe, inputs)?;
        own::sweep(path)?;
        match start {
            Start::New => {
                let inputs_path = path.join(INPUTS);
                let json = serde_json::to_vec_pretty(inputs)
                    .map_err(|error| TrainError::io(&inputs_path)(error.into()))?;
                write_file(&inputs_path, &json)?;
                Program::record_in(path, true)?;
                // The recipe is written last, because it makes the folder a run folder.
                write_file(&path.join(RECIPE), recipe.as_bytes())?;
            }
            Start::Resumed => Program::record_in(path, false)?,
        }
        Ok(Self { path: path.to_path_buf(), inputs: inputs.clone(), _lock: lock })
    }

    /// The folder.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

/// How a run with this recipe and these inputs starts in an existing folder, by the rules of this
/// module. Changes no files.
fn start_in(run: &Path, resume: bool, recipe: &str, inputs: &Inputs) -> Result<Start> {
    let path = || run.to_path_buf();
    if own::is_unused(run)? {
        return Ok(Start::New);
    }
    if !is_run(run) {
        return Err(TrainError::NoRun { run: path() });
    }
    own::refuse_links(run)?;
    if is_unstarted(run)? {
        return Ok(Start::New);
    }
    if !resume {
        return Err(TrainError::RunExists { run: path() });
    }
    if has_lost_checkpoints(run) {
        return Err(TrainError::CheckpointsGone { run: path() });
    }
    let stored = run.join(RECIPE);
    let before = engram_durable::read_text(&stored).map_err(TrainError::io(&stored))?;
    check_recipe(run, &before, recipe)?;
    check_inputs(run, inputs)?;
    Ok(Start::Resumed)
}

/// Whether a run and all its members (of an ensemble, in subfolders) never wrote a checkpoint.
fn is_unstarted(run: &Path) -> Result<bool> {
    if has_lost_checkpoints(run) || has_checkpoint(run) {
        return Ok(false);
    }
    for entry in fs::read_dir(run).map_err(TrainError::io(run))? {
        if has_checkpoint(&entry.map_err(TrainError::io(run))?.path()) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Whether a run that has started has lost its checkpoints: there are none, and either the run is
/// finished or its checkpoint folder is gone. The folder is created before the first step.
fn has_lost_checkpoints(run: &Path) -> bool {
    let has_started = run.join(METRICS).is_file();
    let finished = run.join(WEIGHTS).is_file();
    has_started && !has_checkpoint(run) && (finished || !run.join(checkpoint::FOLDER).is_dir())
}

fn has_checkpoint(run: &Path) -> bool {
    let entries = fs::read_dir(run.join(checkpoint::FOLDER));
    entries
        .into_iter()
        .flatten()
        .flatten()
        .any(|entry| checkpoint::is_checkpoint_name(&entry.file_name()))
}

/// Opens a lock file without changing it, or creates it.
pub(crate) fn open_lock(path: &Path) -> Result<File> {
    if path.is_symlink() {
        // A link may point to a file of another program.
        return Err(InferError::ForeignFile { path: path.to_path_buf() }.into());
    }
    durable::open_lock(path).map_err(TrainError::io(path))
}

/// Locks a run folder until the file is dropped.
pub(crate) fn lock(run: &Path) -> Result<File> {
    let path = run.join(LOCK);
    let try_lock = || {
        let file = open_lock(&path)?;
        match file.try_lock() {
            Ok(()) => Ok(file),
            Err(TryLockError::WouldBlock) => {
                let holder = durable::read_text(&path).unwrap_or_default().trim().to_string();
                Err(TrainError::Locked { run: run.to_path_buf(), holder })
            }
            Err(TryLockError::Error(error)) => Err(TrainError::io(&path)(error)),
        }
    };
    let mut file = try_lock()?;
    if file.metadata().is_ok_and(|metadata| durable::has_other_names(&metadata)) {
        // A backup of hard links has the same file, which must not change.
        write_file(&path, b"")?;
        file = try_lock()?;
    }
    file.set_len(0).map_err(TrainError::io(&path))?;
    writeln!(file, "{}", std::process::id()).map_err(TrainError::io(&path))?;
    Ok(file)
}

/// Returns an error unless the run was started with these inputs.
pub(crate) fn check_inputs(run: &Path, current: &Inputs) -> Result<()> {
    let path = run.join(INPUTS);
    let json = engram_durable::read_file(&path).map_err(TrainError::io(&path))?;
    let before: Inputs =
        serde_json::from_slice(&json).map_err(|error| TrainError::io(&path)(error.into()))?;
    let differs = |name: &&String| before.get(*name) != current.get(*name);
    match before.keys().chain(current.keys()).find(differs) {
        Some(name) => Err(TrainError::Refused(format!(
            "{}: the input `{name}` has changed since the run was started (its SHA-256 in \
             inputs.json differs); restore the original input, or choose another folder",
            run.display()
        ))),
        None => Ok(()),
    }
}

/// Returns an error that names the changed keys, unless the recipes have the same values.
fn check_recipe(run: &Path, before: &str, current: &str) -> Result<()> {
    let [before, current] = [before, current].map(|recipe| {
        let mut values = BTreeMap::new();
        let table = identity(recipe).parse::<toml::Table>().unwrap_or_default();
        add_values(String::new(), &table.into(), &mut values);
        values
    });
    let keys: BTreeSet<&String> = before.keys().chain(current.keys()).collect();
    let value = |values: &BTreeMap<_, _>, key| values.get(key).cloned();
    let or_not_set = |value: Option<String>| value.unwrap_or_else(|| "not set".to_owned());
    let changes = keys
        .into_iter()
        .map(|key| (key, value(&before, key), value(&current, key)))
        .filter(|(_, before, current)| before != current)
        .map(|(key, before, current)| {
            format!("`{key}` was {}, is now {}", or_not_set(before), or_not_set(current))
        });
    let changes: Vec<String> = changes.collect();
    if changes.is_empty() {
        return Ok(());
    }
    Err(TrainError::Refused(format!(
        "{} was started with another recipe ({}); resume with the same recipe and options, or \
         choose another folder",
        run.display(),
        changes.join("; ")
    )))
}

/// Adds the values at and below `path` to a map from paths, as `--set` takes them, to values.
fn add_values(path: String, value: &Value, values: &mut BTreeMap<String, String>) {
    let entries: Vec<(String, &Value)> = match value {
        Value::Table(table) => table.iter().map(|(key, value)| (key.clone(), value)).collect(),
        Value::Array(list) if list.iter().all(Value::is_table) => {
            let name = |entry: &Value| Some(entry.get("name")?.as_str()?.to_owned());
            let level =
                |(i, entry): (usize, _)| (name(entry).unwrap_or_else(|| i.to_string()), entry);
            list.iter().enumerate().map(level).collect()
        }
        _ => Vec::new(),
    };
    if entries.is_empty() {
        values.insert(path.clone(), value.to_string());
    }
    for (key, value) in entries {
        let path = if path.is_empty() { key } else { format!("{path}.{key}") };
        add_values(path, value, values);
    }
}
