//! How a change becomes the current generation, and what an error on the way leaves.
//!
//! 1. `gen-NNNNNN.partial` is made, with a marker that says so, and filled; the manifest comes last. All is synced.
//! 2. It is renamed to `gen-NNNNNN`.
//! 3. `CURRENT` is replaced: the commit point.
//! 4. The marker is removed.
//!
//! Before the commit point an error leaves the memory as it was. Behind it the error is [`MemoryError::Made`].

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use crate::error::MemoryError;
use crate::format::manifest::{CURRENT, Manifest, folder_name};
use crate::format::pointer::{FileIdentity, Pointer};
use crate::sweep::{LOCK, PARTIAL, mark, remove_generation, unmark};

/// How often a lock is tried that another process removes meanwhile.
const ATTEMPTS: usize = 100;

/// Locks a memory for writing until the file is dropped.
pub(crate) fn lock(folder: &Path) -> Result<File, MemoryError> {
    let path = folder.join(LOCK);
    let write = |source| MemoryError::Write { file: path.clone(), source };
    for _ in 0..ATTEMPTS {
        let file = engram_durable::open_lock(&path).map_err(write)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(MemoryError::Locked { folder: folder.to_owned() });
            }
            Err(TryLockError::Error(source)) => return Err(write(source)),
        }
        // A build that failed may have removed the file between the two.
        if engram_durable::is_at(&file, &path) {
            return Ok(file);
        }
    }
    Err(MemoryError::Locked { folder: folder.to_owned() })
}

/// A folder that becomes a memory. Dropped before [`NewFolder::keep`], it leaves no lock file, and no folder where there
/// was none.
pub(crate) struct NewFolder {
    folder: PathBuf,
    was_there: bool,
    lock: Option<File>,
}

impl NewFolder {
    /// Makes the folder where it is missing, and locks it.
    pub(crate) fn lock(folder: &Path) -> Result<Self, MemoryError> {
        let was_there = folder.exists();
        let mut own = Self { folder: folder.to_owned(), was_there, lock: None };
        for attempt in 1.. {
            engram_durable::create_folder(folder).map_err(MemoryError::write(folder))?;
            match lock(folder) {
                // Another build has failed meanwhile, and removed the folder.
                Err(MemoryError::Write { source, .. })
                    if source.kind() == io::ErrorKind::NotFound && attempt < ATTEMPTS => {}
                Err(error @ MemoryError::Locked { .. }) => {
                    own.was_there = true;
                    return Err(error);
                }
                lock => {
                    own.lock = Some(lock?);
                    break;
                }
            }
        }
        Ok(own)
    }

    /// The memory is there: gives the lock.
    pub(crate) fn keep(mut self) -> Option<File> {
        self.was_there = true;
        self.lock.take()
    }
}

impl Drop for NewFolder {
    fn drop(&mut self) {
        if let Some(lock) = self.lock.take() {
            let _ = fs::remove_file(self.folder.join(LOCK));
            drop(lock);
        }
        if !self.was_there {
            // It stays where something is in it.
            let _ = fs::remove_dir(&self.folder);
        }
    }
}

/// Writes a generation and makes it the current one; its number. It is the number in `manifest`, or the next one that no
/// folder has.
///
/// # Errors   [`MemoryError::Made`] where the generation is the current one all the same; every other error leaves the
/// memory as it was
pub(crate) fn commit(
    memory: &Path,
    mut manifest: Manifest,
    write: impl FnOnce(&str, &Path, &mut Manifest) -> Result<(), MemoryError>,
) -> Result<u64, MemoryError> {
    let partial_of = |number| memory.join(format!("{}{PARTIAL}", folder_name(number)));
    let is_taken = |path: &Path| fs::symlink_metadata(path).is_ok();
    // A folder that we did not write may have the name.
    while is_taken(&partial_of(manifest.generation))
        || is_taken(&memory.join(folder_name(manifest.generation)))
    {
        manifest.generation += 1;
    }
    let number = manifest.generation;
    let (name, partial) = (folder_name(number), partial_of(number));
    let place = memory.join(&name);
    let written = || -> Result<Pointer, MemoryError> {
        engram_durable::create_folder(&partial).map_err(MemoryError::write(&partial))?;
        mark(&partial).map_err(MemoryError::write(&partial))?;
        write(&name, &partial, &mut manifest)?;
        let pointer = manifest.write(&partial)?;
        engram_durable::sync_folder(&partial).map_err(MemoryError::write(&partial))?;
        engram_durable::rename(&partial, &place).map_err(MemoryError::write(&place))?;
        Ok(pointer)
    };
    let pointer = written().inspect_err(|_| {
        // What cannot be removed now is swept by the next writer.
        let _ = remove_generation(&partial);
        let _ = remove_generation(&place);
    })?;
    point_to(memory, &pointer).map_err(|(error, is_made)| match is_made {
        true => made(memory, number, error),
        false => {
            let _ = remove_generation(&place);
            error
        }
    })?;
    unmark(&place).map_err(|error| made(memory, number, error))?;
    Ok(number)
}

/// Replaces `CURRENT`; an error says whether it was replaced all the same.
fn point_to(memory: &Path, pointer: &Pointer) -> Result<(), (MemoryError, bool)> {
    let path = memory.join(CURRENT);
    let before = FileIdentity::of(&path);
    pointer.write(memory).map_err(|source| {
        let is_made = FileIdentity::of(&path) != before;
        (MemoryError::Write { file: path, source }, is_made)
    })
}

/// The error of a step behind the commit point.
pub(crate) fn made(memory: &Path, generation: u64, error: MemoryError) -> MemoryError {
    MemoryError::Made { folder: memory.to_owned(), generation, source: Box::new(error) }
}
