//! The functions that differ between Unix and Windows.

use std::fs::{File, FileType, Metadata, OpenOptions};
use std::io;
use std::path::Path;

use tempfile::Builder;

/// Distinguishes a file from all other files of this machine, and from its replacement. On Windows,
/// where std offers no file numbers, uses the times of creation and of the last change.
pub fn file_identity(file: &Metadata) -> (u64, u64) {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        (file.dev(), file.ino())
    }
    #[cfg(windows)]
    {
        use std::os::windows::fs::MetadataExt;
        (file.creation_time(), file.last_write_time())
    }
}

/// Whether a file has a second name, a hard link. Unknown on Windows, where std does not tell.
#[cfg_attr(windows, allow(unused_variables))]
pub fn has_other_names(file: &Metadata) -> bool {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        file.is_file() && file.nlink() > 1
    }
    #[cfg(windows)]
    false
}

/// Sets the permissions of a new file or folder to `mode`, which the umask restricts. The default
/// of [`Builder`] keeps them private to the user.
#[cfg_attr(windows, allow(unused_variables))]
pub(crate) fn set_mode(builder: &mut Builder<'_, '_>, mode: u32) {
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        builder.permissions(std::fs::Permissions::from_mode(mode));
    }
}

/// Creates a symbolic link to the file `target` at `path`.
pub(crate) fn link_to_file(target: &Path, path: &Path) -> io::Result<()> {
    #[cfg(unix)]
    return std::os::unix::fs::symlink(target, path);
    #[cfg(windows)]
    return std::os::windows::fs::symlink_file(target, path);
}

/// Syncs a file. Windows syncs only files that are open for writing.
///
/// # Errors
/// errors of opening and syncing
pub fn sync_file(path: &Path) -> io::Result<()> {
    OpenOptions::new().read(true).write(cfg!(windows)).open(path)?.sync_all()
}

/// Syncs the entries of a folder: new, renamed and removed names. Does nothing on Windows, where
/// folders cannot be synced.
///
/// # Errors
/// errors of opening and syncing
pub fn sync_folder(folder: &Path) -> io::Result<()> {
    if cfg!(windows) { Ok(()) } else { File::open(folder)?.sync_all() }
}

/// Makes [`OpenOptions::open`] fail for a symbolic link.
pub(crate) fn without_links(options: &mut OpenOptions) -> &mut OpenOptions {
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt;
        let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK;
        options.custom_flags(flags.bits().cast_signed());
    }
    options
}

/// Opens a file for reading. Does not wait for a program that writes to a pipe.
pub(crate) fn open_without_waiting(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt;
        options.custom_flags(rustix::fs::OFlags::NONBLOCK.bits().cast_signed());
    }
    options.open(path)
}

/// Makes the reads of a file from [`open_without_waiting`] wait for bytes.
#[cfg_attr(windows, allow(unused_variables))]
pub(crate) fn wait_for_bytes(file: &File) -> io::Result<()> {
    #[cfg(unix)]
    rustix::fs::fcntl_setfl(file, rustix::fs::OFlags::empty())?;
    Ok(())
}

/// Whether a file is a pipe.
#[cfg_attr(windows, allow(unused_variables))]
pub(crate) fn is_pipe(kind: FileType) -> bool {
    #[cfg(unix)]
    {
        use std::os::unix::fs::FileTypeExt;
        kind.is_fifo()
    }
    #[cfg(windows)]
    false
}
