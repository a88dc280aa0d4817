//! Opens files for reading. A pipe, a socket or a device may never deliver a byte, or never end. So
//! only inputs that are read once from start to end may be one of them; see [`open_input`].

use std::fs::{self, File};
use std::io::{self, IsTerminal, Read};
use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use crate::platform::{is_pipe, open_without_waiting, wait_for_bytes};

/// The largest file that is read as a whole, in bytes.
const MAX_BYTES: u64 = 1 << 30;
/// The time in which another program has to open a named pipe for writing.
const MAX_WAIT: Duration = Duration::from_secs(5);

/// Opens a file for reading.
///
/// # Errors
/// errors of opening; [`io::ErrorKind::InvalidInput`] for a pipe, a socket or a device
pub fn open_file(path: impl AsRef<Path>) -> io::Result<File> {
    let file = open(path.as_ref())?;
    let kind = file.metadata()?.file_type();
    if kind.is_file() || kind.is_dir() { Ok(file) } else { Err(not_a_file()) }
}

/// Opens a file, a pipe or a device without waiting. The system has no clear error for a socket.
fn open(path: &Path) -> io::Result<File> {
    open_without_waiting(path).map_err(|error| match fs::metadata(path) {
        _ if error.kind() == io::ErrorKind::PermissionDenied => error,
        Ok(found) if !found.is_file() && !found.is_dir() => not_a_file(),
        _ => error,
    })
}

/// Opens an input that is read once from start to end: a file, a pipe or a terminal.
///
/// # Errors
/// errors of opening; [`io::ErrorKind::TimedOut`] for a named pipe that no program has opened for
/// writing after 5 seconds; [`io::ErrorKind::InvalidInput`] for a device
pub fn open_input(path: &Path) -> io::Result<File> {
    let is_named_pipe = !is_open_already(path)
        && fs::metadata(path).is_ok_and(|metadata| is_pipe(metadata.file_type()));
    let file = if is_named_pipe { open_named_pipe(path)? } else { open(path)? };
    let kind = file.metadata()?.file_type();
    if !(kind.is_file() || kind.is_dir() || is_pipe(kind) || file.is_terminal()) {
        return Err(not_a_file());
    }
    wait_for_bytes(&file)?;
    Ok(file)
}

/// Whether a path names a file that this process has open already: standard input, or a pipe that
/// a shell made for `<(…)`.
pub fn is_open_already(path: &Path) -> bool {
    ["/dev/stdin", "/dev/fd", "/proc/self/fd"].iter().any(|open| path.starts_with(open))
}

/// Opens a named pipe when another program has opened it for writing.
fn open_named_pipe(path: &Path) -> io::Result<File> {
    let (sender, receiver) = mpsc::channel();
    let path = path.to_owned();
    // After a timeout, the thread waits on, and ends with the program.
    thread::spawn(move || sender.send(File::open(path)));
    receiver.recv_timeout(MAX_WAIT).unwrap_or_else(|_| {
        let reason = "no program has opened this pipe for writing";
        Err(io::Error::new(io::ErrorKind::TimedOut, reason))
    })
}

/// Reads a whole file.
///
/// # Errors
/// as [`open_file`]; [`io::ErrorKind::FileTooLarge`] for more than 1 GiB
pub fn read_file(path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
    read(open_file(path)?)
}

/// Reads a whole file of UTF-8 text.
///
/// # Errors
/// as [`read_file`]; [`io::ErrorKind::InvalidData`] for other text
pub fn read_text(path: impl AsRef<Path>) -> io::Result<String> {
    text(read_file(path)?)
}

/// Reads all of an input of UTF-8 text, which may be a pipe.
///
/// # Errors
/// as [`open_input`] and [`read_text`]
pub fn read_input_text(path: &Path) -> io::Result<String> {
    text(read(open_input(path)?)?)
}

fn read(file: File) -> io::Result<Vec<u8>> {
    let too_large = || io::Error::new(io::ErrorKind::FileTooLarge, "has more than 1 GiB");
    let size = file.metadata()?.len();
    if size > MAX_BYTES {
        return Err(too_large());
    }
    let mut bytes = Vec::with_capacity(size as usize + 1);
    file.take(MAX_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_BYTES { Err(too_large()) } else { Ok(bytes) }
}

fn text(bytes: Vec<u8>) -> io::Result<String> {
    let not_utf8 = |_| io::Error::new(io::ErrorKind::InvalidData, "is not UTF-8 text");
    String::from_utf8(bytes).map_err(not_utf8)
}

pub(crate) fn not_a_file() -> io::Error {
    let reason = "this is a pipe, a socket or a device, but a file is needed: save its content to a \
                  file";
    io::Error::new(io::ErrorKind::InvalidInput, reason)
}
