//! Records which build of the program trained a run. Another build may give other results.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use engram_data::DataError;
use engram_infer::digest;
use engram_infer::finished_run::RECIPE;
use serde::{Deserialize, Serialize};

use crate::checkpoint::write_file;
use crate::error::{Result, TrainError};

/// The file in a run folder that lists the builds that trained the run, oldest first.
pub(crate) const PROGRAMS: &str = "programs.json";

/// The file with the running code, if it is not the program's own file.
static FILE: OnceLock<PathBuf> = OnceLock::new();

/// A build of the program, identified by the hash of its executable. The git commit would not
/// identify uncommitted changes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Program {
    /// The version.
    pub version: String,
    /// The SHA-256 of the executable.
    pub sha256: String,
}

impl Program {
    /// The running program.
    ///
    /// # Errors
    /// [`TrainError::Io`] if the executable cannot be read.
    pub fn running() -> Result<Self> {
        static HASH: OnceLock<String> = OnceLock::new();
        let sha256 = match HASH.get() {
            Some(hash) => hash.clone(),
            None => {
                let path = Self::file()?;
                let (_, hash) = digest::of_file(&path).map_err(TrainError::io(&path))?;
                HASH.get_or_init(|| hash).clone()
            }
        };
        Ok(Self { version: env!("CARGO_PKG_VERSION").to_owned(), sha256 })
    }

    /// Names the file with the running code, if this is a library in another program.
    pub fn is_in(file: PathBuf) {
        let _ = FILE.set(file);
    }

    /// The file with the running code.
    ///
    /// # Errors
    /// [`TrainError::Io`] if it is not known.
    pub fn file() -> Result<PathBuf> {
        if let Some(file) = FILE.get() {
            return Ok(file.clone());
        }
        // On Linux this is the running executable, even if the file was replaced meanwhile.
        let proc_exe = Path::new("/proc/self/exe");
        match proc_exe.exists() {
            true => Ok(proc_exe.to_path_buf()),
            false => std::env::current_exe().map_err(TrainError::io(proc_exe)),
        }
    }

    /// The programs that trained a run, oldest first. Empty if its folder has no such list.
    ///
    /// # Errors
    /// [`TrainError::Io`]; [`DataError::Malformed`]
    pub fn of_run(run: &Path) -> Result<Vec<Self>> {
        let path = run.join(PROGRAMS);
        let mut text = String::new();
        match engram_durable::open_file(&path).and_then(|mut file| file.read_to_string(&mut text)) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            read => read.map_err(TrainError::io(&path))?,
        };
        serde_json::from_str(&text).map_err(|error| {
            TrainError::from(DataError::Malformed {
                path,
                place: None,
                reason: error.to_string(),
                remedy: "remove the run's folder and train it again",
            })
        })
    }

    /// Whether another build of the program trained any part of a run, or the run does not record
    /// its programs. Returns `false` for a folder without a run.
    ///
    /// # Errors
    /// [`TrainError::Recipe`] if the result would be `true` and `reuse` is `false`; the errors of
    /// [`Program::of_run`].
    pub fn differs_from_running(run: &Path, reuse: bool) -> Result<bool> {
        let running = Self::running()?;
        let programs = Self::of_run(run)?;
        let reason = match programs.iter().find(|program| **program != running) {
            Some(other) => format!("was trained by {other}"),
            None if programs.is_empty() && run.join(RECIPE).is_file() => {
                "does not record which program trained it".to_owned()
            }
            None => return Ok(false),
        };
        if reuse {
            return Ok(true);
        }
        let remedy = "remove the folder, or accept runs of other programs";
        Err(TrainError::Recipe {
            location: run.display().to_string(),
            reason: format!("{reason}, but this is {running}; {remedy}"),
        })
    }

    /// Adds the running program to the list of a run, unless it is already the last in the list.
    /// A new run gets a new list.
    pub(crate) fn record_in(run: &Path, is_new_run: bool) -> Result<()> {
        let mut programs = if is_new_run { Vec::new() } else { Self::of_run(run)? };
        let running = Self::running()?;
        if programs.last() == Some(&running) {
            return Ok(());
        }
        programs.push(running);
        let path = run.join(PROGRAMS);
        let json = serde_json::to_vec_pretty(&programs)
            .map_err(|error| TrainError::io(&path)(error.into()))?;
        write_file(&path, &json)
    }
}

impl std::fmt::Display for Program {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let hash = self.sha256.get(..12).unwrap_or(&self.sha256);
        write!(f, "engram {} with SHA-256 {hash}…", self.version)
    }
}
