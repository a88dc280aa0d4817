//! Memories and their transactions.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Mutex;

use anyhow::Context;
use engram::memory::retrieval::mmr::maximal_marginal_relevance;
use engram::memory::retrieval::rank_fusion::reciprocal_rank_fusion;
use engram::memory::search::graph::GraphSettings;
use engram::memory::search::{Filter, Queries, SearchResults};
use engram::memory::{
    Batch, EntryLine, MemoryFormat, Method, Row, Snapshot, Store, ValueDtype, ValueFormat, Writer,
};
use numpy::ndarray::Dimension;
use numpy::{
    Element, PyArray1, PyArray2, PyArray3, PyArrayMethods, PyReadonlyArray, PyReadonlyArray2,
    PyReadonlyArray3, PyUntypedArrayMethods,
};
use pyo3::exceptions::{PyKeyError, PyValueError};
use pyo3::prelude::*;

use crate::errors::{DataError, raised};
use crate::process::detached;

/// The rows of a change: keys `[rows, width]`, values `[rows, tokens, width]` or none, and the
/// entries as a JSON list.
type Rows<'py> = (PyReadonlyArray2<'py, f32>, Option<PyReadonlyArray3<'py, f32>>, Option<String>);
/// Ids and scores `[queries, k]`.
type Found<'py> = (Bound<'py, PyArray2<i64>>, Bound<'py, PyArray2<f32>>);

/// A memory in a folder.
#[pyclass(frozen, module = "engram._engram")]
pub(crate) struct Memory {
    store: engram::memory::Memory,
}

/// What a search may find, and how it chooses.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct Choice {
    k: usize,
    /// The number of candidates of a search in a graph; `None` compares all keys.
    graph: Option<usize>,
    sources: Option<Vec<String>>,
    ids: Option<Vec<i64>>,
    exclude: Vec<Vec<String>>,
    min_score: Option<f32>,
    /// The weight of relevance of maximal marginal relevance.
    mmr: Option<f64>,
    /// The number of entries from which `mmr` and `texts` choose.
    candidates: usize,
    /// The texts of the queries, to search the entries' texts, too.
    texts: Option<Vec<String>>,
}

impl Choice {
    /// Runs a search by keys `[queries, width]`, by texts, or by both.
    fn search(
        &self,
        snapshot: &dyn Snapshot,
        keys: Option<&[f32]>,
    ) -> anyhow::Result<SearchResults> {
        let entries = snapshot.description().entries.max(1);
        let is_chosen = self.mmr.is_some() || (self.texts.is_some() && keys.is_some());
        let k = if is_chosen { self.candidates.max(self.k) } else { self.k }.min(entries);
        let filter = Filter {
            sources: self.sources.clone(),
            ids: self.ids.clone(),
            excluded_documents: self.exclude.clone(),
            gates: None,
        };
        let by_key = match keys {
            Some(keys) => {
                let method =
                    self.graph.map_or(Method::Exact, |candidates| Method::Graph { candidates });
                let found = snapshot.search(method, Queries { keys, k }, &filter)?;
                let found =
                    self.min_score.map_or(found.clone(), |score| found.with_min_score(score));
                match self.mmr {
                    Some(lambda) => {
                        Some(maximal_marginal_relevance(snapshot, &found, lambda, self.k)?)
                    }
                    None => Some(found),
                }
            }
            None => None,
        };
        let by_text = match &self.texts {
            Some(texts) => {
                let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
                Some(snapshot.search_texts(&texts, k, &filter)?)
            }
            None => None,
        };
        match (by_key, by_text) {
            (Some(by_key), Some(by_text)) => {
                let fused = reciprocal_rank_fusion(&by_key, &by_text, self.k)?.into_iter();
                let hits = fused.map(|list| list.into_iter().map(|fused| fused.hit).collect());
                Ok(SearchResults { hits: hits.collect(), ..by_key })
            }
            (by_key, by_text) => by_key.or(by_text).context("give queries, texts or both"),
        }
    }
}

