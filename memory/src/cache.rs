//! A cache of frequently used values, for sources whose values are slow to read.
//!
//! The values of a local memory are in mapped files. Read them directly: that is faster than a lookup
//! in the cache, and the operating system keeps frequently used pages in main memory.
//!
//! The design follows NVIDIA's Merlin Hierarchical Parameter Server (HPS). A lookup reads each
//! distinct row once. Rows that are not in the cache (misses) are read from the source: the lookup
//! waits for them or, if its hit rate is high, reads them in the background. A value that has not
//! been read yet is reported as missing, with zeros, so that the model can mask it. The results of
//! background reading depend on timing, so do not use it in training.
//!
//! A prefetch hides the time of a slow source, also in training: it reads the values of the next
//! batch in the background, and the lookup waits for those that are not read yet.

mod prefetched;

use std::collections::{HashMap, HashSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;

use quick_cache::Weighter;
use quick_cache::sync::Cache;
use rayon::prelude::*;
use serde::Serialize;

use self::prefetched::Prefetched;
use crate::error::MemoryError;
use crate::generation::Row;
pub use crate::values::StoredValue;

/// Settings of a [`ValueCache`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CacheSettings {
    /// The maximum size of the cached values, in bytes. A full cache drops rarely read values.
    pub capacity_bytes: u64,
    /// The minimum hit rate of a lookup, from 0 to 1, for background reading: the lookup then
    /// reports its misses as missing. HPS uses 0.9. With `None`, lookups wait for all values, so
    /// the same lookups return the same values.
    pub background_from: Option<f64>,
}

/// The values of a lookup.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct CachedValues {
    /// The values, `[rows, tokens, width]`; zeros for missing values.
    pub values: Vec<f32>,
    /// For each row, whether `values` has its value.
    pub present: Vec<bool>,
}

/// The statistics of a cache.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct CacheStatistics {
    /// The number of distinct rows of each lookup that were in the cache, summed over all lookups.
    pub hits: u64,
    /// The number of distinct rows of each lookup that were not in the cache, summed over all
    /// lookups.
    pub misses: u64,
    /// The number of misses that were reported as missing.
    pub masked: u64,
    /// The number of values that prefetches have read.
    pub prefetched: u64,
    /// The number of cached values.
    pub values: u64,
    /// The size of the cached values, in bytes.
    pub bytes: u64,
}

impl CacheStatistics {
    /// The fraction of hits among hits and misses; NaN before the first lookup.
    pub fn hit_rate(&self) -> f64 {
        self.hits as f64 / (self.hits + self.misses) as f64
    }
}

/// A source of values for a [`ValueCache`], such as a [`Generation`](crate::Generation).
pub trait ValueSource: Send + Sync {
    /// The number of components of a value; 0 for a memory without values.
    fn value_len(&self) -> usize;

    /// Returns the identity of a row's value. Two values with the same identity are equal, also in
    /// different sources that share a cache.
    ///
    /// # Errors
    /// [`MemoryError::InvalidOption`] for a row that the source does not have.
    fn value_key(&self, row: Row) -> Result<ValueKey, MemoryError>;

    /// Reads the values of rows into main memory, one per row.
    ///
    /// # Errors
    /// Errors of the source, such as [`MemoryError::Corrupt`].
    fn stored_values(&self, rows: &[Row]) -> Result<Vec<StoredValue<'static>>, MemoryError>;
}

/// The identity of a value: the identity of its segment's values, and the row in the segment.
pub type ValueKey = (u64, u32);

/// A value in main memory, as its source stores it.
type OwnedValue = Arc<StoredValue<'static>>;

/// Weighs cached values by their bytes.
#[derive(Debug, Clone)]
struct ByteWeighter;

impl Weighter<ValueKey, OwnedValue> for ByteWeighter {
    fn weight(&self, _: &ValueKey, value: &OwnedValue) -> u64 {
        value.bytes() as u64
    }
}

