//! The error type of this crate.

use std::path::{Path, PathBuf};

use engram_data::DataError;
use engram_infer::InferError;
use engram_models::ModelError;
use engram_textfile::TextError;

/// The result type of this crate.
pub type Result<T, E = TrainError> = std::result::Result<T, E>;

/// An error from a study's own code.
pub type StudyError = Box<dyn std::error::Error + Send + Sync>;

/// Every reason why a run cannot start or has to stop.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrainError {
    /// An error of the model crate: a model, a tensor or a weights file is invalid.
    #[error(transparent)]
    Model(#[from] ModelError),

    /// An error of the data crate: a data, tokenizer or Hub file is missing or invalid.
    #[error(transparent)]
    Data(Box<DataError>),

    /// A trained model could not be loaded or used, for a reason that no other variant covers.
    #[error(transparent)]
    Infer(Box<InferError>),

    /// Data, a run folder or a model cannot be used. The text has the reason and the remedy.
    #[error("{0}")]
    Refused(String),

    /// The study's own code failed.
    #[error("study `{study}` failed in {part}: {source}")]
    Study {
        /// The study.
        study: String,
        /// The function or the operation that failed.
        part: &'static str,
        /// The study's own error.
        source: StudyError,
    },

    /// A file could not be read or written.
    #[error("{}: {source}{}", path.display(), remedy(source))]
    Io {
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        source: std::io::Error,
    },

    /// A value of a recipe is invalid.
    #[error("{location}: {reason}")]
    Recipe {
        /// File and line, or the option that set the value.
        location: String,
        /// The fault and the allowed values.
        reason: String,
    },

    /// The folder holds a run, and `resume` is not set.
    #[error("{} holds a run already; resume it, or choose another folder", run.display())]
    RunExists {
        /// The run folder.
        run: PathBuf,
    },

    /// The run's checkpoints are missing.
    #[error(
        "{} holds a run without its checkpoints, so it cannot be resumed; restore the checkpoints, \
         or choose another folder",
        run.display()
    )]
    CheckpointsGone {
        /// The run folder.
        run: PathBuf,
    },

    /// The run folder holds files but no run.
    #[error(
        "{} holds other files but no run (recipe.toml and inputs.json); choose an empty or a new \
         folder",
        run.display()
    )]
    NoRun {
        /// The run folder.
        run: PathBuf,
    },

    /// Another process writes to the run folder.
    #[error("{} is in use by process {holder}; wait for it or choose another folder", run.display())]
    Locked {
        /// The run folder.
        run: PathBuf,
        /// The process id in the folder's lock file.
        holder: String,
    },

    /// The run was asked to stop and has stopped.
    #[error("{} was stopped at step {step} and can be resumed", run.display())]
    Stopped {
        /// The run folder.
        run: PathBuf,
        /// The step of its newest checkpoint; 0 if it was stopped before training began.
        step: u64,
    },

    /// A checkpoint is incomplete or damaged.
    #[error("checkpoint {} is damaged: {reason}", path.display())]
    BadCheckpoint {
        /// The checkpoint's folder or file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },

    /// Checkpoints exist, but all are damaged.
    #[error(
        "every checkpoint in {} is damaged ({}); restore one, or start again in another folder",
        folder.display(),
        reasons.join("; ")
    )]
    NoGoodCheckpoint {
        /// The folder of checkpoints.
        folder: PathBuf,
        /// What is wrong with each checkpoint.
        reasons: Vec<String>,
    },

    /// The loss or the gradients were not finite three times in a row.
    #[error(
        "{what} in {consecutive_steps} steps in a row, up to step {step}; the same recipe fails there \
         again: start a new run in another folder with a lower `optimiser.learning_rate` or a \
         smaller `optimiser.clip_norm`{}",
        match newest_checkpoint {
            Some(path) => format!("; the newest checkpoint is {}", path.display()),
            None => String::new(),
        }
    )]
    NotFinite {
        /// The value that was not finite, with parameter names if known.
        what: String,
        /// The number of consecutive steps.
        consecutive_steps: u32,
        /// The last of these steps.
        step: u64,
        /// The newest checkpoint; `None` before the first one.
        newest_checkpoint: Option<PathBuf>,
    },

    /// A frozen parameter changed: a bug in this toolkit or in the study.
    #[error(
        "frozen parameters changed during phase `{phase}`: fingerprint {before} became {after}"
    )]
    FrozenChanged {
        /// The phase.
        phase: String,
        /// SHA-256 at the phase's start.
        before: String,
        /// SHA-256 at its end.
        after: String,
    },

    /// The ranks of a run cannot communicate, or differ.
    #[error("the ranks cannot continue: {source}")]
    Ranks {
        /// The reason.
        source: StudyError,
    },

    /// A rank other than 0 has done its part of a run. Rank 0 returns the results.
    #[error("rank {rank} has done its part of the run")]
    OtherRank {
        /// The rank.
        rank: usize,
    },
}

impl From<DataError> for TrainError {
    fn from(error: DataError) -> Self {
        Self::Data(Box::new(error))
    }
}

impl From<TextError> for TrainError {
    fn from(error: TextError) -> Self {
        DataError::from(error).into()
    }
}

impl From<InferError> for TrainError {
    /// Errors of models, data and files get the same variant as if this crate had reported them.
    fn from(error: InferError) -> Self {
        match error {
            InferError::Model(error) => Self::Model(error),
            InferError::Data(error) => Self::Data(error),
            InferError::Io { path, source } => Self::Io { path, source },
            error => Self::Infer(Box::new(error)),
        }
    }
}

impl TrainError {
    /// Wraps an error of a study's own code with the part that failed, for `map_err`.
    pub(crate) fn in_study<E: Into<StudyError>>(
        study: &'static str,
        part: &'static str,
    ) -> impl Fn(E) -> Self {
        move |error| Self::Study { study: study.to_owned(), part, source: error.into() }
    }

    /// Wraps an I/O error with its file, for `map_err`.
    pub(crate) fn io(path: &Path) -> impl FnOnce(std::io::Error) -> Self + '_ {
        move |source| Self::Io { path: path.to_path_buf(), source }
    }
}

/// The remedy for an I/O error, to append to its text; empty if none is known.
fn remedy(error: &std::io::Error) -> &'static str {
    use std::io::ErrorKind;
    match error.kind() {
        ErrorKind::AlreadyExists => {
            "; this is a file, not a run folder: choose another folder, or move the file"
        }
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
            "; free some space, then resume from the last checkpoint"
        }
        _ => engram_infer::remedy(error),
    }
}