#[pymethods]
impl Memory {
    /// Builds a memory.
    #[staticmethod]
    fn build(
        py: Python<'_>,
        folder: PathBuf,
        rows: Rows<'_>,
        normalised: bool,
        numbers: &str,
    ) -> PyResult<Self> {
        crate::warn_in_python();
        let dtype = ValueDtype::ALL.into_iter().find(|dtype| dtype.name() == numbers);
        let dtype = dtype.ok_or_else(|| {
            let names = ValueDtype::ALL.map(ValueDtype::name).join(", ");
            PyValueError::new_err(format!("no number type {numbers:?}; give one of {names}"))
        })?;
        let values = rows.1.as_ref().map(|values| {
            let [_, tokens, width] = shape(values.as_array().shape());
            ValueFormat { tokens, width, dtype }
        });
        let width = rows.0.as_array().ncols();
        let batch = batch(rows, 0)?;
        detached(py, || {
            let format = MemoryFormat { width, normalised, values };
            let rows = batch.entries.len();
            Writer::create(&folder, format, rows, [Ok(batch)].into_iter()).map_err(raised)?;
            Ok(Self { store: engram::memory::Memory::open(&folder).map_err(raised)? })
        })
    }

    #[staticmethod]
    fn open(py: Python<'_>, folder: PathBuf) -> PyResult<Self> {
        crate::warn_in_python();
        let store = detached(py, || engram::memory::Memory::open(&folder)).map_err(raised)?;
        Ok(Self { store })
    }

    /// The folder.
    #[getter]
    fn folder(&self) -> PathBuf {
        self.store.folder().to_owned()
    }

    /// Shape and origin of the entries: number, width, deleted, normalised, sources, next id,
    /// generation, shape of values, whether there is a graph.
    fn description(&self) -> String {
        let snapshot = self.store.snapshot();
        let about = snapshot.description();
        serde_json::json!({
            "entries": about.entries, "width": about.width, "deleted": about.deleted,
            "normalised": about.normalised, "sources": about.sources, "next_id": about.next_id,
            "generation": about.generation, "graph": about.has_graph,
            "values": about.values.map(|values| [values.tokens, values.width]),
            "encoders": about.encoders,
        })
        .to_string()
    }

    /// Loads the current state. Returns whether it changed.
    fn reload(&self, py: Python<'_>) -> PyResult<bool> {
        detached(py, || self.store.reload()).map_err(raised)
    }

