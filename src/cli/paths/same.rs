//! Compares paths: whether two paths are the same file, and which run or memory contains a path.

use std::fs;
use std::path::{Path, PathBuf};

use engram_infer::finished_run::{RECIPE, is_finished};
use engram_memory::format::manifest::CURRENT;
use engram_train::METRICS;

use crate::cli::output::{STDOUT, follow_links};

/// The path with symbolic links resolved, whether or not a file exists there. A missing folder is
/// below the nearest existing one.
pub(super) fn resolved(path: &Path) -> PathBuf {
    let target = follow_links(path).unwrap_or_else(|_| path.to_owned());
    if let Ok(resolved) = fs::canonicalize(&target) {
        return resolved;
    }
    match (target.parent(), target.file_name()) {
        (Some(folder), Some(name)) => {
            let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
            resolved(folder).join(name)
        }
        _ => std::path::absolute(&target).unwrap_or(target),
    }
}

/// Whether two paths are the same file, also through symbolic or hard links.
pub(super) fn is_same_file(path: &Path, other: &Path) -> bool {
    resolved(path) == resolved(other) || is_same_inode(path, other)
}

#[cfg(unix)]
fn is_same_inode(path: &Path, other: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    match (fs::metadata(path), fs::metadata(other)) {
        (Ok(metadata), Ok(other)) => {
            metadata.is_file() && (metadata.dev(), metadata.ino()) == (other.dev(), other.ino())
        }
        _ => false,
    }
}

#[cfg(not(unix))]
fn is_same_inode(_: &Path, _: &Path) -> bool {
    false
}

/// Whether a path is a pipe or a device. Writing to it replaces no file.
pub(super) fn is_device(path: &Path) -> bool {
    path == Path::new(STDOUT)
        || fs::metadata(path).is_ok_and(|metadata| !metadata.is_file() && !metadata.is_dir())
}

/// Finds the run or memory whose folder contains a path. Returns its kind and its folder, or `None`
/// if there is none. With `include_path`, the path itself may be that folder.
pub(super) fn containing_run_or_memory(
    path: &Path,
    include_path: bool,
) -> Option<(&'static str, &Path)> {
    path.ancestors().skip(usize::from(!include_path)).find_map(|folder| {
        let kinds = [("memory", is_memory(folder)), ("run", is_run(folder))];
        kinds.into_iter().find_map(|(kind, is_kind)| is_kind.then_some((kind, folder)))
    })
}

/// Whether a folder is a memory: it has the pointer file and a generation folder.
fn is_memory(folder: &Path) -> bool {
    let is_generation = |name: &std::ffi::OsStr| name.as_encoded_bytes().starts_with(b"gen-");
    folder.join(CURRENT).is_file()
        && fs::read_dir(folder)
            .is_ok_and(|entries| entries.flatten().any(|entry| is_generation(&entry.file_name())))
}

/// Whether a folder is a run. A recipe alone may be the user's own file, so another file of a run
/// must also exist.
fn is_run(folder: &Path) -> bool {
    folder.join(RECIPE).is_file()
        && (is_finished(folder)
            || [METRICS, ".lock", "checkpoints"].iter().any(|name| folder.join(name).exists()))
}
