//! Shared code of the tests of all stores: the names of this crate, random rows, temporary folders,
//! and a reference memory that is a plain list, searched in double precision.
#![allow(clippy::unwrap_used, dead_code, unused_imports)]

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

pub use engram_memory::search::graph::{GraphKind, GraphSettings};
pub use engram_memory::search::{Filter, Gates, Hit, Queries, SearchResults};
pub use engram_memory::{
    Batch, EncoderRecord, Entry, Generation, Memory, MemoryError, MemoryFormat, Method, Row,
    Snapshot, Store, Transaction, ValueDtype, ValueFormat, Writer,
};

/// Creates a temporary folder, in main memory if possible, because these tests do not test syncing
/// to disk.
pub fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

/// A path for a memory in a temporary folder, which exists as long as the first value.
pub fn new_path() -> (tempfile::TempDir, PathBuf) {
    let temporary = folder();
    let path = temporary.path().join("m");
    (temporary, path)
}

/// The names of the files and folders in a folder, sorted.
pub fn file_names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Pseudorandom numbers, reproducible for the same seed.
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 0xD1B5_4A32_D192_ED03)
    }

    /// Returns an integer from 0 to `bound` - 1.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }

    /// Returns an integer from -2 to 2, so that some scores are equal.
    pub fn small(&mut self) -> f32 {
        self.below(5) as f32 - 2.0
    }

    /// Returns a number between -1 and 1.
    pub fn uniform(&mut self) -> f32 {
        self.below(1 << 24) as f32 / (1 << 23) as f32 - 1.0
    }
}

/// Returns random rows with the given ids.
pub fn batch(
    rng: &mut Rng,
    format: MemoryFormat,
    ids: impl IntoIterator<Item = impl Borrow<i64>>,
) -> Batch {
    let mut rows = Batch::default();
    for id in ids {
        let mut entry = Entry::bare(*id.borrow());
        entry.source = ["kg", "wit", "vqa"][rng.below(3) as usize].to_owned();
        entry.document = (rng.below(2) == 0).then(|| format!("d{}", rng.below(3)));
        entry.payload.insert("text".to_owned(), format!("text {}", rng.below(100)).into());
        rows.entries.push(entry);
        let mut key: Vec<f32> = (0..format.width).map(|_| rng.small()).collect();
        if key.iter().all(|number| *number == 0.0) {
            key[0] = 1.0;
        }
        rows.keys.extend(key);
        rows.values.extend((0..value_len(format)).map(|_| rng.uniform()));
    }
    rows
}

/// The number of components of a value.
fn value_len(format: MemoryFormat) -> usize {
    format.values.map_or(0, |values| values.tokens * values.width)
}

/// The dot product in double precision.
pub fn product(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
}

/// Returns rows with the ids from `first_id` and these keys.
pub fn bare(first_id: i64, keys: Vec<f32>, width: usize) -> Batch {
    let ids = first_id..first_id + (keys.len() / width) as i64;
    Batch { entries: ids.map(Entry::bare).collect(), keys, values: Vec::new() }
}

/// Builds a memory of these rows.
pub fn create(folder: &Path, format: MemoryFormat, rows: Batch) -> Writer {
    Writer::create(folder, format, rows.entries.len(), [Ok(rows)].into_iter()).unwrap()
}

/// Creates a memory of these rows in a temporary folder, which the returned value keeps.
pub fn temporary(format: MemoryFormat, rows: Batch) -> (tempfile::TempDir, Writer) {
    let folder = folder();
    let writer = create(folder.path(), format, rows);
    (folder, writer)
}

/// Adds rows to a memory.
pub fn add(writer: &mut Writer, rows: Batch) {
    writer.add(rows.entries.len(), [Ok(rows)].into_iter()).unwrap();
}

/// A filter of these sources.
pub fn of_sources(names: &[&str]) -> Filter {
    let names = names.iter().map(|name| (*name).to_owned());
    Filter { sources: Some(names.collect()), ..Filter::default() }
}

/// A filter of these ids.
pub fn of_ids(ids: &[i64]) -> Filter {
    Filter { ids: Some(ids.to_vec()), ..Filter::default() }
}

/// A filter that excludes documents for each query.
pub fn without(excluded_documents: impl Iterator<Item = Vec<String>>) -> Filter {
    Filter { excluded_documents: excluded_documents.collect(), ..Filter::default() }
}

/// A filter with gates, `[queries, sources]`.
pub fn with_gates(sources: &[String], weights: impl IntoIterator<Item = f32>) -> Filter {
    let weights = weights.into_iter().collect();
    let gates = Gates { sources: sources.to_vec(), weights };
    Filter { gates: Some(gates), ..Filter::default() }
}

