//! A change of a memory that is being prepared: deleted entries and new entries, which become one
//! generation. Each id occurs at most once in a change, except that an id may be deleted and added.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::commit::PartialGeneration;
use crate::encoded::{BatchEncoder, EncodedRows};
use crate::error::MemoryError;
use crate::external_values::ValueStorage;
use crate::format::manifest::{EncoderRecord, Manifest, SegmentRecord};
use crate::generation::{Generation, MAX_ROWS, Row};
use crate::keep_graphs::build_graphs;
use crate::segment::Batch;
use crate::segment_writer::{MAX_PACK_BYTES, SegmentWriter, fits_pack};
use crate::store::Snapshot;
use crate::sweep::remove_values;
use crate::writer::{check_width, random_identity};

/// The maximum number of rows that are copied at once.
const MAX_COPIED_ROWS: usize = 1024;
/// The maximum number of key and value components that are copied at once.
const MAX_COPIED_NUMBERS: usize = 1 << 20;

/// Reasons for which a change is refused.
const NOT_ALONE: &str =
    "a transaction that encodes all entries again has other parts; commit them separately";
const TOO_MANY_ROWS: &str = "a transaction has more new entries than fit into main memory; add \
                             them in several transactions";

/// A change of a generation.
#[derive(Debug)]
pub(crate) struct Change {
    /// The folder of the memory.
    memory: PathBuf,
    pub(crate) base: Arc<Generation>,
    /// The manifest of the base, with the sources, the next id and the encoders after the change.
    pub(crate) manifest: Manifest,
    /// The deleted or replaced rows of the base, by id.
    pub(crate) removed: HashMap<i64, Row>,
    /// The ids of the new entries.
    new_ids: HashSet<i64>,
    /// The new rows, except those of `large`.
    pub(crate) rows: EncodedRows,
    /// The largest norm of a key of `rows`.
    pub(crate) longest_key: f32,
    pub(crate) large: Option<Large>,
    has_failed: bool,
}

/// New rows that were too many for main memory, and are on disk.
#[derive(Debug)]
pub(crate) struct Large {
    pub(crate) generation: PartialGeneration,
    /// `None` without rows.
    pub(crate) segment: Option<SegmentRecord>,
    /// Whether the rows replace all rows of the base.
    pub(crate) replaces_all: bool,
}

impl Change {
    pub(crate) fn new(memory: &Path, base: &Arc<Generation>) -> Self {
        Self {
            memory: memory.to_owned(),
            base: Arc::clone(base),
            manifest: base.manifest().clone(),
            removed: HashMap::new(),
            new_ids: HashSet::new(),
            rows: EncodedRows::new(base.manifest()),
            longest_key: 0.0,
            large: None,
            has_failed: false,
        }
    }

    /// Adds entries with new ids, from batches with `rows` rows in all.
    pub(crate) fn add(
        &mut self,
        rows: usize,
        batches: impl Iterator<Item = Result<Batch, MemoryError>>,
    ) -> Result<(), MemoryError> {
        self.attempt(|change| change.put(rows, batches, false))
    }

    /// Replaces the entries with the same ids, from batches with `rows` rows in all.
    pub(crate) fn update(
        &mut self,
        rows: usize,
        batches: impl Iterator<Item = Result<Batch, MemoryError>>,
    ) -> Result<(), MemoryError> {
        self.attempt(|change| change.put(rows, batches, true))
    }

    /// Deletes entries of the base.
    pub(crate) fn delete(&mut self, ids: &[i64]) -> Result<(), MemoryError> {
        self.attempt(|change| {
            change.check_keeps_base()?;
            let (mut missing, mut seen) = (Vec::new(), HashSet::new());
            for id in ids.iter().filter(|id| seen.insert(**id)) {
                match change.base.row_of(*id)?.filter(|_| !change.removed.contains_key(id)) {
                    Some(row) => {
                        change.removed.insert(*id, row);
                    }
                    None => missing.push(*id),
                }
            }
            MemoryError::check_known(&missing, ids.len())
        })
    }

