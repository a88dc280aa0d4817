//! A generation: one state of the memory. Readers can hold it as long as they need.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use engram_entry::Entry;
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use crate::cache::{ValueKey, ValueSource};
use crate::error::MemoryError;
use crate::external_values::{ExternalValues, ValueStorage, ValuesLocation};
use crate::format::file::{CheckedFile, FileRecord};
use crate::format::manifest::{
    DeletedRecord, EncoderRecord, GraphRecord, Manifest, SegmentRecord, VALUE_COLUMNS,
};
use crate::retrieval::text;
use crate::search::graph::Graph;
use crate::search::{Filter, Queries, SearchResults, exact, graph_search};
use crate::segment::Segment;
use crate::store::{Description, Method, Snapshot};
use crate::values::StoredValue;

/// One state of a memory. A generation never changes: its holder always sees the same entries, even
/// if a writer changes the memory meanwhile.
#[derive(Debug)]
pub struct Generation {
    folder: PathBuf,
    manifest: Manifest,
    description: Description,
    parts: Vec<Part>,
    external: ExternalValues,
    /// The manifest's file with a shared lock, which prevents the removal of the generation; `None`
    /// before the generation is current.
    _lock: Option<File>,
}

/// A segment with the rows that are deleted in this generation.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) segment: Arc<Segment>,
    /// The deleted rows; `None` if there are none.
    pub(crate) deleted: Option<Bits>,
    /// The segment's first row in the generation.
    pub(crate) start: usize,
    /// The identity of the segment's values, from their checksums: see [`values_id`].
    pub(crate) values_id: u64,
    /// The location of the values if they are external; `None` if they are in the segment's files.
    pub(crate) values_at: Option<ValuesLocation>,
    /// `None` if the segment has no graph.
    graph: Option<OpenedGraph>,
}

/// A graph, or its file and the reason why it could not be opened. The generation opens
/// nevertheless, because exact search needs no graph.
type OpenedGraph = Result<Arc<Graph>, (PathBuf, String)>;

impl Part {
    fn is_deleted(&self, row: usize) -> bool {
        self.deleted.as_ref().is_some_and(|deleted| deleted.get(row))
    }

    /// Returns the checked graph over the segment's keys; `None` if there is no graph.
    ///
    /// # Errors
    /// [`MemoryError::Corrupt`]
    pub(crate) fn graph(&self) -> Result<Option<&Graph>, MemoryError> {
        match &self.graph {
            None => Ok(None),
            Some(Err((file, reason))) => Err(MemoryError::corrupt(file, reason)),
            Some(Ok(graph)) => {
                graph.check()?;
                Ok(Some(graph))
            }
        }
    }
}

/// The position of an entry in one snapshot, by which the snapshot reads its key, value and fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Row(pub(crate) u32);

impl Row {
    /// The row with this number, for stores outside of this crate.
    pub const fn new(number: u32) -> Self {
        Self(number)
    }

    /// The number of the row.
    pub const fn number(self) -> u32 {
        self.0
    }
}

/// One bit per row of a segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Bits(pub(crate) Vec<u8>);

impl Bits {
    pub(crate) fn zeros(rows: usize) -> Self {
        Self(vec![0; rows.div_ceil(8)])
    }

    pub(crate) fn get(&self, row: usize) -> bool {
        self.0[row / 8] >> (row % 8) & 1 == 1
    }

    pub(crate) fn set(&mut self, row: usize) {
        self.0[row / 8] |= 1 << (row % 8);
    }

    pub(crate) fn clear(&mut self, row: usize) {
        self.0[row / 8] &= !(1 << (row % 8));
    }

    pub(crate) fn count(&self) -> usize {
        self.0.iter().map(|byte| byte.count_ones() as usize).sum()
    }
}

