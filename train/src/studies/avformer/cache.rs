//! Files of results in the folder `data.cache`, so that later runs need not compute them again.
//!
//! A file has a header and floats, after the SHA-256 of both. If several runs write a file, only
//! the results of the last run remain.

use std::io::Read;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};

use crate::checkpoint::write_file;
use crate::distributed::message::{self, WithFloats};
use crate::error::{Result, TrainError};
use crate::log;

/// The length of a SHA-256.
const HASH: usize = 32;

/// The path of a cache file and its content; `None` for a new or unreadable file. Creates the
/// folder. An unreadable file gives a warning that names its `content`; the next save replaces the
/// file.
pub(super) fn open<T: DeserializeOwned>(
    folder: &str,
    name: &str,
    content: &str,
) -> Result<(PathBuf, Option<WithFloats<T>>)> {
    let folder = Path::new(folder);
    engram_durable::create_folder(folder).map_err(TrainError::io(folder))?;
    let file = folder.join(name);
    if !file.is_file() {
        return Ok((file, None));
    }
    let mut bytes = Vec::new();
    // Such a file may be larger than the files that `read_file` reads.
    let mut opened = engram_durable::open_file(&file).map_err(TrainError::io(&file))?;
    opened.read_to_end(&mut bytes).map_err(TrainError::io(&file))?;
    match read(&bytes) {
        Ok(cached) => Ok((file, Some(cached))),
        Err(reason) => {
            log::print(&format!("{}: {reason}; recomputing its {content}", file.display()));
            Ok((file, None))
        }
    }
}

/// Writes a cache file.
pub(super) fn save(file: &Path, header: &impl Serialize, floats: &[f32]) -> Result<()> {
    let content = message::pack(header, floats)
        .map_err(|reason| TrainError::io(file)(std::io::Error::other(reason)))?;
    write_file(file, &[&Sha256::digest(&content)[..], &content].concat())
}

/// Parses a file, and checks its checksum.
fn read<T: DeserializeOwned>(bytes: &[u8]) -> std::result::Result<WithFloats<T>, String> {
    let (sha256, content) = bytes.split_at_checked(HASH).ok_or("it is too short")?;
    if Sha256::digest(content)[..] != *sha256 {
        return Err("its checksum does not match".to_owned());
    }
    message::unpack(content)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_or_truncated_file_is_rejected() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("cache");
        let (texts, floats) = (vec!["a cat".to_owned(), String::new()], [0.5, -2.0]);
        save(&file, &texts, &floats).expect("written");
        let bytes = std::fs::read(&file).expect("a file");
        assert_eq!(read(&bytes), Ok((texts, floats.to_vec())));
        for position in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[position] ^= 1;
            assert!(read::<Vec<String>>(&changed).is_err(), "byte {position}");
            assert!(read::<Vec<String>>(&bytes[..position]).is_err(), "cut at {position}");
        }
    }
}
