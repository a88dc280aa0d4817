//! The Python module `engram._engram`: evaluations, memories and models for the package `engram`,
//! which checks and converts what users give.
//!
//! Calls that compute release the interpreter's lock.

mod answerer;
mod captions;
mod encoder;
mod errors;
mod flat;
mod memory;
mod process;
mod retrieval;
mod texts;
mod transcriber;
mod words;

use std::ffi::OsString;
use std::path::PathBuf;

use engram::cli;
use engram::data::messages::send_messages_to;
use pyo3::prelude::*;
use pyo3::types::PyModule;

use errors::raised;
use process::detached;

/// Runs the command `engram`, and returns its exit code. `restart` are the words that start the
/// command again, and `code` is the file of this module.
#[pyfunction]
fn main(py: Python<'_>, words: Vec<OsString>, restart: Vec<OsString>, code: PathBuf) -> u8 {
    let invocation = cli::Invocation { words, restart, code: Some(code) };
    py.detach(|| cli::main(invocation, |_| ()))
}

/// Runs `engram eval` with these words, and returns its output.
#[pyfunction]
fn evaluate(py: Python<'_>, words: Vec<OsString>) -> PyResult<String> {
    warn_in_python();
    detached(py, || cli::evaluate(&words)).map_err(raised)
}

/// Makes the warnings and notes of the libraries warnings of Python. Each function that may have
/// some calls this first, because the command prints them itself.
fn warn_in_python() {
    send_messages_to(warn);
}

fn warn(text: &str) {
    // When the interpreter ends, there is nobody to warn.
    let _ = Python::try_attach(|py| {
        let warned = py.import("warnings").and_then(|warnings| {
            warnings.call_method1(
                "warn",
                (text.trim_start_matches("warning: ").trim_start_matches("note: "),),
            )
        });
        // A filter may turn warnings into errors, for which there is no caller here.
        if let Err(error) = warned {
            error.write_unraisable(py, None);
        }
    });
}

#[pymodule]
fn _engram(py: Python<'_>, module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("DataError", py.get_type::<errors::DataError>())?;
    module.add_function(wrap_pyfunction!(main, module)?)?;
    module.add_function(wrap_pyfunction!(evaluate, module)?)?;
    module.add_function(wrap_pyfunction!(words::align_texts, module)?)?;
    module.add_function(wrap_pyfunction!(words::align_tokens, module)?)?;
    module.add_function(wrap_pyfunction!(texts::chrf_sums, module)?)?;
    module.add_function(wrap_pyfunction!(texts::chrf_scores, module)?)?;
    module.add_class::<retrieval::RelevanceEvaluator>()?;
    module.add_function(wrap_pyfunction!(captions::tokenize_captions, module)?)?;
    module.add_class::<captions::Captions>()?;
    module.add_class::<memory::Memory>()?;
    module.add_class::<memory::Transaction>()?;
    module.add_class::<encoder::Encoder>()?;
    module.add_class::<flat::Flat>()?;
    module.add_function(wrap_pyfunction!(transcriber::decode_audio, module)?)?;
    module.add_class::<transcriber::Transcriber>()?;
    module.add_class::<answerer::Answerer>()
}
