//! `CURRENT`, the only file of a memory that is replaced. It names the current generation and the
//! SHA-256 of its manifest.

use std::fs;
use std::io::ErrorKind::{NotADirectory, NotFound};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use super::file::check_is_file;
use super::manifest::MANIFEST;
use super::pack;
use crate::error::MemoryError;

/// The file that names the current generation and the SHA-256 of its manifest.
pub const CURRENT: &str = "CURRENT";
/// The maximum length of a pointer in bytes.
const MAX_POINTER_BYTES: u64 = 1000;

/// The content of `CURRENT`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Pointer {
    pub(crate) generation: u64,
    /// Whether the generation is a pack; else it is a folder.
    pub(crate) is_pack: bool,
    /// The SHA-256 of the manifest, in hexadecimal.
    pub(crate) sha256: String,
}

impl Pointer {
    /// Reads the pointer of a memory; `None` if the file is missing.
    pub(crate) fn read(memory: &Path) -> Result<Option<Self>, MemoryError> {
        let path = memory.join(CURRENT);
        match fs::metadata(&path) {
            Err(error) if matches!(error.kind(), NotFound | NotADirectory) => return Ok(None),
            // Opening a pipe would block.
            _ => check_is_file(&path)?,
        }
        let file = engram_durable::open_file(&path).map_err(MemoryError::read(&path))?;
        let mut bytes = Vec::new();
        file.take(MAX_POINTER_BYTES).read_to_end(&mut bytes).map_err(MemoryError::read(&path))?;
        let text =
            std::str::from_utf8(&bytes).map_err(|_| MemoryError::corrupt(&path, "is not text"))?;
        let pointer = text.trim_end().split_once(' ').and_then(|(name, sha256)| {
            let (generation, is_pack) = match pack::number(name) {
                Some(number) => (number, true),
                None => (generation_number(name)?, false),
            };
            Some(Self { generation, is_pack, sha256: sha256.to_owned() })
        });
        pointer.map(Some).ok_or_else(|| MemoryError::corrupt(&path, "does not name a generation"))
    }

    /// Makes the generation current. An error may occur after `CURRENT` was replaced: see
    /// [`FileIdentity`].
    pub(crate) fn write(&self, memory: &Path) -> io::Result<()> {
        let text = format!("{} {}\n", self.name(), self.sha256);
        engram_durable::write_file(&memory.join(CURRENT), text.as_bytes())
    }

    /// The name of the generation's folder or pack.
    pub(super) fn name(&self) -> String {
        if self.is_pack { pack::name(self.generation) } else { folder_name(self.generation) }
    }

    /// The file with the manifest.
    pub(crate) fn manifest_path(&self, memory: &Path) -> PathBuf {
        let path = memory.join(self.name());
        if self.is_pack { path } else { path.join(MANIFEST) }
    }
}

/// Distinguishes a file from its replacement; `None` for a missing file. Uses no file descriptor:
/// the process may have none left.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct FileIdentity(Option<(u64, u64)>);

impl FileIdentity {
    /// Returns the identity of the file at a path. All missing files have the same identity.
    pub(crate) fn of(path: &Path) -> Self {
        let metadata = fs::metadata(path).ok();
        Self(metadata.map(|metadata| engram_durable::file_identity(&metadata)))
    }
}

/// The name of a generation's folder.
pub(crate) fn folder_name(generation: u64) -> String {
    format!("gen-{generation:06}")
}

/// Returns the generation number in a folder name; `None` for all other names.
pub(crate) fn generation_number(name: &str) -> Option<u64> {
    let number = name.strip_prefix("gen-")?.parse().ok()?;
    (folder_name(number) == name).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_engram_folder_names_are_generations() {
        for number in [1, 37, 999_999, 1_000_000, u64::MAX] {
            assert_eq!(generation_number(&folder_name(number)), Some(number));
        }
        for name in ["gen-", "gen-1", "gen-0000000009", "gen-notes", "gen-+00001", "gen-000001x"] {
            assert_eq!(generation_number(name), None, "{name}");
        }
    }
}
