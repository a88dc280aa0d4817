//! A memory in a local folder: opened, reloaded and verified.

use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use crate::error::MemoryError;
use crate::external_values::ValueStorage;
use crate::format::file::CheckedFile;
use crate::format::manifest::{Manifest, SegmentRecord, folder_name};
use crate::format::pack;
use crate::generation::Generation;
use crate::store::{Snapshot, Store, Transaction};
use crate::transaction::LocalTransaction;
use crate::writer::Writer;

/// The maximum number of retries to open the current generation while writers replace it.
const MAX_ATTEMPTS: usize = 20;

/// An open memory, for reading.
#[derive(Debug)]
pub struct Memory {
    folder: PathBuf,
    current: RwLock<Arc<Generation>>,
}

impl Memory {
    /// Opens a memory.
    ///
    /// # Errors
    /// [`MemoryError::NoMemory`], [`MemoryError::MissingGeneration`],
    /// [`MemoryError::UnknownFormat`], [`MemoryError::Corrupt`], [`MemoryError::Read`]
    pub fn open(folder: impl Into<PathBuf>) -> Result<Self, MemoryError> {
        Self::open_with(folder, None)
    }

    /// Opens a memory, and reads values outside of its folder from `storage`. If the storage has a
    /// [target](ValueStorage::target), transactions move the values of their changes there.
    ///
    /// # Errors
    /// The errors of [`Memory::open`].
    pub fn open_with(
        folder: impl Into<PathBuf>,
        storage: Option<Arc<dyn ValueStorage>>,
    ) -> Result<Self, MemoryError> {
        let folder = folder.into();
        let current = RwLock::new(Arc::new(open_current(&folder, None, storage)?));
        Ok(Self { folder, current })
    }

    /// Checks all files of the current generation, even if it cannot be opened. Returns the errors,
    /// one per damaged file; an empty list means that no file is damaged. Values outside of the
    /// folder are checked by [`Generation::verify_external_values`].
    ///
    /// # Errors
    /// [`MemoryError::NoMemory`], [`MemoryError::UnknownFormat`]; the error of [`Memory::open`] if
    /// the memory cannot be opened although no file is damaged.
    pub fn verify(folder: impl Into<PathBuf>) -> Result<Vec<MemoryError>, MemoryError> {
        let folder = folder.into();
        let error = match Self::open(&folder) {
            Ok(memory) => return Ok(memory.generation().verify()),
            Err(error) => error,
        };
        let manifest = Manifest::current(&folder)?;
        let files = manifest.segments.iter().flat_map(SegmentRecord::files);
        let checked = files.map(|(name, record)| {
            CheckedFile::open(&folder.join(name), record).and_then(|file| file.verify())
        });
        let damaged: Vec<MemoryError> = checked.filter_map(Result::err).collect();
        if damaged.is_empty() { Err(error) } else { Ok(damaged) }
    }

    /// The folder of the memory.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The generation that was current when the memory was opened or last
    /// [reloaded](Memory::reload).
    pub fn generation(&self) -> Arc<Generation> {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Loads the current generation from disk. Returns true if it changed. Existing handles keep
    /// the old generation.
    ///
    /// # Errors
    /// The errors of [`Memory::open`].
    pub fn reload(&self) -> Result<bool, MemoryError> {
        let previous = self.generation();
        let storage = previous.external().storage.clone();
        let reopened = Arc::new(open_current(&self.folder, Some(&previous), storage)?);
        let is_changed = reopened.manifest() != previous.manifest();
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = reopened;
        Ok(is_changed)
    }
}

impl Store for Memory {
    fn location(&self) -> String {
        self.folder.display().to_string()
    }

    fn snapshot(&self) -> Arc<dyn Snapshot> {
        self.generation()
    }

    fn reload(&self) -> Result<bool, MemoryError> {
        Self::reload(self)
    }

    fn begin(&self) -> Result<Box<dyn Transaction>, MemoryError> {
        let previous = self.generation();
        let storage = previous.external().storage.clone();
        let writer = Writer::open_reusing(self.folder.clone(), Some(&previous), storage)?;
        Ok(Box::new(LocalTransaction::begin(writer)?))
    }
}

/// Opens the current generation. The error says whether its files are missing or damaged.
/// `previous` is the generation that was open before, if any.
fn open_current(
    folder: &Path,
    previous: Option<&Generation>,
    storage: Option<Arc<dyn ValueStorage>>,
) -> Result<Generation, MemoryError> {
    open_with_retries(folder, previous, storage.as_ref()).map_err(|error| {
        let previous = previous.map(|previous| previous.manifest().generation);
        let names = match (Manifest::current_name(folder), previous) {
            (Some(name), _) => vec![name],
            (None, Some(number)) => vec![folder_name(number), pack::name(number)],
            (None, None) => return error,
        };
        let is_missing = |name: &String| matches!(folder.join(name).try_exists(), Ok(false));
        if names.iter().all(is_missing) {
            let generation = names.into_iter().next().unwrap_or_default();
            MemoryError::MissingGeneration { folder: folder.to_owned(), generation }
        } else {
            error
        }
    })
}

/// Opens the current generation. Retries if a writer has replaced it meanwhile.
fn open_with_retries(
    folder: &Path,
    previous: Option<&Generation>,
    storage: Option<&Arc<dyn ValueStorage>>,
) -> Result<Generation, MemoryError> {
    let mut last_tried = None;
    for _ in 0..MAX_ATTEMPTS {
        match Generation::open_with(folder, previous, storage.cloned()) {
            Err(error) => {
                let current = Manifest::current(folder)?.generation;
                if last_tried == Some(current) {
                    return Err(error);
                }
                last_tried = Some(current);
            }
            opened => return opened,
        }
    }
    Generation::open_with(folder, previous, storage.cloned())
}
