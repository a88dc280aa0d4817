//! Which program trained a run: the same recipe trained by other code is another run.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::OnceLock;

use engram_data::DataError;
use serde::{Deserialize, Serialize};

use crate::checkpoint::write_file;
use crate::digest;
use crate::error::{Result, TrainError};
use crate::run_folder::RECIPE;

/// The file in a run's folder that has the programs that trained it, one after the other.
pub const PROGRAMS: &str = "programs.json";

/// A build of the program. No commit is known to it, and with changes that are not committed none would say what it
/// is: the hash of the executable does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Program {
    /// The version.
    pub version: String,
    /// The SHA-256 of the executable.
    pub sha256: String,
}

impl Program {
    /// The one that runs.
    ///
    /// # Errors
    /// [`TrainError::Io`] where its executable cannot be read.
    pub fn running() -> Result<Self> {
        static HASH: OnceLock<String> = OnceLock::new();
        let sha256 = match HASH.get() {
            Some(hash) => hash.clone(),
            None => {
                // On Linux what runs, even where another build has taken its place meanwhile.
                let own = Path::new("/proc/self/exe");
                let path = match own.exists() {
                    true => own.to_path_buf(),
                    false => std::env::current_exe().map_err(TrainError::io(own))?,
                };
                let (_, hash) = digest::of_file(&path).map_err(TrainError::io(&path))?;
                HASH.get_or_init(|| hash).clone()
            }
        };
        Ok(Self { version: env!("CARGO_PKG_VERSION").to_owned(), sha256 })
    }

    /// Those that trained a run; empty where its folder does not say.
    ///
    /// # Errors
    /// [`TrainError::Io`]; [`DataError::Malformed`]
    pub fn of_run(run: &Path) -> Result<Vec<Self>> {
        let path = run.join(PROGRAMS);
        let mut text = String::new();
        match File::open(&path).and_then(|mut file| file.read_to_string(&mut text)) {
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

    /// Whether another program than the running one trained a run, or a part of it; `false` for a folder without a run.
    ///
    /// # Errors
    /// [`TrainError::Recipe`] where one did, unless `reuse` says that such runs are taken as they are; those of
    /// [`Program::of_run`].
    pub fn is_other(run: &Path, reuse: bool) -> Result<bool> {
        let running = Self::running()?;
        let found = Self::of_run(run)?;
        let reason = match found.iter().find(|program| **program != running) {
            Some(other) => format!("was trained by {other}"),
            None if found.is_empty() && run.join(RECIPE).is_file() => {
                "does not say which program trained it".to_owned()
            }
            None => return Ok(false),
        };
        if reuse {
            return Ok(true);
        }
        let remedy = "remove the folder, or give --reuse to take such runs as they are";
        Err(TrainError::Recipe {
            place: run.display().to_string(),
            reason: format!("{reason}, and this is {running}; {remedy}"),
        })
    }

    /// Adds the running one to those of a run that begins, or goes on.
    pub(crate) fn note_in(run: &Path, begins: bool) -> Result<()> {
        let mut programs = if begins { Vec::new() } else { Self::of_run(run)? };
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
