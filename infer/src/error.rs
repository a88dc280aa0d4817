//! The error type of this crate.

use std::io;
use std::path::{Path, PathBuf};

use engram_data::DataError;
use engram_memory::MemoryError;
use engram_models::ModelError;
use engram_textfile::TextError;

use crate::stop::Stopped;

/// The result type of this crate.
pub type Result<T, E = InferError> = std::result::Result<T, E>;

/// Every reason why a trained model cannot be loaded or used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InferError {
    /// An error of the model crate: a model, a tensor or a weights file is invalid.
    #[error(transparent)]
    Model(#[from] ModelError),

    /// An error of the data crate: a data, tokenizer or Hub file is missing or invalid.
    #[error(transparent)]
    Data(Box<DataError>),

    /// A model folder has an unsupported format or setting, or an encoder does not fit its use.
    #[error("{name}: {reason}")]
    Encoder {
        /// The model's Hub address, folder or file.
        name: String,
        /// The reason and the remedy.
        reason: String,
    },

    /// An error of the memory crate: the memory is invalid, or cannot be searched or written.
    #[error(transparent)]
    Memory(Box<MemoryError>),

    /// A memory was requested for a run that was trained without one.
    #[error("the run was trained without a memory, so it cannot use one")]
    NoMemory,

    /// Models, files or options do not belong together. The text has the reason and the remedy.
    #[error("{0}")]
    Refused(String),

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

    /// A file of a folder with checksums is damaged, missing or unlisted.
    #[error(
        "{} {reason}; restore the folder from a copy, or make it again",
        path.display()
    )]
    BadChecksum {
        /// The file.
        path: PathBuf,
        /// The damage, as a clause after the file name.
        reason: String,
    },

    /// A folder is not a finished run of the expected study, or one of its files is invalid.
    #[error("{}: {reason}", path.display())]
    BadRun {
        /// The folder or the file.
        path: PathBuf,
        /// What is wrong, as a clause after the path, with the remedy.
        reason: String,
    },

    /// The run was asked to stop.
    #[error("{0}")]
    Stopped(#[from] Stopped),

    /// A file could not be read or written.
    #[error("{}: {source}{}", path.display(), remedy(source))]
    Io {
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
}

impl From<DataError> for InferError {
    fn from(error: DataError) -> Self {
        Self::Data(Box::new(error))
    }
}

impl From<TextError> for InferError {
    fn from(error: TextError) -> Self {
        DataError::from(error).into()
    }
}

impl From<MemoryError> for InferError {
    /// Unwraps an `InferError` or a stop request from the batches that a memory was written from.
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

impl From<candle_core::Error> for InferError {
    fn from(error: candle_core::Error) -> Self {
        Self::Model(error.into())
    }
}

impl From<String> for InferError {
    fn from(reason: String) -> Self {
        Self::Refused(reason)
    }
}

impl From<&str> for InferError {
    fn from(reason: &str) -> Self {
        Self::Refused(reason.to_owned())
    }
}

impl InferError {
    /// Wraps an I/O error with its file, for `map_err`.
    pub fn io(path: &Path) -> impl FnOnce(io::Error) -> Self + '_ {
        move |source| Self::Io { path: path.to_path_buf(), source }
    }

    /// Creates a [`BadRun`](Self::BadRun) error.
    pub(crate) fn bad_run(path: &Path, reason: impl Into<String>) -> Self {
        Self::BadRun { path: path.to_path_buf(), reason: reason.into() }
    }
}

/// The remedy for an I/O error, as a clause that starts with `; `. Empty if there is none.
pub fn remedy(error: &io::Error) -> &'static str {
    use io::ErrorKind;
    match error.kind() {
        ErrorKind::NotFound => "; check the path: a relative path starts at the working directory",
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => {
            "; no permission: change the file permissions or choose another path"
        }
        ErrorKind::NotADirectory => {
            "; a part of this path is a file, not a folder: check the path, or move the file"
        }
        ErrorKind::IsADirectory => "; this is a folder: name a file in it",
        _ => "",
    }
}
