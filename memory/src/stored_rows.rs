//! Rows for stores outside of this crate: the same checks, numbers and bytes as in a local memory.

use crate::change;
use crate::encoded::EncodedRows;
use crate::error::MemoryError;
use crate::format::manifest::{FORMAT_VERSION, Manifest};
use crate::segment::Batch;
use crate::store::Description;

/// A row to be stored.
#[derive(Debug, Clone, Copy)]
pub struct StoredRow<'a> {
    /// The id of the entry.
    pub id: i64,
    /// The index of the source in [`Description::sources`].
    pub source: u32,
    /// The first 8 bytes of the SHA-256 of the document's name; 0 without a document. A search
    /// excludes documents by this hash.
    pub document: u64,
    /// The key, of unit length if the memory is normalised.
    pub key: &'a [f32],
    /// The value in the memory's number type, for
    /// [`StoredValue::from_bytes`](crate::cache::StoredValue::from_bytes); empty without values.
    pub value: &'a [u8],
    /// The entry as JSON.
    pub entry: &'a [u8],
}

/// Checks and encodes batches with `rows` rows in all, and calls `write` with the rows of each
/// batch. Adds their sources to the description, and raises its next id. Returns the largest norm of
/// a key.
///
/// # Errors
/// The errors of `batches` and `write`; [`MemoryError::DuplicateId`] for an id that occurs twice,
/// [`MemoryError::Count`], [`MemoryError::BadVector`], [`MemoryError::InvalidOption`]
pub fn encode(
    description: &mut Description,
    rows: usize,
    batches: impl Iterator<Item = Result<Batch, MemoryError>>,
    mut write: impl FnMut(&[StoredRow<'_>]) -> Result<(), MemoryError>,
) -> Result<f32, MemoryError> {
    let mut manifest = Manifest {
        format_version: FORMAT_VERSION,
        generation: description.generation,
        width: description.width,
        normalised: description.normalised,
        values: description.values,
        encoders: Vec::new(),
        sources: std::mem::take(&mut description.sources),
        next_id: description.next_id,
        segments: Vec::new(),
    };
    let longest_key =
        change::encode(&mut manifest, rows, batches, |rows| write_rows(&rows, &mut write))?;
    description.sources = manifest.sources;
    description.next_id = manifest.next_id;
    Ok(longest_key)
}

fn write_rows(
    rows: &EncodedRows,
    write: &mut impl FnMut(&[StoredRow<'_>]) -> Result<(), MemoryError>,
) -> Result<(), MemoryError> {
    let (mut values, mut ends) = (Vec::new(), Vec::with_capacity(rows.len()));
    for row in 0..rows.len() {
        rows.row(row).value.append_to(&mut values);
        ends.push(values.len());
    }
    let mut start = 0;
    let stored = ends.into_iter().enumerate().map(|(row, end)| {
        let row = rows.row(row);
        let value = &values[std::mem::replace(&mut start, end)..end];
        let entry = row.line.strip_suffix(b"\n").unwrap_or(row.line);
        let (id, source, document, key) = (row.id, row.source, row.document, row.key);
        StoredRow { id, source, document, key, value, entry }
    });
    write(&stored.collect::<Vec<_>>())
}
