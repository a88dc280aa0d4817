//! Writes a new generation and makes it current. A large change fills a folder, in four steps:
//!
//! 1. `gen-NNNNNN.partial` is created with a marker of an unfinished generation, then filled. The
//!    manifest comes last. All files are synced.
//! 2. The folder is renamed to `gen-NNNNNN`.
//! 3. `CURRENT` is replaced: the commit point.
//! 4. The marker is removed.
//!
//! A small change writes one file, with three syncs:
//!
//! 1. The marker `gen-NNNNNN.UNFINISHED` is created.
//! 2. `gen-NNNNNN.pack` is written and synced.
//! 3. `CURRENT` is replaced: the commit point. The new `CURRENT` is synced before it is renamed,
//!    and then the memory's folder is synced. This sync covers all new names in the folder. File
//!    systems keep the order of these names, so a power cut never leaves a new `CURRENT` without
//!    its pack.
//! 4. The marker is removed.
//!
//! After an error before the commit point, the new files are removed and the memory is unchanged.
//! An error after the commit point is [`MemoryError::ChangeMade`].

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use crate::error::MemoryError;
use crate::format::manifest::{CURRENT, Manifest, folder_name};
use crate::format::pack::{self, Pack};
use crate::format::pointer::{FileIdentity, Pointer};
use crate::sweep::{LOCK, PARTIAL, mark, mark_pack, pack_marker, remove_generation, unmark};

/// The maximum number of attempts to lock a file that other processes remove meanwhile.
const MAX_ATTEMPTS: usize = 100;

/// Locks a memory for writing, until the returned file is dropped.
pub(crate) fn lock(folder: &Path) -> Result<File, MemoryError> {
    let path = folder.join(LOCK);
    let write_error = |source| MemoryError::Write { file: path.clone(), source };
    for _ in 0..MAX_ATTEMPTS {
        let file = engram_durable::open_lock(&path).map_err(write_error)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(MemoryError::Locked { folder: folder.to_owned() });
            }
            Err(TryLockError::Error(source)) => return Err(write_error(source)),
        }
        // A failed build may have removed the file between opening and locking.
        if engram_durable::is_at(&file, &path) {
            return Ok(file);
        }
    }
    Err(MemoryError::Locked { folder: folder.to_owned() })
}

/// A folder for a new memory. Dropping this value before [`NewFolder::keep`] removes the lock file,
/// and removes the folder if it is new.
pub(crate) struct NewFolder {
    folder: PathBuf,
    /// Whether the folder stays when this value is dropped.
    stays: bool,
    lock: Option<File>,
}

impl NewFolder {
    /// Creates the folder if it is missing, and locks it.
    pub(crate) fn lock(folder: &Path) -> Result<Self, MemoryError> {
        let stays = folder.exists();
        let mut new_folder = Self { folder: folder.to_owned(), stays, lock: None };
        for attempt in 1.. {
            engram_durable::create_folder(folder).map_err(MemoryError::write(folder))?;
            match lock(folder) {
                // Another build failed meanwhile and removed the folder.
                Err(MemoryError::Write { source, .. })
                    if source.kind() == io::ErrorKind::NotFound && attempt < MAX_ATTEMPTS => {}
                Err(error @ MemoryError::Locked { .. }) => {
                    new_folder.stays = true;
                    return Err(error);
                }
                lock => {
                    new_folder.lock = Some(lock?);
                    break;
                }
            }
        }
        Ok(new_folder)
    }

    /// Keeps the folder, because the memory now exists. Returns the lock file.
    pub(crate) fn keep(mut self) -> Option<File> {
        self.stays = true;
        self.lock.take()
    }
}

impl Drop for NewFolder {
    fn drop(&mut self) {
        if let Some(lock) = self.lock.take() {
            let _ = fs::remove_file(self.folder.join(LOCK));
            drop(lock);
        }
        if !self.stays {
            // A folder that is not empty stays.
            let _ = fs::remove_dir(&self.folder);
        }
    }
}

/// A generation whose folder is being written. Dropping it removes the folder, unless the
/// generation was made current.
#[derive(Debug)]
pub(crate) struct PartialGeneration {
    memory: PathBuf,
    number: u64,
    /// Whether the folder stays or was removed already.
    is_done: bool,
}

impl PartialGeneration {
    /// Creates the folder of the generation `number`, or of the next free number.
    pub(crate) fn create(memory: &Path, number: u64) -> Result<Self, MemoryError> {
        let number = free_number(memory, number);
        let generation = Self { memory: memory.to_owned(), number, is_done: false };
        let folder = generation.folder();
        engram_durable::create_folder(&folder).map_err(MemoryError::write(&folder))?;
        mark(&folder).map_err(MemoryError::write(&folder))?;
        Ok(generation)
    }

    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    pub(crate) fn name(&self) -> String {
        folder_name(self.number)
    }

