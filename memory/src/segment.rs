//! A segment: rows that were written together and never change.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use engram_entry::Entry;

use crate::codes;
use crate::encoded::EncodedRow;
use crate::error::MemoryError;
use crate::format::file::{CheckedFile, FileRecord};
use crate::format::manifest::{Manifest, ORDER, SegmentRecord};
use crate::format::tensor::{MappedTensor, Number, TensorFile};
use crate::values::StoredValue;
use crate::values::columns::MappedValues;

/// Rows to be written to a memory.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Batch {
    /// One entry per row.
    pub entries: Vec<Entry>,
    /// Keys, `[rows, width]`.
    pub keys: Vec<f32>,
    /// Values, `[rows, tokens, width]`; empty for a memory without values.
    pub values: Vec<f32>,
}

/// The memory-mapped rows of a segment.
#[derive(Debug)]
pub(crate) struct Segment {
    pub(crate) rows: usize,
    /// The mapped part of the pack that has all columns; `None` if each column has its own file.
    pack: Option<Arc<CheckedFile>>,
    keys: MappedTensor<f32>,
    /// The panels of [codes](codes) of the keys.
    codes: MappedTensor<u8>,
    values: Option<MappedValues>,
    ids: MappedTensor<i64>,
    sources: MappedTensor<u32>,
    /// The number of sources in the manifest; source indices must be below it.
    known_sources: usize,
    are_sources_checked: AtomicBool,
    /// The hash of each row's document; 0 for a row without one.
    documents: MappedTensor<u64>,
    lines: Lines,
    /// The offset of each line in `lines`, and the end of the last line.
    offsets: MappedTensor<u64>,
    /// The rows sorted by id; `None` if the ids ascend from row to row.
    order: Option<MappedTensor<u32>>,
}

/// The entries as JSON lines: a part of a mapped file.
#[derive(Debug)]
struct Lines {
    file: Arc<CheckedFile>,
    range: Range<usize>,
}

impl Lines {
    fn get(&self, line: Range<u64>) -> Result<&[u8], MemoryError> {
        let start = self.range.start.saturating_add(line.start as usize);
        let end = self.range.start.saturating_add(line.end as usize);
        if end > self.range.end {
            return Err(MemoryError::corrupt(self.file.path(), format!("ends before byte {end}")));
        }
        self.file.bytes(start..end)
    }
}

/// The columns of a segment: tensors of a pack, or one file per column.
pub(crate) struct Columns<'a> {
    folder: &'a Path,
    pack: Option<Arc<TensorFile>>,
    files: &'a BTreeMap<String, FileRecord>,
}

impl Columns<'_> {
    /// The file of a column.
    fn file(&self, name: &str) -> Result<&FileRecord, MemoryError> {
        let reason = || format!("has no {name}, but the manifest needs them");
        self.files.get(name).ok_or_else(|| MemoryError::corrupt(self.folder, reason()))
    }

    /// The opened file with the tensor of a column.
    pub(crate) fn tensor_file(&self, name: &str) -> Result<Arc<TensorFile>, MemoryError> {
        match &self.pack {
            Some(pack) => Ok(Arc::clone(pack)),
            None => TensorFile::open(self.folder, self.file(name)?).map(Arc::new),
        }
    }

    fn tensor<T: Number>(
        &self,
        name: &str,
        shape: &[usize],
    ) -> Result<MappedTensor<T>, MemoryError> {
        self.tensor_file(name)?.tensor(name, shape)
    }

    fn lines(&self) -> Result<Lines, MemoryError> {
        if let Some(pack) = &self.pack {
            return Ok(Lines { file: Arc::clone(pack.file()), range: pack.range("entries")? });
        }
        let file = Arc::new(CheckedFile::open(self.folder, self.file("entries")?)?);
        Ok(Lines { range: 0..file.len(), file })
    }
}

impl Segment {
    /// Opens a segment of a memory.
    pub(crate) fn open(
        memory: &Path,
        record: &SegmentRecord,
        manifest: &Manifest,
    ) -> Result<Self, MemoryError> {
        Self::open_in(&memory.join(&record.folder), record, manifest)
    }

    /// Opens a segment whose files are in `folder`.
    pub(crate) fn open_in(
        folder: &Path,
        record: &SegmentRecord,
        manifest: &Manifest,
    ) -> Result<Self, MemoryError> {
        let rows = record.rows;
        let pack = record.pack.as_ref().map(|pack| TensorFile::open(folder, pack)).transpose()?;
        let columns = Columns { folder, pack: pack.map(Arc::new), files: &record.columns };
        let values = manifest.values.filter(|_| record.values_at.is_none());
        let values = values.map(|format| MappedValues::open(&columns, rows, format)).transpose()?;
        let order = record.columns.contains_key(ORDER);
        let order = order.then(|| columns.tensor(ORDER, &[rows])).transpose()?;
        Ok(Self {
            rows,
            keys: columns.tensor("keys", &[rows, manifest.width])?,
            codes: columns.tensor("codes", &codes::shape(rows, manifest.width))?,
            values,
            ids: columns.tensor("ids", &[rows])?,
            sources: columns.tensor("sources", &[rows])?,
            known_sources: manifest.sources.len(),
            are_sources_checked: AtomicBool::new(false),
            documents: columns.tensor("documents", &[rows])?,
            lines: columns.lines()?,
            offsets: columns.tensor("offsets", &[rows + 1])?,
            order,
            pack: columns.pack.map(|pack| Arc::clone(pack.file())),
        })
    }

