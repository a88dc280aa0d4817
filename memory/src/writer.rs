//! Builds and changes a memory.

use std::collections::HashSet;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::commit::{NewFolder, change_made, commit, lock};
use crate::error::MemoryError;
use crate::format::file::FileWriter;
use crate::format::manifest::{
    DeletedRecord, EncoderRecord, Manifest, SegmentRecord, ValueFormat, folder_name,
};
use crate::generation::{Bits, Generation, MAX_ROWS, Row};
use crate::search::graph::GraphSettings;
use crate::segment::{Batch, write_segment};
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
        let [tokens, width] = format.values.map_or([1, 1], |values| [values.tokens, values.width]);
        check_widths([format.width, tokens, width])?;
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
        self.catch_up()?;
        let generation = Arc::clone(&self.generation);
        let checked = batches.map(|batch| {
            let batch = batch?;
            for entry in &batch.entries {
                if generation.row_of(entry.id)?.is_some() {
                    return Err(MemoryError::DuplicateId { id: entry.id });
                }
            }
            Ok(batch)
        });
        self.commit(|name, partial, manifest| write_rows(name, partial, manifest, rows, checked))
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
        self.catch_up()?;
        let generation = Arc::clone(&self.generation);
        self.commit(|name, partial, manifest| {
            let mut replaced = Vec::with_capacity(rows);
            let checked =
                batches.map(|batch| {
                    let batch = batch?;
                    for entry in &batch.entries {
                        replaced.push(generation.row_of(entry.id)?.ok_or(
                            MemoryError::UnknownId { id: entry.id, missing: 1, requested: rows },
                        )?);
                    }
                    Ok(batch)
                });
            write_rows(name, partial, manifest, rows, checked)?;
            delete_rows(partial, manifest, &generation, &replaced)
        })
    }

    /// Deletes entries. Searches no longer return them; their rows stay on disk until
    /// [`Writer::compact`].
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
        let generation = Arc::clone(&self.generation);
        self.commit(|_, partial, manifest| delete_rows(partial, manifest, &generation, &rows))
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
        let manifest = self.generation.manifest();
        let (encoders, width) = (manifest.encoders.clone(), manifest.width);
        self.rewrite(encoders, width, |batch| {
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
        self.catch_up()?;
        self.rewrite(Vec::new(), self.generation.manifest().width, encode)
    }

    /// Rewrites all entries with new keys of the models `encoders`, which have `width` components.
    /// `encode` gets the batches in row order, and returns each with new keys. It may return new
    /// values of the same format, too.
    ///
    /// # Errors
    /// The errors of `encode`; [`MemoryError::Count`], [`MemoryError::BadVector`],
    /// [`MemoryError::Corrupt`], [`MemoryError::InvalidOption`] for a width of 0,
    /// [`MemoryError::Write`]
    pub fn re_encode(
        &mut self,
        encoders: Vec<EncoderRecord>,
        width: usize,
        encode: impl FnMut(Batch) -> Result<Batch, MemoryError>,
    ) -> Result<(), MemoryError> {
        check_widths([width])?;
        self.rewrite(encoders, width, encode)
    }

    /// Writes all entries that are not deleted, as `encode` returns them, as the only segment.
    /// `width` is the width of the new keys.
    fn rewrite(
        &mut self,
        encoders: Vec<EncoderRecord>,
        width: usize,
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
            manifest.width = width;
            write_rows(name, partial, manifest, live.len(), batches)
        })
    }

    /// Writes the next generation, makes it current and removes generations that are no longer
    /// needed.
    fn commit(
        &mut self,
        write: impl FnOnce(&str, &Path, &mut Manifest) -> Result<(), MemoryError>,
    ) -> Result<(), MemoryError> {
        let previous = Arc::clone(&self.generation);
        let mut manifest = previous.manifest().clone();
        manifest.generation += 1;
        self.is_behind = true;
        let number = commit(&self.folder, manifest, write)?;
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

/// Returns an error if a width is 0.
fn check_widths<const N: usize>(widths: [usize; N]) -> Result<(), MemoryError> {
    if widths.contains(&0) {
        return Err(MemoryError::InvalidOption {
            option: "a width",
            found: "0".to_owned(),
            expected: "at least 1",
        });
    }
    Ok(())
}

/// Writes rows as a segment of the generation `name`, and adds the segment to the manifest.
fn write_rows(
    name: &str,
    folder: &Path,
    manifest: &mut Manifest,
    rows: usize,
    batches: impl Iterator<Item = Result<Batch, MemoryError>>,
) -> Result<(), MemoryError> {
    let existing_rows: usize = manifest.segments.iter().map(|segment| segment.rows).sum();
    if rows > MAX_ROWS.saturating_sub(existing_rows) {
        return Err(MemoryError::InvalidOption {
            option: "the number of rows",
            found: (existing_rows + rows).to_string(),
            expected: "less than 2^32; compact the memory, or build several memories",
        });
    }
    if rows == 0 {
        return Ok(());
    }
    let mut sources = std::mem::take(&mut manifest.sources);
    let mut seen = HashSet::new();
    let mut next_id = manifest.next_id;
    let checked = batches.map(|batch| {
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
            next_id = next_id.max(entry.id.saturating_add(1));
        }
        Ok(batch)
    });
    let source_index = |source: &str| {
        let index = sources.iter().position(|name| name == source);
        index.unwrap_or_else(|| {
            sources.push(source.to_owned());
            sources.len() - 1
        }) as u32
    };
    let segment = write_segment(folder, name, manifest, rows, checked, source_index)?;
    manifest.sources = sources;
    manifest.next_id = next_id;
    manifest.segments.push(segment);
    Ok(())
}

/// Marks rows of a generation as deleted in the manifest of the next generation.
fn delete_rows(
    folder: &Path,
    manifest: &mut Manifest,
    generation: &Generation,
    rows: &[Row],
) -> Result<(), MemoryError> {
    let name = folder_name(manifest.generation);
    for (number, (part, record)) in
        generation.parts().iter().zip(&mut manifest.segments).enumerate()
    {
        let range = part.start..part.start + part.segment.rows;
        let part_rows: Vec<usize> =
            rows.iter().map(|row| row.0 as usize).filter(|row| range.contains(row)).collect();
        if part_rows.is_empty() {
            continue;
        }
        let mut bits = part.deleted.clone().unwrap_or_else(|| Bits::zeros(part.segment.rows));
        part_rows.iter().for_each(|row| bits.set(row - part.start));
        let mut file = FileWriter::create(folder.join(format!("deleted-{number}.bits")))?;
        file.write(&bits.0)?;
        *record = SegmentRecord {
            deleted: Some(DeletedRecord {
                folder: name.clone(),
                rows: bits.count(),
                bits: file.finish()?,
            }),
            ..record.clone()
        };
    }
    Ok(())
}