/// State shared by the worker and the lookups.
#[derive(Debug)]
struct Shared {
    cache: Cache<ValueKey, OwnedValue, ByteWeighter>,
    pending: Mutex<Pending>,
    /// Notified after each job.
    job_done: Condvar,
    prefetched: AtomicU64,
}

/// The state of background reading.
#[derive(Debug, Default)]
struct Pending {
    /// The number of unfinished jobs.
    jobs: usize,
    /// The first error of a lookup's job that no lookup has returned yet.
    error: Option<MemoryError>,
    /// The values of unfinished prefetches.
    prefetching: HashSet<ValueKey>,
    prefetched: Prefetched,
}

/// Rows to read in the background.
struct Job {
    source: Arc<dyn ValueSource>,
    rows: Vec<Row>,
    /// The values of a prefetch; empty for the misses of a lookup.
    prefetching: Vec<ValueKey>,
}

/// Reads the values of entries, and keeps frequently read values in main memory.
#[derive(Debug)]
pub struct ValueCache {
    shared: Arc<Shared>,
    background_from: Option<f64>,
    hits: AtomicU64,
    misses: AtomicU64,
    masked: AtomicU64,
    /// The thread for background reading, which the first job starts.
    worker: OnceLock<(Sender<Job>, JoinHandle<()>)>,
}

impl ValueCache {
    /// Creates an empty cache.
    pub fn new(settings: CacheSettings) -> Self {
        // A rough estimate, for values of 4 KiB. It only sizes the cache's tables.
        let estimated_values = (settings.capacity_bytes / 4096).clamp(64, 1 << 20) as usize;
        let shared = Arc::new(Shared {
            cache: Cache::with_weighter(estimated_values, settings.capacity_bytes, ByteWeighter),
            pending: Mutex::default(),
            job_done: Condvar::new(),
            prefetched: AtomicU64::new(0),
        });
        let (hits, misses, masked, worker) = Default::default();
        Self { shared, background_from: settings.background_from, hits, misses, masked, worker }
    }

