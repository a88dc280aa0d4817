//! A file with checksums: written sequentially, read through a memory map.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::mapping::Mapping;
use crate::error::MemoryError;

/// The size of a block in bytes. Each block has its own checksum.
pub(crate) const BLOCK: usize = 1 << 20;

/// The manifest's record of a file, or of a part of a pack.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileRecord {
    /// The file name, in the folder of its generation. A pack is in the memory's folder.
    pub name: String,
    /// The offset in bytes of a part of a pack, a multiple of 64; `None` for a whole file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<u64>,
    /// The size in bytes.
    pub bytes: u64,
    /// The SHA-256 of the file or part, in hexadecimal.
    pub sha256: String,
    /// The CRC-32 of each block of 1 MiB, as eight hexadecimal digits each, concatenated.
    pub crc32: String,
}

impl FileRecord {
    /// Returns the record of a part of the pack `name`.
    pub(crate) fn of_part(name: &str, start: usize, part: &[u8]) -> Self {
        let blocks = part.chunks(BLOCK);
        Self {
            name: name.to_owned(),
            start: Some(start as u64),
            bytes: part.len() as u64,
            sha256: hex(&Sha256::digest(part)),
            crc32: blocks.map(|block| format!("{:08x}", crc32fast::hash(block))).collect(),
        }
    }

    /// The path of the file. `folder` is the folder of the generation that wrote it, which does not
    /// exist for a pack.
    fn path(&self, folder: &Path) -> PathBuf {
        match self.start {
            None => folder.join(&self.name),
            Some(_) => folder.with_file_name(&self.name),
        }
    }
}

/// Writes a file and its checksums.
pub(crate) struct FileWriter {
    path: PathBuf,
    file: BufWriter<File>,
    /// The number of bytes written.
    bytes: u64,
    sha256: Sha256,
    /// The CRC-32 of the current block.
    block_crc32: crc32fast::Hasher,
    /// The CRC-32 of each complete block, in hexadecimal.
    crc32: String,
}

impl FileWriter {
    pub(crate) fn create(path: PathBuf) -> Result<Self, MemoryError> {
        let file = engram_durable::create_new_file(&path).map_err(MemoryError::write(&path))?;
        Ok(Self {
            path,
            file: BufWriter::with_capacity(BLOCK, file),
            bytes: 0,
            sha256: Sha256::new(),
            block_crc32: crc32fast::Hasher::new(),
            crc32: String::new(),
        })
    }

    pub(crate) fn write(&mut self, mut bytes: &[u8]) -> Result<(), MemoryError> {
        self.file.write_all(bytes).map_err(MemoryError::write(&self.path))?;
        self.sha256.update(bytes);
        while !bytes.is_empty() {
            let room = BLOCK - (self.bytes % BLOCK as u64) as usize;
            let (in_block, after_block) = bytes.split_at(room.min(bytes.len()));
            self.block_crc32.update(in_block);
            self.bytes += in_block.len() as u64;
            if self.bytes.is_multiple_of(BLOCK as u64) {
                self.end_block();
            }
            bytes = after_block;
        }
        Ok(())
    }

    fn end_block(&mut self) {
        let crc32 = std::mem::take(&mut self.block_crc32);
        self.crc32.push_str(&format!("{:08x}", crc32.finalize()));
    }

    /// Syncs the file, and returns its record.
    pub(crate) fn finish(mut self) -> Result<FileRecord, MemoryError> {
        if !self.bytes.is_multiple_of(BLOCK as u64) {
            self.end_block();
        }
        let synced = self.file.flush().and_then(|()| self.file.get_ref().sync_all());
        synced.map_err(MemoryError::write(&self.path))?;
        let name = self.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Ok(FileRecord {
            name,
            start: None,
            bytes: self.bytes,
            sha256: hex(&self.sha256.finalize()),
            crc32: self.crc32,
        })
    }
}

/// Writes a new file, and syncs it.
pub(crate) fn write_new(path: &Path, bytes: &[u8]) -> Result<(), MemoryError> {
    let write = || {
        let mut file = engram_durable::create_new_file(path)?;
        file.write_all(bytes)?;
        file.sync_all()
    };
    write().map_err(MemoryError::write(path))
}

/// A memory-mapped file, or a part of a pack. Each block is checked when it is first read.
#[derive(Debug)]
pub(crate) struct CheckedFile {
    path: PathBuf,
    /// `None` for an empty file, which cannot be mapped.
    map: Option<Mapping>,
    sha256: String,
    /// The expected CRC-32 of each block.
    crc32: Vec<u32>,
    /// Whether each block was checked.
    checked: Vec<AtomicBool>,
}

