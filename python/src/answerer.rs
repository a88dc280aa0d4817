//! Answers of a trained REVEAL run.

use std::path::PathBuf;
use std::sync::Mutex;

use engram::infer::reveal::answerer::Detail;
use engram::memory::search::Filter;
use engram::memory::{EntryLine, Memory, Store};
use engram::train::studies::reveal::evaluation::restore_missing_memory;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::encoder::compute;
use crate::errors::{DataError, raised};
use crate::process::detached;

/// A trained REVEAL run that answers questions.
#[pyclass(frozen, module = "engram._engram")]
pub(crate) struct Answerer {
    answerer: Mutex<engram::infer::reveal::answerer::Answerer>,
}

#[pymethods]
impl Answerer {
    #[new]
    fn new(
        py: Python<'_>,
        run: PathBuf,
        memory: Option<PathBuf>,
        k: Option<usize>,
        control: Option<&str>,
        device: &str,
    ) -> PyResult<Self> {
        crate::warn_in_python();
        let compute = compute(device)?;
        let control = match control {
            Some(name) => {
                Some(serde_json::from_value(name.replace('-', "_").into()).map_err(|_| {
                    PyValueError::new_err(format!(
                        "no control {name:?}; `engram answer --help` lists them"
                    ))
                })?)
            }
            None => None,
        };
        let open = || -> anyhow::Result<_> {
            let memory = match &memory {
                Some(folder) => {
                    Some((&**folder, Box::new(Memory::open(folder)?) as Box<dyn Store>))
                }
                None => None,
            };
            if memory.is_none() && k != Some(0) {
                restore_missing_memory(&run, true)?;
            }
            let open = engram::infer::reveal::answerer::Answerer::open;
            let mut answerer = open(&run, memory, k, Vec::new(), &compute, None)?;
            if let Some(control) = control {
                answerer.set_control(control)?;
            }
            Ok(Self { answerer: Mutex::new(answerer) })
        };
        detached(py, open).map_err(raised)
    }

    /// Answers a question about an image, or describes the image without a question; as JSON. The
    /// entries with the ids `ignored` are left out.
    fn ask(
        &self,
        py: Python<'_>,
        question: Option<&str>,
        image: PathBuf,
        ignored: Vec<i64>,
        attribution: bool,
        shapley: bool,
    ) -> PyResult<String> {
        let detail = Detail { attribution, shapley };
        let answer =
            self.with(py, |answerer| Ok(answerer.answer_one(question, &image, &ignored, detail)?))?;
        serde_json::to_string(&answer).map_err(raised)
    }

    /// The `k` best entries for a question, an image or both, as a JSON list.
    fn find(
        &self,
        py: Python<'_>,
        question: Option<&str>,
        image: Option<PathBuf>,
        k: usize,
    ) -> PyResult<String> {
        let found = self.with(py, |answerer| {
            Ok(answerer.find(question, image.as_deref(), k, Filter::default())?)
        })?;
        serde_json::to_string(&found).map_err(raised)
    }

    /// Adds an entry, given as JSON, to the memory, or replaces the entry with its id.
    fn put(&self, py: Python<'_>, entry: &str, id: i64, image: Option<PathBuf>) -> PyResult<()> {
        let line: EntryLine = serde_json::from_str(entry)
            .map_err(|error| DataError::new_err(format!("the entry is not an object: {error}")))?;
        self.with(py, |answerer| Ok(answerer.put(line.with_id(id), image.as_deref())?))
    }
}

impl Answerer {
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        run: impl FnOnce(&mut engram::infer::reveal::answerer::Answerer) -> anyhow::Result<T> + Send,
    ) -> PyResult<T> {
        detached(py, || {
            let mut answerer =
                self.answerer.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            run(&mut answerer).map_err(raised)
        })
    }
}
