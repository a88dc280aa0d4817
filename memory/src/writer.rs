//! Builds and changes a memory.
//!
//! A large change writes a folder: a build, a compaction, a refresh, a graph, a large addition, or
//! a merge of many rows (see `merge`). Any other change writes one file, a pack.

use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::change::{Change, Large, write_rows};
use crate::codes::MAX_WIDTH;
use crate::commit::{NewFolder, change_made, commit, commit_pack, lock};
use crate::edit::{Edit, Target};
use crate::encoded::EncodedRows;
use crate::error::MemoryError;
use crate::external_values::{ValueStorage, ValuesLocation};
use crate::format::manifest::{EncoderRecord, FORMAT_VERSION, Manifest, ValueFormat};
use crate::generation::{Generation, Row};
use crate::keep_graphs::build_graphs;
use crate::merge::MAX_SEGMENTS;
use crate::search::graph::GraphSettings;
use crate::segment::Batch;
use crate::sweep::{can_build_in, sweep, sweep_except};

/// The format of a new memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryFormat {
    /// The width of a key.
    pub width: usize,
    /// Whether keys are normalised to unit length, so that scores are cosines.
    pub normalised: bool,
    /// The format of values; `None` for a memory without values.
    pub values: Option<ValueFormat>,
}

/// Changes a memory. A memory has at most one writer at a time.
///
/// After [`MemoryError::ChangeMade`], the change is made despite the error. After any other error,
/// the memory is unchanged. In both cases the next change starts from the state on disk.
#[derive(Debug)]
pub struct Writer {
    folder: PathBuf,
    /// The open lock file, which holds the lock.
    _lock: Option<File>,
    generation: Arc<Generation>,
    /// Whether the disk may have a later generation than `generation`, because a change failed.
    is_behind: bool,
}

impl Writer {
    /// Builds a memory in a new or empty folder from batches with `rows` rows in all.
    ///
    /// # Errors
    /// [`MemoryError::AlreadyExists`]; the errors of the batches; [`MemoryError::Count`],
    /// [`MemoryError::BadVector`], [`MemoryError::DuplicateId`], [`MemoryError::InvalidOption`],
    /// [`MemoryError::Write`]
    pub fn create(
        folder: impl Into<PathBuf>,
        format: MemoryFormat,
        rows: usize,
        batches: impl Iterator<Item = Result<Batch, MemoryError>>,
    ) -> Result<Self, MemoryError> {
        Self::create_encoded(folder, format, Vec::new(), rows, batches)
    }

    /// Like [`Writer::create`], and records the models that encoded the keys.
    ///
    /// # Errors
    /// The errors of [`Writer::create`].
    pub fn create_encoded(
        folder: impl Into<PathBuf>,
        format: MemoryFormat,
        encoders: Vec<EncoderRecord>,
        rows: usize,
        batches: impl Iterator<Item = Result<Batch, MemoryError>>,
    ) -> Result<Self, MemoryError> {
        let folder = folder.into();
        check_width(format.width)?;
        check_values(format.values)?;
        let already_exists = || MemoryError::AlreadyExists { folder: folder.clone() };
        // A rejected folder stays unchanged and gets no lock file.
        if !can_build_in(&folder)? {
            return Err(already_exists());
        }
        let new_folder = NewFolder::lock(&folder)?;
        // Another process may have built a memory here before this process took the lock.
        if !can_build_in(&folder)? {
            new_folder.keep();
            return Err(already_exists());
        }
        sweep(&folder, None)?;
        let manifest = Manifest {
            format_version: FORMAT_VERSION,
            generation: 1,
            identity: None,
            width: format.width,
            normalised: format.normalised,
            values: format.values,
            encoders,
            sources: Vec::new(),
            next_id: 0,
            segments: Vec::new(),
        };
        let committed = commit(&folder, manifest, |name, partial, manifest| {
            write_rows(name, partial, manifest, rows, batches)
        });
        match committed {
            Err(error @ MemoryError::ChangeMade { .. }) => {
                new_folder.keep();
                Err(error)
            }
            Err(error) => Err(error),
            Ok(number) => {
                let lock = new_folder.keep();
                let opened = Generation::open(&folder, None);
                let generation = opened.map_err(|error| change_made(&folder, number, error))?;
                Ok(Self { folder, _lock: lock, generation: Arc::new(generation), is_behind: false })
            }
        }
    }

