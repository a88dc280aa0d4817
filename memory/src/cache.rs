//! A cache of frequently used values, for sources whose values are slow to read.
//!
//! Read the values of a local memory directly, because they are in mapped files: that is faster
//! than a lookup in the cache, and the operating system keeps frequently used pages in main memory.
//!
//! The design follows NVIDIA's Merlin Hierarchical Parameter Server (HPS). A lookup reads each
//! distinct value once, from the cache or from the source. A prefetch hides the time of a slow
//! source: it reads the values of the next batch in the background, and the lookup waits for those
//! that are not read yet.

mod prefetched;

use std::collections::{HashMap, HashSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;

use quick_cache::Weighter;
use quick_cache::sync::Cache;
use serde::Serialize;

use self::prefetched::Prefetched;
use crate::error::MemoryError;
pub use crate::values::StoredValue;

/// The statistics of a cache.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct CacheStatistics {
    /// The number of distinct values of each lookup that were in the cache, over all lookups.
    pub hits: u64,
    /// The number of distinct values of each lookup that were not in the cache, over all lookups.
    pub misses: u64,
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
    /// Reads values into main memory, one per key.
    ///
    /// # Errors
    /// [`MemoryError::InvalidOption`] for a value that the source does not have; errors of the
    /// source, such as [`MemoryError::Corrupt`].
    fn stored_values(&self, keys: &[ValueKey]) -> Result<Vec<StoredValue<'static>>, MemoryError>;
}

/// The identity of a value: the identity of its segment's values, and the row in the segment. Two
/// values with the same identity are equal, also in different sources that share a cache.
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
    /// The values of unfinished jobs.
    prefetching: HashSet<ValueKey>,
    prefetched: Prefetched,
}

/// Values to read in the background.
struct Job {
    source: Arc<dyn ValueSource>,
    keys: Vec<ValueKey>,
}

/// Reads the values of entries, and keeps frequently read values in main memory.
#[derive(Debug)]
pub struct ValueCache {
    shared: Arc<Shared>,
    hits: AtomicU64,
    misses: AtomicU64,
    /// The thread for background reading, which the first prefetch starts.
    worker: OnceLock<(Sender<Job>, JoinHandle<()>)>,
}

impl ValueCache {
    /// Creates an empty cache. The cached values have at most `capacity_bytes`: a full cache drops
    /// rarely read values.
    pub fn new(capacity_bytes: u64) -> Self {
        // A rough estimate, for values of 4 KiB. It only sizes the cache's tables.
        let estimated_values = (capacity_bytes / 4096).clamp(64, 1 << 20) as usize;
        let shared = Arc::new(Shared {
            cache: Cache::with_weighter(estimated_values, capacity_bytes, ByteWeighter),
            pending: Mutex::default(),
            job_done: Condvar::new(),
            prefetched: AtomicU64::new(0),
        });
        let (hits, misses, worker) = Default::default();
        Self { shared, hits, misses, worker }
    }

