//! Opening a memory, and changing it.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use fs4::fs_std::FileExt;

use crate::error::MemoryError;
use crate::format::file::{CheckedFile, FileWriter};
use crate::format::manifest::{
    DeletedRecord, EncoderRecord, Manifest, SegmentRecord, ValueFormat, folder_name,
    generation_folders, sync_folder,
};
use crate::generation::{Bits, Generation, MOST_ROWS, Row};
use crate::search::graph::GraphSettings;
use crate::segment::{Batch, write_segment};

/// The file that a writer locks.
const LOCK: &str = "LOCK";
/// What an unfinished generation's folder ends in.
const PARTIAL: &str = ".partial";
/// How often a reader looks for the current generation while writers replace it under its eyes.
const ATTEMPTS: usize = 20;
/// Rows that are copied at a time, or fewer where they are large.
const COPIED_ROWS: usize = 1024;
/// Numbers of keys and values that are copied at a time.
const COPIED_NUMBERS: usize = 1 << 20;

/// A memory for readers.
#[derive(Debug)]
pub struct Memory {
    folder: PathBuf,
    current: RwLock<Arc<Generation>>,
}

impl Memory {
    /// Opens a memory.
    ///
    /// # Errors   [`MemoryError::NoMemory`], [`MemoryError::Vanished`], [`MemoryError::Newer`],
    /// [`MemoryError::Corrupt`], [`MemoryError::Read`]
    pub fn open(folder: impl Into<PathBuf>) -> Result<Self, MemoryError> {
        let folder = folder.into();
        let current = RwLock::new(Arc::new(open_current(&folder, None)?));
        Ok(Self { folder, current })
    }

    /// The faults of the current generation, one for each broken file, also where it cannot be opened for them.
    ///
    /// # Errors   [`MemoryError::NoMemory`], [`MemoryError::Newer`]; [`MemoryError::Corrupt`] where the faults are in no
    /// single file
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
        let faults: Vec<MemoryError> = checked.filter_map(Result::err).collect();
        if faults.is_empty() { Err(error) } else { Ok(faults) }
    }

    /// Where it lies.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The generation that was current when the memory was opened or [reloaded](Memory::reload) last.
    pub fn generation(&self) -> Arc<Generation> {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Takes up the generation that is current on the disk; whether it is another one. Who holds the one before keeps
    /// it.
    ///
    /// # Errors   as [`Memory::open`]
    pub fn reload(&self) -> Result<bool, MemoryError> {
        let before = self.generation();
        let now = Arc::new(open_current(&self.folder, Some(&before))?);
        let other = now.manifest() != before.manifest();
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = now;
        Ok(other)
    }
}

/// Opens the current generation; tells one that has vanished from one that is broken.
fn open_current(folder: &Path, before: Option<&Generation>) -> Result<Generation, MemoryError> {
    open_newest(folder, before).map_err(|error| {
        let before = before.map(|before| folder_name(before.manifest().generation));
        match Manifest::current_folder(folder).or(before) {
            Some(generation) if matches!(folder.join(&generation).try_exists(), Ok(false)) => {
                MemoryError::Vanished { folder: folder.to_owned(), generation }
            }
            _ => error,
        }
    })
}

/// Opens the current generation, again where a writer has removed it meanwhile.
fn open_newest(folder: &Path, before: Option<&Generation>) -> Result<Generation, MemoryError> {
    let mut last = None;
    for _ in 0..ATTEMPTS {
        match Generation::open(folder, before) {
            Err(error) => {
                let now = Manifest::current(folder)?.generation;
                if last == Some(now) {
                    return Err(error);
                }
                last = Some(now);
            }
            opened => return opened,
        }
    }
    Generation::open(folder, before)
}

/// What a new memory is like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryFormat {
    /// Numbers in a key.
    pub width: usize,
    /// Whether keys are brought to unit length, so that scores are cosines.
    pub normalised: bool,
    /// The values; `None` for a memory of keys alone.
    pub values: Option<ValueFormat>,
}

/// The one writer of a memory.
#[derive(Debug)]
pub struct Writer {
    folder: PathBuf,
    /// Holds the lock.
    _lock: File,
    generation: Arc<Generation>,
}

