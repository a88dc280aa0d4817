//! Exact search in vectors in main memory, by inner product or by squared L2 distance.
//!
//! A few queries are compared with every vector. For many queries, the search of a memory is
//! faster, because it reads 8-bit codes instead of the vectors. So blocks of vectors are encoded
//! as memories, whose files may be removed as soon as they are open.

mod compare;

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use engram::memory::search::{Filter, Queries, SearchResults};
use engram::memory::{
    Batch, Entry, Generation, MemoryError, MemoryFormat, Method, Snapshot, Writer,
};
use numpy::{PyArray1, PyArray2, PyArrayMethods, PyReadonlyArray1, PyReadonlyArray2};
use pyo3::exceptions::{PyMemoryError, PyRuntimeError};
use pyo3::prelude::*;
use rayon::prelude::*;

use compare::{Best, Candidate, InRange, Metric, by_score, compare};

use crate::process::detached;

/// Fewer vectors than this are not encoded.
const MIN_ENCODED: usize = 4096;
/// Vectors are encoded when this many queries would otherwise have been compared with each of them.
/// This takes about as long as these comparisons.
const MAX_COMPARED: usize = 64;
/// The number of vectors that are encoded at once.
const BATCH_ROWS: usize = 8192;

/// Scores and rows `[queries, k]`.
type Found<'py> = (Bound<'py, PyArray2<f32>>, Bound<'py, PyArray2<i64>>);
/// The end of each query's results, and the scores and rows of all results.
type Ranges<'py> =
    (Bound<'py, PyArray1<u64>>, Bound<'py, PyArray1<f32>>, Bound<'py, PyArray1<i64>>);

/// Vectors of one width.
#[pyclass(frozen, module = "engram._engram")]
pub(crate) struct Flat {
    width: usize,
    metric: Metric,
    vectors: RwLock<Vectors>,
}

#[derive(Default)]
struct Vectors {
    /// `[rows, width]`
    numbers: Vec<f32>,
    /// Encoded blocks of the first rows.
    blocks: Vec<Block>,
    /// The number of queries that were compared with the rows after the blocks.
    compared: AtomicUsize,
    /// Whether a block could not be encoded, for example because of NaN.
    cannot_encode: bool,
}

/// An encoded block of rows.
///
/// The keys are the vectors minus their mean, which shortens them, so that the codes are more
/// exact. A distance becomes a product: `|q - x|² = |q|² + |x|² - 2 q·x`, so the key of `x` is
/// `[x, u, v]` and that of the query `[q, s, s]`, with `s (u + v) = (c - |x|²) / 2` for a constant
/// `c`. Here `v` is the rounding error of `u`.
struct Block {
    start: usize,
    rows: usize,
    mean: Vec<f32>,
    /// The number `s`. It makes the additional components of keys and queries short.
    scale: f32,
    generation: Arc<Generation>,
}

#[pymethods]
impl Flat {
    #[new]
    fn new(width: usize, is_product: bool) -> Self {
        let metric = if is_product { Metric::Product } else { Metric::Distance };
        Self { width, metric, vectors: RwLock::default() }
    }

    fn __len__(&self, py: Python<'_>) -> usize {
        detached(py, || self.rows(&self.read()))
    }

    /// Appends vectors.
    fn add(&self, py: Python<'_>, vectors: PyReadonlyArray2<'_, f32>) -> PyResult<()> {
        let new = vectors.as_slice()?;
        detached(py, || {
            let mut vectors = self.write();
            let rows = (vectors.numbers.len() + new.len()) / self.width.max(1);
            let has_room =
                u32::try_from(rows).is_ok() && vectors.numbers.try_reserve(new.len()).is_ok();
            if !has_room {
                return Err(PyMemoryError::new_err(format!("no room for {rows} vectors")));
            }
            vectors.numbers.extend_from_slice(new);
            Ok(())
        })
    }

    /// Removes the rows that are not kept. Later rows move up.
    fn keep(&self, py: Python<'_>, kept: PyReadonlyArray1<'_, bool>) -> PyResult<()> {
        let kept = kept.as_slice()?;
        detached(py, || {
            let (mut vectors, width) = (self.write(), self.width);
            let (rows, is_kept) = (self.rows(&vectors), |row| kept.get(row) != Some(&false));
            let first = (0..rows).position(|row| !is_kept(row)).unwrap_or(rows);
            vectors.drop_blocks_after(first);
            let mut end = first;
            for row in (first..rows).filter(|row| is_kept(*row)) {
                vectors.numbers.copy_within(row * width..(row + 1) * width, end * width);
                end += 1;
            }
            vectors.numbers.truncate(end * width);
        });
        Ok(())
    }

    /// Returns rows.
    fn take<'py>(
        &self,
        py: Python<'py>,
        rows: PyReadonlyArray1<'py, i64>,
    ) -> PyResult<Bound<'py, PyArray2<f32>>> {
        let rows = rows.as_slice()?;
        let taken: Option<Vec<f32>> = detached(py, || {
            let vectors = self.read();
            let mut taken = Vec::with_capacity(rows.len() * self.width);
            for row in rows {
                let row = usize::try_from(*row).ok().filter(|row| *row < self.rows(&vectors))?;
                taken.extend_from_slice(self.row(&vectors, row));
            }
            Some(taken)
        });
        let taken = taken.ok_or_else(|| PyRuntimeError::new_err("the index has no such vector"))?;
        PyArray1::from_vec(py, taken).reshape([rows.len(), self.width])
    }

    /// Whether [`Flat::encode`] would make this and later searches faster.
    fn needs_codes(&self, py: Python<'_>, queries: usize) -> bool {
        detached(py, || {
            let vectors = self.read();
            let rest = self.rows(&vectors) - vectors.encoded();
            let compared = vectors.compared.load(Ordering::Relaxed) + queries;
            !vectors.cannot_encode && rest >= MIN_ENCODED && compared >= MAX_COMPARED
        })
    }

    /// Encodes all vectors. Returns false if there are vectors that a memory does not take, or if
    /// there is no room in the empty `folder` for files, which are not needed after the call.
    fn encode(&self, py: Python<'_>, folder: PathBuf) -> bool {
        detached(py, || {
            let mut vectors = self.write();
            let rows = self.rows(&vectors);
            if vectors.encoded() == rows {
                return true;
            }
            // A block replaces the smaller blocks before it, so that there are few.
            let mut start = vectors.encoded();
            while let Some(last) = vectors.blocks.pop_if(|last| last.rows <= rows - start) {
                start = last.start;
            }
            let block = self.encode_block(&vectors.numbers[start * self.width..], start, folder);
            vectors.cannot_encode = block.is_err();
            vectors.blocks.extend(block.ok());
            vectors.compared = AtomicUsize::new(0);
            !vectors.cannot_encode
        })
    }

    /// Returns the best `k` rows for each query, best first. `k` is at most the number of rows. A
    /// row for a missing result is -1. `allowed` has whether each row may be found.
    fn search<'py>(
        &self,
        py: Python<'py>,
        queries: PyReadonlyArray2<'py, f32>,
        k: usize,
        allowed: Option<PyReadonlyArray1<'py, bool>>,
    ) -> PyResult<Found<'py>> {
        let shape = [queries.as_array().nrows(), k];
        let (queries, allowed) = (queries.as_slice()?, slice(allowed.as_ref())?);
        let (scores, rows) = detached(py, || {
            let best = self.best(&self.read(), queries, k, allowed);
            let missing = self.sign() * f32::MIN;
            let mut scores = Vec::with_capacity(shape[0] * k);
            let mut rows = Vec::with_capacity(shape[0] * k);
            for (number, best) in best.iter().enumerate() {
                scores.extend(best.iter().map(|(score, _)| self.sign() * score));
                rows.extend(best.iter().map(|(_, row)| i64::from(*row)));
                scores.resize((number + 1) * k, missing);
                rows.resize((number + 1) * k, -1);
            }
            (scores, rows)
        });
        Ok((
            PyArray1::from_vec(py, scores).reshape(shape)?,
            PyArray1::from_vec(py, rows).reshape(shape)?,
        ))
    }

    /// Returns the rows whose scores are better than a threshold, in order.
    fn range_search<'py>(
        &self,
        py: Python<'py>,
        queries: PyReadonlyArray2<'py, f32>,
        threshold: f32,
        allowed: Option<PyReadonlyArray1<'py, bool>>,
    ) -> PyResult<Ranges<'py>> {
        let (queries, allowed) = (queries.as_slice()?, slice(allowed.as_ref())?);
        let found = detached(py, || {
            let vectors = self.read();
            let all = 0..self.rows(&vectors);
            let numbers = &vectors.numbers;
            let new = || InRange { threshold: self.sign() * threshold, found: Vec::new() };
            compare((self.metric, self.width), numbers, queries, all, allowed, &new)
        });
        let (mut ends, mut end) = (vec![0], 0);
        for results in &found {
            end += results.iter().map(|part| part.found.len() as u64).sum::<u64>();
            ends.push(end);
        }
        let found: Vec<Candidate> =
            found.into_iter().flatten().flat_map(|part| part.found).collect();
        let scores = found.iter().map(|(score, _)| self.sign() * score).collect();
        let rows = found.iter().map(|(_, row)| i64::from(*row)).collect();
        Ok((
            PyArray1::from_vec(py, ends),
            PyArray1::from_vec(py, scores),
            PyArray1::from_vec(py, rows),
        ))
    }
}

