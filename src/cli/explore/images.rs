//! Images of entries and of test questions: rendered, or files inside the folder of the images.

use std::path::{Path, PathBuf};

use anyhow::Context;

/// An image that the page shows.
pub(super) enum ShownImage {
    /// The bytes of a PNG file.
    Rendered(Vec<u8>),
    /// An image file.
    File(PathBuf),
}

/// The file with this path in a folder. An error if the file does not exist, and if it is
/// outside of the folder: by `..`, an absolute path or a symbolic link.
pub(super) fn file_in(folder: &Path, path: &Path) -> anyhow::Result<PathBuf> {
    let missing = || {
        let (path, folder) = (path.display(), folder.display());
        format!("{path} is not in {folder}; start `engram explore` with --images FOLDER")
    };
    let real_folder = folder.canonicalize().with_context(missing)?;
    let file = real_folder.join(path).canonicalize().with_context(missing)?;
    anyhow::ensure!(file.starts_with(&real_folder) && file.is_file(), missing());
    Ok(file)
}