impl Writer {
    /// Makes a memory of `rows` rows, which come in batches.
    ///
    /// # Errors   [`MemoryError::AlreadyThere`]; those of the batches; [`MemoryError::Count`],
    /// [`MemoryError::BadVector`], [`MemoryError::DoubledId`], [`MemoryError::BadOption`], [`MemoryError::Write`]
    pub fn create(
        folder: impl Into<PathBuf>,
        format: MemoryFormat,
        rows: usize,
        batches: impl Iterator<Item = Result<Batch, MemoryError>>,
    ) -> Result<Self, MemoryError> {
        Self::create_encoded(folder, format, Vec::new(), rows, batches)
    }

    /// [`Writer::create`], of keys that these models made.
    ///
    /// # Errors   as [`Writer::create`]
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
            return Err(MemoryError::BadOption {
                option: "a width",
                found: "0".to_owned(),
                expected: "at least 1",
            });
        }
        // A folder that holds nothing, or what a killed `build` left.
        let left_over = |name: &str| name == LOCK || name.ends_with(PARTIAL);
        if let Ok(found) = fs::read_dir(&folder) {
            let mut names =
                found.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
            if names.any(|name| !left_over(&name)) {
                return Err(MemoryError::AlreadyThere { folder });
            }
        }
        let was_there = folder.exists();
        fs::create_dir_all(&folder).map_err(MemoryError::write(&folder))?;
        let lock = lock(&folder)?;
        sweep(&folder, &[])?;
        let manifest = Manifest {
            format_version: Manifest::version_with(&encoders),
            generation: 1,
            width: format.width,
            normalised: format.normalised,
            values: format.values,
            encoders,
            sources: Vec::new(),
            next_id: 0,
            segments: Vec::new(),
        };
        let written = commit(&folder, manifest, |name, partial, manifest| {
            write_rows(name, partial, manifest, rows, batches)
        });
        if let Err(error) = written {
            // Nothing stays but a folder that was there before.
            let _ = fs::remove_file(folder.join(LOCK));
            if !was_there {
                let _ = fs::remove_dir(&folder);
            }
            return Err(error);
        }
        let generation = Arc::new(Generation::open(&folder, None)?);
        Ok(Self { folder, _lock: lock, generation })
    }

    /// Opens a memory to change it.
    ///
    /// # Errors   [`MemoryError::Locked`] while another process does; those of [`Memory::open`]
    pub fn open(folder: impl Into<PathBuf>) -> Result<Self, MemoryError> {
        let folder = folder.into();
        Manifest::current(&folder)?;
        let lock = lock(&folder)?;
        let generation = Arc::new(Generation::open(&folder, None)?);
        let mut writer = Self { folder, _lock: lock, generation };
        writer.sweep_all_but(&[])?;
        Ok(writer)
    }

    /// The generation that was written last.
    pub fn generation(&self) -> &Arc<Generation> {
        &self.generation
    }

    /// Adds entries, whose ids no entry may have.
    ///
    /// # Errors   [`MemoryError::DoubledId`]; as [`Writer::create`]
    pub fn add(
        &mut self,
        rows: usize,
        batches: impl Iterator<Item = Result<Batch, MemoryError>>,
    ) -> Result<(), MemoryError> {
        let generation = Arc::clone(&self.generation);
        let fresh = batches.map(|batch| {
            let batch = batch?;
            for entry in &batch.entries {
                if generation.row_of(entry.id)?.is_some() {
                    return Err(MemoryError::DoubledId { id: entry.id });
                }
            }
            Ok(batch)
        });
        self.commit(|name, partial, manifest| write_rows(name, partial, manifest, rows, fresh))
    }

    /// Replaces entries by others with the same ids.
    ///
    /// # Errors   [`MemoryError::UnknownId`]; as [`Writer::create`]
    pub fn update(
        &mut self,
        rows: usize,
        batches: impl Iterator<Item = Result<Batch, MemoryError>>,
    ) -> Result<(), MemoryError> {
        let generation = Arc::clone(&self.generation);
        self.commit(|name, partial, manifest| {
            let mut replaced = Vec::with_capacity(rows);
            let known =
                batches.map(|batch| {
                    let batch = batch?;
                    for entry in &batch.entries {
                        replaced.push(generation.row_of(entry.id)?.ok_or(
                            MemoryError::UnknownId { id: entry.id, missing: 1, asked: rows },
                        )?);
                    }
                    Ok(batch)
                });
            write_rows(name, partial, manifest, rows, known)?;
            delete_rows(partial, manifest, &generation, &replaced)
        })
    }

    /// Deletes entries. Their rows stay on the disk until [`Writer::compact`], and no search finds them.
    ///
    /// # Errors   [`MemoryError::UnknownId`], and nothing is deleted then; [`MemoryError::Write`]
    pub fn delete(&mut self, ids: &[i64]) -> Result<(), MemoryError> {
        let (mut rows, mut missing) = (Vec::with_capacity(ids.len()), Vec::new());
        for id in ids {
            match self.generation.row_of(*id)? {
                Some(row) => rows.push(row),
                None => missing.push(*id),
            }
        }
        if let Some(id) = missing.first() {
            let (missing, asked) = (missing.len(), ids.len());
            return Err(MemoryError::UnknownId { id: *id, missing, asked });
        }
        let generation = Arc::clone(&self.generation);
        self.commit(|_, partial, manifest| delete_rows(partial, manifest, &generation, &rows))
    }

    /// Makes a graph over the keys of each segment that has none, for [`Hnsw`](crate::search::hnsw::Hnsw). `progress`
    /// is told of each key.
    ///
    /// # Errors   [`MemoryError::BadOption`] for keys that are not of unit length; [`MemoryError::Write`]
    pub fn index(
        &mut self,
        settings: GraphSettings,
        progress: impl Fn(),
    ) -> Result<(), MemoryError> {
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

    /// Writes all entries that are not deleted anew, as one segment. `progress` is told how many more are done.
    ///
    /// # Errors   [`MemoryError::Corrupt`], [`MemoryError::Write`]
    pub fn compact(&mut self, mut progress: impl FnMut(usize)) -> Result<(), MemoryError> {
        let encoders = self.generation.manifest().encoders.clone();
        self.rewrite(encoders, |batch| {
            progress(batch.entries.len());
            Ok(batch)
        })
    }

    /// Writes all entries anew with the keys and values that `encode` makes of them: it gets batches in the order of
    /// the rows, and gives them back with others. The memory no longer names the models that made its keys before.
    ///
    /// # Errors   those of `encode`; [`MemoryError::Corrupt`], [`MemoryError::Write`]
    pub fn refresh(
        &mut self,
        encode: impl FnMut(Batch) -> Result<Batch, MemoryError>,
    ) -> Result<(), MemoryError> {
        self.rewrite(Vec::new(), encode)
    }

    fn rewrite(
        &mut self,
        encoders: Vec<EncoderRecord>,
        mut encode: impl FnMut(Batch) -> Result<Batch, MemoryError>,
    ) -> Result<(), MemoryError> {
        let generation = Arc::clone(&self.generation);
        let live: Vec<Row> = generation.live_rows().collect();
        let size = generation.manifest().width + generation.value_len();
        let rows_at_a_time = (COPIED_NUMBERS / size).clamp(1, COPIED_ROWS);
        let batches = live.chunks(rows_at_a_time).map(|rows| {
            let mut batch = Batch { values: generation.values(rows)?, ..Batch::default() };
            for row in rows {
                batch.entries.push(generation.entry(*row)?);
                batch.keys.extend_from_slice(generation.key(*row)?);
            }
            encode(batch)
        });
        self.commit(|name, partial, manifest| {
            // The list of sources stays: gates are given in its order.
            manifest.segments.clear();
            manifest.format_version = Manifest::version_with(&encoders);
            manifest.encoders = encoders;
            write_rows(name, partial, manifest, live.len(), batches)
        })
    }

    /// Writes the next generation, makes it the current one, and removes those that are no longer needed.
    fn commit(
        &mut self,
        write: impl FnOnce(&str, &Path, &mut Manifest) -> Result<(), MemoryError>,
    ) -> Result<(), MemoryError> {
        let mut manifest = self.generation.manifest().clone();
        manifest.generation += 1;
        commit(&self.folder, manifest, write)?;
        let before = Arc::clone(&self.generation);
        self.generation = Arc::new(Generation::open(&self.folder, Some(&before))?);
        // A reader that has just read the pointer to the generation before still finds its files.
        self.sweep_all_but(&before.manifest().folders())
    }

    fn sweep_all_but(&mut self, kept: &[String]) -> Result<(), MemoryError> {
        let mut needed = self.generation.manifest().folders();
        needed.extend_from_slice(kept);
        sweep(&self.folder, &needed)
    }
}

