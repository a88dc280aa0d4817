//! Removes unneeded files from a memory's folder. Only files that Engram wrote and that no
//! generation needs are removed.
//!
//! | name | condition for removal |
//! |---|---|
//! | `.CURRENT.engram-XXXXXX` | always: the temporary pointer of a killed writer |
//! | `gen-NNNNNN.partial` | it has the marker of an unfinished generation, or is empty |
//! | `gen-NNNNNN`, if neither a reader nor the current generation needs it | it has that marker, or is empty, or is an older generation whose manifest has its number |
//!
//! In these folders, only files with Engram's names are removed. The folder itself is removed if it
//! is then empty.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::{self, File, TryLockError};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use crate::error::MemoryError;
use crate::format::manifest::{CURRENT, MANIFEST, Manifest, folder_name};
use crate::format::pointer::generation_number;

/// The file that a writer locks.
pub(crate) const LOCK: &str = "LOCK";
/// The suffix of a generation's folder while it is written.
pub(crate) const PARTIAL: &str = ".partial";
/// The marker file of a generation that is not current yet.
pub(crate) const UNFINISHED: &str = "UNFINISHED";
/// The content of the marker file. A killed writer may have written only a part of it.
const MARKER: &[u8] = b"engram memory: this generation is not finished\n";

/// The names of a generation's files, except for names with a number.
const FILE_NAMES: [&str; 11] = [
    MANIFEST,
    UNFINISHED,
    "keys.safetensors",
    "codes.safetensors",
    "values.safetensors",
    "scales.safetensors",
    "ids.safetensors",
    "sources.safetensors",
    "documents.safetensors",
    "entries.jsonl",
    "offsets.safetensors",
];

/// Marks a new folder as an unfinished generation.
pub(crate) fn mark(folder: &Path) -> io::Result<()> {
    let mut file = engram_durable::create_new_file(&folder.join(UNFINISHED))?;
    file.write_all(MARKER)?;
    file.sync_all()
}

/// Removes the marker from a generation that is now current. A power cut may restore the marker;
/// the next writer removes it again.
pub(crate) fn unmark(folder: &Path) -> Result<(), MemoryError> {
    let path = folder.join(UNFINISHED);
    match fs::remove_file(&path) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => {
            Err(MemoryError::Write { file: path, source })
        }
        _ => Ok(()),
    }
}