/// The statistics of a memory, printed by `engram memory info`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Info {
    /// The number of the generation.
    pub generation: u64,
    /// The number of entries, excluding deleted rows.
    pub entries: usize,
    /// The number of deleted rows that are still on disk.
    pub deleted: usize,
    /// The number of components of a key.
    pub width: usize,
    /// Whether keys are normalised to unit length.
    pub normalised: bool,
    /// The tokens, width and number type of a value, such as `16 x 64 f16`; `None` without values.
    pub values: Option<String>,
    /// The models that encoded the keys; empty if they are unknown.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub encoders: Vec<EncoderRecord>,
    /// The names of the sources, each with its number of entries.
    pub sources: Vec<(String, usize)>,
    /// The size on disk in bytes, including deleted rows.
    pub bytes: u64,
    /// `bytes` divided by the number of rows, including deleted rows.
    pub bytes_per_row: f64,
}

impl Info {
    /// Computes the statistics of a memory: `counts` has the number of entries of each source,
    /// `bytes` is the size on disk, and `rows` includes deleted rows.
    pub fn new(description: &Description, counts: Vec<usize>, bytes: u64, rows: usize) -> Self {
        Self {
            generation: description.generation,
            entries: description.entries,
            deleted: description.deleted,
            width: description.width,
            normalised: description.normalised,
            values: description.values.map(|format| format.to_string()),
            encoders: description.encoders.clone(),
            sources: description.sources.iter().cloned().zip(counts).collect(),
            bytes,
            bytes_per_row: bytes as f64 / rows.max(1) as f64,
        }
    }
}

/// The maximum number of rows of a generation. Row indices have 32 bits.
pub(crate) const MAX_ROWS: usize = u32::MAX as usize;

impl Generation {
    /// Opens the current generation. Reuses the segments, the graphs and the storage of values that
    /// `previous` has open.
    pub(crate) fn open(memory: &Path, previous: Option<&Self>) -> Result<Self, MemoryError> {
        let storage = previous.and_then(|previous| previous.external.storage.clone());
        Self::open_with(memory, previous, storage)
    }

    /// Opens the current generation, whose external values are read from `storage`.
    pub(crate) fn open_with(
        memory: &Path,
        previous: Option<&Self>,
        storage: Option<Arc<dyn ValueStorage>>,
    ) -> Result<Self, MemoryError> {
        let (manifest, lock) = Manifest::open_current(memory)?;
        let mut parts = Vec::new();
        let mut start = 0;
        for record in &manifest.segments {
            let opened = previous.and_then(|previous| previous.part_of(record));
            let segment = match opened {
                Some((part, _)) => Arc::clone(&part.segment),
                None => Arc::new(Segment::open(memory, record, &manifest)?),
            };
            let graph = record.graph.as_ref().map(|graph| match opened {
                Some((Part { graph: Some(Ok(open)), .. }, previous))
                    if previous.graph.as_ref() == Some(graph) =>
                {
                    Ok(Arc::clone(open))
                }
                _ => open_graph(memory, graph, record.rows, manifest.width),
            });
            let deleted = match opened {
                Some((part, previous)) if previous.deleted == record.deleted => {
                    part.deleted.clone()
                }
                _ => deleted_rows(memory, record)?,
            };
            let (values_id, values_at) = (values_id(record), record.values_at.clone());
            parts.push(Part { segment, deleted, start, values_id, values_at, graph });
            start += record.rows;
        }
        let description = describe(memory, &manifest);
        let (folder, external) = (memory.to_owned(), ExternalValues::new(storage));
        Ok(Self { folder, manifest, description, parts, external, _lock: Some(lock) })
    }

    /// A generation of one segment that is not current yet. Its files are in `files`.
    pub(crate) fn unfinished(
        memory: &Path,
        files: &Path,
        manifest: Manifest,
    ) -> Result<Self, MemoryError> {
        let part = |record: &SegmentRecord| -> Result<Part, MemoryError> {
            let segment = Arc::new(Segment::open_in(files, record, &manifest)?);
            let values_id = values_id(record);
            Ok(Part { segment, deleted: None, start: 0, values_id, values_at: None, graph: None })
        };
        let parts = manifest.segments.iter().map(part).collect::<Result<_, _>>()?;
        let description = describe(memory, &manifest);
        let (folder, external) = (memory.to_owned(), ExternalValues::default());
        Ok(Self { folder, manifest, description, parts, external, _lock: None })
    }