/// Locks a memory for writing until the file is dropped.
fn lock(folder: &Path) -> Result<File, MemoryError> {
    let path = folder.join(LOCK);
    let file = File::options().create(true).truncate(false).write(true).open(&path);
    let file = file.map_err(MemoryError::write(&path))?;
    match FileExt::try_lock_exclusive(&file) {
        Ok(true) => Ok(file),
        Ok(false) => Err(MemoryError::Locked { folder: folder.to_owned() }),
        Err(source) => Err(MemoryError::Write { file: path, source }),
    }
}

/// Removes all generations but those needed.
fn sweep(memory: &Path, needed: &[String]) -> Result<(), MemoryError> {
    for (name, path) in generation_folders(memory)? {
        if !needed.contains(&name) {
            match fs::remove_dir_all(&path) {
                Err(source) if source.kind() != io::ErrorKind::NotFound => {
                    return Err(MemoryError::Write { file: path, source });
                }
                _ => {}
            }
        }
    }
    Ok(())
}

/// Writes a generation beside its place, renames it there, and points to it. Where anything fails, nothing has changed.
fn commit(
    memory: &Path,
    mut manifest: Manifest,
    write: impl FnOnce(&str, &Path, &mut Manifest) -> Result<(), MemoryError>,
) -> Result<(), MemoryError> {
    let name = folder_name(manifest.generation);
    let partial = memory.join(format!("{name}{PARTIAL}"));
    fs::create_dir(&partial).map_err(MemoryError::write(&partial))?;
    let written = write(&name, &partial, &mut manifest).and_then(|()| {
        let written = manifest.write(&partial)?;
        sync_folder(&partial)?;
        let place = memory.join(&name);
        // What a writer left that could not point to it.
        if place.exists() {
            fs::remove_dir_all(&place).map_err(MemoryError::write(&place))?;
        }
        fs::rename(&partial, &place).map_err(MemoryError::write(&place))?;
        sync_folder(memory)?;
        written.make_current(memory)
    });
    if written.is_err() {
        // What is left is swept by the next writer.
        let _ = fs::remove_dir_all(&partial);
    }
    written
}

