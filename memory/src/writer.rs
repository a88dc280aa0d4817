//! Builds and changes a memory.
//!
//! A build, a compaction, a refresh and a large addition write a folder, batch by batch. All other
//! changes write a pack, and merge small segments (see `merge`).

use std::collections::HashSet;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::commit::{NewFolder, change_made, commit, commit_pack, lock};
use crate::edit::{Edit, Target};
use crate::encoded::{BatchEncoder, EncodedRows, KeyBounds};
use crate::error::MemoryError;
use crate::format::manifest::{EncoderRecord, Manifest, ValueFormat};
use crate::generation::{Generation, MAX_ROWS, Row};
use crate::merge::MAX_SEGMENTS;
use crate::search::graph::GraphSettings;
use crate::segment::Batch;
use crate::segment_writer::{SegmentWriter, fits_pack};
use crate::sweep::{can_build_in, sweep, sweep_except};

/// The maximum number of rows that are copied at once.
const MAX_COPIED_ROWS: usize = 1024;
/// The maximum number of key and value components that are copied at once.
const MAX_COPIED_NUMBERS: usize = 1 << 20;

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
        let sizes = format.values.map_or([1, 1], |values| [values.tokens, values.width]);
        if format.width == 0 || sizes.contains(&0) {
            return Err(MemoryError::InvalidOption {
                option: "a width",
                found: "0".to_owned(),
                expected: "at least 1",
            });
        }
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
            // Set by `commit`.
            format_version: 0,
            generation: 1,
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
        let folder = folder.into();
        Manifest::current(&folder)?;
        let lock = lock(&folder)?;
        let generation = Arc::new(Generation::open(&folder, None)?);
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
        self.put(rows, batches, Ids::New)
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
        self.put(rows, batches, Ids::Existing)
    }

    /// Adds or replaces entries.
    fn put(
        &mut self,
        rows: usize,
        batches: impl Iterator<Item = Result<Batch, MemoryError>>,
        ids: Ids,
    ) -> Result<(), MemoryError> {
        self.catch_up()?;
        let is_small = fits_pack(rows, self.generation.manifest());
        if !is_small && self.generation.manifest().segments.len() >= MAX_SEGMENTS {
            // The files of a large addition and of a merge would have the same names. So the merge
            // gets a generation of its own.
            let edit = Edit::new(&self.generation, &[]).merge(0, MAX_SEGMENTS - 1);
            self.commit_without_rows(&edit)?;
        }
        let generation = Arc::clone(&self.generation);
        let mut replaced = Vec::new();
        if is_small {
            let mut manifest = generation.manifest().clone();
            check_rows(&manifest, rows)?;
            let mut new = EncodedRows::new(&manifest);
            let mut bounds = KeyBounds::default();
            if rows > 0 {
                let checked = check_ids(batches, ids, (&generation, rows), &mut replaced);
                bounds = encode(&mut manifest, rows, checked, |encoded| {
                    (0..encoded.len()).for_each(|row| new.push(&encoded.row(row)));
                    Ok(())
                })?;
            }
            let edit = Edit::new(&generation, &replaced).merge(rows, MAX_SEGMENTS);
            return self.commit_edit(&edit, &manifest, (&new, bounds));
        }
        self.commit(|name, partial, manifest| {
            let checked = check_ids(batches, ids, (&generation, rows), &mut replaced);
            write_rows(name, partial, manifest, rows, checked)?;
            let added = manifest.segments.pop();
            let edit = Edit::new(&generation, &replaced);
            edit.write_remaining(manifest, &mut Target::Folder(partial))?;
            manifest.segments.extend(added);
            Ok(())
        })
    }

    /// Deletes entries. Searches no longer return them; their rows stay on disk until their segment
    /// is merged or compacted.
    ///
    /// # Errors
    /// [`MemoryError::UnknownId`], then nothing is deleted; [`MemoryError::Write`]
    pub fn delete(&mut self, ids: &[i64]) -> Result<(), MemoryError> {
        self.catch_up()?;
        let (mut rows, mut missing) = (Vec::with_capacity(ids.len()), Vec::new());
        for id in ids {
            match self.generation.row_of(*id)? {
                Some(row) => rows.push(row),
                None => missing.push(*id),
            }
        }
        if let Some(id) = missing.first() {
            let (missing, requested) = (missing.len(), ids.len());
            return Err(MemoryError::UnknownId { id: *id, missing, requested });
        }
        let edit = Edit::new(&self.generation, &rows).merge(0, MAX_SEGMENTS);
        self.commit_without_rows(&edit)
    }

    /// Builds a graph over the keys of each segment without a graph, for
    /// [`Hnsw`](crate::search::hnsw::Hnsw). `progress` is called once per key.
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
                segments.filter(|(_, (_, record))| record.graph.is_none())
            {
                let graph = settings.build(&part.segment, generation.manifest(), &progress)?;
                record.graph = Some(graph.write(name, partial, number, settings)?);
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
        let encoders = self.generation.manifest().encoders.clone();
        self.rewrite(encoders, |batch| {
            progress(batch.entries.len());
            Ok(batch)
        })
    }

    /// Rewrites all entries with new keys and values. `encode` gets the batches in row order, and
    /// returns each with new keys and values. The record of the previous encoders is removed.
    ///
    /// # Errors
    /// The errors of `encode`; [`MemoryError::Corrupt`], [`MemoryError::Write`]
    pub fn refresh(
        &mut self,
        encode: impl FnMut(Batch) -> Result<Batch, MemoryError>,
    ) -> Result<(), MemoryError> {
        self.rewrite(Vec::new(), encode)
    }

    /// Writes all entries that are not deleted, as `encode` returns them, as the only segment.
    fn rewrite(
        &mut self,
        encoders: Vec<EncoderRecord>,
        mut encode: impl FnMut(Batch) -> Result<Batch, MemoryError>,
    ) -> Result<(), MemoryError> {
        self.catch_up()?;
        let generation = Arc::clone(&self.generation);
        let live: Vec<Row> = generation.live_rows().collect();
        let row_size = generation.manifest().width + generation.value_len();
        let batch_rows = (MAX_COPIED_NUMBERS / row_size).clamp(1, MAX_COPIED_ROWS);
        let batches = live.chunks(batch_rows).map(|rows| {
            let mut batch = Batch { values: generation.values(rows)?, ..Batch::default() };
            for row in rows {
                batch.entries.push(generation.entry(*row)?);
                batch.keys.extend_from_slice(generation.key(*row)?);
            }
            encode(batch)
        });
        self.commit(|name, partial, manifest| {
            // Keep the list of sources, because gates depend on its order.
            manifest.segments.clear();
            manifest.encoders = encoders;
            write_rows(name, partial, manifest, live.len(), batches)
        })
    }

    /// Writes an edit with new rows as the next generation: a pack if it fits, or else a folder.
    /// `manifest` has the next id and the sources after the edit.
    fn commit_edit(
        &mut self,
        edit: &Edit,
        manifest: &Manifest,
        (new, bounds): (&EncodedRows, KeyBounds),
    ) -> Result<(), MemoryError> {
        let write = |manifest: &mut Manifest, mut target: Target<'_>| {
            edit.write_remaining(manifest, &mut target)?;
            edit.write_new(manifest, &mut target, new, bounds)
        };
        let fits_pack = edit.fits_pack(new.len());
        self.publish(manifest, |memory, manifest| {
            if fits_pack {
                commit_pack(memory, manifest, |pack, manifest| write(manifest, Target::Pack(pack)))
            } else {
                commit(memory, manifest, |_, partial, manifest| {
                    write(manifest, Target::Folder(partial))
                })
            }
        })
    }

    /// Writes an edit without new rows as the next generation.
    fn commit_without_rows(&mut self, edit: &Edit) -> Result<(), MemoryError> {
        let manifest = self.generation.manifest().clone();
        self.commit_edit(edit, &manifest, (&EncodedRows::new(&manifest), KeyBounds::default()))
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
            let previous_folders = previous.manifest().folders();
            sweep_except(&self.folder, Some(new_manifest), &previous_folders)
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

/// Whether the ids of entries must be new or exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ids {
    New,
    Existing,
}