impl Flat {
    fn read(&self) -> RwLockReadGuard<'_, Vectors> {
        self.vectors.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Vectors> {
        self.vectors.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn rows(&self, vectors: &Vectors) -> usize {
        vectors.numbers.len() / self.width.max(1)
    }

    fn row<'a>(&self, vectors: &'a Vectors, row: usize) -> &'a [f32] {
        &vectors.numbers[row * self.width..][..self.width]
    }

    /// Turns scores, of which larger ones are better, to products or distances, and back.
    fn sign(&self) -> f32 {
        match self.metric {
            Metric::Product => 1.0,
            Metric::Distance => -1.0,
        }
    }

    /// The score of a row in double precision.
    fn score(&self, query: &[f32], vector: &[f32]) -> f32 {
        let pairs = query.iter().zip(vector).map(|(q, x)| (f64::from(*q), f64::from(*x)));
        match self.metric {
            Metric::Product => pairs.map(|(q, x)| q * x).sum::<f64>() as f32,
            Metric::Distance => -pairs.map(|(q, x)| (q - x).powi(2)).sum::<f64>() as f32,
        }
    }

    /// The best `k` rows for each query, best first.
    fn best(
        &self,
        vectors: &Vectors,
        queries: &[f32],
        k: usize,
        allowed: Option<&[bool]>,
    ) -> Vec<Vec<Candidate>> {
        let rows = self.rows(vectors);
        let count = queries.len() / self.width.max(1);
        if rows == 0 || k == 0 {
            return vec![Vec::new(); count];
        }
        let num_allowed = allowed.map_or(rows, |rows| rows.iter().filter(|row| **row).count());
        // Few allowed rows are compared faster without codes, and so are few rows for their `k`.
        let are_few = num_allowed < rows / 8 || k > rows / 4;
        let by_codes = (!are_few).then(|| self.search_blocks(vectors, queries, k, allowed));
        let (mut best, rest) = match by_codes.and_then(Result::ok) {
            Some(best) => (best, vectors.encoded()..rows),
            // Also for queries that a memory does not take, for example because of NaN.
            None => (vec![Vec::new(); count], 0..rows),
        };
        if !rest.is_empty() {
            vectors.compared.fetch_add(count, Ordering::Relaxed);
        }
        let of = (self.metric, self.width);
        let found = compare(of, &vectors.numbers, queries, rest, allowed, &|| Best::new(k));
        best.par_iter_mut().zip(found).enumerate().for_each(|(number, (best, found))| {
            let found = found.into_iter().flat_map(|found| found.candidates);
            best.extend(found.map(|(_, row)| row).map(|row| (0.0, row)));
            let query = &queries[number * self.width..][..self.width];
            for (score, row) in best.iter_mut() {
                *score = self.score(query, self.row(vectors, *row as usize));
            }
            best.sort_unstable_by(by_score);
            best.truncate(k);
        });
        best
    }

    /// The best `k` rows of all blocks, unordered and without scores.
    fn search_blocks(
        &self,
        vectors: &Vectors,
        queries: &[f32],
        k: usize,
        allowed: Option<&[bool]>,
    ) -> Result<Vec<Vec<Candidate>>, MemoryError> {
        let mut best = vec![Vec::new(); queries.len() / self.width];
        for block in &vectors.blocks {
            let of_block = |allowed: &[bool]| -> Vec<i64> {
                let rows = allowed.iter().skip(block.start).take(block.rows).enumerate();
                rows.filter(|(_, allowed)| **allowed).map(|(row, _)| row as i64).collect()
            };
            let filter = Filter { ids: allowed.map(of_block), ..Filter::default() };
            if filter.ids.as_ref().is_some_and(Vec::is_empty) {
                continue;
            }
            let found = block.search(queries, self.width, k, &filter, self.metric)?;
            for (best, hits) in best.iter_mut().zip(found.hits) {
                best.extend(hits.iter().map(|hit| (0.0, (block.start as i64 + hit.id) as u32)));
            }
        }
        Ok(best)
    }

    fn encode_block(
        &self,
        vectors: &[f32],
        start: usize,
        folder: PathBuf,
    ) -> Result<Block, MemoryError> {
        let (width, rows) = (self.width, vectors.len() / self.width);
        let mut sums = vec![0f64; width];
        for vector in vectors.chunks_exact(width) {
            sums.iter_mut().zip(vector).for_each(|(sum, number)| *sum += f64::from(*number));
        }
        let mean: Vec<f32> = sums.iter().map(|sum| (sum / rows as f64) as f32).collect();
        let squares: Vec<f64> = match self.metric {
            Metric::Product => Vec::new(),
            Metric::Distance => {
                let rows = vectors.par_chunks_exact(width);
                rows.map(|row| minus(row, &mean).map(|x| f64::from(x).powi(2)).sum()).collect()
            }
        };
        let constant = squares.iter().sum::<f64>() / rows as f64;
        let variance = squares.iter().map(|square| (square - constant).powi(2)).sum::<f64>();
        let deviation = (variance / rows as f64).sqrt();
        // With this scale, the additional components are short for keys and for similar queries.
        let scale = (deviation / 2.0).max(constant * 1e-6).sqrt() as f32;
        let scale = if scale > 0.0 { scale } else { 1.0 };
        let batch = |first: usize| {
            let rows = BATCH_ROWS.min(rows - first);
            let mut keys = Vec::with_capacity(rows * (width + 2));
            for row in first..first + rows {
                keys.extend(minus(&vectors[row * width..][..width], &mean));
                if let Some(square) = squares.get(row) {
                    let component = (constant - square) / (2.0 * f64::from(scale));
                    let rounded = component as f32;
                    keys.extend([rounded, (component - f64::from(rounded)) as f32]);
                }
            }
            let ids = first as i64..(first + rows) as i64;
            Ok(Batch { entries: ids.map(Entry::bare).collect(), keys, values: Vec::new() })
        };
        let width = width + if self.metric == Metric::Distance { 2 } else { 0 };
        let format = MemoryFormat { width, normalised: false, values: None };
        let batches = (0..rows).step_by(BATCH_ROWS).map(batch);
        let writer = Writer::create(folder, format, rows, batches)?;
        let generation = Arc::clone(writer.generation());
        Ok(Block { start, rows, mean, scale, generation })
    }
}

