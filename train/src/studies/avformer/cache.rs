//! Files of `data.cache`.

use std::path::{Path, PathBuf};

use crate::error::{Result, TrainError};
use crate::log;

/// The reason against a file whose bytes do not have its checksum.
pub(super) const CHANGED: &str = "its checksum does not match";

/// The path of a file in a folder, which is made, and what `read` makes of it; `None` where there is none yet. One that
/// cannot be read is told, and `what` it has made anew.
pub(super) fn open<T>(
    (folder, name): (&str, &str),
    what: &str,
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
        Ok(known) => Ok((file, Some(known))),
        Err(reason) => {
            log::print(&format!("{}: {reason}; its {what} are made anew", file.display()));
            Ok((file, None))
        }
    }
}