    /// Opens a memory for changes.
    ///
    /// # Errors
    /// [`MemoryError::Locked`] while another process writes; the errors of
    /// [`Memory::open`](crate::Memory::open)
    pub fn open(folder: impl Into<PathBuf>) -> Result<Self, MemoryError> {
        Self::open_with(folder, None)
    }

    /// Like [`Writer::open`], and reads values that are outside of the memory's folder from
    /// `storage`.
    ///
    /// # Errors
    /// The errors of [`Writer::open`].
    pub fn open_with(
        folder: impl Into<PathBuf>,
        storage: Option<Arc<dyn ValueStorage>>,
    ) -> Result<Self, MemoryError> {
        Self::open_reusing(folder.into(), None, storage)
    }

    /// Opens a memory for changes. Reuses the segments and graphs that `previous` has open.
    pub(crate) fn open_reusing(
        folder: PathBuf,
        previous: Option<&Generation>,
        storage: Option<Arc<dyn ValueStorage>>,
    ) -> Result<Self, MemoryError> {
        Manifest::current(&folder)?;
        let lock = lock(&folder)?;
        let generation = Arc::new(Generation::open_with(&folder, previous, storage)?);
        sweep(&folder, Some(generation.manifest()))?;
        Ok(Self { folder, _lock: Some(lock), generation, is_behind: false })
    }

    /// The last generation that this writer opened or wrote without an error.
    pub fn generation(&self) -> &Arc<Generation> {
        &self.generation
    }

    /// Adds entries with new ids, from batches with `rows` rows in all.
    ///
    /// # Errors
    /// [`MemoryError::DuplicateId`]; the errors of [`Writer::create`].
    pub fn add(
        &mut self,
        rows: usize,
        batches: impl Iterator<Item = Result<Batch, MemoryError>>,
    ) -> Result<(), MemoryError> {
        let mut change = self.begin()?;
        change.add(rows, batches)?;
        self.commit_change(change)
    }

    /// Replaces the entries with the same ids, from batches with `rows` rows in all.
    ///
    /// # Errors
    /// [`MemoryError::UnknownId`]; the errors of [`Writer::create`].
    pub fn update(
        &mut self,
        rows: usize,
        batches: impl Iterator<Item = Result<Batch, MemoryError>>,
    ) -> Result<(), MemoryError> {
        let mut change = self.begin()?;
        change.update(rows, batches)?;
        self.commit_change(change)
    }

    /// Deletes entries. Searches no longer return them; their rows stay on disk until their segment
    /// is merged or compacted.
    ///
    /// # Errors
    /// [`MemoryError::UnknownId`], then nothing is deleted; [`MemoryError::Write`]
    pub fn delete(&mut self, ids: &[i64]) -> Result<(), MemoryError> {
        let mut change = self.begin()?;
        change.delete(ids)?;
        self.commit_change(change)
    }

    /// Starts a change of the current state.
    pub(crate) fn begin(&mut self) -> Result<Change, MemoryError> {
        self.catch_up()?;
        Ok(Change::new(&self.folder, &self.generation))
    }