impl Vectors {
    /// The number of encoded rows.
    fn encoded(&self) -> usize {
        self.blocks.last().map_or(0, |last| last.start + last.rows)
    }

    /// Drops the blocks that have other rows than the first ones.
    fn drop_blocks_after(&mut self, rows: usize) {
        self.blocks.retain(|block| block.start + block.rows <= rows);
        self.cannot_encode = false;
    }
}

impl Block {
    fn search(
        &self,
        queries: &[f32],
        width: usize,
        k: usize,
        filter: &Filter,
        metric: Metric,
    ) -> Result<SearchResults, MemoryError> {
        let of_block = |query| minus(query, &self.mean).chain([self.scale; 2]);
        let keys: Vec<f32>;
        let keys = match metric {
            Metric::Product => queries,
            Metric::Distance => {
                keys = queries.chunks_exact(width).flat_map(of_block).collect();
                &keys
            }
        };
        self.generation.search(Method::Exact, Queries { keys, k }, filter)
    }
}

fn minus(vector: &[f32], mean: &[f32]) -> impl Iterator<Item = f32> {
    vector.iter().zip(mean).map(|(number, mean)| number - mean)
}

fn slice<'a>(allowed: Option<&'a PyReadonlyArray1<'_, bool>>) -> PyResult<Option<&'a [bool]>> {
    allowed.map(|allowed| allowed.as_slice()).transpose().map_err(Into::into)
}