/// Returns the batches, or an error for a batch with ids that are not as `ids` requires. Appends the
/// rows of existing ids to `existing`. The batches have `rows` rows in all.
fn check_ids(
    batches: impl Iterator<Item = Result<Batch, MemoryError>>,
    ids: Ids,
    (generation, rows): (&Generation, usize),
    existing: &mut Vec<Row>,
) -> impl Iterator<Item = Result<Batch, MemoryError>> {
    batches.map(move |batch| {
        let batch = batch?;
        for entry in &batch.entries {
            let id = entry.id;
            match (ids, generation.row_of(id)?) {
                (Ids::New, Some(_)) => return Err(MemoryError::DuplicateId { id }),
                (Ids::Existing, None) => {
                    return Err(MemoryError::UnknownId { id, missing: 1, requested: rows });
                }
                (_, row) => existing.extend(row),
            }
        }
        Ok(batch)
    })
}

/// Writes rows to files, as a segment of the generation `name`, and adds the segment to the
/// manifest.
fn write_rows(
    name: &str,
    folder: &Path,
    manifest: &mut Manifest,
    rows: usize,
    batches: impl Iterator<Item = Result<Batch, MemoryError>>,
) -> Result<(), MemoryError> {
    check_rows(manifest, rows)?;
    if rows == 0 {
        return Ok(());
    }
    let mut writer = SegmentWriter::create(folder, rows, manifest)?;
    let bounds = encode(manifest, rows, batches, |encoded| writer.push(&encoded))?;
    manifest.segments.push(writer.finish(name, bounds)?);
    Ok(())
}

