//! Removes unneeded files from a memory's folder. Only files that Engram wrote and that no
//! generation needs are removed.
//!
//! | name | condition for removal |
//! |---|---|
//! | `.CURRENT.engram-XXXXXX` | always: the temporary pointer of a killed writer |
//! | `gen-NNNNNN.partial` | it has the marker of an unfinished generation, or is empty |
//! | `gen-NNNNNN` or `gen-NNNNNN.pack`, if neither a reader nor the current generation needs it | it has its marker, or is an empty folder, or is an older generation whose manifest has its number |
//! | `gen-NNNNNN.UNFINISHED` | it has the text of a marker; its pack stays if it is needed |
//!
//! `values.safetensors` and `scales.safetensors` are removed after their values were moved
//! elsewhere, as soon as no reader holds a generation that reads these files.
//!
//! In these folders, only files with Engram's names are removed. The folder itself is removed if it
//! is then empty.

use std::collections::HashSet;
use std::fs::{self, TryLockError};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use crate::error::MemoryError;
use crate::format::manifest::{
    CURRENT, MANIFEST, Manifest, ORDER, REQUIRED_COLUMNS, VALUE_COLUMNS, folder_name,
};
use crate::format::pack;
use crate::format::pointer::generation_number;

/// The file that a writer locks.
pub(crate) const LOCK: &str = "LOCK";
/// The suffix of a generation's folder while it is written.
pub(crate) const PARTIAL: &str = ".partial";
/// The marker file of a generation that is not current yet.
pub(crate) const UNFINISHED: &str = "UNFINISHED";
/// The content of the marker file. A killed writer may have written only a part of it.
const MARKER: &[u8] = b"engram memory: this generation is not finished\n";

/// The arrays of graphs.
const GRAPH_ARRAYS: [&str; 3] = ["lists", "codes", "upper"];

/// Marks a new folder as an unfinished generation.
pub(crate) fn mark(folder: &Path) -> io::Result<()> {
    let mut file = engram_durable::create_new_file(&folder.join(UNFINISHED))?;
    file.write_all(MARKER)?;
    file.sync_all()
}

/// The marker of an unfinished pack, beside it.
pub(crate) fn pack_marker(memory: &Path, generation: u64) -> PathBuf {
    memory.join(format!("{}.{UNFINISHED}", folder_name(generation)))
}

/// Creates the marker of a pack, before the pack. No sync is needed: the marker and the pack have
/// one folder, and file systems keep the order of the changes of a folder.
pub(crate) fn mark_pack(marker: &Path) -> io::Result<()> {
    engram_durable::create_new_file(marker)?.write_all(MARKER)
}

/// Removes the marker from a generation that is now current. A power cut may restore the marker;
/// the next writer removes it again.
pub(crate) fn unmark(memory: &Path, generation: u64) -> Result<(), MemoryError> {
    let in_folder = memory.join(folder_name(generation)).join(UNFINISHED);
    [in_folder, pack_marker(memory, generation)]
        .iter()
        .try_for_each(|path| remove_if_present(path).map_err(MemoryError::write(path)))
}

/// Removes a file. A missing file is not an error.
fn remove_if_present(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        // `NotADirectory`: the generation's name is the name of a user's file.
        Err(error)
            if !matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) =>
        {
            Err(error)
        }
        _ => Ok(()),
    }
}

/// Whether a path is a marker.
fn is_marker(path: &Path) -> bool {
    let read = || -> io::Result<Vec<u8>> {
        // Opening a pipe would block.
        if !fs::symlink_metadata(path)?.is_file() {
            return Err(io::ErrorKind::NotFound.into());
        }
        let mut bytes = Vec::new();
        engram_durable::open_file(path)?.take(MARKER.len() as u64 + 1).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    read().is_ok_and(|bytes| MARKER.starts_with(&bytes))
}

fn is_empty(folder: &Path) -> bool {
    fs::read_dir(folder).is_ok_and(|mut entries| entries.next().is_none())
}

/// The kind of a [`Candidate`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Folder,
    PartialFolder,
    Pack,
    /// The marker of a pack.
    Marker,
}