    /// Searches by keys, by texts, or by both.
    fn search<'py>(
        &self,
        py: Python<'py>,
        keys: Option<PyReadonlyArray2<'py, f32>>,
        choice: Choice,
    ) -> PyResult<Found<'py>> {
        let snapshot = self.store.snapshot();
        let slice = match &keys {
            Some(keys) => Some(contiguous(keys)?),
            None => None,
        };
        if let Some(keys) = &keys {
            check_width(keys.as_array().ncols(), snapshot.description().width)?;
        }
        let k = choice.k;
        let results = detached(py, || choice.search(snapshot.as_ref(), slice)).map_err(raised)?;
        let (mut ids, mut scores) = (Vec::new(), Vec::new());
        for hits in &results.hits {
            ids.extend(hits.iter().take(k).map(|hit| hit.id));
            scores.extend(hits.iter().take(k).map(|hit| hit.score));
            ids.resize(ids.len() + k.saturating_sub(hits.len()), -1);
            scores.resize(ids.len(), f32::NEG_INFINITY);
        }
        let shape = [results.hits.len(), k];
        Ok((
            PyArray1::from_vec(py, ids).reshape(shape)?,
            PyArray1::from_vec(py, scores).reshape(shape)?,
        ))
    }

    /// The ids of all entries, ascending.
    fn ids<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyArray1<i64>>> {
        let snapshot = self.store.snapshot();
        let ids = detached(py, || -> anyhow::Result<Vec<i64>> {
            let entries = snapshot.entries(&snapshot.rows()?)?;
            let mut ids: Vec<i64> = entries.iter().map(|entry| entry.id).collect();
            ids.sort_unstable();
            Ok(ids)
        });
        Ok(PyArray1::from_vec(py, ids.map_err(raised)?))
    }

    /// The entries with these ids, as a JSON list.
    fn entries(&self, py: Python<'_>, ids: Vec<i64>) -> PyResult<String> {
        let snapshot = self.store.snapshot();
        let rows = rows_of(snapshot.as_ref(), &ids)?;
        let entries = detached(py, || snapshot.entries(&rows)).map_err(raised)?;
        serde_json::to_string(&entries).map_err(raised)
    }

    /// The keys of these ids, `[ids, width]`.
    fn keys<'py>(&self, py: Python<'py>, ids: Vec<i64>) -> PyResult<Bound<'py, PyArray2<f32>>> {
        let snapshot = self.store.snapshot();
        let rows = rows_of(snapshot.as_ref(), &ids)?;
        let keys = detached(py, || snapshot.keys(&rows)).map_err(raised)?;
        PyArray1::from_vec(py, keys).reshape([ids.len(), snapshot.description().width])
    }

    /// The values of these ids, `[ids, tokens, width]`; `None` for a memory without values.
    fn values<'py>(
        &self,
        py: Python<'py>,
        ids: Vec<i64>,
    ) -> PyResult<Option<Bound<'py, PyArray3<f32>>>> {
        let snapshot = self.store.snapshot();
        let rows = rows_of(snapshot.as_ref(), &ids)?;
        let Some(ValueFormat { tokens, width, .. }) = snapshot.description().values else {
            return Ok(None);
        };
        let values = detached(py, || snapshot.values(&rows)).map_err(raised)?;
        PyArray1::from_vec(py, values).reshape([ids.len(), tokens, width]).map(Some)
    }

    /// Builds a graph over the keys, for faster searches.
    fn index(&self, py: Python<'_>) -> PyResult<()> {
        self.change(py, |writer| writer.index(GraphSettings::default(), || ()))
    }

    /// Rewrites all entries without the deleted ones.
    fn compact(&self, py: Python<'_>) -> PyResult<()> {
        self.change(py, |writer| writer.compact(|_| ()))
    }

    /// The faults of the files, as messages; empty for a sound memory.
    fn verify(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        let faults = detached(py, || engram::memory::Memory::verify(self.store.folder()));
        Ok(faults.map_err(raised)?.iter().map(ToString::to_string).collect())
    }

    /// Starts a change.
    fn begin(&self, py: Python<'_>) -> PyResult<Transaction> {
        let open = detached(py, || self.store.begin()).map_err(raised)?;
        Ok(Transaction { open: Mutex::new(Some(open)) })
    }
}

impl Memory {
    fn change(
        &self,
        py: Python<'_>,
        change: impl FnOnce(&mut Writer) -> Result<(), engram::memory::MemoryError> + Send,
    ) -> PyResult<()> {
        detached(py, || {
            let mut writer = Writer::open(self.store.folder())?;
            change(&mut writer)?;
            self.store.reload().map(drop)
        })
        .map_err(raised)
    }
}

/// A change of a memory, which commits as a whole.
#[pyclass(frozen, module = "engram._engram")]
pub(crate) struct Transaction {
    /// `None` after a commit or a rollback.
    open: Mutex<Option<Box<dyn engram::memory::Transaction>>>,
}

#[pymethods]
impl Transaction {
    /// Adds entries. Entries without an id get the next free ones. Returns the ids.
    fn add(&self, py: Python<'_>, rows: Rows<'_>, next_id: i64) -> PyResult<Vec<i64>> {
        let batch = batch(rows, next_id)?;
        let ids = batch.entries.iter().map(|entry| entry.id).collect();
        self.run(py, |open| open.add(batch.entries.len(), &mut [Ok(batch)].into_iter()))?;
        Ok(ids)
    }

    /// Replaces the entries with the same ids.
    fn update(&self, py: Python<'_>, rows: Rows<'_>) -> PyResult<()> {
        let batch = batch(rows, -1)?;
        self.run(py, |open| open.update(batch.entries.len(), &mut [Ok(batch)].into_iter()))
    }

    /// Deletes entries.
    fn delete(&self, py: Python<'_>, ids: Vec<i64>) -> PyResult<()> {
        rows_of(self.run(py, |open| Ok(open.base()))?.as_ref(), &ids)?;
        self.run(py, |open| open.delete(&ids))
    }

