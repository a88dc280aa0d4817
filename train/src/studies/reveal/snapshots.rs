//! The snapshots of parameters that encode the memory during training.

use std::ffi::OsStr;
use std::path::Path;

use engram_durable as durable;
use engram_infer::reveal::memory_folder::entries;

use crate::error::TrainError;
use crate::run_folder::sweep_names;
use crate::study::StudyResult;

/// Removes the snapshots of a run that are not `needed`, and the folder if it is then empty.
pub(super) fn remove_snapshots(folder: &Path, needed: &[String]) -> StudyResult<()> {
    sweep_names(folder, is_snapshot)?;
    for path in entries(folder)? {
        let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
        if is_snapshot(name) && !needed.iter().any(|needed| needed == name) {
            durable::remove_file(&path).map_err(TrainError::io(&path))?;
        }
    }
    if needed.is_empty() && folder.is_dir() && entries(folder)?.is_empty() {
        durable::remove_folder(folder).map_err(TrainError::io(folder))?;
    }
    Ok(())
}

/// The file name of a step's snapshot.
pub(super) fn snapshot_name(step: u64) -> String {
    format!("memory-{step:08}.safetensors")
}

/// Whether this is the file name of a snapshot.
fn is_snapshot(name: &str) -> bool {
    let step = name.strip_prefix("memory-").and_then(|name| name.strip_suffix(".safetensors"));
    step.and_then(|step| step.parse().ok()).is_some_and(|step| snapshot_name(step) == name)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(folder)
            .expect("a folder")
            .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn only_unneeded_snapshots_are_removed() {
        let parent = tempfile::tempdir().expect("a folder");
        let folder = parent.path().join("memory-snapshots");
        remove_snapshots(&folder, &[]).expect("nothing is there");
        fs::create_dir(&folder).expect("made");
        let snapshots =
            [snapshot_name(3), snapshot_name(8), format!(".{}.engram-Ab12Cd", snapshot_name(9))];
        for name in snapshots.iter().map(String::as_str).chain(["memory-3.safetensors", "mine.txt"])
        {
            fs::write(folder.join(name), "numbers").expect("written");
        }
        remove_snapshots(&folder, &[snapshot_name(8)]).expect("removed");
        assert_eq!(
            names(&folder),
            ["memory-00000008.safetensors", "memory-3.safetensors", "mine.txt"]
        );
        remove_snapshots(&folder, &[]).expect("removed");
        assert_eq!(names(&folder), ["memory-3.safetensors", "mine.txt"]);
    }
}
