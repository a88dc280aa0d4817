//! The identity of the model that built a memory. The keys and values of one model are useless to
//! another, even with the same widths.

use std::path::Path;

use engram_durable as durable;
use engram_memory::EncoderRecord;
use engram_models::mobilenet;
use serde::{Deserialize, Serialize};

use super::encoding::{MODEL, TOKENIZER};
use super::images::PROCESSOR;
use super::memory_folder::{FIRST, current_generation};
use crate::digest;
use crate::error::{InferError, Result};
use crate::finished_run::WEIGHTS;

/// The identity file in a memory's folder; copies of the memory include it.
pub const FILE: &str = "made-by.json";
/// The input of a REVEAL run in an [`EncoderRecord`].
const QUESTIONS: &str = "questions";

/// The model, tokenizer and image preprocessing that produced keys and values.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Identity {
    /// The SHA-256 of the weights file.
    pub weights_sha256: String,
    /// The SHA-256 of the tokenizer file.
    pub tokenizer_sha256: String,
    /// The SHA-256 of the model's sizes, the image processor's file and the frozen network's
    /// weights.
    pub inputs_sha256: String,
    /// The generation of the memory's folder that the run finished; `None` for the first one, and
    /// in a [record](Identity::record). Not compared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<String>,
}

impl Identity {
    /// Hashes the files of a run.
    ///
    /// # Errors
    /// A file cannot be read.
    pub fn of_run(run: &Path) -> Result<Self> {
        let hash = |file: &str| {
            let path = run.join(file);
            Ok::<_, InferError>(digest::of_file(&path).map_err(InferError::io(&path))?.1)
        };
        let mut inputs = hash(MODEL)? + "\n";
        for file in
            [PROCESSOR, mobilenet::WEIGHTS_FILE].into_iter().filter(|file| run.join(file).is_file())
        {
            inputs += &hash(file)?;
        }
        Ok(Self {
            weights_sha256: hash(WEIGHTS)?,
            tokenizer_sha256: hash(TOKENIZER)?,
            inputs_sha256: digest::of_bytes(inputs),
            generation: None,
        })
    }

    /// Hashes the weights of a run that has not finished. The run's other files come later.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn of_weights(weights: &Path) -> Result<Self> {
        let (_, weights_sha256) = digest::of_file(weights).map_err(InferError::io(weights))?;
        Ok(Self {
            weights_sha256,
            tokenizer_sha256: String::new(),
            inputs_sha256: String::new(),
            generation: None,
        })
    }

    /// Reads the identity file of a memory's folder; `None` if there is none.
    ///
    /// # Errors
    /// The file cannot be read or is not valid.
    pub fn read(memory: &Path) -> Result<Option<Self>> {
        let path = memory.join(FILE);
        let bytes = match engram_durable::read_file(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            bytes => bytes.map_err(InferError::io(&path))?,
        };
        let identity = serde_json::from_slice(&bytes).map_err(|error| {
            let remedy = "restore it from a copy, or move the memory to another folder";
            format!("{}: is damaged ({error}); {remedy}", path.display())
        });
        Ok(Some(identity?))
    }

    /// The identity as the record of a model, with keys of this width, for a memory that has no
    /// identity file because it is on servers.
    pub fn record(&self, name: &str, width: usize) -> EncoderRecord {
        EncoderRecord {
            name: name.to_owned(),
            sha256: self.weights_sha256.clone(),
            inputs_sha256: (!self.inputs_sha256.is_empty()).then(|| self.other_inputs()),
            reads: QUESTIONS.to_owned(),
            width,
            prompt: None,
        }
    }

    /// The SHA-256 of the tokenizer, the model's sizes and the image processor's file.
    fn other_inputs(&self) -> String {
        digest::of_bytes(format!("{}\n{}", self.tokenizer_sha256, self.inputs_sha256))
    }

    /// Writes the identity file into the folder of a finished memory.
    ///
    /// # Errors
    /// The folder cannot be written.
    pub fn write(&self, memory: &Path) -> Result<()> {
        let path = memory.join(FILE);
        let generation = current_generation(memory).filter(|name| name != FIRST);
        let identity = Self { generation, ..self.clone() };
        let json = serde_json::to_vec_pretty(&identity).map_err(std::io::Error::from);
        json.and_then(|json| durable::write_file(&path, &json)).map_err(InferError::io(&path))
    }

    /// Whether a memory's folder has an identity file.
    pub fn is_in(memory: &Path) -> bool {
        memory.join(FILE).is_file()
    }

    /// Checks that this model built a memory, with this tokenizer and image preprocessing: by the
    /// identity file, or by the memory's records of its `encoders` if there is no file.
    ///
    /// # Errors
    /// The memory belongs to another model, tokenizer or preprocessing, or its model is unknown.
    /// The message names `run_memory`, the folder of this run's memory.
    pub fn check(
        &self,
        memory: &Path,
        encoders: &[EncoderRecord],
        run_memory: &Path,
    ) -> Result<()> {
        let remedy = if memory == run_memory {
            "remove it to build it again".to_owned()
        } else {
            format!("use the memory of this run, {}, or a copy of it", run_memory.display())
        };
        let display = memory.display();
        let builder = Self::read(memory)?;
        let difference = match (builder, encoders) {
            (Some(builder), _) => self.difference_from(&builder),
            (None, [record]) if record.reads == QUESTIONS => self.difference_from_record(record),
            (None, _) => {
                let reason = format!(
                    "has neither {FILE} nor the record of a REVEAL run, so the model that built it is \
                     unknown"
                );
                return Err(format!("{display}: {reason}; {remedy}").into());
            }
        };
        match difference {
            None => Ok(()),
            Some(part) => Err(format!("{display}: was built with another {part}; {remedy}").into()),
        }
    }

    /// The part that differs from another identity; `None` if they are equal.
    fn difference_from(&self, other: &Self) -> Option<&'static str> {
        let inputs_differ = other.inputs_sha256 != self.inputs_sha256;
        match () {
            () if other.tokenizer_sha256 != self.tokenizer_sha256 => Some("tokenizer"),
            () if other.weights_sha256 != self.weights_sha256 => Some("model"),
            () => inputs_differ.then_some("image preprocessing or other model sizes"),
        }
    }

    /// The part that differs from a [record](Identity::record); `None` if they are equal.
    fn difference_from_record(&self, record: &EncoderRecord) -> Option<&'static str> {
        if record.sha256 != self.weights_sha256 {
            return Some("model");
        }
        // A record from a run that had not finished has no hash of the other inputs.
        let inputs_differ =
            record.inputs_sha256.as_ref().is_some_and(|inputs| *inputs != self.other_inputs());
        inputs_differ.then_some("tokenizer, image preprocessing or other model sizes")
    }
}
