//! `manifest.json` of a checkpoint: its files with sizes and SHA-256 hashes.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use engram_infer::digest;
use serde::{Deserialize, Serialize};

use crate::error::{Result, TrainError};

const MANIFEST: &str = "manifest.json";

#[derive(Serialize, Deserialize)]
struct Manifest {
    files: BTreeMap<String, Entry>,
}

#[derive(Serialize, Deserialize)]
struct Entry {
    bytes: u64,
    sha256: String,
}

/// Writes the manifest of every file in the folder. Call it after all files are written and synced.
pub(super) fn write(folder: &Path) -> Result<()> {
    let mut files = BTreeMap::new();
    for entry in fs::read_dir(folder).map_err(TrainError::io(folder))? {
        let entry = entry.map_err(TrainError::io(folder))?;
        let (bytes, sha256) = size_and_hash(&entry.path())?;
        files.insert(entry.file_name().to_string_lossy().into_owned(), Entry { bytes, sha256 });
    }
    let path = folder.join(MANIFEST);
    let text = serde_json::to_vec_pretty(&Manifest { files })
        .map_err(|e| damaged(&path, e.to_string()))?;
    super::write_file(&path, &text)
}

/// Checks the size and hash of every listed file, and that no file of the checkpoint is unlisted.
pub(super) fn verify(folder: &Path) -> Result<()> {
    let path = folder.join(MANIFEST);
    let text = engram_durable::read_file(&path)
        .map_err(|e| damaged(folder, format!("{MANIFEST}: {e}")))?;
    let manifest: Manifest =
        serde_json::from_slice(&text).map_err(|e| damaged(folder, format!("{MANIFEST}: {e}")))?;
    for entry in fs::read_dir(folder).map_err(TrainError::io(folder))? {
        let name = entry.map_err(TrainError::io(folder))?.file_name();
        let name = name.to_string_lossy();
        let is_read = name.ends_with(".json") || name.ends_with(".safetensors");
        if is_read && name != MANIFEST && !manifest.files.contains_key(&*name) {
            return Err(damaged(folder, format!("{name} is not listed in {MANIFEST}")));
        }
    }
    for (name, entry) in &manifest.files {
        let path = folder.join(name);
        let bytes = fs::metadata(&path).map_err(|e| damaged(folder, format!("{name}: {e}")))?.len();
        if bytes != entry.bytes {
            let reason = format!("{name} has {bytes} bytes instead of {}", entry.bytes);
            return Err(damaged(folder, reason));
        }
        if size_and_hash(&path)?.1 != entry.sha256 {
            return Err(damaged(folder, format!("{name} does not match its SHA-256")));
        }
    }
    Ok(())
}

fn size_and_hash(path: &Path) -> Result<(u64, String)> {
    digest::of_file(path).map_err(TrainError::io(path))
}

fn damaged(path: &Path, reason: String) -> TrainError {
    TrainError::BadCheckpoint { path: path.to_path_buf(), reason }
}