    /// Returns the part whose segment has the rows of `record`, with the segment's own record.
    /// Compares checksums, because a memory may have been removed and rebuilt in the same folder.
    pub(crate) fn part_of(&self, record: &SegmentRecord) -> Option<(&Part, &SegmentRecord)> {
        let mut parts = self.parts.iter().zip(&self.manifest.segments);
        parts.find(|(_, part_record)| part_record.has_rows_of(record))
    }

    pub(crate) fn parts(&self) -> &[Part] {
        &self.parts
    }

    pub(crate) fn external(&self) -> &ExternalValues {
        &self.external
    }

    /// The manifest.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// The memory's folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The number of rows, including deleted rows.
    pub(crate) fn rows(&self) -> usize {
        self.parts.last().map_or(0, |part| part.start + part.segment.rows)
    }

    /// The number of entries, excluding deleted rows.
    pub fn len(&self) -> usize {
        self.description.entries
    }

    /// Whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The number of deleted rows that are still on disk.
    pub fn deleted(&self) -> usize {
        self.rows() - self.len()
    }

    /// The size on disk in bytes, including deleted rows.
    pub fn bytes(&self) -> u64 {
        self.manifest.segments.iter().map(SegmentRecord::bytes).sum()
    }

    /// Returns the index of the part of a row of this generation.
    pub(crate) fn part_index(&self, Row(row): Row) -> usize {
        // The first part starts at row 0.
        self.parts.partition_point(|part| part.start <= row as usize).saturating_sub(1)
    }

    /// Returns the segment of a row, and the row's index in the segment.
    pub(crate) fn locate(&self, row: Row) -> Result<(&Part, usize), MemoryError> {
        let Row(number) = row;
        let part = self.parts.get(self.part_index(row));
        part.map(|part| (part, number as usize - part.start))
            .filter(|(part, row)| *row < part.segment.rows)
            .ok_or_else(|| MemoryError::invalid("a row", number, "a row of this generation"))
    }

    /// Returns the row of an entry; `None` if no entry has the id, or the entry is deleted.
    ///
    /// # Errors
    /// [`MemoryError::Corrupt`]
    pub fn row_of(&self, id: i64) -> Result<Option<Row>, MemoryError> {
        for part in self.parts.iter().rev() {
            if let Some(row) = part.segment.row_of(id)?
                && !part.is_deleted(row)
            {
                return Ok(Some(Row((part.start + row) as u32)));
            }
        }
        Ok(None)
    }

    /// Returns the entry of a row.
    ///
    /// # Errors
    /// [`MemoryError::Corrupt`]; [`MemoryError::InvalidOption`] for a row that the generation does
    /// not have
    pub fn entry(&self, row: Row) -> Result<Entry, MemoryError> {
        let (part, row) = self.locate(row)?;
        part.segment.entry(row)
    }

    /// Returns the key of a row, with `width` components.
    ///
    /// # Errors
    /// as [`Generation::entry`]
    pub fn key(&self, row: Row) -> Result<&[f32], MemoryError> {
        let (part, row) = self.locate(row)?;
        part.segment.keys(row..row + 1)
    }

    /// Reads values like [`Snapshot::values`], into a buffer that the caller can reuse. Uses all
    /// threads.
    ///
    /// # Errors
    /// as [`Generation::entry`]
    pub fn read_values(&self, rows: &[Row], values: &mut Vec<f32>) -> Result<(), MemoryError> {
        let size = self.manifest.value_len();
        values.resize(rows.len() * size, 0.0);
        let outputs = values.par_chunks_mut(size.max(1)).zip(rows);
        outputs.try_for_each(|(value, row)| {
            self.stored_value(*row)?.read(value);
            Ok::<(), MemoryError>(())
        })?;
        for (index, value) in self.read_external_values(rows)? {
            value.read(&mut values[index * size..(index + 1) * size]);
        }
        Ok(())
    }