    /// Makes the change.
    fn commit(&self, py: Python<'_>) -> PyResult<()> {
        let open = self.take().ok_or_else(closed)?;
        detached(py, || open.commit()).map_err(raised)?;
        Ok(())
    }

    /// Discards the change.
    fn rollback(&self) {
        self.take();
    }
}

impl Transaction {
    fn take(&self) -> Option<Box<dyn engram::memory::Transaction>> {
        self.open.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take()
    }

    fn run<T: Send>(
        &self,
        py: Python<'_>,
        part: impl FnOnce(
            &mut Box<dyn engram::memory::Transaction>,
        ) -> Result<T, engram::memory::MemoryError>
        + Send,
    ) -> PyResult<T> {
        detached(py, || {
            let mut open = self.open.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            part(open.as_mut().ok_or_else(closed)?).map_err(raised)
        })
    }
}

fn closed() -> PyErr {
    PyValueError::new_err("the transaction is closed; start another one")
}

/// The rows of a change. Entries without an id get ids from `next_id` on.
fn batch((keys, values, entries): Rows<'_>, next_id: i64) -> PyResult<Batch> {
    let rows = keys.as_array().nrows();
    let entries: Vec<EntryLine> = match &entries {
        Some(text) => serde_json::from_str(text).map_err(|error| {
            DataError::new_err(format!("the entries are not a list of objects: {error}"))
        })?,
        None => (0..rows).map(|_| EntryLine::passage("memory", "")).collect(),
    };
    if entries.len() != rows {
        let text =
            format!("{} entries for {rows} keys; give one entry for each key", entries.len());
        return Err(PyValueError::new_err(text));
    }
    let used: HashSet<i64> = entries.iter().filter_map(|entry| entry.id).collect();
    let mut free = (next_id..).filter(|id| !used.contains(id));
    let mut numbered = Vec::with_capacity(rows);
    for (row, entry) in entries.into_iter().enumerate() {
        let id = match entry.id {
            None if next_id < 0 => {
                return Err(PyValueError::new_err(format!("entry {row} has no id; give its id")));
            }
            None => free.next().unwrap_or_default(),
            Some(id) => id,
        };
        numbered.push(entry.with_id(id));
    }
    let values = match &values {
        Some(values) if values.as_array().shape()[0] != rows => {
            let text = format!("{} values for {rows} keys", values.as_array().shape()[0]);
            return Err(PyValueError::new_err(text));
        }
        Some(values) => contiguous(values)?.to_vec(),
        None => Vec::new(),
    };
    Ok(Batch { entries: numbered, keys: contiguous(&keys)?.to_vec(), values })
}

/// The numbers of an array; an error unless it is C-contiguous.
fn contiguous<'a, T: Element, D: Dimension>(
    array: &'a PyReadonlyArray<'_, T, D>,
) -> PyResult<&'a [T]> {
    let slice = array.as_slice().ok().filter(|_| array.is_c_contiguous());
    slice.ok_or_else(|| {
        let text = "the array is not C-contiguous; give numpy.ascontiguousarray(array)";
        PyValueError::new_err(text)
    })
}

fn check_width(found: usize, expected: usize) -> PyResult<()> {
    match found == expected {
        true => Ok(()),
        false => Err(PyValueError::new_err(format!(
            "queries of width {found} for keys of width {expected}; encode both with one model"
        ))),
    }
}

fn shape<const N: usize>(shape: &[usize]) -> [usize; N] {
    std::array::from_fn(|dimension| shape.get(dimension).copied().unwrap_or_default())
}

/// The row of each id.
fn rows_of(snapshot: &dyn Snapshot, ids: &[i64]) -> PyResult<Vec<Row>> {
    let rows = snapshot.find(ids).map_err(raised)?;
    let row = |(id, row): (&i64, Option<Row>)| {
        row.ok_or_else(|| PyKeyError::new_err(format!("no entry has the id {id}")))
    };
    ids.iter().zip(rows).map(row).collect()
}
