//! The errors of REVEAL's answering.

use std::path::{Path, PathBuf};

use engram_data::DataError;
use engram_memory::MemoryError;
use engram_models::ModelError;
use engram_textfile::TextError;

use crate::error::{InferError, remedy};
use crate::stop::Stopped;

/// The result type of this module.
pub type Result<T, E = RevealError> = std::result::Result<T, E>;

/// Every reason why a REVEAL model cannot answer, or why its memory cannot be built or removed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RevealError {
    /// An error of the model crate: a model, a tensor or a weights file is invalid.
    #[error(transparent)]
    Model(#[from] ModelError),

    /// An error of the data crate: an image, a question file or a tokenizer file is missing or
    /// invalid.
    #[error(transparent)]
    Data(Box<DataError>),

    /// An error of the memory crate: the memory is invalid, or cannot be searched or written.
    #[error(transparent)]
    Memory(Box<MemoryError>),

    /// A file of the run is damaged or missing.
    #[error(transparent)]
    Run(Box<InferError>),

    /// The run was asked to stop.
    #[error("{0}")]
    Stopped(#[source] Stopped),

    /// A folder has a file that no run wrote.
    #[error(
        "{} was not written by a run, so it is not removed; move it elsewhere, or choose another \
         folder",
        path.display()
    )]
    ForeignFile {
        /// The file or folder.
        path: PathBuf,
    },

    /// A file could not be read or written.
    #[error("{}: {source}{}", path.display(), remedy(source))]
    Io {
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        source: std::io::Error,
    },

    /// Files or options do not belong together.
    #[error("{0}")]
    Refused(String),
}

impl RevealError {
    /// Wraps an I/O error with its file, for `map_err`.
    pub fn io(path: &Path) -> impl FnOnce(std::io::Error) -> Self + '_ {
        move |source| Self::Io { path: path.to_path_buf(), source }
    }
}

impl From<DataError> for RevealError {
    fn from(error: DataError) -> Self {
        Self::Data(Box::new(error))
    }
}

impl From<TextError> for RevealError {
    fn from(error: TextError) -> Self {
        DataError::from(error).into()
    }
}

impl From<MemoryError> for RevealError {
    /// Unwraps a `RevealError` or a stop request from the batches that a memory was written from.
    fn from(error: MemoryError) -> Self {
        let MemoryError::Rows(error) = error else { return Self::Memory(Box::new(error)) };
        let other = match error.downcast::<Self>() {
            Ok(inner) => return *inner,
            Err(other) => other,
        };
        match other.downcast::<Stopped>() {
            Ok(stopped) => Self::Stopped(*stopped),
            Err(other) => Self::Memory(Box::new(MemoryError::Rows(other))),
        }
    }
}

impl From<InferError> for RevealError {
    fn from(error: InferError) -> Self {
        Self::Run(Box::new(error))
    }
}

impl From<candle_core::Error> for RevealError {
    fn from(error: candle_core::Error) -> Self {
        Self::Model(error.into())
    }
}

impl From<Stopped> for RevealError {
    fn from(stopped: Stopped) -> Self {
        Self::Stopped(stopped)
    }
}

impl From<String> for RevealError {
    fn from(reason: String) -> Self {
        Self::Refused(reason)
    }
}

impl From<&str> for RevealError {
    fn from(reason: &str) -> Self {
        Self::Refused(reason.to_owned())
    }
}
