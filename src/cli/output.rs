//! Output of results: atomically written files, standard output, and progress on the terminal.

use std::cell::RefCell;
use std::fs;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context;
use engram_data::messages::printable;
use engram_durable::{FileWriter, FolderWriter, create_new_file, open_device};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use tracing::{debug, info};

use super::log;
pub use super::log::is_quiet;
use super::paths;

/// The path of standard output; `-` on the command line.
pub const STDOUT: &str = "/dev/stdout";
/// Whether an output file is standard output. Reports then go to standard error.
static STDOUT_IS_RESERVED: AtomicBool = AtomicBool::new(false);

/// The largest number of symbolic links that a path may follow, as on Linux.
const MAX_LINKS: usize = 40;

/// Writes an output file of the command: writes a temporary file in the same folder, syncs it and
/// renames it to `path`. Replaces an existing file only with `--force`.
///
/// A symbolic link is followed: its target is replaced, not the link. A pipe or a device is written
/// directly.
pub fn write_atomic(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    let write = || -> io::Result<()> {
        let mut file = AtomicFile::create(path)?;
        file.write_all(bytes)?;
        file.commit()
    };
    is_written(path, bytes, write())
}

/// Creates or replaces a file in a folder that belongs to the command. A symbolic link is replaced,
/// too, because its target does not belong to the command.
pub fn replace_atomic(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    is_written(path, bytes, engram_durable::write_file(path, bytes))
}

/// Logs a written file, or adds the remedy to the error.
fn is_written(path: &Path, bytes: &[u8], result: io::Result<()>) -> anyhow::Result<()> {
    result.map_err(|error| not_written(path, error))?;
    debug!(path = %path.display(), bytes = bytes.len(), "wrote");
    Ok(())
}

/// Reserves standard output for an output file; reports go to standard error from now on.
pub fn reserve_stdout() {
    STDOUT_IS_RESERVED.store(true, Ordering::Relaxed);
}

/// The error for a file that could not be written, with a remedy.
pub fn not_written(path: &Path, error: io::Error) -> anyhow::Error {
    let remedy = match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => "free some space",
        io::ErrorKind::AlreadyExists => "rename the temporary file, or move the existing file away",
        _ => "check the path and its permissions",
    };
    let context = format!("{}: could not be written; {remedy}", path.display());
    anyhow::Error::new(error).context(context)
}

/// A file that is written in parts and becomes visible at [`commit`](Self::commit), as with
/// [`write_atomic`]. Without a commit it is removed.
pub enum AtomicFile {
    /// Standard output. Its open handle is used, because other processes may write to the same
    /// file.
    Stdout(Stdout),
    /// A pipe or a device.
    Device(fs::File),
    /// A temporary file in the same folder.
    Temporary(FileWriter),
}

impl AtomicFile {
    /// Opens an output file and creates its missing folders. Standard output stays locked until
    /// the value is dropped.
    pub fn create(path: &Path) -> io::Result<Self> {
        if path == Path::new(STDOUT) {
            return Stdout::lock().map(Self::Stdout);
        }
        if fs::metadata(path).is_ok_and(|metadata| !metadata.is_file()) {
            return open_device(path).map(Self::Device);
        }
        let path = follow_links(path)?;
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        folder.map_or(Ok(()), engram_durable::create_folder)?;
        FileWriter::create(&path).map(Self::Temporary)
    }

    /// Renames the temporary file to its final path. Without `--force`, an existing file stays, and
    /// the error names the temporary file.
    pub fn commit(self) -> io::Result<()> {
        match self {
            Self::Temporary(file) if !paths::may_overwrite() => file.commit_new(),
            file => file.commit_over(),
        }
    }

    /// Like [`commit`](Self::commit), but always replaces an existing file.
    fn commit_over(mut self) -> io::Result<()> {
        self.flush()?;
        match self {
            Self::Temporary(file) => file.commit(),
            Self::Stdout(_) | Self::Device(_) => Ok(()),
        }
    }

