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

/// The image file with this path in a folder. An error if the file does not exist, and if it is
/// outside of the folder: by `..`, an absolute path or a symbolic link.
pub(super) fn file_in(folder: &Path, path: &Path) -> anyhow::Result<ShownImage> {
    let missing = || format!("the image {} is not in {}", path.display(), folder.display());
    let real_folder = folder.canonicalize().with_context(missing)?;
    let file = real_folder.join(path).canonicalize().with_context(missing)?;
    anyhow::ensure!(file.starts_with(&real_folder) && file.is_file(), missing());
    Ok(ShownImage::File(file))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_outside_of_the_folder_are_refused() {
        let root = tempfile::tempdir().expect("a folder");
        let folder = root.path().join("data");
        std::fs::create_dir_all(folder.join("images")).expect("made");
        for file in ["secret.png", "data/images/a.png"] {
            std::fs::write(root.path().join(file), "").expect("written");
        }
        let is_shown = |path: &str| file_in(&folder, Path::new(path)).is_ok();
        assert!(is_shown("images/a.png") && is_shown("images/../images/a.png"));
        let absolute = root.path().join("secret.png").display().to_string();
        for path in ["../secret.png", "images/../../secret.png", &absolute, "images", "b.png", ""] {
            assert!(!is_shown(path), "{path}");
        }
        #[cfg(unix)]
        {
            std::os::unix::fs::symlink("../secret.png", folder.join("link.png")).expect("linked");
            assert!(!is_shown("link.png"));
        }
    }
}