    /// Makes a change that [`Writer::begin`] started.
    pub(crate) fn commit_change(&mut self, change: Change) -> Result<(), MemoryError> {
        let Change { base, mut manifest, removed, rows, longest_key, large, .. } =
            change.checked()?;
        let removed: Vec<Row> = removed.into_values().collect();
        let Some(Large { generation, segment, replaces_all }) = large else {
            let edit = Edit::new(&base, &removed).merge(rows.len(), MAX_SEGMENTS);
            let result = self.commit_edit(&edit, &manifest, (&rows, longest_key));
            return match result {
                // The merge may need more space than there is, or read a damaged segment.
                Err(MemoryError::Write { .. } | MemoryError::Corrupt { .. })
                    if edit.merges() && base.parts().len() < MAX_SEGMENTS =>
                {
                    let edit = Edit::new(&base, &removed);
                    self.commit_edit(&edit, &manifest, (&rows, longest_key))
                }
                result => result,
            };
        };
        let folder = generation.folder();
        manifest.generation = generation.number();
        if !replaces_all {
            let edit = Edit::new(&base, &removed);
            edit.write_remaining(&mut manifest, &mut Target::Folder(&folder))?;
        }
        manifest.segments.extend(segment);
        build_graphs(&base, (&generation.name(), &folder), &mut manifest)?;
        self.publish(&manifest, |_, manifest| generation.make_current(manifest))?;
        if self.generation.manifest().segments.len() > MAX_SEGMENTS {
            // The files of the new rows and of merged rows would have the same names. So the merge
            // gets a generation of its own.
            let number = self.generation.manifest().generation;
            let edit = Edit::new(&self.generation, &[]).merge(0, MAX_SEGMENTS);
            let merged = self.commit_without_rows(&edit);
            merged.map_err(|error| change_made(&self.folder, number, error))?;
        }
        Ok(())
    }

    /// Builds a graph over the keys of each segment without a graph of these settings, for
    /// [`Method::Graph`](crate::Method::Graph). `progress` is called once per key.
    /// Later changes also build such graphs over their large segments.
    ///
    /// # Errors
    /// [`MemoryError::InvalidOption`] if keys are not normalised or a setting is out of range;
    /// [`MemoryError::Write`]
    pub fn index(
        &mut self,
        settings: GraphSettings,
        progress: impl Fn(),
    ) -> Result<(), MemoryError> {
        self.catch_up()?;
        let generation = Arc::clone(&self.generation);
        self.commit(|name, partial, manifest| {
            let segments = generation.parts().iter().zip(&mut manifest.segments).enumerate();
            for (number, (part, record)) in
                segments.filter(|(_, (_, record))| settings.is_missing(record))
            {
                let graph = settings.build(&part.segment, generation.manifest(), &progress)?;
                record.graph = Some(graph.write(name, partial, number)?);
            }
            Ok(())
        })
    }

    /// Rewrites all entries that are not deleted as one segment. `progress` is called with the
    /// number of entries of each batch.
    ///
    /// # Errors
    /// [`MemoryError::Corrupt`], [`MemoryError::Write`]
    pub fn compact(&mut self, mut progress: impl FnMut(usize)) -> Result<(), MemoryError> {
        self.catch_up()?;
        let manifest = self.generation.manifest();
        let (encoders, width) = (manifest.encoders.clone(), manifest.width);
        self.re_encode(encoders, width, |batch| {
            progress(batch.entries.len());
            Ok(batch)
        })
    }

    /// Rewrites all entries with new keys of the models `encoders`, which have `width` components.
    /// `encode` gets the batches in row order, and returns each with new keys. It may return new
    /// values of the same format, too.
    ///
    /// # Errors
    /// The errors of `encode`; [`MemoryError::Count`], [`MemoryError::BadVector`],
    /// [`MemoryError::Corrupt`], [`MemoryError::InvalidOption`] for a width of 0 or above 65,536,
    /// [`MemoryError::Write`]
    pub fn re_encode(
        &mut self,
        encoders: Vec<EncoderRecord>,
        width: usize,
        encode: impl FnMut(Batch) -> Result<Batch, MemoryError>,
    ) -> Result<(), MemoryError> {
        let mut change = self.begin()?;
        change.rewrite(encoders, width, encode)?;
        self.commit_change(change)
    }