/// A file or folder in a memory with the name of a generation.
struct Candidate {
    path: PathBuf,
    number: u64,
    kind: Kind,
}

impl Candidate {
    /// The candidate of a path; `None` for other names, and for a symbolic link, which Engram never
    /// makes.
    fn of(path: PathBuf) -> Option<Self> {
        let name = path.file_name()?.to_str()?.to_owned();
        let file_type = fs::symlink_metadata(&path).ok()?.file_type();
        let (number, kind) = if file_type.is_dir() {
            match name.strip_suffix(PARTIAL) {
                Some(generation) => (generation_number(generation)?, Kind::PartialFolder),
                None => (generation_number(&name)?, Kind::Folder),
            }
        } else if file_type.is_file() {
            match name.strip_suffix(UNFINISHED).and_then(|name| name.strip_suffix('.')) {
                Some(generation) => (generation_number(generation)?, Kind::Marker),
                None => (pack::number(&name)?, Kind::Pack),
            }
        } else {
            return None;
        };
        Some(Self { path, number, kind })
    }

    fn name(&self) -> String {
        folder_name(self.number)
    }

    fn is_marked(&self) -> bool {
        is_marker(&match self.kind {
            Kind::Folder | Kind::PartialFolder => self.path.join(UNFINISHED),
            Kind::Pack => self.path.with_extension(UNFINISHED),
            Kind::Marker => self.path.clone(),
        })
    }

    /// Whether a killed writer left the candidate before the generation became current.
    fn is_unfinished(&self) -> bool {
        let is_folder = matches!(self.kind, Kind::Folder | Kind::PartialFolder);
        self.is_marked() || is_folder && is_empty(&self.path)
    }

    /// Returns the manifest of a finished generation, which was current once; `None` for other
    /// candidates.
    fn finished_manifest(&self) -> Option<Manifest> {
        let manifest = match self.kind {
            Kind::Folder if !self.is_marked() => Manifest::of_folder(&self.path),
            Kind::Pack if !self.is_marked() => Manifest::of_pack(&self.path),
            _ => None,
        };
        manifest.filter(|manifest| manifest.generation == self.number)
    }

    /// Whether a reader holds the lock of the generation.
    fn has_reader(&self) -> bool {
        let path = match self.kind {
            Kind::Pack => self.path.clone(),
            _ => self.path.join(MANIFEST),
        };
        let lock = engram_durable::open_file(path).map(|file| file.try_lock());
        matches!(lock, Ok(Err(TryLockError::WouldBlock)))
    }

    fn remove(&self) -> io::Result<()> {
        match self.kind {
            Kind::Folder | Kind::PartialFolder => remove_generation(&self.path),
            Kind::Pack | Kind::Marker => remove_if_present(&self.path),
        }
    }
}

