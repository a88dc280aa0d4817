//! Where results go: files written whole, progress on the terminal.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::Context;
use atomic_write_file::AtomicWriteFile;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Links that a path may lead through, as many as Linux follows.
const LINKS: usize = 40;

/// Writes a file beside its place, syncs it, and renames it there.
///
/// What a link leads to is written, not the link; a pipe or a device is written into.
pub fn write_whole(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    let write = || -> io::Result<()> {
        let mut file = WholeFile::create(path)?;
        file.write_all(bytes)?;
        file.commit()
    };
    write().map_err(|error| not_written(path, error))
}

/// Whether writing to a path would change what is read from another: the same file, or one in a folder that is read.
/// What is no file, as a pipe or `/dev/null`, may be both.
pub fn would_replace(output: &Path, read: &Path) -> bool {
    let real = |path: &Path| match (fs::canonicalize(path), path.parent(), path.file_name()) {
        (Ok(real), ..) => real,
        // A file that is not there yet.
        (Err(_), Some(folder), Some(name)) => {
            let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
            fs::canonicalize(folder).map_or_else(|_| path.to_owned(), |folder| folder.join(name))
        }
        _ => path.to_owned(),
    };
    let is_device = |found: fs::Metadata| !found.is_file() && !found.is_dir();
    !output.metadata().is_ok_and(is_device) && real(output).starts_with(real(read))
}

/// That a file could not be written, and what to do.
pub fn not_written(path: &Path, error: io::Error) -> anyhow::Error {
    let remedy = match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => "free some space",
        _ => "check the path and its permissions",
    };
    let what = format!("{}: could not be written; {remedy}", path.display());
    anyhow::Error::new(error).context(what)
}

/// A file that is written piece by piece as [`write_whole`] writes it; without a commit nothing is left of it.
pub enum WholeFile {
    /// Standard output, by its own handle, because it may be a file that others write to as well.
    Stdout(io::StdoutLock<'static>),
    /// A pipe or a device.
    Device(fs::File),
    /// Beside its place.
    Beside(AtomicWriteFile),
}

impl WholeFile {
    pub fn create(path: &Path) -> io::Result<Self> {
        if path == Path::new("/dev/stdout") {
            return Ok(Self::Stdout(io::stdout().lock()));
        }
        if fs::metadata(path).is_ok_and(|found| !found.is_file()) {
            return fs::OpenOptions::new().write(true).open(path).map(Self::Device);
        }
        AtomicWriteFile::open(behind_links(path)?).map(Self::Beside)
    }

    /// Puts the file in its place.
    pub fn commit(mut self) -> io::Result<()> {
        self.flush()?;
        match self {
            Self::Beside(file) => file.commit(),
            Self::Stdout(_) | Self::Device(_) => Ok(()),
        }
    }

    fn writer(&mut self) -> &mut dyn Write {
        match self {
            Self::Stdout(out) => out,
            Self::Device(file) => file,
            Self::Beside(file) => file,
        }
    }
}

impl Write for WholeFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.writer().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.writer().flush()
    }
}

/// The place that a path leads to, whether or not a file is there yet.
fn behind_links(path: &Path) -> io::Result<PathBuf> {
    let mut path = path.to_path_buf();
    for _ in 0..LINKS {
        let Ok(target) = fs::read_link(&path) else { return Ok(path) };
        // A relative target starts at the folder of its link.
        path = path.parent().unwrap_or(Path::new("")).join(target);
    }
    Err(io::Error::other("too many links, most likely in a circle"))
}

/// Makes a folder whose files `write` writes beside its place first, so that it is whole when it is there. An empty
/// folder may stand there.
pub fn write_folder(
    folder: &Path,
    write: impl FnOnce(&Path) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let parent = match folder.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    let make = || -> anyhow::Result<()> {
        fs::create_dir_all(parent)?;
        let beside = tempfile::Builder::new().prefix(".engram-unfinished-").tempdir_in(parent)?;
        let whole = beside.path().join("folder");
        fs::create_dir(&whole)?;
        write(&whole)?;
        // Only some systems rename over an empty folder.
        let _ = fs::remove_dir(folder);
        Ok(fs::rename(&whole, folder)?)
    };
    make().with_context(|| format!("{}: could not be written", folder.display()))
}

/// Prints to standard output, as text or as pretty JSON.
pub fn print_json(value: &impl serde::Serialize) -> anyhow::Result<()> {
    print(&serde_json::to_string_pretty(value)?)
}

/// Prints a text with a final line end.
pub fn print(text: &str) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.trim_end().as_bytes())?;
    out.write_all(b"\n")?;
    Ok(())
}

/// Prints a report as JSON or as text.
pub fn print_report(
    json: bool,
    report: &impl serde::Serialize,
    text: impl FnOnce() -> String,
) -> anyhow::Result<()> {
    if json { print_json(report) } else { print(&text()) }
}

/// The error and its causes on one line; a cause that the text before already tells is left out.
pub fn with_causes(error: &anyhow::Error) -> String {
    let mut text = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

/// Tells the user something on standard error, unless `quiet`; nobody listening is no error.
pub fn note(text: &str, quiet: bool) {
    if !quiet {
        let _ = writeln!(io::stderr(), "{text}");
    }
}

/// A progress bar with the time left, and its message behind; hidden where `quiet`.
pub fn progress_bar(length: usize, unit: &'static str, quiet: bool) -> ProgressBar {
    let template = format!("{{bar:30}} {{pos}}/{{len}} {unit}, {{eta}} left {{msg}}");
    bar(length as u64, &template, quiet)
}

/// A progress bar over bytes with their speed and the time left; hidden where `quiet`.
pub fn byte_progress_bar(length: u64, quiet: bool) -> ProgressBar {
    bar(length, "{bar:30} {bytes}/{total_bytes}, {bytes_per_sec}, {eta} left", quiet)
}

fn bar(length: u64, template: &str, quiet: bool) -> ProgressBar {
    let bar = ProgressBar::new(length);
    if quiet {
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
        // Once without a file, once over one.
        for bytes in [b"first", b"again"] {
            write_whole(&link, bytes)?;
            assert_eq!(fs::read(&file)?, bytes);
            assert!(link.is_symlink());
        }
        symlink("circle", folder.path().join("circle"))?;
        assert!(write_whole(&folder.path().join("circle"), b"").is_err());
        Ok(())
    }

    #[test]
    fn a_pipe_is_written_into() -> anyhow::Result<()> {
        use std::os::unix::fs::FileTypeExt;
        let folder = tempfile::tempdir()?;
        let pipe = folder.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status()?.success());
        let reader = std::thread::spawn({
            let pipe = pipe.clone();
            move || fs::read(pipe)
        });
        write_whole(&pipe, b"scores")?;
        assert_eq!(reader.join().map_err(|_| anyhow::anyhow!("the reader"))??, b"scores");
        assert!(fs::metadata(&pipe)?.file_type().is_fifo());
        Ok(())
    }
}
