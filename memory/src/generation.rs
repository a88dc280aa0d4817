//! A generation: one state of the memory, held by its readers for as long as they like.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use crate::entry::Entry;
use crate::error::MemoryError;
use crate::format::file::{CheckedFile, FileRecord};
use crate::format::manifest::{EncoderRecord, GraphRecord, Manifest, SegmentRecord};
use crate::search::graph::Graph;
use crate::segment::{Segment, StoredValue};

/// One state of a memory. It does not change: who holds it sees the same entries, whatever is written meanwhile.
#[derive(Debug)]
pub struct Generation {
    folder: PathBuf,
    manifest: Manifest,
    parts: Vec<Part>,
    /// The manifest's file with a shared lock, so that no writer sweeps the generation away.
    _held: File,
}

/// A segment with the rows that are deleted in this generation.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) segment: Arc<Segment>,
    pub(crate) deleted: Option<Bits>,
    /// The segment's first row in the generation.
    pub(crate) start: usize,
    /// Tells the values of this segment from those of all others.
    values: u64,
    graph: Option<OpenedGraph>,
}

/// A graph that was opened with its generation, or why it could not be: an exact search does without it.
type OpenedGraph = Result<Arc<Graph>, (PathBuf, String)>;

impl Part {
    fn is_deleted(&self, row: usize) -> bool {
        self.deleted.as_ref().is_some_and(|deleted| deleted.get(row))
    }

    /// The graph over its keys, checked; `None` where it has none.
    ///
    /// # Errors   [`MemoryError::Corrupt`]
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

/// A row of a generation, deleted rows counted too. It means nothing in another generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Row(pub(crate) u32);

/// A bit for each row of a segment.
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

/// What a memory holds; `engram memory info`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Info {
    /// The generation.
    pub generation: u64,
    /// Entries that can be found.
    pub entries: usize,
    /// Rows that were deleted and are still on the disk.
    pub deleted: usize,
    /// Numbers in a key.
    pub width: usize,
    /// Whether keys have unit length.
    pub normalised: bool,
    /// Tokens, width and numbers of a value, such as `16 x 64 f16`.
    pub values: Option<String>,
    /// The models that made the keys, where they are known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub encoders: Vec<EncoderRecord>,
    /// Sources by name, with their entries.
    pub sources: Vec<(String, usize)>,
    /// Bytes on the disk, deleted rows included.
    pub bytes: u64,
    /// The same for each entry.
    pub bytes_per_entry: f64,
}

/// The most rows of a generation; rows are numbered with 32 bits.
pub(crate) const MOST_ROWS: usize = u32::MAX as usize;

impl Generation {
    /// Opens the current generation; segments that `before` has open are taken from there.
    pub(crate) fn open(memory: &Path, before: Option<&Self>) -> Result<Self, MemoryError> {
        let (manifest, held) = Manifest::open_current(memory)?;
        let mut parts = Vec::new();
        let mut start = 0;
        for record in &manifest.segments {
            let opened = before.and_then(|before| before.part_of(record));
            let segment = match opened {
                Some((part, _)) => Arc::clone(&part.segment),
                None => Arc::new(Segment::open(memory, record, &manifest)?),
            };
            let graph = record.graph.as_ref().map(|graph| match opened {
                Some((Part { graph: Some(Ok(open)), .. }, before))
                    if before.graph.as_ref() == Some(graph) =>
                {
                    Ok(Arc::clone(open))
                }
                _ => open_graph(memory, graph, record.rows),
            });
            let deleted = deleted_rows(memory, record)?;
            parts.push(Part { segment, deleted, start, values: known_by(record), graph });
            start += record.rows;
        }
        Ok(Self { folder: memory.to_owned(), manifest, parts, _held: held })
    }

    /// The part that holds the same rows; a memory may have been removed and built again in its place.
    fn part_of(&self, record: &SegmentRecord) -> Option<(&Part, &SegmentRecord)> {
        let mut all = self.parts.iter().zip(&self.manifest.segments);
        all.find(|(_, own)| own.has_rows_of(record))
    }

    pub(crate) fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// Its manifest.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// The memory's folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Rows, deleted ones included.
    pub(crate) fn rows(&self) -> usize {
        self.parts.last().map_or(0, |part| part.start + part.segment.rows)
    }

    /// Entries that can be found.
    pub fn len(&self) -> usize {
        let deleted = |record: &SegmentRecord| record.deleted.as_ref().map_or(0, |d| d.rows);
        self.manifest.segments.iter().map(|record| record.rows - deleted(record)).sum()
    }

    /// Whether nothing can be found.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Rows that were deleted and are still on the disk.
    pub fn deleted(&self) -> usize {
        self.rows() - self.len()
    }

    /// Bytes on the disk, deleted rows included.
    pub fn bytes(&self) -> u64 {
        self.manifest.segments.iter().map(SegmentRecord::bytes).sum()
    }

    /// The segment of a row, and the row in it.
    pub(crate) fn locate(&self, row: Row) -> Result<(&Part, usize), MemoryError> {
        let Row(number) = row;
        let at = self.parts.partition_point(|part| part.start <= number as usize);
        let part = at.checked_sub(1).map(|at| &self.parts[at]);
        part.map(|part| (part, number as usize - part.start))
            .filter(|(part, row)| *row < part.segment.rows)
            .ok_or(MemoryError::BadOption {
                option: "a row",
                found: number.to_string(),
                expected: "one that this generation gave",
            })
    }

    /// The row of an entry that is not deleted.
    ///
    /// # Errors   [`MemoryError::Corrupt`]
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

