//! Durable files: written to a temporary file beside the target, synced, renamed over the target.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

use crate::folder::parent;
use crate::leftover::{RANDOM_LENGTH, prefix};
use crate::open::{not_a_file, open_file};
use crate::platform::{
    file_identity, has_other_names, link_to_file, set_mode, sync_file, sync_folder, without_links,
};

/// Creates or replaces a file with these bytes.
///
/// # Errors
/// see [`FileWriter::commit`]
pub fn write_file(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = FileWriter::create(path)?;
    file.write_all(bytes)?;
    file.commit()
}

/// Copies a file: `to` is created or replaced as a whole.
///
/// # Errors
/// errors of reading `from`; see [`FileWriter::commit`]
pub fn copy_file(from: &Path, to: &Path) -> io::Result<()> {
    let mut file = FileWriter::create(to)?;
    io::copy(&mut open_file(from)?, &mut file)?;
    file.commit()
}

/// Creates or replaces `to` as a hard link to `from`, or as a copy if the link cannot be created.
///
/// # Errors
/// errors of reading `from`; see [`FileWriter::commit`]
pub fn link_file(from: &Path, to: &Path) -> io::Result<()> {
    sync_file(from)?;
    // If both paths are links to one file, a rename would do nothing and leave a temporary name.
    if !is_same_file(from, to)? {
        match temporary_link(to, |temporary| fs::hard_link(from, temporary)) {
            Ok(link) => link.persist(to).map(drop)?,
            Err(_) => return copy_file(from, to),
        }
    }
    sync_folder(parent(to))
}

/// Creates a link beside `path`, under a temporary name.
fn temporary_link(
    path: &Path,
    create: impl FnMut(&Path) -> io::Result<()>,
) -> io::Result<NamedTempFile<()>> {
    let prefix = prefix(file_name(path)?);
    let mut builder = tempfile::Builder::new();
    builder.prefix(&prefix).rand_bytes(RANDOM_LENGTH).make_in(parent(path), create)
}

fn is_same_file(from: &Path, to: &Path) -> io::Result<bool> {
    let from = file_identity(&fs::metadata(from)?);
    Ok(fs::symlink_metadata(to).is_ok_and(|to| file_identity(&to) == from))
}

/// Creates the error for a target that another process created meanwhile. The new content stays at
/// `temporary_path`.
pub(crate) fn already_exists(reason: &str, temporary_path: &Path) -> io::Error {
    let message =
        format!("{reason}, and stays; the new content is in {}", temporary_path.display());
    io::Error::new(io::ErrorKind::AlreadyExists, message)
}

fn file_name(path: &Path) -> io::Result<&OsStr> {
    path.file_name()
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "the path has no file name"))
}

/// A buffered writer of a file. A drop without a commit leaves no file.
#[derive(Debug)]
pub struct FileWriter {
    temporary: BufWriter<NamedTempFile>,
    path: PathBuf,
}

impl FileWriter {
    /// Creates a temporary file beside `path`. [`FileWriter::commit`] renames it to `path`. The
    /// folder must exist.
    ///
    /// # Errors
    /// no file name, no such folder, no permission, no space
    pub fn create(path: &Path) -> io::Result<Self> {
        let mut builder = tempfile::Builder::new();
        let prefix = prefix(file_name(path)?);
        builder.prefix(&prefix).rand_bytes(RANDOM_LENGTH);
        match fs::metadata(path) {
            Ok(replaced) if replaced.is_file() => {
                builder.permissions(replaced.permissions());
            }
            _ => set_mode(&mut builder, 0o666),
        }
        let temporary = BufWriter::new(builder.tempfile_in(parent(path))?);
        Ok(Self { temporary, path: path.to_path_buf() })
    }

    /// Syncs the file, renames it over the target and syncs the folder.
    ///
    /// # Errors
    /// errors of writing, syncing and renaming: the target is unchanged; an error of syncing the
    /// folder: the target is the new file, but a power cut may still undo the rename
    pub fn commit(self) -> io::Result<()> {
        let (temporary, path) = self.into_synced()?;
        temporary.persist(&path)?;
        sync_folder(parent(&path))
    }

