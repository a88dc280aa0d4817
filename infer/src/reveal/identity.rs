//! The identity of the model that built a memory. The keys and values of one model are useless to
//! another, even with the same widths.

use std::path::Path;

use engram_durable as durable;
use serde::{Deserialize, Serialize};

use super::encoding::{MODEL, TOKENIZER};
use super::error::{Result, RevealError};
use super::images::PROCESSOR;
use crate::digest;
use crate::finished_run::WEIGHTS;

/// The identity file in a memory's folder; copies of the memory include it.
pub const FILE: &str = "made-by.json";

/// The model, tokenizer and image preprocessing that produced keys and values.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Identity {
    /// The SHA-256 of the weights file.
    pub weights_sha256: String,
    /// The SHA-256 of the tokenizer file.
    pub tokenizer_sha256: String,
    /// The SHA-256 of the model's sizes and the image processor's file; `None` in memories of older
    /// versions, and then not compared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inputs_sha256: Option<String>,
}

impl Identity {
    /// Hashes the files of a run.
    ///
    /// # Errors
    /// A file cannot be read.
    pub fn of_run(run: &Path) -> Result<Self> {
        let hash = |file: &str| {
            let path = run.join(file);
            Ok::<_, RevealError>(digest::of_file(&path).map_err(RevealError::io(&path))?.1)
        };
        let processor = match run.join(PROCESSOR).is_file() {
            true => hash(PROCESSOR)?,
            false => String::new(),
        };
        Ok(Self {
            weights_sha256: hash(WEIGHTS)?,
            tokenizer_sha256: hash(TOKENIZER)?,
            inputs_sha256: Some(digest::of_bytes(format!("{}\n{processor}", hash(MODEL)?))),
        })
    }

    /// Writes the identity file into a memory's folder.
    ///
    /// # Errors
    /// The folder cannot be written.
    pub fn write(&self, memory: &Path) -> Result<()> {
        let path = memory.join(FILE);
        let json = serde_json::to_vec_pretty(self).map_err(std::io::Error::from);
        json.and_then(|json| durable::write_file(&path, &json)).map_err(RevealError::io(&path))
    }

    /// Whether a memory's folder has an identity file.
    pub fn is_in(memory: &Path) -> bool {
        memory.join(FILE).is_file()
    }

    /// Checks that this model built a memory, with this tokenizer and image preprocessing.
    ///
    /// # Errors
    /// The memory belongs to another model, tokenizer or preprocessing, or has no identity file.
    /// The message names `run_memory`, the folder of this run's memory.
    pub fn check(&self, memory: &Path, run_memory: &Path) -> Result<()> {
        let path = memory.join(FILE);
        let remedy = if memory == run_memory {
            "remove it to build it again".to_owned()
        } else {
            format!("use the memory of this run, {}, or a copy of it", run_memory.display())
        };
        let bytes = std::fs::read(&path).map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => format!(
                "{}: has no {FILE}, so the model that built it is unknown; {remedy}",
                memory.display()
            ),
            _ => format!("{}: {error}; {remedy}", path.display()),
        })?;
        let builder: Self = serde_json::from_slice(&bytes)
            .map_err(|error| format!("{}: {error}; {remedy}", path.display()))?;
        let inputs_differ =
            builder.inputs_sha256.is_some() && builder.inputs_sha256 != self.inputs_sha256;
        let difference = match () {
            () if builder.tokenizer_sha256 != self.tokenizer_sha256 => "tokenizer",
            () if builder.weights_sha256 != self.weights_sha256 => "model",
            () if inputs_differ => "image preprocessing or other model sizes",
            () => return Ok(()),
        };
        Err(format!("{}: was built with another {difference}; {remedy}", memory.display()).into())
    }
}