impl CheckedFile {
    pub(crate) fn open(folder: &Path, record: &FileRecord) -> Result<Self, MemoryError> {
        let path = record.path(folder);
        check_is_file(&path)?;
        let file = engram_durable::open_file(&path).map_err(MemoryError::read(&path))?;
        let found = file.metadata().map_err(MemoryError::read(&path))?.len();
        let (start, bytes) = (record.start.unwrap_or(0), record.bytes);
        let is_complete = match record.start {
            None => found == bytes,
            Some(start) => start.checked_add(bytes).is_some_and(|end| found >= end),
        };
        if !is_complete {
            let reason = format!("has {found} bytes, expected {}", start.saturating_add(bytes));
            return Err(MemoryError::corrupt(&path, reason));
        }
        let digits = record.crc32.as_bytes().chunks(8);
        let crc32: Option<Vec<u32>> = digits
            .map(|digits| u32::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok())
            .collect();
        let crc32 = crc32
            .filter(|crc32| crc32.len() as u64 == bytes.div_ceil(BLOCK as u64))
            .ok_or_else(|| MemoryError::corrupt(&path, "has no valid checksums in the manifest"))?;
        let map = match bytes {
            0 => None,
            _ => {
                let map = Mapping::new(&file, &path, start, bytes as usize);
                Some(map.map_err(MemoryError::read(&path))?)
            }
        };
        let checked = crc32.iter().map(|_| AtomicBool::new(false)).collect();
        Ok(Self { path, map, sha256: record.sha256.clone(), crc32, checked })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn len(&self) -> usize {
        self.map.as_ref().map_or(0, |map| map.len())
    }

    /// Returns a range of bytes of the file.
    ///
    /// # Errors
    /// [`MemoryError::Corrupt`] if a block of the range was changed, or if the range exceeds the
    /// file.
    pub(crate) fn bytes(&self, range: Range<usize>) -> Result<&[u8], MemoryError> {
        let content = self.unchecked();
        let Some(bytes) = content.get(range.clone()) else {
            let reason = format!("ends before byte {}", range.end);
            return Err(MemoryError::corrupt(&self.path, reason));
        };
        for block in range.start / BLOCK..range.end.div_ceil(BLOCK) {
            // Two threads may check a block at the same time; this is harmless.
            if !self.checked[block].load(Ordering::Acquire) {
                let start = block * BLOCK;
                let crc32 = crc32fast::hash(&content[start..content.len().min(start + BLOCK)]);
                if crc32 != self.crc32[block] {
                    let reason =
                        format!("was changed between the bytes {start} and {}", start + BLOCK);
                    return Err(MemoryError::corrupt(&self.path, reason));
                }
                self.checked[block].store(true, Ordering::Release);
            }
        }
        Ok(bytes)
    }

    /// Returns the whole file. Read only blocks that [`CheckedFile::bytes`] has checked.
    pub(crate) fn unchecked(&self) -> &[u8] {
        self.map.as_deref().unwrap_or_default()
    }

    /// Checks the whole file against its SHA-256.
    pub(crate) fn verify(&self) -> Result<(), MemoryError> {
        self.bytes(0..self.len())?;
        if hex(&Sha256::digest(self.unchecked())) != self.sha256 {
            return Err(MemoryError::corrupt(&self.path, "differs from its SHA-256"));
        }
        Ok(())
    }
}

/// Returns an error unless `path` is a regular file with its own content. Opening a pipe could block, and a device may
/// never end.
pub(crate) fn check_is_file(path: &Path) -> Result<(), MemoryError> {
    match std::fs::metadata(path) {
        Ok(metadata) if metadata.is_file() => Ok(engram_textfile::refuse_lfs_pointer_at(path)?),
        Ok(_) => Err(MemoryError::corrupt(path, "is not a file")),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            Err(MemoryError::corrupt(path, "is missing"))
        }
        Err(source) => Err(MemoryError::Read { file: path.to_owned(), source }),
    }
}

/// Returns bytes as lower-case hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes a file of this many bytes.
    fn write_file(folder: &Path, bytes: usize) -> FileRecord {
        let mut writer = FileWriter::create(folder.join("f")).unwrap();
        let content: Vec<u8> = (0..bytes).map(|i| (i * 7 + i / 251) as u8).collect();
        for part in content.chunks(300_007) {
            writer.write(part).unwrap();
        }
        writer.finish().unwrap()
    }

    #[test]
    fn the_bytes_read_equal_the_bytes_written() {
        for bytes in [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 5] {
            let folder = tempfile::tempdir().unwrap();
            let record = write_file(folder.path(), bytes);
            assert_eq!(record.bytes, bytes as u64);
            let file = CheckedFile::open(folder.path(), &record).unwrap();
            file.verify().unwrap();
            let last = file.bytes(bytes.saturating_sub(3)..bytes).unwrap();
            let start = bytes - last.len();
            for (i, byte) in (start..).zip(last) {
                assert_eq!(*byte, (i * 7 + i / 251) as u8);
            }
            assert!(file.bytes(0..bytes + 1).is_err());
        }
    }

    #[test]
    fn a_changed_byte_is_detected_when_its_block_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let record = write_file(folder.path(), 2 * BLOCK + 10);
        let path = folder.path().join("f");
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[BLOCK + 77] ^= 4;
        std::fs::write(&path, &bytes).unwrap();
        let file = CheckedFile::open(folder.path(), &record).unwrap();
        file.bytes(0..BLOCK).unwrap();
        file.bytes(2 * BLOCK..2 * BLOCK + 10).unwrap();
        for _ in 0..2 {
            let error = file.bytes(BLOCK..BLOCK + 1).unwrap_err().to_string();
            assert!(error.contains("f: was changed between the bytes 1048576"), "{error}");
        }
        assert!(file.verify().is_err());
        std::fs::write(&path, &bytes[..BLOCK]).unwrap();
        let error = CheckedFile::open(folder.path(), &record).unwrap_err().to_string();
        assert!(error.contains("has 1048576 bytes, expected 2097162"), "{error}");
    }
}
