//! How the command was started: as a program of its own, or by the Python module.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::OnceLock;

/// The invocation of this process.
static OF_PROCESS: OnceLock<Invocation> = OnceLock::new();

/// How the command was started.
#[derive(Debug, Clone)]
pub struct Invocation {
    /// The words of the command line. The first one is the name of the program.
    pub words: Vec<OsString>,
    /// The words that start the command again, before its arguments.
    pub restart: Vec<OsString>,
    /// The file with the running code; `None` for the program's own file.
    pub code: Option<PathBuf>,
}

impl Invocation {
    /// An invocation of the program that this process runs.
    pub fn of_program(words: Vec<OsString>) -> Self {
        let program = std::env::current_exe().map(PathBuf::into_os_string);
        let program = program.ok().or_else(|| words.first().cloned());
        Self { words, restart: program.into_iter().collect(), code: None }
    }

    /// Makes this the invocation of the process. Only the first one counts.
    pub(super) fn remember(self) {
        if let Some(code) = &self.code {
            engram_train::Program::is_in(code.clone());
        }
        let _ = OF_PROCESS.set(self);
    }

    /// The invocation of this process.
    pub(super) fn of_process() -> &'static Self {
        OF_PROCESS.get_or_init(|| Self::of_program(std::env::args_os().collect()))
    }
}
