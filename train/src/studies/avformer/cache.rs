//! Files in the folder `data.cache`.

use std::path::{Path, PathBuf};

use crate::error::{Result, TrainError};
use crate::log;

/// The error for a file that does not match its checksum.
pub(super) const WRONG_CHECKSUM: &str = "its checksum does not match";

/// The path of a cache file and its parsed content; `None` for a new or unreadable file. Creates
/// the folder. An unreadable file gives a warning that names its `content`; the next save replaces
/// the file.
pub(super) fn open<T>(
    folder: &str,
    name: &str,
    content: &str,
    read: impl FnOnce(&[u8]) -> Result<T, String>,
) -> Result<(PathBuf, Option<T>)> {
    let folder = Path::new(folder);
    engram_durable::create_folder(folder).map_err(TrainError::io(folder))?;
    let file = folder.join(name);
    if !file.is_file() {
        return Ok((file, None));
    }
    let bytes = std::fs::read(&file).map_err(TrainError::io(&file))?;
    match read(&bytes) {
        Ok(cached) => Ok((file, Some(cached))),
        Err(reason) => {
            log::print(&format!("{}: {reason}; recomputing its {content}", file.display()));
            Ok((file, None))
        }
    }
}