    /// The entry of a row.
    ///
    /// # Errors   [`MemoryError::Corrupt`]
    pub fn entry(&self, row: Row) -> Result<Entry, MemoryError> {
        let (part, row) = self.locate(row)?;
        part.segment.entry(row)
    }

    /// The key of a row, `width` numbers.
    ///
    /// # Errors   [`MemoryError::Corrupt`]
    pub fn key(&self, row: Row) -> Result<&[f32], MemoryError> {
        let (part, row) = self.locate(row)?;
        part.segment.keys(row..row + 1)
    }

    /// Numbers of a value; 0 for a memory of keys alone.
    pub fn value_len(&self) -> usize {
        self.manifest.value_len()
    }

    /// What a row's value is known by, in this generation and all others that have its segment.
    pub(crate) fn value_key(&self, row: Row) -> Result<(u64, u32), MemoryError> {
        let (part, row) = self.locate(row)?;
        Ok((part.values, row as u32))
    }

    /// The values of rows, `[rows, tokens, width]`; empty for a memory of keys alone.
    ///
    /// # Errors   [`MemoryError::Corrupt`]
    pub fn values(&self, rows: &[Row]) -> Result<Vec<f32>, MemoryError> {
        let mut values = Vec::new();
        self.read_values(rows, &mut values)?;
        Ok(values)
    }

    /// [`Generation::values`] into a buffer, which a caller may use again and again. All threads read.
    ///
    /// # Errors   [`MemoryError::Corrupt`]
    pub fn read_values(&self, rows: &[Row], values: &mut Vec<f32>) -> Result<(), MemoryError> {
        let size = self.value_len();
        values.resize(rows.len() * size, 0.0);
        let places = values.par_chunks_mut(size.max(1)).zip(rows);
        places.try_for_each(|(value, row)| {
            self.stored_value(*row)?.read(value);
            Ok(())
        })
    }

    /// The value of a row as it is kept; of no numbers for a memory of keys alone.
    pub(crate) fn stored_value(&self, row: Row) -> Result<StoredValue<'_>, MemoryError> {
        let (part, row) = self.locate(row)?;
        part.segment.value(row)
    }

    /// Rows that are not deleted, in order.
    pub fn live_rows(&self) -> impl Iterator<Item = Row> + '_ {
        self.parts.iter().flat_map(|part| {
            (0..part.segment.rows)
                .filter(|row| !part.is_deleted(*row))
                .map(|row| Row((part.start + row) as u32))
        })
    }

    /// What the memory holds.
    ///
    /// # Errors   [`MemoryError::Corrupt`]
    pub fn info(&self) -> Result<Info, MemoryError> {
        let manifest = &self.manifest;
        let mut of_source = vec![0; manifest.sources.len()];
        for part in &self.parts {
            for (row, source) in part.segment.sources()?.iter().enumerate() {
                if let Some(count) = of_source.get_mut(*source as usize) {
                    *count += usize::from(!part.is_deleted(row));
                }
            }
        }
        Ok(Info {
            generation: manifest.generation,
            entries: self.len(),
            deleted: self.deleted(),
            width: manifest.width,
            normalised: manifest.normalised,
            values: manifest.values.map(|format| format.to_string()),
            encoders: manifest.encoders.clone(),
            sources: manifest.sources.iter().cloned().zip(of_source).collect(),
            bytes: self.bytes(),
            bytes_per_entry: self.bytes() as f64 / self.rows().max(1) as f64,
        })
    }

    /// Reads every file against its checksums; the faults, one for each broken file.
    pub fn verify(&self) -> Vec<MemoryError> {
        let segments = self.parts.iter().flat_map(|part| part.segment.verify());
        let graphs = self.parts.iter().flat_map(|part| match &part.graph {
            None => Vec::new(),
            Some(Ok(graph)) => {
                let files: Vec<Result<(), MemoryError>> = graph.verify().into();
                // Of files that are not what was written, nothing else need be said.
                if files.iter().all(Result::is_ok) { vec![graph.check()] } else { files }
            }
            Some(Err((file, reason))) => vec![Err(MemoryError::corrupt(file, reason))],
        });
        segments.chain(graphs).filter_map(Result::err).collect()
    }
}

fn open_graph(memory: &Path, record: &GraphRecord, rows: usize) -> OpenedGraph {
    Graph::open(memory, record, rows).map(Arc::new).map_err(|error| match error {
        MemoryError::Corrupt { file, reason } => (file, reason),
        other => (memory.join(&record.folder), other.to_string()),
    })
}

/// A number that tells the values of a segment from those of all others, which may have the same int8 numbers with
/// other scales.
fn known_by(record: &SegmentRecord) -> u64 {
    let first = |file: &FileRecord| {
        file.sha256.get(..16).and_then(|digits| u64::from_str_radix(digits, 16).ok()).unwrap_or(0)
    };
    // The two do not cancel out, even where both files hold the same.
    let scales = record.scales.as_ref().map_or(0, first).rotate_left(1);
    record.values.as_ref().map_or(0, first) ^ scales
}

fn deleted_rows(memory: &Path, record: &SegmentRecord) -> Result<Option<Bits>, MemoryError> {
    let Some(deleted) = &record.deleted else { return Ok(None) };
    let file = CheckedFile::open(&memory.join(&deleted.folder), &deleted.bits)?;
    let bits = Bits(file.bytes(0..file.len())?.to_vec());
    // Bits behind the last row stand for nothing.
    let behind = bits.0.last().is_some_and(|last| match record.rows % 8 {
        0 => false,
        rows => last >> rows != 0,
    });
    if bits.0.len() != record.rows.div_ceil(8) || bits.count() != deleted.rows || behind {
        return Err(MemoryError::corrupt(
            file.path(),
            "has other deleted rows than the manifest says",
        ));
    }
    Ok(Some(bits))
}
