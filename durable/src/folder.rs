//! Durable folders: written to a temporary folder beside the target, synced, renamed to the target.
//! Also renames, removes and syncs files and folders.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::file::{already_exists, refuse_link};
use crate::leftover::{RANDOM_LENGTH, prefix};
use crate::platform::{set_mode, sync_file, sync_folder};

/// A folder that is built beside its final path. A drop without a commit leaves nothing.
#[derive(Debug)]
pub struct FolderWriter {
    temporary: TempDir,
    folder: PathBuf,
}

impl FolderWriter {
    /// Creates a temporary folder beside `folder`. [`FolderWriter::commit`] renames it to `folder`.
    /// Missing parents are created.
    ///
    /// # Errors
    /// [`io::ErrorKind::AlreadyExists`] if the target exists and is not an empty folder;
    /// errors of creating the folder
    pub fn create(folder: &Path) -> io::Result<Self> {
        check_missing_or_empty(folder)?;
        // If `folder` is a symbolic link to an empty folder, the target of the link is replaced.
        let folder = fs::canonicalize(folder).unwrap_or_else(|_| folder.to_path_buf());
        let name = folder.file_name().ok_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidInput, "the path has no folder name")
        })?;
        create_folder(parent(&folder))?;
        let prefix = prefix(name);
        let mut builder = tempfile::Builder::new();
        builder.prefix(&prefix).rand_bytes(RANDOM_LENGTH);
        set_mode(&mut builder, 0o777);
        let temporary = builder.tempdir_in(parent(&folder))?;
        Ok(Self { temporary, folder })
    }

    /// Returns the temporary folder, which holds the files until the commit.
    pub fn path(&self) -> &Path {
        self.temporary.path()
    }

    /// Syncs all files and folders, renames the folder to its final path and syncs the parent.
    ///
    /// # Errors
    /// - [`io::ErrorKind::AlreadyExists`] if another process has created the target and filled it:
    ///   the finished folder keeps its temporary name, which the message contains.
    /// - An error of syncing the parent: the folder exists, but a power cut may still undo the
    ///   rename.
    pub fn commit(self) -> io::Result<()> {
        sync_tree(self.temporary.path())?;
        if cfg!(windows) {
            // Windows does not rename over an empty folder. A folder with content stays.
            let _ = fs::remove_dir(&self.folder);
        }
        // The rename fails if the target is a folder with content.
        if let Err(error) = fs::rename(self.temporary.path(), &self.folder) {
            let Err(reason) = check_missing_or_empty(&self.folder) else { return Err(error) };
            let temporary_path = self.temporary.keep();
            sync_folder(parent(&temporary_path))?;
            return Err(already_exists(&reason.to_string(), &temporary_path));
        }
        let _renamed = self.temporary.keep();
        sync_folder(parent(&self.folder))
    }
}

/// Returns an error if the path is a file or a folder with content.
fn check_missing_or_empty(folder: &Path) -> io::Result<()> {
    let reason = match fs::read_dir(folder).map(|mut entries| entries.next().is_none()) {
        Ok(true) => return Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Ok(false) => "the folder is not empty",
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => "a file of this name exists",
        Err(error) => return Err(error),
    };
    Err(io::Error::new(io::ErrorKind::AlreadyExists, reason))
}

/// Creates a folder and its missing parents, and syncs the parent of each new folder.
///
/// # Errors
/// errors of creating and syncing
pub fn create_folder(folder: &Path) -> io::Result<()> {
    if folder.is_dir() {
        return Ok(());
    }
    let parent = parent(folder);
    create_folder(parent)?;
    match fs::create_dir(folder) {
        // Another process created the folder meanwhile.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && folder.is_dir() => {}
        result => result?,
    }
    sync_folder(parent)
}

/// Creates a folder inside a folder of the program, unless it exists. Returns its path.
///
/// # Errors
/// errors of creating and syncing; [`io::ErrorKind::InvalidInput`] for a symbolic link, which could
/// lead to another program's files
pub fn create_folder_in(folder: &Path, name: impl AsRef<Path>) -> io::Result<PathBuf> {
    let folder = folder.join(name);
    refuse_link(&folder)?;
    create_folder(&folder)?;
    Ok(folder)
}

/// Renames a file or a folder, and syncs the old and the new parent folder.
///
/// # Errors
/// errors of renaming; errors of syncing, after the rename
pub fn rename(from: &Path, to: &Path) -> io::Result<()> {
    fs::rename(from, to)?;
    sync_folder(parent(to))?;
    if parent(from) == parent(to) { Ok(()) } else { sync_folder(parent(from)) }
}

/// Removes a file, and syncs its folder. A missing file is not an error.
///
/// # Errors
/// errors of removing and syncing
pub fn remove_file(path: &Path) -> io::Result<()> {
    sync_parent_if_removed(path, fs::remove_file(path))
}

/// Removes a folder with its content, and syncs the parent folder. A missing folder is not an
/// error.
///
/// # Errors
/// errors of removing and syncing
pub fn remove_folder(path: &Path) -> io::Result<()> {
    sync_parent_if_removed(path, fs::remove_dir_all(path))
}

fn sync_parent_if_removed(path: &Path, result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
        Ok(()) => sync_folder(parent(path)),
    }
}

/// Syncs a folder, and all files and folders below it. Symbolic links are not followed.
///
/// # Errors
/// errors of reading, opening and syncing
fn sync_tree(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_dir() {
            sync_tree(&entry.path())?;
        } else if kind.is_file() {
            sync_file(&entry.path())?;
        }
    }
    sync_folder(folder)
}

/// Returns the folder that contains a path; `.` for a bare name.
pub(crate) fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        Some(_) => Path::new("."),
        // The root directory has no parent.
        None => path,
    }
}