    /// Replaces all entries of the base by the same entries as `encode` returns them. `encode` gets
    /// batches in row order. The new keys are from `encoders` and have `width` components.
    pub(crate) fn rewrite(
        &mut self,
        encoders: Vec<EncoderRecord>,
        width: usize,
        mut encode: impl FnMut(Batch) -> Result<Batch, MemoryError>,
    ) -> Result<(), MemoryError> {
        check_width(width)?;
        self.attempt(|change| {
            if change.rows.len() > 0 || change.large.is_some() || !change.removed.is_empty() {
                return Err(MemoryError::Transaction { reason: NOT_ALONE });
            }
            let base = Arc::clone(&change.base);
            let live: Vec<Row> = base.live_rows().collect();
            let batch_rows = copied_rows(base.manifest());
            let batches = live.chunks(batch_rows).map(|rows| {
                let mut batch = Batch { values: base.values(rows)?, ..Batch::default() };
                for row in rows {
                    batch.entries.push(base.entry(*row)?);
                    batch.keys.extend_from_slice(base.key(*row)?);
                }
                encode(batch)
            });
            // Keep the list of sources, because gates depend on its order.
            change.manifest.segments.clear();
            change.manifest.encoders = encoders;
            change.manifest.width = width;
            let number = base.manifest().generation + 1;
            let generation = PartialGeneration::create(&change.memory, number)?;
            let (name, folder) = (generation.name(), generation.folder());
            write_rows(&name, &folder, &mut change.manifest, live.len(), batches)?;
            build_graphs(&base, (&name, &folder), &mut change.manifest)?;
            let segment = change.manifest.segments.pop();
            change.large = Some(Large { generation, segment, replaces_all: true });
            Ok(())
        })
    }

    /// Moves the values of a rewritten memory to `address` before the commit. Does nothing for
    /// other changes.
    pub(crate) fn move_values(
        &mut self,
        storage: &dyn ValueStorage,
        address: &str,
    ) -> Result<(), MemoryError> {
        self.attempt(|change| {
            let Some(Large { generation, segment: Some(record), replaces_all: true }) =
                &mut change.large
            else {
                return Ok(());
            };
            if change.manifest.values.is_none() || record.values_at.is_some() {
                return Ok(());
            }
            change.manifest.identity.get_or_insert_with(random_identity);
            let (number, folder) = (generation.number(), generation.folder());
            let segments = vec![record.clone()];
            let manifest = Manifest { generation: number, segments, ..change.manifest.clone() };
            let unfinished = Generation::unfinished(&change.memory, &folder, manifest)?;
            record.values_at = Some(storage.store(address, &unfinished)?);
            drop(unfinished);
            remove_values(&folder)
        })
    }

    /// Returns the change, or an error if a part of it failed.
    pub(crate) fn checked(self) -> Result<Self, MemoryError> {
        if self.has_failed {
            let reason = "a part of the transaction failed; begin a new transaction";
            return Err(MemoryError::Transaction { reason });
        }
        Ok(self)
    }

    /// Makes a part of the change, and remembers whether it failed.
    fn attempt(
        &mut self,
        part: impl FnOnce(&mut Self) -> Result<(), MemoryError>,
    ) -> Result<(), MemoryError> {
        let has_failed = std::mem::replace(&mut self.has_failed, true);
        part(self)?;
        self.has_failed = has_failed;
        Ok(())
    }

    /// Returns an error if this change re-encoded all entries, because that must be its only part.
    fn check_keeps_base(&self) -> Result<(), MemoryError> {
        match &self.large {
            Some(Large { replaces_all: true, .. }) => {
                Err(MemoryError::Transaction { reason: NOT_ALONE })
            }
            _ => Ok(()),
        }
    }

