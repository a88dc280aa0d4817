//! The preload library `fault.c`: lists the file operations of a command, or makes one of them fail.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::program::{CommandResult, Engram};

/// The compiled library.
pub struct Preload(PathBuf);

/// A file operation of a command, counted from 1.
#[derive(Clone, Debug)]
pub struct Call {
    pub number: usize,
    pub operation: String,
    pub path: String,
    /// For a sync, the size of the file; for a rename, the old path.
    pub note: String,
}

/// The fault at an operation; `fault.c` describes each.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    Fail(i32),
    FailOn(i32),
    Short,
    Full,
    Interrupt,
    Kill,
    KillAfter,
}

impl Action {
    /// Whether the operation fails, so that the command must fail too.
    pub fn fails(self) -> bool {
        matches!(self, Self::Fail(_) | Self::FailOn(_) | Self::Full)
    }

    pub fn kills(self) -> bool {
        matches!(self, Self::Kill | Self::KillAfter)
    }

    fn name(self) -> &'static str {
        match self {
            Self::Fail(_) => "fail",
            Self::FailOn(_) => "fail-on",
            Self::Short => "short",
            Self::Full => "full",
            Self::Interrupt => "interrupt",
            Self::Kill => "kill",
            Self::KillAfter => "kill-after",
        }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let errno = match self {
            Self::Fail(number) | Self::FailOn(number) => *number,
            _ => return write!(formatter, "{}", self.name()),
        };
        let name = match errno {
            libc::EACCES => "EACCES",
            libc::EDQUOT => "EDQUOT",
            libc::EIO => "EIO",
            libc::ENOSPC => "ENOSPC",
            libc::EMFILE => "EMFILE",
            _ => "an error",
        };
        write!(formatter, "{} {name}", self.name())
    }
}

impl Preload {
    /// Compiles the library into a folder.
    pub fn build(folder: &Path) -> Result<Self> {
        let library = folder.join("fault.so");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("fault.c");
        let compiled = Command::new("gcc")
            .args(["-shared", "-fPIC", "-O2", "-o"])
            .arg(&library)
            .arg(&source)
            .arg("-ldl")
            .status()
            .context("gcc could not start; install a C compiler")?;
        anyhow::ensure!(compiled.success(), "{}: gcc failed", source.display());
        Ok(Self(library))
    }

    /// Runs a command without faults. Returns its operations below `under`, and its result.
    pub fn list_calls(
        &self,
        engram: Engram,
        under: &Path,
        log: &Path,
    ) -> Result<(Vec<Call>, CommandResult)> {
        crate::scratch::remove(log)?;
        let ended = self.preloaded(engram, under).env("FAULT_LOG", log).must_run()?;
        Ok((read_log(log)?, ended))
    }

    /// The command with a fault at operation `number` below `under`.
    pub fn with_fault(
        &self,
        engram: Engram,
        under: &Path,
        number: usize,
        action: Action,
    ) -> Engram {
        let errno = match action {
            Action::Fail(number) | Action::FailOn(number) => number,
            _ => libc::ENOSPC,
        };
        self.preloaded(engram, under)
            .env("FAULT_AT", number.to_string())
            .env("FAULT_DO", action.name())
            .env("FAULT_ERRNO", errno.to_string())
    }

    /// The command with the library, which counts the operations below `under`.
    fn preloaded(&self, engram: Engram, under: &Path) -> Engram {
        engram.env("LD_PRELOAD", &self.0).env("FAULT_UNDER", under)
    }
}

/// Reads the operations from a log.
pub fn read_log(log: &Path) -> Result<Vec<Call>> {
    let text = fs::read_to_string(log).with_context(|| log.display().to_string())?;
    let calls = text.lines().zip(1..).filter_map(|(line, number)| {
        let (operation, path_and_note) = line.split_once(' ')?;
        let (path, note) = path_and_note.split_once('\t')?;
        let (operation, path, note) = (operation.to_owned(), path.to_owned(), note.to_owned());
        Some(Call { number, operation, path, note })
    });
    Ok(calls.collect())
}
