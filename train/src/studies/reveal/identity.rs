//! Which model made a memory: keys and values of another one fit by their widths and mean nothing.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::checkpoint::write_file;
use crate::digest;
use crate::study::StudyResult;

/// The file in a memory's folder that says it; a copy of the memory keeps it.
pub(super) const FILE: &str = "made-by.json";

/// What makes keys and values.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Identity {
    /// The SHA-256 of the weights' file.
    pub weights_sha256: String,
    /// That of the tokenizer's.
    pub tokenizer_sha256: String,
}

impl Identity {
    /// That of files.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub fn of(weights: &Path, tokenizer: &Path) -> StudyResult<Self> {
        let hash = |path: &Path| match digest::of_file(path) {
            Ok((_, hash)) => Ok(hash),
            Err(error) => Err(format!("{}: {error}", path.display())),
        };
        Ok(Self { weights_sha256: hash(weights)?, tokenizer_sha256: hash(tokenizer)? })
    }

    /// Writes it into a memory's folder.
    ///
    /// # Errors
    /// A folder that cannot be written.
    pub fn write(&self, memory: &Path) -> StudyResult<()> {
        Ok(write_file(&memory.join(FILE), &serde_json::to_vec_pretty(self)?)?)
    }

    /// Whether a memory's folder says whose it is.
    pub fn is_in(memory: &Path) -> bool {
        memory.join(FILE).is_file()
    }

    /// Fails unless a memory was made by this model and this tokenizer.
    ///
    /// # Errors
    /// A memory of another model or tokenizer, or one that does not say whose it is; `own` is where the
    /// right one lies.
    pub fn check(&self, memory: &Path, own: &Path) -> StudyResult<()> {
        let path = memory.join(FILE);
        let remedy = match memory == own {
            true => "remove it, and it is made anew".to_owned(),
            false => format!("give the memory of this run, {}, or a copy of it", own.display()),
        };
        let bytes = std::fs::read(&path).map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => format!(
                "{}: does not say which model made its keys and values; {remedy}",
                memory.display()
            ),
            _ => format!("{}: {error}; {remedy}", path.display()),
        })?;
        let found: Self = serde_json::from_slice(&bytes)
            .map_err(|error| format!("{}: {error}; {remedy}", path.display()))?;
        let other = match () {
            () if found.tokenizer_sha256 != self.tokenizer_sha256 => "tokenizer",
            () if found.weights_sha256 != self.weights_sha256 => "model",
            () => return Ok(()),
        };
        Err(format!("{}: was made with another {other}; {remedy}", memory.display()).into())
    }
}