/// The candidates of a memory, sorted by name.
fn candidates(memory: &Path) -> io::Result<Vec<Candidate>> {
    let mut candidates = Vec::new();
    for entry in fs::read_dir(memory)? {
        candidates.extend(Candidate::of(entry?.path()));
    }
    // A marker comes after its pack, so it is removed last.
    candidates.sort_by_key(|candidate| (candidate.number, candidate.kind == Kind::Marker));
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
            || Candidate::of(entry.path()).is_some_and(|candidate| candidate.is_unfinished());
        if !is_leftover {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Removes files of killed writers, and generations that neither `current` nor a reader needs.
/// Requires the lock.
pub(crate) fn sweep(memory: &Path, current: Option<&Manifest>) -> Result<(), MemoryError> {
    sweep_except(memory, current, None)
}

/// Like [`sweep`], but keeps the files that the generation `excluded` needs.
pub(crate) fn sweep_except(
    memory: &Path,
    current: Option<&Manifest>,
    excluded: Option<&Manifest>,
) -> Result<(), MemoryError> {
    engram_durable::remove_leftovers(memory, &[CURRENT]).map_err(MemoryError::write(memory))?;
    let mut needed: HashSet<String> = excluded.iter().flat_map(|other| other.folders()).collect();
    let values_of = |manifest: &Manifest| -> Vec<String> {
        let [here, _] = manifest.value_folders();
        here.into_iter().map(str::to_owned).collect()
    };
    let external = current.map_or_else(Vec::new, |current| {
        let [_, external] = current.value_folders();
        external
    });
    // The folders whose values are read.
    let mut with_values: HashSet<String> =
        excluded.into_iter().chain(current).flat_map(values_of).collect();
    if let Some(current) = current {
        needed.extend(current.folders());
        unmark(memory, current.generation)?;
    }
    let candidates = candidates(memory).map_err(MemoryError::read(memory))?;
    let (mut older, mut unneeded) = (Vec::new(), Vec::new());
    for candidate in candidates {
        if candidate.kind == Kind::Marker {
            // A power cut may restore the marker of a needed pack.
            if candidate.is_marked() {
                unneeded.push(candidate);
            }
            continue;
        }
        if candidate.kind != Kind::PartialFolder && needed.contains(&candidate.name()) {
            // A reader of an older generation may need values that were moved since.
            if !external.is_empty()
                && let Some(manifest) = candidate.finished_manifest()
                && candidate.has_reader()
            {
                with_values.extend(values_of(&manifest));
            }
            continue;
        }
        match candidate.finished_manifest() {
            // A later generation is not a leftover, because a user may have restored an older
            // `CURRENT`.
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
        if candidate.has_reader() {
            needed.extend(manifest.folders());
            with_values.extend(values_of(manifest));
        }
    }
    for folder in external.into_iter().filter(|folder| !with_values.contains(*folder)) {
        remove_values(&memory.join(folder))?;
    }
    let older = older.into_iter().map(|(candidate, _)| candidate);
    unneeded.extend(older.filter(|candidate| !needed.contains(&candidate.name())));
    for candidate in unneeded {
        candidate.remove().map_err(MemoryError::write(&candidate.path))?;
    }
    Ok(())
}

/// Removes the files with values from the folder of a generation.
pub(crate) fn remove_values(folder: &Path) -> Result<(), MemoryError> {
    VALUE_COLUMNS.iter().try_for_each(|column| {
        let path = folder.join(format!("{column}.safetensors"));
        remove_if_present(&path).map_err(MemoryError::write(&path))
    })
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
        // The manifest and the marker identify the folder as Engram's, so they are removed last. No
        // sync is needed: file systems keep the order of the changes of a folder.
        if is_own && name != MANIFEST && name != UNFINISHED {
            fs::remove_file(entry.path())?;
        }
    }
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

/// Whether a path is a generation that Engram wrote, finished or not: a folder with the name of a
/// generation that contains only files with Engram's names, a pack, or the marker of a pack.
///
/// # Errors
/// The I/O error if the path cannot be read.
pub fn is_own_generation(path: &Path) -> io::Result<bool> {
    fs::symlink_metadata(path)?;
    let Some(candidate) = Candidate::of(path.to_owned()) else { return Ok(false) };
    match candidate.kind {
        Kind::Marker => Ok(candidate.is_marked()),
        Kind::Pack => Ok(candidate.is_marked() || candidate.finished_manifest().is_some()),
        Kind::Folder | Kind::PartialFolder => {
            for entry in fs::read_dir(path)? {
                if !entry?.file_name().to_str().is_some_and(is_own_file) {
                    return Ok(false);
                }
            }
            Ok(true)
        }
    }
}

/// Whether a file in a generation's folder has one of Engram's names.
fn is_own_file(name: &str) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let deleted = name.strip_prefix("deleted-").and_then(|name| name.strip_suffix(".bits"));
    let graph = name.strip_prefix("graph-").and_then(|name| name.strip_suffix(".safetensors"));
    let graph = graph
        .and_then(|name| name.split_once('-'))
        .filter(|(_, array)| GRAPH_ARRAYS.contains(array));
    let column = name.strip_suffix(".safetensors");
    let mut columns = REQUIRED_COLUMNS.iter().chain(&VALUE_COLUMNS).chain([&ORDER]);
    [MANIFEST, UNFINISHED, "entries.jsonl"].contains(&name)
        || column.is_some_and(|column| columns.any(|known| *known == column))
        || deleted.is_some_and(is_number)
        || graph.is_some_and(|(number, _)| is_number(number))
}