/// Returns an error if a memory would have too many rows.
fn check_rows(manifest: &Manifest, rows: usize) -> Result<(), MemoryError> {
    let existing_rows: usize = manifest.segments.iter().map(|segment| segment.rows).sum();
    if rows <= MAX_ROWS.saturating_sub(existing_rows) {
        return Ok(());
    }
    Err(MemoryError::InvalidOption {
        option: "the number of rows",
        found: (existing_rows + rows).to_string(),
        expected: "less than 2^32; compact the memory, or build several memories",
    })
}

/// Checks and encodes batches with `rows` rows in all, and calls `write` with each. Adds their
/// sources to the manifest, and sets its next id. Returns the bounds on the keys.
fn encode(
    manifest: &mut Manifest,
    rows: usize,
    batches: impl Iterator<Item = Result<Batch, MemoryError>>,
    mut write: impl FnMut(EncodedRows) -> Result<(), MemoryError>,
) -> Result<KeyBounds, MemoryError> {
    let mut encoder = BatchEncoder::default();
    let mut sources = std::mem::take(&mut manifest.sources);
    let mut seen = HashSet::new();
    for batch in batches {
        let batch = batch?;
        for entry in &batch.entries {
            if entry.id < 0 {
                return Err(MemoryError::InvalidOption {
                    option: "an id",
                    found: entry.id.to_string(),
                    expected: "0 or more",
                });
            }
            if !seen.insert(entry.id) {
                return Err(MemoryError::DuplicateId { id: entry.id });
            }
            manifest.next_id = manifest.next_id.max(entry.id.saturating_add(1));
        }
        let source_index = |source: &str| {
            let index = sources.iter().position(|name| name == source);
            index.unwrap_or_else(|| {
                sources.push(source.to_owned());
                sources.len() - 1
            }) as u32
        };
        write(encoder.encode(batch, manifest, source_index)?)?;
    }
    encoder.finish(rows)?;
    manifest.sources = sources;
    Ok(encoder.bounds)
}