    fn writer(&mut self) -> &mut dyn Write {
        match self {
            Self::Stdout(out) => out,
            Self::Device(file) => file,
            Self::Temporary(file) => file,
        }
    }
}

impl Write for AtomicFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.writer().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.writer().flush()
    }
}

/// Follows symbolic links to the final path, whether or not a file exists there.
pub fn follow_links(path: &Path) -> io::Result<PathBuf> {
    let mut path = path.to_path_buf();
    for _ in 0..MAX_LINKS {
        let Ok(target) = fs::read_link(&path) else { return Ok(path) };
        // A relative target starts at the link's folder.
        path = path.parent().unwrap_or(Path::new("")).join(target);
    }
    Err(io::Error::other("too many symbolic links, probably in a loop"))
}

/// Creates a folder atomically: `write` fills a temporary folder, which is renamed to `folder`.
/// An empty folder may already exist there.
pub fn write_folder(
    folder: &Path,
    write: impl FnOnce(&Path) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let write_staged = || -> anyhow::Result<()> {
        let staging = FolderWriter::create(folder)?;
        write(staging.path())?;
        Ok(staging.commit()?)
    };
    write_staged().with_context(|| format!("{}: could not be written", folder.display()))
}

/// Writes a file inside the temporary folder of [`write_folder`], which syncs it.
pub fn write_new(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    let write = || create_new_file(path)?.write_all(bytes);
    write().map_err(|error| not_written(path, error))
}

/// Returns an error if an output folder already has files, before any work is done.
pub fn check_new_folder(folder: &Path) -> anyhow::Result<()> {
    let reason = match fs::read_dir(folder).map(|mut entries| entries.next().is_none()) {
        _ if folder.file_name().is_none() => "does not end in a folder name",
        Ok(true) => return Ok(()),
        Ok(false) => "already contains files",
        Err(_) if folder.exists() => "is not a readable folder",
        Err(_) => return Ok(()),
    };
    anyhow::bail!("{}: {reason}; give a new folder", folder.display())
}

/// Creates a folder and its missing parents.
pub fn create_folder(folder: &Path) -> anyhow::Result<()> {
    let reason = || {
        format!("{}: could not be created; check the path and its permissions", folder.display())
    };
    engram_durable::create_folder(folder).with_context(reason)
}

/// Prints a value as pretty JSON, as [`print()`] prints text.
pub fn print_json(value: &impl serde::Serialize) -> anyhow::Result<()> {
    print(&serde_json::to_string_pretty(value)?)
}

