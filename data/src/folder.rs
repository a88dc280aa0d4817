//! Lists the files of a folder and its subfolders. All readers of folders use this module.
//!
//! Hidden files are skipped, because macOS leaves a file `._NAME` beside each `NAME` in archives
//! and on drives of other systems, with the same extension but other content.

use std::ffi::OsStr;
use std::fmt;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::DataError;
use crate::messages::counted;

/// The folder of metadata in archives made on macOS.
const MAC_FOLDER: &str = "__MACOSX";

/// The files of a folder that match a predicate.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FolderFiles {
    /// Sorted by path.
    pub files: Vec<PathBuf>,
    /// Counts of the skipped files.
    pub skipped: SkippedFiles,
}

/// Counts of skipped files.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct SkippedFiles {
    /// Hidden files and folders; a hidden folder counts once, with its content.
    pub hidden: usize,
    /// Visible files that do not match the predicate.
    pub others: usize,
    /// Links to folders. They are not followed, because they may lead back to the same files.
    pub links: usize,
}

impl std::ops::AddAssign for SkippedFiles {
    fn add_assign(&mut self, other: Self) {
        self.hidden += other.hidden;
        self.others += other.others;
        self.links += other.links;
    }
}

/// The counts as text, such as `2 hidden files and 1 other file`.
impl fmt::Display for SkippedFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (hidden, others) =
            (counted(self.hidden, "hidden file"), counted(self.others, "other file"));
        if self.links == 0 {
            return write!(f, "{hidden} and {others}");
        }
        let links = counted(self.links, "linked folder");
        write!(f, "{hidden}, {others} and {links} (to read a linked folder, give its own path)")
    }
}

/// Finds the files of a folder and its subfolders for which `matches` returns true. Links to
/// folders are not followed.
///
/// # Errors
/// `Io`
pub fn files(folder: &Path, matches: &dyn Fn(&Path) -> bool) -> Result<FolderFiles, DataError> {
    let mut listing = FolderFiles::default();
    walk(folder, matches, &mut listing)?;
    listing.files.sort();
    Ok(listing)
}

fn walk(
    folder: &Path,
    matches: &dyn Fn(&Path) -> bool,
    listing: &mut FolderFiles,
) -> Result<(), DataError> {
    let io = |source| DataError::Io { path: folder.into(), source };
    for entry in std::fs::read_dir(folder).map_err(io)? {
        let entry = entry.map_err(io)?;
        let path = entry.path();
        if is_hidden(&entry.file_name()) {
            listing.skipped.hidden += 1;
        } else if path.is_dir() {
            if path.is_symlink() {
                listing.skipped.links += 1;
            } else {
                walk(&path, matches, listing)?;
            }
        } else if matches(&path) {
            listing.files.push(path);
        } else {
            listing.skipped.others += 1;
        }
    }
    Ok(())
}

/// Whether a file or folder with this name is hidden.
pub fn is_hidden(name: &OsStr) -> bool {
    name.as_encoded_bytes().starts_with(b".") || name == MAC_FOLDER
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hidden_files_and_linked_folders_are_skipped_and_counted() {
        let root = tempfile::tempdir().expect("a folder");
        // The root folder may itself be hidden.
        let folder = root.path().join(".data");
        for subfolder in ["a/.cache", "__MACOSX"] {
            std::fs::create_dir_all(folder.join(subfolder)).expect("a folder");
        }
        for name in ["b.wav", "._b.wav", "a/c.wav", "a/.cache/d.wav", "__MACOSX/._b.wav", "a/n.txt"]
        {
            std::fs::write(folder.join(name), b"x").expect("a file");
        }
        std::os::unix::fs::symlink("a", folder.join("link")).expect("a link");
        let is_wav = |path: &Path| path.extension().is_some_and(|extension| extension == "wav");
        let listing = files(&folder, &is_wav).expect("files");
        assert_eq!(listing.files, [folder.join("a/c.wav"), folder.join("b.wav")]);
        assert_eq!(listing.skipped, SkippedFiles { hidden: 3, others: 1, links: 1 });
        let expected = "3 hidden files, 1 other file and 1 linked folder (to read";
        assert!(listing.skipped.to_string().starts_with(expected), "{}", listing.skipped);
        assert!(files(&folder.join("none"), &is_wav).is_err());
    }
}