    /// The folder, until the generation is current.
    pub(crate) fn folder(&self) -> PathBuf {
        self.memory.join(format!("{}{PARTIAL}", self.name()))
    }

    /// Writes the manifest and makes the generation current. Returns its number.
    ///
    /// # Errors
    /// [`MemoryError::ChangeMade`] if the generation is current despite the error. All other errors
    /// leave the memory unchanged.
    pub(crate) fn make_current(mut self, mut manifest: Manifest) -> Result<u64, MemoryError> {
        manifest.generation = self.number;
        let (partial, complete) = (self.folder(), self.memory.join(self.name()));
        let write_manifest = || -> Result<Pointer, MemoryError> {
            let pointer = manifest.write(&partial)?;
            engram_durable::sync_folder(&partial).map_err(MemoryError::write(&partial))?;
            engram_durable::rename(&partial, &complete).map_err(MemoryError::write(&complete))?;
            Ok(pointer)
        };
        self.is_done = true;
        make_current(&self.memory, self.number, write_manifest(), || self.remove())
    }

    fn remove(&self) {
        let _ = remove_generation(&self.folder());
        let _ = remove_generation(&self.memory.join(self.name()));
    }
}

impl Drop for PartialGeneration {
    fn drop(&mut self) {
        if !self.is_done {
            self.remove();
        }
    }
}

/// Writes a generation as a folder and makes it current. `write` gets the generation's name, its
/// partial folder and its manifest. Returns the generation's number: the number in `manifest`, or
/// the next free number.
///
/// # Errors
/// The errors of [`PartialGeneration::make_current`].
pub(crate) fn commit(
    memory: &Path,
    mut manifest: Manifest,
    write: impl FnOnce(&str, &Path, &mut Manifest) -> Result<(), MemoryError>,
) -> Result<u64, MemoryError> {
    let partial = PartialGeneration::create(memory, manifest.generation)?;
    manifest.generation = partial.number();
    write(&partial.name(), &partial.folder(), &mut manifest)?;
    partial.make_current(manifest)
}

/// Like [`commit`], but writes the generation as a pack. `write` gets the pack and the manifest.
///
/// # Errors
/// The errors of [`commit`].
pub(crate) fn commit_pack(
    memory: &Path,
    mut manifest: Manifest,
    write: impl FnOnce(&mut Pack, &mut Manifest) -> Result<(), MemoryError>,
) -> Result<u64, MemoryError> {
    let number = free_number(memory, manifest.generation);
    manifest.generation = number;
    let marker = pack_marker(memory, number);
    let write_file = || -> Result<Pointer, MemoryError> {
        mark_pack(&marker).map_err(MemoryError::write(&marker))?;
        let mut pack = Pack::new(number);
        write(&mut pack, &mut manifest)?;
        pack.write(memory, &manifest)
    };
    make_current(memory, number, write_file(), || {
        let _ = fs::remove_file(memory.join(pack::name(number)));
        let _ = fs::remove_file(&marker);
    })
}

/// Returns the first number from `number` on whose names are not taken. Another program may have
/// made files with such names.
fn free_number(memory: &Path, mut number: u64) -> u64 {
    let is_taken = |number| {
        let name = folder_name(number);
        let partial = memory.join(format!("{name}{PARTIAL}"));
        let pack = memory.join(pack::name(number));
        let paths = [memory.join(name), partial, pack, pack_marker(memory, number)];
        paths.iter().any(|path| fs::symlink_metadata(path).is_ok())
    };
    while is_taken(number) {
        number += 1;
    }
    number
}

/// Makes a written generation current. After an error before the commit point, `remove` removes its
/// files. Files that cannot be removed now are removed by the next writer.
fn make_current(
    memory: &Path,
    number: u64,
    written: Result<Pointer, MemoryError>,
    remove: impl Fn(),
) -> Result<u64, MemoryError> {
    let pointer = written.inspect_err(|_| remove())?;
    point_to(memory, &pointer).map_err(|(error, is_replaced)| {
        if is_replaced {
            change_made(memory, number, error)
        } else {
            remove();
            error
        }
    })?;
    unmark(memory, number).map_err(|error| change_made(memory, number, error))?;
    Ok(number)
}

/// Replaces `CURRENT`. On an error, also returns whether `CURRENT` was replaced anyway.
fn point_to(memory: &Path, pointer: &Pointer) -> Result<(), (MemoryError, bool)> {
    let path = memory.join(CURRENT);
    let previous = FileIdentity::of(&path);
    pointer.write(memory).map_err(|source| {
        let is_replaced = FileIdentity::of(&path) != previous;
        (MemoryError::Write { file: path, source }, is_replaced)
    })
}

/// Returns the error of a step after the commit point.
pub(crate) fn change_made(memory: &Path, generation: u64, error: MemoryError) -> MemoryError {
    MemoryError::ChangeMade { folder: memory.to_owned(), generation, source: Box::new(error) }
}