    /// Returns the stored value of a row; empty for a memory without values, and for an
    /// external value.
    fn stored_value(&self, row: Row) -> Result<StoredValue<'_>, MemoryError> {
        let (part, row) = self.locate(row)?;
        part.segment.value(row)
    }

    /// Returns the stored values of rows, in main memory.
    ///
    /// # Errors
    /// as [`Generation::entry`]
    pub fn values_of_rows(&self, rows: &[Row]) -> Result<Vec<StoredValue<'static>>, MemoryError> {
        let here = rows.par_iter().map(|row| Ok(self.stored_value(*row)?.copied()));
        let mut values = here.collect::<Result<Vec<_>, MemoryError>>()?;
        for (index, value) in self.read_external_values(rows)? {
            values[index] = StoredValue::clone(&value);
        }
        Ok(values)
    }

    /// Returns the identities of the values of rows.
    ///
    /// # Errors
    /// [`MemoryError::InvalidOption`] for a row that the generation does not have
    pub fn value_keys(&self, rows: &[Row]) -> Result<Vec<ValueKey>, MemoryError> {
        let key = |row: &Row| self.locate(*row).map(|(part, row)| (part.values_id, row as u32));
        rows.iter().map(key).collect()
    }

    /// Returns, in row order, the identity of each segment's values, and its number of rows with
    /// deleted rows. A copy of the values outside of the memory is found by this identity: segments
    /// with the same identity have the same values, also in other generations.
    pub fn value_segments(&self) -> impl Iterator<Item = (u64, usize)> {
        self.parts.iter().map(|part| (part.values_id, part.segment.rows))
    }

    /// Returns the rows that are not deleted, in order.
    pub fn live_rows(&self) -> impl Iterator<Item = Row> + '_ {
        self.parts.iter().flat_map(|part| {
            (0..part.segment.rows)
                .filter(|row| !part.is_deleted(*row))
                .map(|row| Row((part.start + row) as u32))
        })
    }

    /// Checks every file against its checksums, and the content of each graph. Returns the errors,
    /// one per damaged file; an empty list if no file is damaged.
    pub fn verify(&self) -> Vec<MemoryError> {
        let segments = self.parts.iter().flat_map(|part| part.segment.verify());
        let graphs = self.parts.iter().flat_map(|part| match &part.graph {
            None => Vec::new(),
            Some(Ok(graph)) => {
                let files = graph.verify();
                // The content of files that were changed is not checked.
                if files.iter().all(Result::is_ok) { vec![graph.check()] } else { files }
            }
            Some(Err((file, reason))) => vec![Err(MemoryError::corrupt(file, reason))],
        });
        segments.chain(graphs).filter_map(Result::err).collect()
    }
}

impl Snapshot for Generation {
    fn description(&self) -> &Description {
        &self.description
    }

    fn info(&self) -> Result<Info, MemoryError> {
        let mut entry_counts = vec![0; self.manifest.sources.len()];
        for part in &self.parts {
            for (row, source) in part.segment.sources()?.iter().enumerate() {
                if let Some(count) = entry_counts.get_mut(*source as usize) {
                    *count += usize::from(!part.is_deleted(row));
                }
            }
        }
        Ok(Info::new(&self.description, entry_counts, self.bytes(), self.rows()))
    }

    fn search(
        &self,
        method: Method,
        queries: Queries<'_>,
        filter: &Filter,
    ) -> Result<SearchResults, MemoryError> {
        match method {
            Method::Exact => exact::search(self, queries, filter),
            Method::Graph { candidates } => graph_search::search(self, candidates, queries, filter),
        }
    }

    fn search_texts(
        &self,
        queries: &[&str],
        k: usize,
        filter: &Filter,
    ) -> Result<SearchResults, MemoryError> {
        text::search(self, queries, k, filter)
    }

    fn rows(&self) -> Result<Vec<Row>, MemoryError> {
        Ok(self.live_rows().collect())
    }

    fn find(&self, ids: &[i64]) -> Result<Vec<Option<Row>>, MemoryError> {
        ids.iter().map(|id| self.row_of(*id)).collect()
    }

    fn entries(&self, rows: &[Row]) -> Result<Vec<Entry>, MemoryError> {
        rows.par_iter().map(|row| self.entry(*row)).collect()
    }

    fn keys(&self, rows: &[Row]) -> Result<Vec<f32>, MemoryError> {
        let mut keys = Vec::with_capacity(rows.len() * self.manifest.width);
        for row in rows {
            keys.extend_from_slice(self.key(*row)?);
        }
        Ok(keys)
    }