    /// The size of all entries as JSON lines, in bytes.
    pub(crate) fn line_bytes(&self) -> Result<usize, MemoryError> {
        Ok(self.offsets.read(self.rows..self.rows + 1)?[0] as usize)
    }

    /// Returns the keys of rows, `[rows, width]`.
    pub(crate) fn keys(&self, rows: Range<usize>) -> Result<&[f32], MemoryError> {
        self.keys.read(rows)
    }

    /// Returns panels of codes, `[panels, bytes of a panel]`.
    pub(crate) fn panels(&self, panels: Range<usize>) -> Result<&[u8], MemoryError> {
        self.codes.read(panels)
    }

    pub(crate) fn ids(&self) -> Result<&[i64], MemoryError> {
        self.ids.read(0..self.rows)
    }

    /// Returns the index of each row's source in the manifest's list. Checks that the indices are
    /// within the list.
    pub(crate) fn sources(&self) -> Result<&[u32], MemoryError> {
        let sources = self.sources.read(0..self.rows)?;
        if !self.are_sources_checked.load(Ordering::Acquire) {
            let known = self.known_sources;
            if let Some(row) = sources.iter().position(|source| *source as usize >= known) {
                let reason = format!("row {row} has source {} of {known}", sources[row]);
                return Err(self.sources.corrupt(reason));
            }
            self.are_sources_checked.store(true, Ordering::Release);
        }
        Ok(sources)
    }

    pub(crate) fn documents(&self) -> Result<&[u64], MemoryError> {
        self.documents.read(0..self.rows)
    }

    /// Returns the row of an id; `None` if the segment does not have the id.
    pub(crate) fn row_of(&self, id: i64) -> Result<Option<usize>, MemoryError> {
        let ids = self.ids()?;
        let Some(order) = &self.order else { return Ok(ids.binary_search(&id).ok()) };
        let order = order.read(0..self.rows)?;
        // A damaged order may name rows that do not exist.
        let id_of = |row: &u32| ids.get(*row as usize).copied().unwrap_or(i64::MAX);
        let row = order.binary_search_by_key(&id, id_of).ok().map(|index| order[index] as usize);
        Ok(row.filter(|row| *row < self.rows))
    }

    /// Returns the entry of a row as a JSON line.
    fn line(&self, row: usize) -> Result<&[u8], MemoryError> {
        let offsets = self.offsets.read(row..row + 2)?;
        self.lines.get(offsets[0]..offsets[1])
    }

    pub(crate) fn entry(&self, row: usize) -> Result<Entry, MemoryError> {
        serde_json::from_slice(self.line(row)?).map_err(|error| {
            let reason = format!("row {row} is not an entry: {error}");
            MemoryError::corrupt(self.lines.file.path(), reason)
        })
    }

    /// Returns a row in its stored form. Its value is empty if it is external.
    pub(crate) fn encoded_row(&self, row: usize) -> Result<EncodedRow<'_>, MemoryError> {
        Ok(EncodedRow {
            id: self.ids.read(row..row + 1)?[0],
            source: self.sources()?[row],
            document: self.documents.read(row..row + 1)?[0],
            key: self.keys(row..row + 1)?,
            value: self.value(row)?,
            line: self.line(row)?,
        })
    }

    /// Returns the stored value of a row; empty if there are no values, or if they are external.
    pub(crate) fn value(&self, row: usize) -> Result<StoredValue<'_>, MemoryError> {
        self.values.as_ref().map_or_else(|| Ok(StoredValue::none()), |values| values.value(row))
    }

    /// Checks every file against its checksums. Returns one result per file, in a fixed order.
    pub(crate) fn verify(&self) -> Vec<Result<(), MemoryError>> {
        if let Some(pack) = &self.pack {
            return vec![pack.verify()];
        }
        let mut results = vec![self.keys.verify()];
        results.push(self.codes.verify());
        results.extend(self.values.iter().flat_map(MappedValues::verify));
        results.extend([
            self.ids.verify(),
            self.sources.verify(),
            self.documents.verify(),
            self.lines.file.verify(),
            self.offsets.verify(),
        ]);
        results.extend(self.order.as_ref().map(MappedTensor::verify));
        results
    }
}
