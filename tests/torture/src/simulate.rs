//! The worst state that a file system may have after a power cut, from the order of writes and
//! syncs.
//!
//! Unsynced data are lost. New names and renames in a folder are undone unless the folder was
//! synced.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::preload::Call;
use crate::scratch;

/// Removes the data from `workdir` that the operations have not made durable. `start` is a copy of
/// `workdir` before the command.
pub fn lose_unsynced(workdir: &Path, start: &Path, calls: &[Call]) -> Result<()> {
    // Number of durable bytes of each file.
    let mut durable: BTreeMap<PathBuf, u64> = BTreeMap::new();
    // Names that are not durable yet, in order.
    let mut names: Vec<PathBuf> = Vec::new();
    for call in calls {
        let path = PathBuf::from(&call.path);
        match call.operation.as_str() {
            "open" if !durable.contains_key(&path) => {
                let original = path.strip_prefix(workdir).map(|path| start.join(path));
                match original.ok().and_then(|original| original.metadata().ok()) {
                    Some(data) => durable.insert(path, data.len()),
                    None => {
                        names.push(path.clone());
                        durable.insert(path, 0)
                    }
                };
            }
            "mkdir" | "link" => names.push(path),
            "rename" => {
                let from = PathBuf::from(&call.note);
                move_below(&mut durable, &from, &path);
                names.retain(|name| *name != from);
                for name in &mut names {
                    if let Ok(relative) = name.strip_prefix(&from) {
                        *name = path.join(relative);
                    }
                }
                names.push(path);
            }
            // Only files are opened for writing.
            "fsync" => match durable.get_mut(&path) {
                Some(size) => *size = call.note.parse()?,
                None => names.retain(|name| name.parent() != Some(&path)),
            },
            _ => {}
        }
    }
    for (path, size) in durable {
        if path.metadata().is_ok_and(|metadata| metadata.is_file() && metadata.len() > size) {
            fs::OpenOptions::new().write(true).open(&path)?.set_len(size)?;
        }
    }
    for name in names.iter().map(|name| renamed(name)).rev() {
        let name = &name;
        scratch::remove(name)?;
        if let Ok(path) = name.strip_prefix(workdir) {
            restore(&start.join(path), name)?;
        }
    }
    Ok(())
}

/// Returns the target of a temporary file `.NAME.engram-XXXXXX` that was renamed, or else the path.
/// The preload library does not see these renames, because the program calls the kernel directly.
fn renamed(path: &Path) -> PathBuf {
    let name = path.file_name().and_then(|name| name.to_str());
    let target = name.and_then(|name| name.strip_prefix('.')?.rsplit_once(".engram-"));
    match target {
        Some((target, _)) if !path.exists() => path.with_file_name(target),
        _ => path.to_owned(),
    }
}

/// Moves the durable sizes of a renamed file, or of all files in a renamed folder.
fn move_below(durable: &mut BTreeMap<PathBuf, u64>, from: &Path, to: &Path) {
    let moved: Vec<PathBuf> =
        durable.keys().filter(|path| path.starts_with(from)).cloned().collect();
    for path in moved {
        let size = durable.remove(&path).unwrap_or(0);
        let relative = path.strip_prefix(from).unwrap_or(Path::new(""));
        // Joining an empty path would add a slash.
        let target =
            if relative.as_os_str().is_empty() { to.to_owned() } else { to.join(relative) };
        durable.insert(target, size);
    }
}

/// Restores the file or folder that a rename has replaced, if any.
fn restore(original: &Path, name: &Path) -> Result<()> {
    if original.is_dir() {
        return scratch::copy(original, name);
    }
    if original.is_file() && name.parent().is_some_and(Path::is_dir) {
        fs::copy(original, name)?;
    }
    Ok(())
}
