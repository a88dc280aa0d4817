//! Names of temporary files and folders, and their removal after a killed process.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::path::Path;

use crate::folder::{remove_file, remove_folder};

/// The part of a temporary name between the target's name and the random part.
const MARKER: &str = ".engram-";
/// The number of random letters and digits at the end of a temporary name.
pub(crate) const RANDOM_LENGTH: usize = 6;

/// Returns the prefix of all temporary names for the file or folder `name`.
pub(crate) fn prefix(name: &OsStr) -> OsString {
    let mut prefix = OsString::from(".");
    prefix.push(name);
    prefix.push(MARKER);
    prefix
}

/// Whether `file_name` is the name of a temporary file or folder of `target`. A killed process
/// leaves such files and folders.
pub fn is_leftover(file_name: &OsStr, target: &str) -> bool {
    let random = file_name
        .to_str()
        .and_then(|name| name.strip_prefix('.')?.strip_prefix(target)?.strip_prefix(MARKER));
    random.is_some_and(|random| {
        random.len() == RANDOM_LENGTH && random.bytes().all(|byte| byte.is_ascii_alphanumeric())
    })
}

/// Removes the temporary files and folders of these targets from a folder. Other files stay. A
/// missing folder is not an error.
///
/// Call it only while no other process writes these targets, for example under a lock.
///
/// # Errors
/// errors of reading the folder and of removing
pub fn remove_leftovers(folder: &Path, targets: &[&str]) -> io::Result<()> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        if targets.iter().any(|target| is_leftover(&entry.file_name(), target)) {
            if entry.file_type()?.is_dir() {
                remove_folder(&entry.path())?;
            } else {
                remove_file(&entry.path())?;
            }
        }
    }
    Ok(())
}
