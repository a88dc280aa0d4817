//! What may be removed from a memory's folder: what Engram wrote there and no generation needs. Nothing else is touched,
//! whatever it is called.
//!
//! | name | removed |
//! |---|---|
//! | `.CURRENT.engram-XXXXXX` | always: the pointer on its way, of a writer that was killed |
//! | `gen-NNNNNN.partial` | where it has the marker of an unfinished generation, or is empty |
//! | `gen-NNNNNN` | where it has that marker, is empty, or is older than the current generation and has a manifest of its number; and where neither the current generation nor a reader needs it |
//!
//! Of these folders only files of names that Engram gives are removed, and the folder itself where it is empty then.

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
/// What the folder of a generation that is being written ends in.
pub(crate) const PARTIAL: &str = ".partial";
/// The file that marks a folder as a generation that is not the current one yet.
pub(crate) const UNFINISHED: &str = "UNFINISHED";
/// What is in it. A killed writer may have written a part.
const MARK: &[u8] = b"engram memory: this generation is not finished\n";

/// Files of a generation, besides those that are numbered.
const FILES: [&str; 10] = [
    MANIFEST,
    UNFINISHED,
    "keys.safetensors",
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
    file.write_all(MARK)?;
    file.sync_all()
}

/// Takes the mark of a generation away, which is the current one now. A power cut may bring it back: the next writer takes it
/// away again.
pub(crate) fn unmark(folder: &Path) -> Result<(), MemoryError> {
    let path = folder.join(UNFINISHED);
    match fs::remove_file(&path) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => {
            Err(MemoryError::Write { file: path, source })
        }
        _ => Ok(()),
    }
}

/// Whether a folder has the mark.
fn is_marked(folder: &Path) -> bool {
    let path = folder.join(UNFINISHED);
    let read = || -> io::Result<Vec<u8>> {
        // A pipe would be waited for.
        if !fs::symlink_metadata(&path)?.is_file() {
            return Err(io::ErrorKind::NotFound.into());
        }
        let mut bytes = Vec::new();
        File::open(&path)?.take(MARK.len() as u64 + 1).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    read().is_ok_and(|bytes| MARK.starts_with(&bytes))
}

fn is_empty(folder: &Path) -> bool {
    fs::read_dir(folder).is_ok_and(|mut entries| entries.next().is_none())
}

/// A folder of a memory that is called as Engram calls those of generations.
struct Candidate {
    name: String,
    path: PathBuf,
    number: u64,
    is_partial: bool,
}

impl Candidate {
    fn of(entry: &fs::DirEntry) -> Option<Self> {
        let name = entry.file_name().into_string().ok()?;
        // A link to a folder is not ours.
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

    /// Whether a killed writer left it before it was the current generation.
    fn is_unfinished(&self) -> bool {
        is_marked(&self.path) || is_empty(&self.path)
    }

    /// The manifest of a generation that was the current one once.
    fn finished(&self) -> Option<Manifest> {
        if self.is_partial || is_marked(&self.path) {
            return None;
        }
        Manifest::of_folder(&self.path).filter(|manifest| manifest.generation == self.number)
    }
}

fn candidates(memory: &Path) -> io::Result<Vec<Candidate>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(memory)? {
        found.extend(Candidate::of(&entry?));
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(found)
}

/// Whether a folder has a generation that was the current one once.
pub(crate) fn has_finished_generation(memory: &Path) -> bool {
    candidates(memory).unwrap_or_default().iter().any(|found| found.finished().is_some())
}

/// Whether a memory may be made in a folder: it is not there, is empty, or holds what a killed build left.
pub(crate) fn is_free(folder: &Path) -> Result<bool, MemoryError> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => return Ok(false),
        entries => entries.map_err(MemoryError::read(folder))?,
    };
    for entry in entries {
        let entry = entry.map_err(MemoryError::read(folder))?;
        let name = entry.file_name();
        let is_lock = || {
            name == LOCK && entry.metadata().is_ok_and(|found| found.is_file() && found.len() == 0)
        };
        let is_left = engram_durable::is_leftover(&name, CURRENT)
            || is_lock()
            || Candidate::of(&entry).is_some_and(|found| found.is_unfinished());
        if !is_left {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Removes what killed writers left, and generations that neither `current` nor a reader needs. Under the lock only.
pub(crate) fn sweep(memory: &Path, current: Option<&Manifest>) -> Result<(), MemoryError> {
    sweep_all_but(memory, current, &[])
}

/// [`sweep`], which also leaves the folders `kept`.
pub(crate) fn sweep_all_but(
    memory: &Path,
    current: Option<&Manifest>,
    kept: &[String],
) -> Result<(), MemoryError> {
    engram_durable::sweep(memory, &[CURRENT]).map_err(MemoryError::write(memory))?;
    let mut needed: HashSet<String> = kept.iter().cloned().collect();
    if let Some(current) = current {
        needed.extend(current.folders());
        unmark(&memory.join(folder_name(current.generation)))?;
    }
    let found = candidates(memory).map_err(MemoryError::read(memory))?;
    let (mut old, mut unneeded) = (Vec::new(), Vec::new());
    for candidate in found {
        if needed.contains(&candidate.name) {
            continue;
        }
        match candidate.finished() {
            // A later one is no leftover: somebody has put an older `CURRENT` there.
            Some(manifest) if current.is_some_and(|now| candidate.number < now.generation) => {
                old.push((candidate, manifest));
            }
            None if candidate.is_unfinished() => unneeded.push(candidate),
            _ => {}
        }
    }
    for (candidate, manifest) in &old {
        if is_read(&candidate.path) {
            needed.extend(manifest.folders());
        }
    }
    unneeded.extend(old.into_iter().map(|(candidate, _)| candidate));
    for candidate in unneeded.iter().filter(|candidate| !needed.contains(&candidate.name)) {
        remove_generation(&candidate.path).map_err(MemoryError::write(&candidate.path))?;
    }
    Ok(())
}

/// Whether a reader holds the lock of a generation.
fn is_read(folder: &Path) -> bool {
    let locked = File::open(folder.join(MANIFEST)).map(|file| file.try_lock());
    matches!(locked, Ok(Err(TryLockError::WouldBlock)))
}

/// Removes the files of a generation that Engram wrote, and its folder where nothing else is in it.
pub(crate) fn remove_generation(folder: &Path) -> io::Result<()> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name();
        let is_own = name.to_str().is_some_and(is_own_file);
        // Without these two a later writer would not know the folder as its own.
        if is_own && name != MANIFEST && name != UNFINISHED {
            fs::remove_file(entry.path())?;
        }
    }
    // Where this fails, a power cut may leave files without their marker. Their folder then stays.
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

/// Whether a folder is a generation, finished or not, whose files are all named as Engram names them.
///
/// # Errors   those of reading the folder
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

/// Whether a file in a generation's folder is called as Engram calls one.
fn is_own_file(name: &str) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let deleted = name.strip_prefix("deleted-").and_then(|name| name.strip_suffix(".bits"));
    let graph = name.strip_prefix("graph-").and_then(|name| name.strip_suffix(".safetensors"));
    let graph = graph
        .and_then(|name| name.split_once('-'))
        .filter(|(_, what)| ["offsets", "neighbours", "upper"].contains(what));
    FILES.contains(&name)
        || deleted.is_some_and(is_number)
        || graph.is_some_and(|(number, _)| is_number(number))
}