/// Whether a folder has the marker.
fn is_marked(folder: &Path) -> bool {
    let path = folder.join(UNFINISHED);
    let read = || -> io::Result<Vec<u8>> {
        // Opening a pipe would block.
        if !fs::symlink_metadata(&path)?.is_file() {
            return Err(io::ErrorKind::NotFound.into());
        }
        let mut bytes = Vec::new();
        File::open(&path)?.take(MARKER.len() as u64 + 1).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    read().is_ok_and(|bytes| MARKER.starts_with(&bytes))
}

fn is_empty(folder: &Path) -> bool {
    fs::read_dir(folder).is_ok_and(|mut entries| entries.next().is_none())
}

/// A folder in a memory with the name of a generation.
struct Candidate {
    name: String,
    path: PathBuf,
    number: u64,
    is_partial: bool,
}

impl Candidate {
    /// The candidate of a directory entry; `None` if it is not a folder with a generation's name.
    fn of(entry: &fs::DirEntry) -> Option<Self> {
        let name = entry.file_name().into_string().ok()?;
        // A symbolic link to a folder is not Engram's.
        if !entry.file_type().ok()?.is_dir() {
            return None;
        }
        let (generation, is_partial) = match name.strip_suffix(PARTIAL) {
            Some(generation) => (generation, true),
            None => (name.as_str(), false),
        };
        let number = generation_number(generation)?;
        Some(Self { path: entry.path(), number, is_partial, name })
    }

    /// Whether a killed writer left the folder before the generation became current.
    fn is_unfinished(&self) -> bool {
        is_marked(&self.path) || is_empty(&self.path)
    }

    /// Returns the manifest of a finished generation, which was current once; `None` for other
    /// folders.
    fn finished_manifest(&self) -> Option<Manifest> {
        if self.is_partial || is_marked(&self.path) {
            return None;
        }
        Manifest::of_folder(&self.path).filter(|manifest| manifest.generation == self.number)
    }
}

/// The candidates of a memory, sorted by name.
fn candidates(memory: &Path) -> io::Result<Vec<Candidate>> {
    let mut candidates = Vec::new();
    for entry in fs::read_dir(memory)? {
        candidates.extend(Candidate::of(&entry?));
    }
    candidates.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(candidates)
}

/// Whether a folder contains a generation that was current once.
pub(crate) fn has_finished_generation(memory: &Path) -> bool {
    let candidates = candidates(memory).unwrap_or_default();
    candidates.iter().any(|candidate| candidate.finished_manifest().is_some())
}

/// Whether a memory can be built in a folder: it does not exist, is empty, or holds only files of a
/// killed build.
pub(crate) fn can_build_in(folder: &Path) -> Result<bool, MemoryError> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => return Ok(false),
        entries => entries.map_err(MemoryError::read(folder))?,
    };
    for entry in entries {
        let entry = entry.map_err(MemoryError::read(folder))?;
        let name = entry.file_name();
        let is_lock = || {
            name == LOCK
                && entry.metadata().is_ok_and(|metadata| metadata.is_file() && metadata.len() == 0)
        };
        let is_leftover = engram_durable::is_leftover(&name, CURRENT)
            || is_lock()
            || Candidate::of(&entry).is_some_and(|candidate| candidate.is_unfinished());
        if !is_leftover {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Removes files of killed writers, and generations that neither `current` nor a reader needs.
/// Requires the lock.
pub(crate) fn sweep(memory: &Path, current: Option<&Manifest>) -> Result<(), MemoryError> {
    sweep_except(memory, current, &[])
}

/// Like [`sweep`], but does not remove the folders `excluded`.
pub(crate) fn sweep_except(
    memory: &Path,
    current: Option<&Manifest>,
    excluded: &[String],
) -> Result<(), MemoryError> {
    engram_durable::remove_leftovers(memory, &[CURRENT]).map_err(MemoryError::write(memory))?;
    let mut needed: HashSet<String> = excluded.iter().cloned().collect();
    if let Some(current) = current {
        needed.extend(current.folders());
        unmark(&memory.join(folder_name(current.generation)))?;
    }
    let candidates = candidates(memory).map_err(MemoryError::read(memory))?;
    let (mut older, mut unneeded) = (Vec::new(), Vec::new());
    for candidate in candidates {
        if needed.contains(&candidate.name) {
            continue;
        }
        match candidate.finished_manifest() {
            // A later generation is not a leftover: somebody restored an older `CURRENT`.
            Some(manifest)
                if current.is_some_and(|current| candidate.number < current.generation) =>
            {
                older.push((candidate, manifest));
            }
            None if candidate.is_unfinished() => unneeded.push(candidate),
            _ => {}
        }
    }
    for (candidate, manifest) in &older {
        if has_reader(&candidate.path) {
            needed.extend(manifest.folders());
        }
    }
    unneeded.extend(older.into_iter().map(|(candidate, _)| candidate));
    for candidate in unneeded.iter().filter(|candidate| !needed.contains(&candidate.name)) {
        remove_generation(&candidate.path).map_err(MemoryError::write(&candidate.path))?;
    }
    Ok(())
}

/// Whether a reader holds the lock of a generation.
fn has_reader(folder: &Path) -> bool {
    let lock = File::open(folder.join(MANIFEST)).map(|file| file.try_lock());
    matches!(lock, Ok(Err(TryLockError::WouldBlock)))
}

/// Removes Engram's files of a generation, and its folder if nothing else is in it.
pub(crate) fn remove_generation(folder: &Path) -> io::Result<()> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name();
        let is_own = name.to_str().is_some_and(is_own_file);
        // The manifest and the marker identify the folder as Engram's, so they are removed last.
        if is_own && name != MANIFEST && name != UNFINISHED {
            fs::remove_file(entry.path())?;
        }
    }
    // If the sync fails, a power cut may leave files without their marker. Their folder then stays.
    let _ = engram_durable::sync_folder(folder);
    for name in [MANIFEST, UNFINISHED] {
        match fs::remove_file(folder.join(name)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    match fs::remove_dir(folder) {
        Err(error) if error.kind() != io::ErrorKind::DirectoryNotEmpty => Err(error),
        _ => Ok(()),
    }
}

/// Whether a folder has the name of a generation, finished or not, and contains only files with
/// Engram's names.
///
/// # Errors
/// The I/O error if the folder cannot be read.
pub fn is_own_generation(folder: &Path) -> io::Result<bool> {
    let name = folder.file_name().and_then(OsStr::to_str);
    let number =
        name.and_then(|name| name.strip_suffix(PARTIAL).or(Some(name))?.strip_prefix("gen-"));
    let is_number = number
        .is_some_and(|text| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()));
    if !is_number || !fs::symlink_metadata(folder)?.is_dir() {
        return Ok(false);
    }
    for entry in fs::read_dir(folder)? {
        if !entry?.file_name().to_str().is_some_and(is_own_file) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Whether a file in a generation's folder has one of Engram's names.
fn is_own_file(name: &str) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let deleted = name.strip_prefix("deleted-").and_then(|name| name.strip_suffix(".bits"));
    let graph = name.strip_prefix("graph-").and_then(|name| name.strip_suffix(".safetensors"));
    let graph = graph
        .and_then(|name| name.split_once('-'))
        .filter(|(_, array)| ["offsets", "neighbours", "upper"].contains(array));
    FILE_NAMES.contains(&name)
        || deleted.is_some_and(is_number)
        || graph.is_some_and(|(number, _)| is_number(number))
}
