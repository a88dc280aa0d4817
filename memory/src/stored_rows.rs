//! Encodes rows for stores outside of this crate, with the checks and bytes of a local memory.

use crate::change;
pub use crate::encoded::{EncodedRow, EncodedRows};
use crate::error::MemoryError;
use crate::format::manifest::{FORMAT_VERSION, Manifest};
use crate::segment::Batch;
use crate::store::Description;

/// Checks and encodes batches with `rows` rows in all, and calls `write` with the rows of each
/// batch. Adds their sources to the description, and raises its next id. Returns the largest norm
/// of a key.
///
/// # Errors
/// The errors of `batches` and `write`; [`MemoryError::DuplicateId`] for an id that occurs twice,
/// [`MemoryError::Count`], [`MemoryError::BadVector`], [`MemoryError::InvalidOption`]
pub fn encode(
    description: &mut Description,
    rows: usize,
    batches: impl Iterator<Item = Result<Batch, MemoryError>>,
    write: impl FnMut(EncodedRows) -> Result<(), MemoryError>,
) -> Result<f32, MemoryError> {
    let mut manifest = Manifest {
        format_version: FORMAT_VERSION,
        generation: description.generation,
        identity: None,
        width: description.width,
        normalised: description.normalised,
        values: description.values,
        encoders: Vec::new(),
        sources: std::mem::take(&mut description.sources),
        next_id: description.next_id,
        segments: Vec::new(),
    };
    let longest_key = change::encode(&mut manifest, rows, batches, write)?;
    description.sources = manifest.sources;
    description.next_id = manifest.next_id;
    Ok(longest_key)
}