    /// Adds entries, or replaces entries.
    fn put(
        &mut self,
        rows: usize,
        batches: impl Iterator<Item = Result<Batch, MemoryError>>,
        is_update: bool,
    ) -> Result<(), MemoryError> {
        self.check_keeps_base()?;
        let (base, mut removed) = (Arc::clone(&self.base), std::mem::take(&mut self.removed));
        let mut new_ids = std::mem::take(&mut self.new_ids);
        let checked = batches.map(|batch| {
            let batch = batch?;
            for entry in &batch.entries {
                let id = entry.id;
                let row = base.row_of(id)?.filter(|_| !removed.contains_key(&id));
                let is_known = row.is_some() || new_ids.contains(&id);
                match row {
                    Some(row) if is_update => {
                        removed.insert(id, row);
                    }
                    None if is_update && !is_known => {
                        return Err(MemoryError::UnknownId { id, missing: 1, requested: rows });
                    }
                    _ if is_known => return Err(MemoryError::DuplicateId { id }),
                    _ => {}
                }
                new_ids.insert(id);
            }
            Ok(batch)
        });
        let is_first = self.rows.len() == 0;
        let mut writer = None;
        let is_small = fits_pack(self.rows.len() + rows, &self.manifest);
        if self.large.is_some() || !is_small && !is_first {
            return Err(MemoryError::Transaction { reason: TOO_MANY_ROWS });
        }
        if !is_small {
            writer = Some(self.begin_large(rows)?);
        }
        check_rows(&self.manifest, self.rows.len() + rows)?;
        let mut manifest = self.manifest.clone();
        let longest_key = encode(&mut manifest, rows, checked, |encoded| {
            let line_bytes = self.rows.lines.len() + encoded.lines.len();
            if writer.is_none() && is_first && line_bytes > MAX_PACK_BYTES {
                let (generation, mut segment) = self.begin_large(rows)?;
                segment
                    .push(&std::mem::replace(&mut self.rows, EncodedRows::new(&self.manifest)))?;
                writer = Some((generation, segment));
            }
            match &mut writer {
                Some((_, segment)) => segment.push(&encoded),
                None => {
                    encoded.rows().for_each(|row| self.rows.push(&row));
                    Ok(())
                }
            }
        })?;
        self.manifest = manifest;
        match writer {
            None => self.longest_key = self.longest_key.max(longest_key),
            Some((generation, segment)) => {
                let segment = Some(segment.finish(&generation.name(), longest_key)?);
                self.large = Some(Large { generation, segment, replaces_all: false });
            }
        }
        (self.removed, self.new_ids) = (removed, new_ids);
        Ok(())
    }

    /// Creates the folder of the new generation, and the files of a segment of `rows` rows.
    fn begin_large(&self, rows: usize) -> Result<(PartialGeneration, SegmentWriter), MemoryError> {
        let number = self.base.manifest().generation + 1;
        let generation = PartialGeneration::create(&self.memory, number)?;
        let segment = SegmentWriter::create(&generation.folder(), rows, &self.manifest)?;
        Ok((generation, segment))
    }
}

/// The number of rows that are copied at once.
pub(crate) fn copied_rows(manifest: &Manifest) -> usize {
    (MAX_COPIED_NUMBERS / (manifest.width + manifest.value_len())).clamp(1, MAX_COPIED_ROWS)
}

/// Writes rows to files, as a segment of the generation `name`, and adds the segment to the
/// manifest.
pub(crate) fn write_rows(
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
    let longest_key = encode(manifest, rows, batches, |encoded| writer.push(&encoded))?;
    manifest.segments.push(writer.finish(name, longest_key)?);
    Ok(())
}

/// Returns an error if a memory would have too many rows.
fn check_rows(manifest: &Manifest, rows: usize) -> Result<(), MemoryError> {
    let existing_rows: usize = manifest.segments.iter().map(|segment| segment.rows).sum();
    if rows <= MAX_ROWS.saturating_sub(existing_rows) {
        return Ok(());
    }
    Err(MemoryError::invalid(
        "the number of rows",
        existing_rows + rows,
        "less than 2^32; compact the memory, or build several memories",
    ))
}

/// Checks and encodes batches with `rows` rows in all, and calls `write` with each. Adds their
/// sources to the manifest, and sets its next id. Returns the largest norm of a key.
pub(crate) fn encode(
    manifest: &mut Manifest,
    rows: usize,
    batches: impl Iterator<Item = Result<Batch, MemoryError>>,
    mut write: impl FnMut(EncodedRows) -> Result<(), MemoryError>,
) -> Result<f32, MemoryError> {
    let mut encoder = BatchEncoder::default();
    let mut sources = std::mem::take(&mut manifest.sources);
    let mut seen = HashSet::new();
    for batch in batches {
        let batch = batch?;
        for entry in &batch.entries {
            if entry.id < 0 {
                return Err(MemoryError::invalid("an id", entry.id, "0 or more"));
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
    Ok(encoder.longest_key)
}
