//! The files and folders that a run writes. Nothing else in a folder is ever removed or replaced.

use std::fs::{self, TryLockError};
use std::path::Path;

use engram_durable as durable;
use engram_infer::InferError;
use engram_infer::finished_run::{CHECKSUMS, RECIPE, SUMMARY, WEIGHTS};

use super::{INPUTS, Inputs, LOCK};
use crate::checkpoint;
use crate::error::{Result, TrainError};
use crate::log::METRICS;
use crate::program::{PROGRAMS, Program};

/// Files of a run folder, for all studies.
const FILES: [&str; 23] = [
    LOCK,
    INPUTS,
    PROGRAMS,
    RECIPE,
    METRICS,
    WEIGHTS,
    SUMMARY,
    CHECKSUMS,
    "README.md",
    "timing.jsonl",
    "config.json",
    "preprocessor_config.json",
    "tokenizer.json",
    "model.json",
    "titles.tsv",
    "calibration.json",
    "stacking.json",
    "held_out.csv",
    "validation.csv",
    "test.jsonl",
    "ref.tsv",
    "hyp.tsv",
    "memory-owner.txt",
];

/// Subfolders of a run folder, for all studies.
const FOLDERS: [&str; 6] =
    [checkpoint::FOLDER, "memory", "memory-snapshots", "memory-evaluation", "memory-swapped", TEST];

/// The folder of references and predictions.
const TEST: &str = "test";

/// Whether a run writes a file or a folder with this name.
fn is_written(name: &str) -> bool {
    let is_variant_table = |name: &str| {
        let stem = name.strip_suffix(".csv");
        stem.is_some_and(|stem| stem.starts_with("held_out-") || stem.starts_with("validation-"))
    };
    FILES.contains(&name)
        || is_folder(name)
        || is_variant_table(name)
        || name.starts_with("events.out.tfevents.")
}

/// Whether a run writes a folder with this name. `fold-N` has a member of an ensemble.
fn is_folder(name: &str) -> bool {
    FOLDERS.contains(&name) || name.starts_with("fold-")
}

/// Returns an error for a symbolic link in the place of a folder that a run writes. A link in the
/// place of a file is replaced when the file is written.
pub(super) fn refuse_links(run: &Path) -> Result<()> {
    for entry in fs::read_dir(run).map_err(TrainError::io(run))? {
        let entry = entry.map_err(TrainError::io(run))?;
        if entry.path().is_symlink() && entry.file_name().to_str().is_some_and(is_folder) {
            return Err(InferError::ForeignFile { path: entry.path() }.into());
        }
    }
    Ok(())
}

/// Whether a run writes a file with this name to its folder `test`.
fn is_test_file(name: &str) -> bool {
    let endings = ["jsonl", "json", "tsv", "csv", "txt", "svg"];
    Path::new(name)
        .extension()
        .is_some_and(|ending| endings.iter().any(|allowed| ending == *allowed))
}

/// Whether a folder is empty or only has files that a run writes before its recipe.
pub(super) fn is_unused(folder: &Path) -> Result<bool> {
    for entry in fs::read_dir(folder).map_err(TrainError::io(folder))? {
        let entry = entry.map_err(TrainError::io(folder))?;
        let name = entry.file_name();
        let is_file = entry.file_type().is_ok_and(|kind| kind.is_file());
        let path = entry.path();
        let is_run_file = is_file
            && match name.to_str() {
                Some(LOCK) => is_lock(&path),
                Some(INPUTS) => read_inputs(&path).is_some(),
                Some(PROGRAMS) => Program::of_run(folder).is_ok(),
                _ => [INPUTS, PROGRAMS, RECIPE]
                    .iter()
                    .any(|target| durable::is_leftover(&name, target)),
            };
        if !is_run_file {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Whether a folder has the two files that every run has from the start: its recipe and its inputs.
pub(crate) fn is_run(folder: &Path) -> bool {
    let recipe = engram_durable::read_text(folder.join(RECIPE)).ok();
    let recipe = recipe.and_then(|text| text.parse::<toml::Table>().ok());
    recipe.is_some_and(|recipe| recipe.get("study").is_some_and(toml::Value::is_str))
        && read_inputs(&folder.join(INPUTS)).is_some()
}

fn read_inputs(path: &Path) -> Option<Inputs> {
    serde_json::from_slice(&engram_durable::read_file(path).ok()?).ok()
}

/// Whether a lock file is a run's lock file: it contains a process id or nothing.
fn is_lock(path: &Path) -> bool {
    const MAX_BYTES: u64 = 20;
    fs::metadata(path).is_ok_and(|file| file.len() <= MAX_BYTES)
        && engram_durable::read_text(path).is_ok_and(|text| {
            text.trim().is_empty() || text.trim().bytes().all(|byte| byte.is_ascii_digit())
        })
}

/// The id of the process that writes to a run, from its lock file; `None` if there is none. Changes
/// no files.
pub(super) fn holder(run: &Path) -> Option<String> {
    let path = run.join(LOCK);
    let file = engram_durable::open_file(&path).ok()?;
    let is_locked = matches!(file.try_lock(), Err(TryLockError::WouldBlock));
    is_locked.then(|| engram_durable::read_text(&path).unwrap_or_default().trim().to_string())
}

/// Removes temporary files of a killed process from a run folder.
pub(super) fn sweep(run: &Path) -> Result<()> {
    sweep_names(run, is_written)?;
    sweep_names(&run.join(TEST), is_test_file)
}

/// Removes the temporary files and folders for the names that `is_target` accepts.
pub(crate) fn sweep_names(folder: &Path, is_target: fn(&str) -> bool) -> Result<()> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        entries => entries.map_err(TrainError::io(folder))?,
    };
    let mut targets = Vec::new();
    for entry in entries {
        let name = entry.map_err(TrainError::io(folder))?.file_name();
        // `.NAME.engram-XXXXXX`
        let target =
            name.to_str().and_then(|name| Some(name.strip_prefix('.')?.rsplit_once('.')?.0));
        targets.extend(target.filter(|target| is_target(target)).map(str::to_string));
    }
    let targets: Vec<&str> = targets.iter().map(String::as_str).collect();
    durable::remove_leftovers(folder, &targets).map_err(TrainError::io(folder))
}