    /// Returns the values of rows of a source.
    ///
    /// # Errors
    /// The errors of the source, also if an earlier lookup's background read failed.
    pub fn read<S: ValueSource + 'static>(
        &self,
        source: &Arc<S>,
        rows: &[Row],
    ) -> Result<CachedValues, MemoryError> {
        let mut values = CachedValues::default();
        self.read_into(source, rows, &mut values)?;
        Ok(values)
    }

    /// Reads like [`ValueCache::read`], into a buffer that the caller can reuse. Uses all threads.
    ///
    /// # Errors
    /// The errors of [`ValueCache::read`].
    pub fn read_into<S: ValueSource + 'static>(
        &self,
        source: &Arc<S>,
        rows: &[Row],
        values: &mut CachedValues,
    ) -> Result<(), MemoryError> {
        let value_of = self.look_up(source, rows, self.background_from)?;
        let size = source.value_len();
        let row_values: Vec<Option<&OwnedValue>> =
            rows.iter().map(|row| value_of.get(row).and_then(Option::as_ref)).collect();
        values.present.clear();
        values.present.extend(row_values.iter().map(Option::is_some));
        values.values.resize(rows.len() * size, 0.0);
        let outputs = values.values.par_chunks_mut(size.max(1)).zip(&row_values);
        outputs.for_each(|(output, value)| match value {
            Some(value) => value.read(output),
            None => output.fill(0.0),
        });
        Ok(())
    }

    /// Returns the stored values of rows of a source, one per row. Waits for all values.
    ///
    /// # Errors
    /// The errors of [`ValueCache::read`].
    pub fn stored<S: ValueSource + 'static>(
        &self,
        source: &Arc<S>,
        rows: &[Row],
    ) -> Result<Vec<Arc<StoredValue<'static>>>, MemoryError> {
        let value_of = self.look_up(source, rows, None)?;
        let values: Vec<_> =
            rows.iter().filter_map(|row| value_of.get(row).cloned().flatten()).collect();
        let (expected, found) = (rows.len(), values.len());
        if found != expected {
            return Err(MemoryError::Count { what: "values", expected, found });
        }
        Ok(values)
    }

    /// Returns the value of each distinct row; `None` if it is read in the background.
    fn look_up<S: ValueSource + 'static>(
        &self,
        source: &Arc<S>,
        rows: &[Row],
        background_from: Option<f64>,
    ) -> Result<HashMap<Row, Option<OwnedValue>>, MemoryError> {
        if let Some(error) = self.shared.pending().error.take() {
            return Err(error);
        }
        let mut value_of: HashMap<Row, Option<OwnedValue>> = HashMap::with_capacity(rows.len());
        let mut missing = Vec::new();
        for row in rows {
            if !value_of.contains_key(row) {
                let value = self.shared.get(source.value_key(*row)?);
                if value.is_none() {
                    missing.push(*row);
                }
                value_of.insert(*row, value);
            }
        }
        let hits = value_of.len() - missing.len();
        self.hits.fetch_add(hits as u64, Ordering::Relaxed);
        self.misses.fetch_add(missing.len() as u64, Ordering::Relaxed);
        let hit_rate = hits as f64 / value_of.len().max(1) as f64;
        let in_background = background_from.is_some_and(|from| hit_rate >= from);
        if in_background && !missing.is_empty() {
            self.masked.fetch_add(missing.len() as u64, Ordering::Relaxed);
            let source = Arc::clone(source) as Arc<dyn ValueSource>;
            self.send(Job { source, rows: missing, prefetching: Vec::new() });
        } else {
            let values = self.shared.wait_and_fill(source.as_ref(), &missing)?;
            for (row, value) in missing.iter().zip(values) {
                value_of.insert(*row, Some(value));
            }
        }
        Ok(value_of)
    }

    /// Reads the values of rows in the background, for a lookup soon. Values in the cache, and of
    /// running prefetches, are not read again. The lookup waits for the values that are not read
    /// yet. If the prefetch fails, the lookup reads the values itself.
    ///
    /// Prefetched values need memory beside the cache until their first lookup: at most
    /// [`CacheSettings::capacity_bytes`]. Above that, the oldest are dropped.
    ///
    /// # Errors
    /// [`MemoryError::InvalidOption`] for a row that the source does not have
    pub fn prefetch<S: ValueSource + 'static>(
        &self,
        source: &Arc<S>,
        rows: &[Row],
    ) -> Result<(), MemoryError> {
        let keys = rows.iter().map(|row| source.value_key(*row));
        let keys = keys.collect::<Result<Vec<_>, _>>()?;
        let (mut missing, mut prefetching) = (Vec::new(), Vec::new());
        let mut pending = self.shared.pending();
        for (row, key) in rows.iter().zip(keys) {
            let is_there =
                self.shared.cache.contains_key(&key) || pending.prefetched.contains(&key);
            if !is_there && pending.prefetching.insert(key) {
                missing.push(*row);
                prefetching.push(key);
            }
        }
        drop(pending);
        if !missing.is_empty() {
            let source = Arc::clone(source) as Arc<dyn ValueSource>;
            self.send(Job { source, rows: missing, prefetching });
        }
        Ok(())
    }

    /// Gives a job to the worker.
    fn send(&self, job: Job) {
        self.shared.pending().jobs += 1;
        let (sender, _) = self.worker.get_or_init(|| {
            let (sender, jobs) = channel::<Job>();
            let shared = Arc::clone(&self.shared);
            (sender, std::thread::spawn(move || jobs.iter().for_each(|job| shared.run(job))))
        });
        // The worker ends after the cache only.
        let _ = sender.send(job);
    }

    /// Waits until all background reads are done.
    pub fn wait(&self) {
        let mut pending = self.shared.pending();
        while pending.jobs > 0 {
            let waited = self.shared.job_done.wait(pending);
            pending = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Returns the statistics of the cache.
    pub fn statistics(&self) -> CacheStatistics {
        CacheStatistics {
            hits: self.hits.load(Ordering::Relaxed),
            misses: self.misses.load(Ordering::Relaxed),
            masked: self.masked.load(Ordering::Relaxed),
            prefetched: self.shared.prefetched.load(Ordering::Relaxed),
            values: self.shared.cache.len() as u64,
            bytes: self.shared.cache.weight(),
        }
    }
}

impl Shared {
    fn pending(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a value that was read before. The first lookup moves a prefetched value into the cache.
    fn get(&self, key: ValueKey) -> Option<OwnedValue> {
        if let Some(value) = self.cache.get(&key) {
            return Some(value);
        }
        let value = self.pending().prefetched.take(&key)?;
        self.cache.insert(key, Arc::clone(&value));
        Some(value)
    }

    /// Runs a job of the worker.
    fn run(&self, job: Job) {
        let Job { source, rows, prefetching } = job;
        // Lookups wait for the job, so it must end in any case.
        let result = catch_unwind(AssertUnwindSafe(|| match prefetching.is_empty() {
            true => self.fill(source.as_ref(), &rows).map(|_| Vec::new()),
            false => read(source.as_ref(), &rows),
        }));
        let panicked = |_| Err(MemoryError::Rows("the source of values panicked".into()));
        let result = result.unwrap_or_else(panicked);
        let mut pending = self.pending();
        pending.jobs -= 1;
        for key in &prefetching {
            pending.prefetching.remove(key);
        }
        match result {
            Ok(values) => {
                self.prefetched.fetch_add(values.len() as u64, Ordering::Relaxed);
                for (key, value) in prefetching.into_iter().zip(values) {
                    pending.prefetched.push(key, value, self.cache.capacity());
                }
            }
            Err(error) if prefetching.is_empty() => {
                pending.error.get_or_insert(error);
            }
            Err(_) => {}
        }
        self.job_done.notify_all();
    }

    /// Waits for those of the values that prefetches are reading, and reads the others.
    fn wait_and_fill(
        &self,
        source: &dyn ValueSource,
        rows: &[Row],
    ) -> Result<Vec<OwnedValue>, MemoryError> {
        let keys = rows.iter().map(|row| source.value_key(*row));
        let keys = keys.collect::<Result<Vec<_>, _>>()?;
        let mut pending = self.pending();
        while keys.iter().any(|key| pending.prefetching.contains(key)) {
            pending = self.job_done.wait(pending).unwrap_or_else(PoisonError::into_inner);
        }
        drop(pending);
        let mut values: Vec<Option<OwnedValue>> = keys.iter().map(|key| self.get(*key)).collect();
        let is_missing =
            |(row, value): (&Row, &Option<OwnedValue>)| value.is_none().then_some(*row);
        let missing: Vec<Row> = rows.iter().zip(&values).filter_map(is_missing).collect();
        let read = self.fill(source, &missing)?;
        for (value, read) in values.iter_mut().filter(|value| value.is_none()).zip(read) {
            *value = Some(read);
        }
        Ok(values.into_iter().flatten().collect())
    }

    /// Reads values from their source and caches them.
    fn fill(&self, source: &dyn ValueSource, rows: &[Row]) -> Result<Vec<OwnedValue>, MemoryError> {
        if rows.is_empty() {
            return Ok(Vec::new());
        }
        let values = read(source, rows)?;
        for (row, value) in rows.iter().zip(&values) {
            self.cache.insert(source.value_key(*row)?, Arc::clone(value));
        }
        Ok(values)
    }
}

/// Reads values from their source.
fn read(source: &dyn ValueSource, rows: &[Row]) -> Result<Vec<OwnedValue>, MemoryError> {
    let values = source.stored_values(rows)?;
    if values.len() != rows.len() {
        let (expected, found) = (rows.len(), values.len());
        return Err(MemoryError::Count { what: "values", expected, found });
    }
    Ok(values.into_iter().map(Arc::new).collect())
}

impl Drop for ValueCache {
    fn drop(&mut self) {
        if let Some((sender, worker)) = self.worker.take() {
            drop(sender);
            let _ = worker.join();
        }
    }
}