    /// Like [`FileWriter::commit`], but never replaces an existing target. (Some file systems have
    /// neither hard links nor a rename without replacement. There, a target that appears at the
    /// last moment is replaced.)
    ///
    /// # Errors
    /// as [`FileWriter::commit`]; [`io::ErrorKind::AlreadyExists`] if the target exists: the
    /// finished file keeps its temporary name, which the message contains
    pub fn commit_new(self) -> io::Result<()> {
        let (temporary, path) = self.into_synced()?;
        let error = match temporary.persist_noclobber(&path) {
            Ok(_) => return sync_folder(parent(&path)),
            Err(error) => error,
        };
        if fs::symlink_metadata(&path).is_err() {
            // The file system has neither hard links nor a rename without replacement.
            error.file.persist(&path)?;
            return sync_folder(parent(&path));
        }
        let (_, temporary_path) = error.file.keep()?;
        sync_folder(parent(&path))?;
        Err(already_exists("a file of this name exists", &temporary_path))
    }

    /// Flushes and syncs the temporary file. Returns it with the path of the target.
    fn into_synced(self) -> io::Result<(NamedTempFile, PathBuf)> {
        let temporary = self.temporary.into_inner().map_err(io::IntoInnerError::into_error)?;
        temporary.as_file().sync_all()?;
        Ok((temporary, self.path))
    }
}

impl Write for FileWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.temporary.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.temporary.flush()
    }
}

impl Seek for FileWriter {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.temporary.seek(to)
    }
}

/// Creates a symbolic link to `target` at `path`. An existing file or link at `path` is replaced.
///
/// # Errors
/// errors of creating the link, of the rename and of syncing the folder
pub fn write_link(target: &Path, path: &Path) -> io::Result<()> {
    let link = temporary_link(path, |temporary| link_to_file(target, temporary))?;
    link.persist(path)?;
    sync_folder(parent(path))
}

/// Creates a file that must not exist yet, for example in the folder of a
/// [`FolderWriter`](crate::FolderWriter). The file is not synced.
///
/// # Errors
/// the file exists already, no permission, no space
pub fn create_new_file(path: &Path) -> io::Result<File> {
    File::create_new(path)
}

/// Opens a file for appending, and creates it if it is missing. The caller syncs the file. A symbolic
/// link, or a file with a second name, is first replaced by a copy, so that the file of the other
/// name never changes.
///
/// # Errors
/// errors of opening, copying and of syncing the folder; [`io::ErrorKind::InvalidInput`] for a path
/// that is not a file
pub fn append_to(path: &Path) -> io::Result<File> {
    if let Ok(entry) = fs::symlink_metadata(path) {
        match fs::metadata(path) {
            // A link without a target becomes an empty file.
            Err(error) if error.kind() == io::ErrorKind::NotFound => write_file(path, b"")?,
            Err(error) => return Err(error),
            Ok(target) if !target.is_file() => return Err(not_a_file()),
            Ok(_) if entry.is_symlink() || has_other_names(&entry) => copy_file(path, path)?,
            Ok(_) => {}
        }
    }
    open_or_create(path, OpenOptions::new().append(true))
}

/// Opens a lock file without changing it, and creates it if it is missing. Before the caller writes
/// to it, [`has_other_names`] tells whether another file would change.
///
/// # Errors
/// errors of opening and of syncing the folder; [`io::ErrorKind::InvalidInput`] for a symbolic link,
/// a pipe or a device
pub fn open_lock(path: &Path) -> io::Result<File> {
    refuse_link(path)?;
    let file = open_or_create(path, OpenOptions::new().read(true).write(true))?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(not_a_file()) }
}

/// Returns an error for a symbolic link, whether or not it has a target.
pub(crate) fn refuse_link(path: &Path) -> io::Result<()> {
    if !path.is_symlink() {
        return Ok(());
    }
    let reason = "this is a link, and its target may be another program's: remove the link";
    Err(io::Error::new(io::ErrorKind::InvalidInput, reason))
}

/// Whether an open file is still the file at `path`: another process may have removed or replaced
/// that file.
pub fn is_at(file: &File, path: &Path) -> bool {
    let at_path = fs::metadata(path);
    file.metadata().is_ok_and(|file| {
        at_path.is_ok_and(|at_path| file_identity(&file) == file_identity(&at_path))
    })
}

/// Opens an existing pipe or device for writing.
///
/// # Errors
/// errors of opening; [`io::ErrorKind::InvalidInput`] for a regular file, which must be
/// replaced instead
pub fn open_device(path: &Path) -> io::Result<File> {
    if fs::metadata(path)?.is_file() {
        let reason = "a regular file must be replaced as a whole, not written in place";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, reason));
    }
    OpenOptions::new().write(true).open(path)
}

/// Opens a file that is changed in place. Never follows a symbolic link.
fn open_or_create(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    let options = without_links(options);
    match options.open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        result => return result,
    }
    let file = options.create(true).open(path)?;
    sync_folder(parent(path))?;
    Ok(file)
}
