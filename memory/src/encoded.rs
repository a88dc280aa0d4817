//! Rows in main memory, already encoded as a segment stores them.

use crate::document::document_hash;
use crate::error::MemoryError;
use crate::format::manifest::Manifest;
use crate::segment::Batch;
use crate::values::columns::EncodedValues;
use crate::values::{StoredValue, ValueDtype};

/// Encoded rows, one column per field.
#[derive(Debug)]
pub struct EncodedRows {
    /// The width of a key.
    width: usize,
    pub(crate) ids: Vec<i64>,
    pub(crate) sources: Vec<u32>,
    pub(crate) documents: Vec<u64>,
    pub(crate) keys: Vec<f32>,
    pub(crate) values: EncodedValues,
    /// The entries as JSON lines.
    pub(crate) lines: Vec<u8>,
    /// The start of each line in `lines`, and the end of the last line.
    pub(crate) offsets: Vec<u64>,
}

/// One encoded row.
#[derive(Debug)]
pub struct EncodedRow<'a> {
    /// The id of the entry.
    pub id: i64,
    /// The index of the source in the list of sources.
    pub source: u32,
    /// The first 8 bytes of the SHA-256 of the document's name; 0 without a document. A search
    /// excludes documents by this hash.
    pub document: u64,
    /// The key, of unit length if the memory is normalised.
    pub key: &'a [f32],
    /// The value in the memory's number type; empty without values.
    pub value: StoredValue<'a>,
    /// The entry as a JSON line, with its line feed.
    pub line: &'a [u8],
}

impl EncodedRows {
    /// Creates an empty list of rows for a memory with this manifest.
    pub(crate) fn new(manifest: &Manifest) -> Self {
        Self {
            width: manifest.width,
            ids: Vec::new(),
            sources: Vec::new(),
            documents: Vec::new(),
            keys: Vec::new(),
            values: EncodedValues::new(manifest.values),
            lines: Vec::new(),
            offsets: vec![0],
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.ids.len()
    }

    pub(crate) fn push(&mut self, row: &EncodedRow<'_>) {
        self.ids.push(row.id);
        self.sources.push(row.source);
        self.documents.push(row.document);
        self.keys.extend_from_slice(row.key);
        self.values.push(&row.value);
        self.lines.extend_from_slice(row.line);
        self.offsets.push(self.lines.len() as u64);
    }

    /// Iterates over the rows.
    pub fn rows(&self) -> impl Iterator<Item = EncodedRow<'_>> {
        (0..self.len()).map(|row| self.row(row))
    }

    pub(crate) fn row(&self, row: usize) -> EncodedRow<'_> {
        EncodedRow {
            id: self.ids[row],
            source: self.sources[row],
            document: self.documents[row],
            key: &self.keys[row * self.width..(row + 1) * self.width],
            value: self.values.value(row),
            line: &self.lines[self.offsets[row] as usize..self.offsets[row + 1] as usize],
        }
    }
}

/// Checks and encodes batches.
#[derive(Debug, Default)]
pub(crate) struct BatchEncoder {
    /// The number of encoded rows.
    rows: usize,
    /// The largest norm of a key.
    pub(crate) longest_key: f32,
}

impl BatchEncoder {
    /// Encodes a batch. Normalises the keys to unit length if the memory is normalised.
    /// `source_index` returns a source's index in the manifest's list.
    ///
    /// # Errors
    /// [`MemoryError::Count`], [`MemoryError::BadVector`]
    pub(crate) fn encode(
        &mut self,
        batch: Batch,
        manifest: &Manifest,
        mut source_index: impl FnMut(&str) -> u32,
    ) -> Result<EncodedRows, MemoryError> {
        let Batch { entries, mut keys, values } = batch;
        MemoryError::check_count("key components", entries.len() * manifest.width, keys.len())?;
        for (row, key) in keys.chunks_mut(manifest.width).enumerate() {
            let norm = check_key(self.rows + row, key, manifest.normalised)?;
            self.longest_key = self.longest_key.max(norm);
        }
        let size = manifest.value_len();
        MemoryError::check_count("value components", entries.len() * size, values.len())?;
        if let Some(format) = manifest.values {
            check_values(self.rows, &values, size, format.dtype)?;
        }
        let mut rows = EncodedRows { keys, ..EncodedRows::new(manifest) };
        rows.values.encode(&values);
        for entry in &entries {
            rows.ids.push(entry.id);
            rows.sources.push(source_index(&entry.source));
            rows.documents.push(entry.document.as_deref().map_or(0, document_hash));
            serde_json::to_writer(&mut rows.lines, entry)
                .map_err(|error| MemoryError::Rows(error.into()))?;
            rows.lines.push(b'\n');
            rows.offsets.push(rows.lines.len() as u64);
        }
        self.rows += entries.len();
        Ok(rows)
    }

    /// Returns an error unless `rows` rows were encoded.
    pub(crate) fn finish(&self, rows: usize) -> Result<(), MemoryError> {
        MemoryError::check_count("entries", rows, self.rows)
    }
}

/// Checks a key, normalises it to unit length if `normalise` is set, and returns its norm.
fn check_key(row: usize, key: &mut [f32], normalise: bool) -> Result<f32, MemoryError> {
    let bad_key = |reason| MemoryError::BadVector { what: "the key of row", row, reason };
    if key.iter().any(|number| !number.is_finite()) {
        return Err(bad_key("contains NaN or infinity"));
    }
    let norm = key.iter().map(|number| f64::from(*number).powi(2)).sum::<f64>().sqrt();
    if normalise {
        if norm == 0.0 {
            return Err(bad_key("is a zero vector"));
        }
        // An already normalised key stays unchanged, so rewriting it does not change scores.
        if (norm - 1.0).abs() > f64::from(f32::EPSILON) {
            key.iter_mut().for_each(|number| *number = (f64::from(*number) / norm) as f32);
        }
        return Ok(1.0);
    }
    // With longer keys, products of keys and queries could overflow.
    if norm > 1e18 {
        return Err(bad_key("has a norm above 1e18"));
    }
    Ok(norm as f32)
}

/// Checks that all values of `size` components fit their number type. `first_row` is the row of the
/// first value.
fn check_values(
    first_row: usize,
    values: &[f32],
    size: usize,
    dtype: ValueDtype,
) -> Result<(), MemoryError> {
    let max_abs = dtype.codec().max_abs();
    let fits = |value: &f32| value.abs() <= max_abs;
    match values.iter().position(|value| !fits(value)) {
        None => Ok(()),
        Some(index) => Err(MemoryError::BadVector {
            what: "the value of row",
            row: first_row + index / size,
            reason: dtype.codec().refusal(),
        }),
    }
}