    /// Writes an edit with new rows as the next generation: a pack if it fits, or else a folder.
    /// `manifest` has the next id and the sources after the edit.
    fn commit_edit(
        &mut self,
        edit: &Edit,
        manifest: &Manifest,
        (new, longest_key): (&EncodedRows, f32),
    ) -> Result<(), MemoryError> {
        let write = |manifest: &mut Manifest, mut target: Target<'_>| {
            edit.write_remaining(manifest, &mut target)?;
            edit.write_new(manifest, &mut target, new, longest_key)
        };
        let (fits_pack, base) = (edit.fits_pack(new)?, Arc::clone(&self.generation));
        self.publish(manifest, |memory, manifest| {
            if fits_pack {
                commit_pack(memory, manifest, |pack, manifest| write(manifest, Target::Pack(pack)))
            } else {
                commit(memory, manifest, |name, partial, manifest| {
                    write(manifest, Target::Folder(partial))?;
                    build_graphs(&base, (name, partial), manifest)
                })
            }
        })
    }

    /// Gives a memory with values an identity in its manifest, unless it has one: `identity`, or a
    /// random one. A build gives none, because equal builds have equal files. A copy of the
    /// memory's folder has the same identity.
    ///
    /// # Errors
    /// [`MemoryError::Write`]
    pub fn identify(&mut self, identity: Option<&str>) -> Result<(), MemoryError> {
        self.catch_up()?;
        let mut manifest = self.generation.manifest().clone();
        if manifest.identity.is_some() || manifest.values.is_none() {
            return Ok(());
        }
        manifest.identity = Some(identity.map_or_else(random_identity, str::to_owned));
        self.publish(&manifest, |memory, manifest| commit_pack(memory, manifest, |_, _| Ok(())))
    }

    /// Copies the values of the memory to `address`, and makes a generation that reads them there.
    /// Only segments with files of their own are moved; small segments, which are in packs, keep
    /// their values. The files are removed as soon as no held generation reads them. If these
    /// values are at the address already, only checks that none of their objects is missing or
    /// truncated; the writer must have been opened with the storage.
    ///
    /// # Errors
    /// [`MemoryError::Remote`], [`MemoryError::ForeignValues`], [`MemoryError::DamagedObject`];
    /// [`MemoryError::InvalidOption`] for a memory without values; its entries are then unchanged.
    /// [`MemoryError::Write`]
    pub fn move_values(
        &mut self,
        storage: &dyn ValueStorage,
        address: &str,
    ) -> Result<ValuesLocation, MemoryError> {
        self.catch_up()?;
        if let Some(at) = self.moved_to(address) {
            let damaged = self.generation.verify_external_values(false)?;
            return damaged.into_iter().next().map_or(Ok(at), Err);
        }
        self.identify(None)?;
        let at = storage.store(address, &self.generation)?;
        let mut manifest = self.generation.manifest().clone();
        for record in manifest.segments.iter_mut().filter(|record| record.pack.is_none()) {
            record.values_at = Some(at.clone());
        }
        if manifest.segments != self.generation.manifest().segments {
            self.publish(&manifest, |memory, manifest| {
                commit_pack(memory, manifest, |_, _| Ok(()))
            })?;
            // The files can be removed: a reader that has read the old pointer, but does not hold
            // its generation yet, opens the new generation.
            let manifest = self.generation.manifest();
            sweep(&self.folder, Some(manifest))
                .map_err(|error| change_made(&self.folder, manifest.generation, error))?;
        }
        Ok(at)
    }

    /// The location at `address` that has the values of all segments with files of their own.
    /// `None` if a segment's values are elsewhere, or if there is no such segment.
    fn moved_to(&self, address: &str) -> Option<ValuesLocation> {
        let segments = self.generation.manifest().segments.iter();
        let mut locations = segments
            .filter(|record| record.pack.is_none())
            .map(|record| record.values_at.as_ref().filter(|at| at.address == address));
        let first = locations.next()??;
        locations.try_fold(first, |newest, at| at.map(|at| at.max(newest))).cloned()
    }

    /// Moves values to the target of the storage with which the memory was opened, if it has one.
    pub(crate) fn move_to_target(&mut self) -> Result<(), MemoryError> {
        let storage = self.generation.external().storage.clone();
        let Some(storage) = storage else { return Ok(()) };
        let Some(target) = storage.target() else { return Ok(()) };
        let manifest = self.generation.manifest();
        let has_files = manifest.segments.iter().any(|record| record.pack.is_none());
        if manifest.values.is_none() || !has_files || self.moved_to(target).is_some() {
            return Ok(());
        }
        let number = self.generation.manifest().generation;
        let moved = self.move_values(storage.as_ref(), target);
        moved.map(drop).map_err(|error| change_made(&self.folder, number, error))
    }

    /// Writes an edit without new rows as the next generation.
    fn commit_without_rows(&mut self, edit: &Edit) -> Result<(), MemoryError> {
        let manifest = self.generation.manifest().clone();
        self.commit_edit(edit, &manifest, (&EncodedRows::new(&manifest), 0.0))
    }

    /// Writes the next generation as a folder.
    fn commit(
        &mut self,
        write: impl FnOnce(&str, &Path, &mut Manifest) -> Result<(), MemoryError>,
    ) -> Result<(), MemoryError> {
        let manifest = self.generation.manifest().clone();
        self.publish(&manifest, |folder, manifest| commit(folder, manifest, write))
    }

    /// Makes the next generation current with `commit`, and removes generations that are no longer
    /// needed.
    fn publish(
        &mut self,
        manifest: &Manifest,
        commit: impl FnOnce(&Path, Manifest) -> Result<u64, MemoryError>,
    ) -> Result<(), MemoryError> {
        let previous = Arc::clone(&self.generation);
        let generation = previous.manifest().generation + 1;
        self.is_behind = true;
        let number = commit(&self.folder, Manifest { generation, ..manifest.clone() })?;
        let mut open_new = || {
            self.generation = Arc::new(Generation::open(&self.folder, Some(&previous))?);
            // Keep the previous generation's files, because a reader may have just read the old
            // pointer.
            let new_manifest = self.generation.manifest();
            sweep_except(&self.folder, Some(new_manifest), Some(previous.manifest()))
        };
        open_new().map_err(|error| change_made(&self.folder, number, error))?;
        self.is_behind = false;
        Ok(())
    }

    /// After an error, loads the state from disk, because the failed change may have been made.
    fn catch_up(&mut self) -> Result<(), MemoryError> {
        if self.is_behind {
            self.generation = Arc::new(Generation::open(&self.folder, Some(&self.generation))?);
            sweep(&self.folder, Some(self.generation.manifest()))?;
            self.is_behind = false;
        }
        Ok(())
    }
}

/// A new identity of a memory.
pub(crate) fn random_identity() -> String {
    // Each state has other random keys.
    let [first, second] = [0, 1].map(|part| RandomState::new().hash_one(part));
    format!("{first:016x}{second:016x}")
}

/// Returns an error if keys cannot have this width.
pub(crate) fn check_width(width: usize) -> Result<(), MemoryError> {
    if (1..=MAX_WIDTH).contains(&width) {
        return Ok(());
    }
    Err(MemoryError::invalid("the width of a key", width, "from 1 to 65,536"))
}

/// Returns an error if values cannot have this format.
fn check_values(format: Option<ValueFormat>) -> Result<(), MemoryError> {
    match format {
        Some(ValueFormat { tokens: 0, .. } | ValueFormat { width: 0, .. }) => {
            Err(MemoryError::invalid("the tokens or the width of a value", "0", "at least 1"))
        }
        _ => Ok(()),
    }
}
