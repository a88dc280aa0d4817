//! A pack: one file `gen-NNNNNN.pack` with all that a small change wrote.
//!
//! 1. the deleted rows of large segments, one part each
//! 2. at most one segment, as a safetensors file with one tensor per column
//! 3. the manifest, and its length as u64
//!
//! Parts 1 and 2 start at multiples of 64 bytes. The manifest has their checksums.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

use super::file::{FileRecord, write_new};
use super::manifest::Manifest;
use super::pointer::{Pointer, folder_name, generation_number};
use crate::error::MemoryError;

/// The alignment of parts and tensors in bytes, so that numbers can be read in place.
pub(super) const ALIGNMENT: usize = 64;
/// The suffix of a pack's name.
pub(super) const SUFFIX: &str = ".pack";
/// The size of the manifest's length in bytes.
const LENGTH_BYTES: u64 = 8;

/// The name of a generation's pack.
pub(crate) fn name(generation: u64) -> String {
    format!("{}{SUFFIX}", folder_name(generation))
}

/// Returns the generation number in a pack's name; `None` for all other names.
pub(crate) fn number(name: &str) -> Option<u64> {
    generation_number(name.strip_suffix(SUFFIX)?)
}

/// A pack in main memory.
#[derive(Debug)]
pub(crate) struct Pack {
    name: String,
    bytes: Vec<u8>,
}

impl Pack {
    /// An empty pack of a generation.
    pub(crate) fn new(generation: u64) -> Self {
        Self { name: name(generation), bytes: Vec::new() }
    }

    /// Appends a part, and returns its record.
    pub(crate) fn push(&mut self, part: &[u8]) -> FileRecord {
        let start = self.bytes.len().next_multiple_of(ALIGNMENT);
        self.bytes.resize(start, 0);
        self.bytes.extend_from_slice(part);
        FileRecord::of_part(&self.name, start, part)
    }

    /// Writes the pack with the manifest to a new file, and syncs the file. Returns the pointer to
    /// the generation.
    pub(crate) fn write(
        mut self,
        memory: &Path,
        manifest: &Manifest,
    ) -> Result<Pointer, MemoryError> {
        let path = memory.join(&self.name);
        let json = serde_json::to_vec(manifest)
            .map_err(|error| MemoryError::write(&path)(error.into()))?;
        self.bytes.extend_from_slice(&json);
        self.bytes.extend_from_slice(&(json.len() as u64).to_le_bytes());
        write_new(&path, &self.bytes)?;
        Ok(manifest.pointer(&json, true))
    }
}

/// Reads the bytes of the manifest of a pack.
pub(super) fn read_manifest(path: &Path, file: &mut File) -> Result<Vec<u8>, MemoryError> {
    let mut read = || -> std::io::Result<Option<Vec<u8>>> {
        let Some(end) = file.metadata()?.len().checked_sub(LENGTH_BYTES) else { return Ok(None) };
        let mut length = [0; LENGTH_BYTES as usize];
        file.seek(SeekFrom::Start(end))?;
        file.read_exact(&mut length)?;
        let length = u64::from_le_bytes(length);
        let Some(start) = end.checked_sub(length) else { return Ok(None) };
        file.seek(SeekFrom::Start(start))?;
        let mut bytes = Vec::new();
        file.take(length).read_to_end(&mut bytes)?;
        Ok(Some(bytes))
    };
    read()
        .map_err(MemoryError::read(path))?
        .ok_or_else(|| MemoryError::corrupt(path, "does not end with a manifest"))
}
