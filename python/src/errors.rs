//! Errors as Python exceptions.

use std::io;

use pyo3::PyErr;
use pyo3::create_exception;
use pyo3::exceptions::{PyFileNotFoundError, PyPermissionError, PyValueError};

create_exception!(
    engram,
    DataError,
    PyValueError,
    "Data that Engram cannot use. The message names the file, the line and a remedy."
);

/// The exception for an error: the operating system's own one for a file that is missing or may not
/// be read, and otherwise a [`DataError`].
pub(crate) fn raised(error: impl Into<anyhow::Error>) -> PyErr {
    let error = error.into();
    let text = engram::cli::output::with_causes(&error);
    let kind = error.chain().find_map(|cause| Some(cause.downcast_ref::<io::Error>()?.kind()));
    match kind {
        Some(io::ErrorKind::NotFound) => PyFileNotFoundError::new_err(text),
        Some(io::ErrorKind::PermissionDenied) => PyPermissionError::new_err(text),
        _ => DataError::new_err(text),
    }
}
