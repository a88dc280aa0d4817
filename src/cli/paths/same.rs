//! Whether two paths are one file, and whose folder a path lies in.

use std::fs;
use std::path::{Path, PathBuf};

use engram_memory::format::manifest::CURRENT;
use engram_train::{METRICS, RECIPE, is_finished};

use crate::cli::output::{STDOUT, behind_links};

/// The path without links, whether or not a file is there.
pub(super) fn real(path: &Path) -> PathBuf {
    let target = behind_links(path).unwrap_or_else(|_| path.to_owned());
    if let Ok(real) = fs::canonicalize(&target) {
        return real;
    }
    match (target.parent(), target.file_name()) {
        (Some(folder), Some(name)) => {
            let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
            real_folder(folder).join(name)
        }
        _ => target,
    }
}

/// The same for a folder that may be missing.
fn real_folder(folder: &Path) -> PathBuf {
    fs::canonicalize(folder)
        .or_else(|_| std::path::absolute(folder))
        .unwrap_or_else(|_| folder.to_owned())
}

/// Whether two paths lead to one file: by name, or as hard links.
pub(super) fn is_same_file(one: &Path, other: &Path) -> bool {
    real(one) == real(other) || is_same_inode(one, other)
}

#[cfg(unix)]
fn is_same_inode(one: &Path, other: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    match (fs::metadata(one), fs::metadata(other)) {
        (Ok(one), Ok(other)) => {
            one.is_file() && (one.dev(), one.ino()) == (other.dev(), other.ino())
        }
        _ => false,
    }
}

#[cfg(not(unix))]
fn is_same_inode(_: &Path, _: &Path) -> bool {
    false
}

/// Whether a path is a pipe or a device: it is written into, and nothing is replaced.
pub(super) fn is_device(path: &Path) -> bool {
    path == Path::new(STDOUT)
        || fs::metadata(path).is_ok_and(|found| !found.is_file() && !found.is_dir())
}

/// The run or the memory in whose folder a path lies; `itself` counts the path too.
pub(super) fn holder(path: &Path, itself: bool) -> Option<(&'static str, &Path)> {
    path.ancestors().skip(usize::from(!itself)).find_map(|folder| {
        let kinds = [("memory", is_memory(folder)), ("run", is_run(folder))];
        kinds.into_iter().find_map(|(what, is)| is.then_some((what, folder)))
    })
}

/// A pointer with the generation folder that it can point to.
fn is_memory(folder: &Path) -> bool {
    let is_generation = |name: &std::ffi::OsStr| name.as_encoded_bytes().starts_with(b"gen-");
    folder.join(CURRENT).is_file()
        && fs::read_dir(folder)
            .is_ok_and(|entries| entries.flatten().any(|entry| is_generation(&entry.file_name())))
}

/// A recipe alone may be the user's own; a run has more.
fn is_run(folder: &Path) -> bool {
    folder.join(RECIPE).is_file()
        && (is_finished(folder)
            || [METRICS, ".lock", "checkpoints"].iter().any(|name| folder.join(name).exists()))
}