/// Checks that a call fails, with an error that has these texts.
#[track_caller]
pub fn assert_refused<T, E: ToString, const N: usize>(result: Result<T, E>, texts: [&str; N]) {
    let error = result.map(drop).map_err(|error| error.to_string()).unwrap_err();
    for text in texts {
        assert!(error.contains(text), "{text:?} is not in: {error}");
    }
}

/// Rewrites all entries with the keys and values that `encode` returns.
pub fn encode_again(writer: &mut Writer, encode: impl FnMut(Batch) -> Result<Batch, MemoryError>) {
    let width = writer.generation().manifest().width;
    writer.re_encode(Vec::new(), width, encode).unwrap();
}

/// Returns the best `k` entries for each query.
pub fn exact(generation: &Generation, keys: &[f32], k: usize, filter: &Filter) -> SearchResults {
    generation.search(Method::Exact, Queries { keys, k }, filter).unwrap()
}

/// The ids of the hits of each query.
pub fn ids(results: &SearchResults) -> Vec<Vec<i64>> {
    results.hits.iter().map(|hits| hits.iter().map(|hit| hit.id).collect()).collect()
}

/// A memory as a plain list.
#[derive(Clone)]
pub struct PlainMemory {
    format: MemoryFormat,
    /// The entry, key and value of each id.
    rows: BTreeMap<i64, (Entry, Vec<f32>, Vec<f32>)>,
    /// All ids from [`PlainMemory::new_id`].
    used_ids: Vec<i64>,
}

impl PlainMemory {
    pub fn new(format: MemoryFormat) -> Self {
        Self { format, rows: BTreeMap::new(), used_ids: Vec::new() }
    }

    pub fn ids(&self) -> Vec<i64> {
        self.rows.keys().copied().collect()
    }

    /// Returns an id that was never used.
    pub fn new_id(&mut self, rng: &mut Rng) -> i64 {
        loop {
            let id = rng.below(1000) as i64;
            if !self.used_ids.contains(&id) {
                self.used_ids.push(id);
                return id;
            }
        }
    }

    /// Adds entries, or replaces entries with the same ids.
    pub fn put(&mut self, batch: &Batch) {
        let value_len = value_len(self.format);
        for (row, entry) in batch.entries.iter().enumerate() {
            let mut key = batch.keys[row * self.format.width..][..self.format.width].to_vec();
            self.normalise(&mut key);
            let value = batch.values[row * value_len..][..value_len].to_vec();
            self.rows.insert(entry.id, (entry.clone(), key, value));
        }
    }

    fn normalise(&self, key: &mut [f32]) {
        if self.format.normalised {
            let norm = product(key, key).sqrt();
            if (norm - 1.0).abs() > f64::from(f32::EPSILON) {
                key.iter_mut().for_each(|n| *n = (f64::from(*n) / norm) as f32);
            }
        }
    }

    pub fn delete(&mut self, ids: &[i64]) {
        ids.iter().for_each(|id| {
            self.rows.remove(id);
        });
    }

    /// Changes all keys.
    pub fn refresh(&mut self, change: impl Fn(&mut [f32])) {
        let mut rows = std::mem::take(&mut self.rows);
        for (_, key, _) in rows.values_mut() {
            change(key);
            self.normalise(key);
        }
        self.rows = rows;
    }

    pub fn has_source(&self, name: &str) -> bool {
        self.rows.values().any(|(entry, ..)| entry.source == name)
    }

    /// Returns the entry and the value of an id.
    pub fn get(&self, id: i64) -> (&Entry, &[f32]) {
        let (entry, _, value) = &self.rows[&id];
        (entry, value)
    }

    /// Returns the ids retrieved by each query, best first.
    pub fn search(&self, queries: &[f32], k: usize, filter: &Filter) -> Vec<Vec<i64>> {
        let retrieve = |(i, query): (usize, &[f32])| {
            let mut scored: Vec<(f64, i64)> = Vec::new();
            for (id, (entry, key, _)) in &self.rows {
                let is_searched =
                    filter.sources.as_ref().is_none_or(|names| names.contains(&entry.source));
                let excluded = filter.excluded_documents.get(i);
                let is_excluded = excluded
                    .zip(entry.document.as_ref())
                    .is_some_and(|(excluded, document)| excluded.contains(document));
                if !is_searched || is_excluded {
                    continue;
                }
                let gate = filter.gates.as_ref().map_or(1.0, |Gates { sources, weights }| {
                    let source = sources.iter().position(|name| *name == entry.source).unwrap();
                    weights[i * sources.len() + source]
                });
                scored.push((f64::from(gate) * product(query, key), *id));
            }
            scored.sort_by(|a, b| b.0.partial_cmp(&a.0).unwrap().then(a.1.cmp(&b.1)));
            scored.truncate(k);
            scored.into_iter().map(|(_, id)| id).collect()
        };
        queries.chunks(self.format.width).enumerate().map(retrieve).collect()
    }
}