/// Writes rows as a segment of the generation `name`, and enters it into the manifest.
fn write_rows(
    name: &str,
    folder: &Path,
    manifest: &mut Manifest,
    rows: usize,
    batches: impl Iterator<Item = Result<Batch, MemoryError>>,
) -> Result<(), MemoryError> {
    let there: usize = manifest.segments.iter().map(|segment| segment.rows).sum();
    if rows > MOST_ROWS.saturating_sub(there) {
        return Err(MemoryError::BadOption {
            option: "the number of rows",
            found: (there + rows).to_string(),
            expected: "less than 2^32; compact the memory, or make several",
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
                return Err(MemoryError::BadOption {
                    option: "an id",
                    found: entry.id.to_string(),
                    expected: "0 or more",
                });
            }
            if !seen.insert(entry.id) {
                return Err(MemoryError::DoubledId { id: entry.id });
            }
            next_id = next_id.max(entry.id.saturating_add(1));
        }
        Ok(batch)
    });
    let place = |source: &str| {
        let known = sources.iter().position(|known| known == source);
        known.unwrap_or_else(|| {
            sources.push(source.to_owned());
            sources.len() - 1
        }) as u32
    };
    let segment = write_segment(folder, name, manifest, rows, checked, place)?;
    manifest.sources = sources;
    manifest.next_id = next_id;
    manifest.segments.push(segment);
    Ok(())
}

/// Enters rows of a generation as deleted into the next one's manifest.
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
        let own: Vec<usize> =
            rows.iter().map(|row| row.0 as usize).filter(|row| range.contains(row)).collect();
        if own.is_empty() {
            continue;
        }
        let mut bits = part.deleted.clone().unwrap_or_else(|| Bits::zeros(part.segment.rows));
        own.iter().for_each(|row| bits.set(row - part.start));
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