    fn values(&self, rows: &[Row]) -> Result<Vec<f32>, MemoryError> {
        let mut values = Vec::new();
        self.read_values(rows, &mut values)?;
        Ok(values)
    }

    fn prefetch(&self, rows: &[Row]) -> Result<(), MemoryError> {
        self.prefetch_values(rows)
    }
}

impl ValueSource for Generation {
    fn stored_values(&self, keys: &[ValueKey]) -> Result<Vec<StoredValue<'static>>, MemoryError> {
        let row = |&(id, row): &ValueKey| {
            let has_row = |part: &&Part| part.values_id == id && (row as usize) < part.segment.rows;
            let part = self.parts.iter().find(has_row).ok_or_else(|| {
                let key = format!("{id:016x}, {row}");
                MemoryError::invalid("a value", key, "a value of this generation")
            })?;
            Ok(Row((part.start + row as usize) as u32))
        };
        self.values_of_rows(&keys.iter().map(row).collect::<Result<Vec<_>, MemoryError>>()?)
    }
}

/// Describes the entries of a memory in this folder.
fn describe(folder: &Path, manifest: &Manifest) -> Description {
    Description {
        location: folder.display().to_string(),
        generation: manifest.generation,
        entries: manifest.segments.iter().map(SegmentRecord::live_rows).sum(),
        deleted: manifest.segments.iter().map(|record| record.rows - record.live_rows()).sum(),
        width: manifest.width,
        normalised: manifest.normalised,
        values: manifest.values,
        encoders: manifest.encoders.clone(),
        sources: manifest.sources.clone(),
        next_id: manifest.next_id,
        has_graph: manifest.segments.iter().any(|record| record.graph.is_some()),
    }
}

/// Opens the graph of a segment with this many rows.
fn open_graph(memory: &Path, record: &GraphRecord, rows: usize, width: usize) -> OpenedGraph {
    Graph::open(memory, record, rows, width).map(Arc::new).map_err(|error| match error {
        MemoryError::Corrupt { file, reason } => (file, reason),
        other => (memory.join(&record.folder), other.to_string()),
    })
}

/// Returns the identity of a segment's values, from the SHA-256 of its pack, or of the files of its
/// values and scales. Scales count because equal numbers with other scales are other values.
fn values_id(record: &SegmentRecord) -> u64 {
    let first_8_bytes = |file: &FileRecord| {
        file.sha256.get(..16).and_then(|digits| u64::from_str_radix(digits, 16).ok()).unwrap_or(0)
    };
    if let Some(pack) = &record.pack {
        return first_8_bytes(pack);
    }
    // The rotation prevents both hashes from cancelling out if both files are equal.
    let [values, scales] =
        VALUE_COLUMNS.map(|name| record.columns.get(name).map_or(0, first_8_bytes));
    values ^ scales.rotate_left(1)
}

/// Reads the deleted rows of a segment; `None` if there are none.
fn deleted_rows(memory: &Path, record: &SegmentRecord) -> Result<Option<Bits>, MemoryError> {
    let Some(deleted) = &record.deleted else { return Ok(None) };
    let (bytes, path) = match deleted {
        DeletedRecord::File(deleted) => {
            let file = CheckedFile::open(&memory.join(&deleted.folder), &deleted.bits)?;
            (Some(file.bytes(0..file.len())?.to_vec()), file.path().to_owned())
        }
        DeletedRecord::Inline(deleted) => (from_hex(&deleted.hex), memory.to_owned()),
    };
    let bits = bytes.map(Bits).filter(|bits| {
        // Bits after the last row must be 0.
        let has_surplus_bits = bits.0.last().is_some_and(|last| match record.rows % 8 {
            0 => false,
            rows => last >> rows != 0,
        });
        bits.0.len() == record.rows.div_ceil(8)
            && bits.count() == deleted.rows()
            && !has_surplus_bits
    });
    match bits {
        Some(bits) => Ok(Some(bits)),
        None => Err(MemoryError::corrupt(&path, "lists other deleted rows than the manifest")),
    }
}

/// Returns the bytes of hexadecimal digits; `None` for other text.
fn from_hex(text: &str) -> Option<Vec<u8>> {
    let pairs = text.as_bytes().chunks(2);
    pairs.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()).collect()
}