    /// Returns values of a source, one per key. Waits for all of them.
    ///
    /// # Errors
    /// The errors of the source.
    pub fn read<S: ValueSource + 'static>(
        &self,
        source: &Arc<S>,
        keys: &[ValueKey],
    ) -> Result<Vec<Arc<StoredValue<'static>>>, MemoryError> {
        let mut value_of: HashMap<ValueKey, OwnedValue> = HashMap::with_capacity(keys.len());
        let (mut missing, mut seen) = (Vec::new(), HashSet::with_capacity(keys.len()));
        for key in keys.iter().filter(|key| seen.insert(**key)) {
            match self.shared.get(*key) {
                Some(value) => drop(value_of.insert(*key, value)),
                None => missing.push(*key),
            }
        }
        self.hits.fetch_add(value_of.len() as u64, Ordering::Relaxed);
        self.misses.fetch_add(missing.len() as u64, Ordering::Relaxed);
        let values = self.shared.wait_and_fill(source.as_ref(), &missing)?;
        value_of.extend(missing.into_iter().zip(values));
        Ok(keys.iter().filter_map(|key| value_of.get(key).cloned()).collect())
    }

    /// Reads values in the background for a later lookup, except values that are in the cache or
    /// are being read. The lookup waits for values that are not read yet. If the prefetch fails,
    /// the lookup reads the values itself.
    ///
    /// Prefetched values need memory beside the cache until their first lookup: at most as much as
    /// the cache. Above that, the oldest are dropped.
    pub fn prefetch<S: ValueSource + 'static>(&self, source: &Arc<S>, keys: &[ValueKey]) {
        let mut pending = self.shared.pending();
        let mut missing = Vec::new();
        for key in keys {
            let is_there = self.shared.cache.contains_key(key) || pending.prefetched.contains(key);
            if !is_there && pending.prefetching.insert(*key) {
                missing.push(*key);
            }
        }
        drop(pending);
        if !missing.is_empty() {
            let source = Arc::clone(source) as Arc<dyn ValueSource>;
            self.send(Job { source, keys: missing });
        }
    }

    fn send(&self, job: Job) {
        self.shared.pending().jobs += 1;
        let (sender, _) = self.worker.get_or_init(|| {
            let (sender, jobs) = channel::<Job>();
            let shared = Arc::clone(&self.shared);
            (sender, std::thread::spawn(move || jobs.iter().for_each(|job| shared.run(job))))
        });
        // Sending cannot fail, because the worker runs until the cache is dropped.
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

    /// Returns a value that was read before, and moves a prefetched value into the cache.
    fn get(&self, key: ValueKey) -> Option<OwnedValue> {
        if let Some(value) = self.cache.get(&key) {
            return Some(value);
        }
        let value = self.pending().prefetched.take(&key)?;
        self.cache.insert(key, Arc::clone(&value));
        Some(value)
    }

    fn run(&self, Job { source, keys }: Job) {
        // Lookups wait for the job, so it must end in any case.
        let result = catch_unwind(AssertUnwindSafe(|| read(source.as_ref(), &keys)));
        let mut pending = self.pending();
        pending.jobs -= 1;
        for key in &keys {
            pending.prefetching.remove(key);
        }
        // After an error or a panic, the lookup reads the values itself.
        if let Ok(Ok(values)) = result {
            self.prefetched.fetch_add(values.len() as u64, Ordering::Relaxed);
            for (key, value) in keys.into_iter().zip(values) {
                pending.prefetched.push(key, value, self.cache.capacity());
            }
        }
        self.job_done.notify_all();
    }

    /// Waits for the values that prefetches are reading, and reads the others.
    fn wait_and_fill(
        &self,
        source: &dyn ValueSource,
        keys: &[ValueKey],
    ) -> Result<Vec<OwnedValue>, MemoryError> {
        let mut pending = self.pending();
        while keys.iter().any(|key| pending.prefetching.contains(key)) {
            pending = self.job_done.wait(pending).unwrap_or_else(PoisonError::into_inner);
        }
        drop(pending);
        let mut values: Vec<Option<OwnedValue>> = keys.iter().map(|key| self.get(*key)).collect();
        let is_missing =
            |(key, value): (&ValueKey, &Option<OwnedValue>)| value.is_none().then_some(*key);
        let missing: Vec<ValueKey> = keys.iter().zip(&values).filter_map(is_missing).collect();
        let read = if missing.is_empty() { Vec::new() } else { read(source, &missing)? };
        for (key, value) in missing.iter().zip(&read) {
            self.cache.insert(*key, Arc::clone(value));
        }
        for (value, read) in values.iter_mut().filter(|value| value.is_none()).zip(read) {
            *value = Some(read);
        }
        Ok(values.into_iter().flatten().collect())
    }
}

fn read(source: &dyn ValueSource, keys: &[ValueKey]) -> Result<Vec<OwnedValue>, MemoryError> {
    let values = source.stored_values(keys)?;
    MemoryError::check_count("values", keys.len(), values.len())?;
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
