//! Where results go: files written whole, progress on the terminal.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context;
use engram_durable::{FileWriter, FolderWriter, create_new_file, open_device};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// The path of standard output; `-` on the command line.
pub const STDOUT: &str = "/dev/stdout";
/// Whether an output is written to standard output: reports go to standard error then.
static STDOUT_IS_TAKEN: AtomicBool = AtomicBool::new(false);

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

/// Leaves standard output to an output; reports go to standard error from here on.
pub fn leave_stdout_to_an_output() {
    STDOUT_IS_TAKEN.store(true, Ordering::Relaxed);
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
    Beside(FileWriter),
}

impl WholeFile {
    pub fn create(path: &Path) -> io::Result<Self> {
        if path == Path::new(STDOUT) {
            return Ok(Self::Stdout(io::stdout().lock()));
        }
        if fs::metadata(path).is_ok_and(|found| !found.is_file()) {
            return open_device(path).map(Self::Device);
        }
        FileWriter::create(&behind_links(path)?).map(Self::Beside)
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
pub fn behind_links(path: &Path) -> io::Result<PathBuf> {
    let mut path = path.to_path_buf();
    for _ in 0..LINKS {
        let Ok(target) = fs::read_link(&path) else { return Ok(path) };
        // A relative target starts at the folder of its link.
        path = path.parent().unwrap_or(Path::new("")).join(target);
    }
    Err(io::Error::other("too many links, most likely in a circle"))
}

/// Makes a folder, which `write` fills beside its place: it is there whole or not at all. An empty folder may stand there.
pub fn write_folder(
    folder: &Path,
    write: impl FnOnce(&Path) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let make = || -> anyhow::Result<()> {
        let whole = FolderWriter::create(folder)?;
        write(whole.path())?;
        Ok(whole.commit()?)
    };
    make().with_context(|| format!("{}: could not be written", folder.display()))
}

/// Writes a file of a folder that is not in its place yet. [`write_folder`] syncs it.
pub fn write_new(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    let write = || create_new_file(path)?.write_all(bytes);
    write().map_err(|error| not_written(path, error))
}

/// Fails for a folder that holds files, before they are made.
pub fn check_new_folder(folder: &Path) -> anyhow::Result<()> {
    let reason = match fs::read_dir(folder).map(|mut entries| entries.next().is_none()) {
        _ if folder.file_name().is_none() => "has no name of its own",
        Ok(true) => return Ok(()),
        Ok(false) => "has files already",
        Err(_) if folder.exists() => "is no folder that can be read",
        Err(_) => return Ok(()),
    };
    anyhow::bail!("{}: {reason}; give a new folder", folder.display())
}

/// Makes a folder and its missing parents.
pub fn create_folder(folder: &Path) -> anyhow::Result<()> {
    let told =
        || format!("{}: could not be made; check the path and its permissions", folder.display());
    engram_durable::create_folder(folder).with_context(told)
}

/// Prints to standard output, as text or as pretty JSON.
pub fn print_json(value: &impl serde::Serialize) -> anyhow::Result<()> {
    print(&serde_json::to_string_pretty(value)?)
}

/// Prints a text with a final line end: to standard output, unless an output is written there.
pub fn print(text: &str) -> anyhow::Result<()> {
    let mut out: Box<dyn Write> = match STDOUT_IS_TAKEN.load(Ordering::Relaxed) {
        true => Box::new(io::stderr().lock()),
        false => Box::new(io::stdout().lock()),
    };
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