thread_local! {
    /// What this thread prints, while [`captured`] runs.
    static CAPTURED: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Runs a function, and returns what it prints instead of printing it.
pub fn captured<T>(run: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<String> {
    CAPTURED.set(Some(String::new()));
    let result = run();
    let text = CAPTURED.take().unwrap_or_default();
    result.map(|_| text)
}

/// Prints a text and a newline to standard output. If standard output is reserved for an output
/// file, prints to standard error, in the format of the log.
pub fn print(text: &str) -> anyhow::Result<()> {
    let text = text.trim_end();
    let is_captured =
        CAPTURED.with_borrow_mut(|captured| captured.as_mut().map(|all| *all += text));
    if is_captured.is_some() {
        return Ok(());
    }
    if !STDOUT_IS_RESERVED.load(Ordering::Relaxed) {
        let printed = Stdout::lock().and_then(|mut out| writeln!(out, "{text}"));
        let reason = "the report could not be printed; changes and files of the command stay";
        return printed.context(reason);
    }
    if log::is_json() {
        log::report(text);
    } else {
        let is_terminal = io::stderr().is_terminal();
        let text = if is_terminal { for_terminal(text.as_bytes()).0 } else { text.to_owned() };
        // A closed standard error must not end the command.
        let _ = writeln!(io::stderr(), "{text}");
    }
    Ok(())
}

/// Standard output. On a terminal, control characters are printed as codes, because names in files
/// could otherwise change what the terminal shows.
pub struct Stdout {
    lock: io::StdoutLock<'static>,
    is_terminal: bool,
}

/// The escape sequences of colours in reports, without their first character.
const COLOURS: [&str; 4] = ["[0m", "[31m", "[32m", "[33m"];

/// Returns the text that a terminal gets for some bytes, and the number of bytes: the last character
/// may be incomplete.
fn for_terminal(bytes: &[u8]) -> (String, usize) {
    let length = match std::str::from_utf8(bytes) {
        Err(error) if error.error_len().is_none() && error.valid_up_to() > 0 => error.valid_up_to(),
        _ => bytes.len(),
    };
    let text = printable(&String::from_utf8_lossy(&bytes[..length]));
    let with_colour = |text: String, colour: &str| {
        text.replace(&format!("\\u001b{colour}"), &format!("\u{1b}{colour}"))
    };
    (COLOURS.into_iter().fold(text, with_colour), length)
}

/// Whether standard output was closed when the program started. The standard library then opens
/// another file in its place, so that the output would be lost without an error.
pub static STDOUT_IS_CLOSED: AtomicBool = AtomicBool::new(false);
/// Whether the reader of standard output has closed the pipe, as `head` does.
pub static READER_IS_GONE: AtomicBool = AtomicBool::new(false);

impl Stdout {
    /// Locks standard output until the value is dropped.
    pub fn lock() -> io::Result<Self> {
        match STDOUT_IS_CLOSED.load(Ordering::Relaxed) {
            true => Err(io::Error::other("standard output is closed")),
            false => {
                let lock = io::stdout().lock();
                Ok(Self { is_terminal: lock.is_terminal(), lock })
            }
        }
    }
}

/// Names standard output in an error, and remembers whether its reader is gone.
pub fn named(error: io::Error) -> io::Error {
    READER_IS_GONE.fetch_or(error.kind() == io::ErrorKind::BrokenPipe, Ordering::Relaxed);
    io::Error::new(error.kind(), format!("standard output: {error}"))
}

impl Write for Stdout {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if !self.is_terminal {
            return self.lock.write(bytes).map_err(named);
        }
        let (text, length) = for_terminal(bytes);
        self.lock.write_all(text.as_bytes()).map_err(named).map(|()| length)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.lock.flush().map_err(named)
    }
}

/// Prints a report as JSON or as text.
pub fn print_report(
    json: bool,
    report: &impl serde::Serialize,
    text: impl FnOnce() -> String,
) -> anyhow::Result<()> {
    if json { print_json(report) } else { print(&text()) }
}

/// The error and its causes on one line. A cause that the text already contains is skipped.
pub fn with_causes(error: &anyhow::Error) -> String {
    let mut text = error.to_string();
    for cause in error.chain().skip(1) {
        // A reason of `engram-durable` has a remedy, which replaces the general one.
        let io_error = cause.downcast_ref::<io::Error>().filter(|error| error.get_ref().is_some());
        if io_error.is_some_and(|error| error.kind() == io::ErrorKind::InvalidInput)
            && let Some((what, _)) = text.rsplit_once("; ")
        {
            text.truncate(what.len());
        }
        let cause = cause.to_string();
        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

/// Logs a note; `--quiet` hides it.
pub fn note(text: &str) {
    info!("{text}");
}

/// Logs a warning.
pub fn warn(text: &str) {
    tracing::warn!("{text}");
}

/// A progress bar with the time left and a message; hidden with `--quiet` and in a JSON log.
pub fn progress_bar(length: usize, unit: &'static str) -> ProgressBar {
    styled_bar(length as u64, &format!("{{bar:30}} {{pos}}/{{len}} {unit}, {{eta}} left {{msg}}"))
}

/// The elapsed time with a message, for work of unknown length; hidden as [`progress_bar`].
pub fn elapsed_time(message: &'static str) -> ProgressBar {
    let bar = styled_bar(0, "{spinner} {elapsed} {msg}");
    bar.set_message(message);
    bar.enable_steady_tick(Duration::from_secs(1));
    bar
}

/// A progress bar in bytes with speed and time left, as [`progress_bar`].
pub fn byte_progress_bar(length: u64) -> ProgressBar {
    styled_bar(length, "{bar:30} {bytes}/{total_bytes}, {bytes_per_sec}, {eta} left")
}

fn styled_bar(length: u64, template: &str) -> ProgressBar {
    let bar = ProgressBar::new(length);
    if is_quiet() || log::is_json() {
        bar.set_draw_target(ProgressDrawTarget::hidden());
    }
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_link_stays_and_its_target_is_written() -> anyhow::Result<()> {
        let folder = tempfile::tempdir()?;
        let (file, link) = (folder.path().join("inner/file"), folder.path().join("link"));
        fs::create_dir(folder.path().join("inner"))?;
        symlink("inner/second", &link)?;
        symlink("file", folder.path().join("inner/second"))?;
        // First without a file, then over an existing file.
        for bytes in [b"first", b"again"] {
            let mut written = AtomicFile::create(&link)?;
            written.write_all(bytes)?;
            written.commit_over()?;
            assert_eq!(fs::read(&file)?, bytes);
            assert!(link.is_symlink());
        }
        // In a folder of the command, the link itself is replaced.
        replace_atomic(&link, b"ours")?;
        assert_eq!(fs::read(&file)?, b"again");
        assert!(!link.is_symlink());
        let lock = engram_durable::open_lock(&folder.path().join("other"));
        lock.expect("a file");
        symlink("other", folder.path().join("lock"))?;
        let error = engram_durable::open_lock(&folder.path().join("lock")).expect_err("a link");
        let text = with_causes(&anyhow::Error::new(error).context("lock: not opened; check it"));
        assert!(text.starts_with("lock: not opened: this is a link") && text.ends_with("the link"));
        symlink("circle", folder.path().join("circle"))?;
        assert!(write_atomic(&folder.path().join("circle"), b"").is_err());
        Ok(())
    }

    #[test]
    fn a_terminal_gets_colours_but_no_other_control_characters() {
        let (text, length) = for_terminal("a\u{1b}[31mb\u{1b}[0m\u{1b}]0;c\u{7}\n".as_bytes());
        assert_eq!(text, "a\u{1b}[31mb\u{1b}[0m\\u001b]0;c\\u0007\n");
        assert_eq!(length, 18);
        // A part of a character is written with its rest.
        assert_eq!(for_terminal(b"a\xc3"), ("a".to_owned(), 1));
        assert_eq!(for_terminal(b"\xff\xc3").1, 2);
    }

    #[test]
    fn a_file_created_in_the_meantime_is_not_overwritten() -> anyhow::Result<()> {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("scores.csv");
        let mut file = AtomicFile::create(&path)?;
        file.write_all(b"mine")?;
        fs::write(&path, b"theirs")?;
        let error = file.commit().expect_err("refused");
        let message = with_causes(&not_written(&path, error));
        let (_, temporary) = message.rsplit_once("the new content is in ").expect("a path");
        assert_eq!(
            (fs::read(&path)?, fs::read(temporary)?),
            (b"theirs".to_vec(), b"mine".to_vec())
        );
        Ok(())
    }

    #[test]
    fn a_pipe_is_written_directly() -> anyhow::Result<()> {
        use std::os::unix::fs::FileTypeExt;
        let folder = tempfile::tempdir()?;
        let pipe = folder.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status()?.success());
        let reader = std::thread::spawn({
            let pipe = pipe.clone();
            move || fs::read(pipe)
        });
        write_atomic(&pipe, b"scores")?;
        assert_eq!(reader.join().map_err(|_| anyhow::anyhow!("the reader"))??, b"scores");
        assert!(fs::metadata(&pipe)?.file_type().is_fifo());
        Ok(())
    }
}
