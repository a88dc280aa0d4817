//! Folders: made beside the target, synced, renamed; and what else changes a folder's entries.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::leftover::{RANDOM, prefix};

/// A folder that is made beside its final path. Dropped without a commit, it leaves nothing.
#[derive(Debug)]
pub struct FolderWriter {
    temporary: TempDir,
    folder: PathBuf,
}

impl FolderWriter {
    /// Starts a folder that takes its place at [`FolderWriter::commit`]. Missing parents are made.
    ///
    /// # Errors   [`io::ErrorKind::AlreadyExists`] where the target is anything but an empty folder; those of making it
    pub fn create(folder: &Path) -> io::Result<Self> {
        refuse_filled(folder)?;
        // A link to an empty folder stays, and its folder is filled.
        let folder = fs::canonicalize(folder).unwrap_or_else(|_| folder.to_path_buf());
        let name = folder.file_name().ok_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidInput, "the path has no folder name")
        })?;
        create_folder(parent(&folder))?;
        let prefix = prefix(name);
        let mut builder = tempfile::Builder::new();
        builder.prefix(&prefix).rand_bytes(RANDOM);
        // The umask is taken off.
        builder.permissions(fs::Permissions::from_mode(0o777));
        let temporary = builder.tempdir_in(parent(&folder))?;
        Ok(Self { temporary, folder })
    }

    /// Where files are written until the commit.
    pub fn path(&self) -> &Path {
        self.temporary.path()
    }

    /// Syncs all files and folders, renames the folder to its final path and syncs the parent.
    ///
    /// # Errors   Before the rename nothing has changed. An error of the last sync comes after the rename: the folder is
    /// there, but a power cut may still undo it.
    pub fn commit(self) -> io::Result<()> {
        sync_tree(self.temporary.path())?;
        refuse_filled(&self.folder)?;
        // Replaces an empty folder, and fails where another process has filled it meanwhile.
        fs::rename(self.temporary.path(), &self.folder)?;
        let _moved = self.temporary.keep();
        sync_folder(parent(&self.folder))
    }
}

fn refuse_filled(folder: &Path) -> io::Result<()> {
    let reason = match fs::read_dir(folder).map(|mut entries| entries.next().is_none()) {
        Ok(true) => return Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Ok(false) => "the folder is not empty",
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => "a file of this name exists",
        Err(error) => return Err(error),
    };
    Err(io::Error::new(io::ErrorKind::AlreadyExists, reason))
}

/// Makes a folder and its missing parents, each synced into the folder that holds it.
///
/// # Errors   those of making and syncing them
pub fn create_folder(folder: &Path) -> io::Result<()> {
    if folder.is_dir() {
        return Ok(());
    }
    let parent = parent(folder);
    create_folder(parent)?;
    match fs::create_dir(folder) {
        // Another process made it meanwhile.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && folder.is_dir() => {}
        made => made?,
    }
    sync_folder(parent)
}

/// Renames a file or a folder and syncs the folders that it leaves and enters.
///
/// # Errors   An error of the syncs comes after the rename.
pub fn rename(from: &Path, to: &Path) -> io::Result<()> {
    fs::rename(from, to)?;
    sync_folder(parent(to))?;
    if parent(from) == parent(to) { Ok(()) } else { sync_folder(parent(from)) }
}

/// Removes a file, and syncs the folder. A missing file is fine.
///
/// # Errors   those of removing and syncing
pub fn remove_file(path: &Path) -> io::Result<()> {
    synced_where_removed(path, fs::remove_file(path))
}

/// Removes a folder with all that it holds, and syncs the folder around it. A missing folder is fine.
///
/// # Errors   those of removing and syncing
pub fn remove_folder(path: &Path) -> io::Result<()> {
    synced_where_removed(path, fs::remove_dir_all(path))
}

fn synced_where_removed(path: &Path, removed: io::Result<()>) -> io::Result<()> {
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
        Ok(()) => sync_folder(parent(path)),
    }
}

/// Syncs the entries of a folder: new, renamed and removed names.
///
/// # Errors   those of opening and syncing
pub fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// Syncs a folder, and all files and folders below it. Links are not followed.
///
/// # Errors   those of reading, opening and syncing
pub fn sync_tree(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_dir() {
            sync_tree(&entry.path())?;
        } else if kind.is_file() {
            File::open(entry.path())?.sync_all()?;
        }
    }
    sync_folder(folder)
}

/// The folder that holds a path; `.` for a bare name.
pub(crate) fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        Some(_) => Path::new("."),
        // The root itself.
        None => path,
    }
}
