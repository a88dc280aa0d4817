//! Hot values in main memory, cold ones in the mapped file.
//!
//! As in NVIDIA's Merlin HPS: the rows of a lookup are looked for once each; what the cache lacks is read at once, or,
//! where the cache has most of them already, in the background. A value that is not there yet is told as missing, for
//! the model to mask; it is never made up. Background reading depends on time, so training leaves it out.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

use quick_cache::Weighter;
use quick_cache::sync::Cache;
use rayon::prelude::*;
use serde::Serialize;

use crate::error::MemoryError;
use crate::generation::{Generation, Row};
use crate::segment::StoredValue;

/// Settings of a [`ValueCache`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CacheSettings {
    /// The most bytes of values that are kept; those that are read often stay.
    pub capacity_bytes: u64,
    /// From this share of hits on, misses are read in the background and told as missing until they are there (HPS
    /// takes 0.9). `None` always waits for them: the same lookups give the same values.
    pub background_from: Option<f64>,
}

/// The values of a lookup.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct CachedValues {
    /// `[rows, tokens, width]`; zeros where a value is missing.
    pub numbers: Vec<f32>,
    /// Whether each row has its value.
    pub present: Vec<bool>,
}

/// What a cache has done so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct CacheStatistics {
    /// Rows that the cache had, each counted once a lookup.
    pub hits: u64,
    /// Rows that it had not.
    pub misses: u64,
    /// Misses that were told as missing.
    pub masked: u64,
    /// Values that are kept now.
    pub values: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl CacheStatistics {
    /// The share of rows that the cache had; NaN before the first.
    pub fn hit_rate(&self) -> f64 {
        self.hits as f64 / (self.hits + self.misses) as f64
    }
}

/// A value's segment, by what its file holds, and its row there: the same in all generations that have the segment.
type Key = (u64, u32);

/// A value in main memory, in as many bytes as in its file.
type HotValue = Arc<StoredValue<'static>>;

#[derive(Debug, Clone)]
struct Bytes;

impl Weighter<Key, HotValue> for Bytes {
    fn weight(&self, _: &Key, value: &HotValue) -> u64 {
        value.bytes() as u64
    }
}

/// What the worker and the lookups share.
#[derive(Debug)]
struct Shared {
    hot: Cache<Key, HotValue, Bytes>,
    /// Jobs that are not done, and the first error of the worker.
    pending: Mutex<(usize, Option<MemoryError>)>,
    done: Condvar,
}

/// Rows to be read in the background.
type Job = (Arc<Generation>, Vec<Row>);

/// Values of entries, the most used of them in main memory.
#[derive(Debug)]
pub struct ValueCache {
    shared: Arc<Shared>,
    background_from: Option<f64>,
    hits: AtomicU64,
    misses: AtomicU64,
    masked: AtomicU64,
    /// None without background reading.
    worker: Option<(Sender<Job>, JoinHandle<()>)>,
}

impl ValueCache {
    /// An empty cache.
    pub fn new(settings: CacheSettings) -> Self {
        // Values of a memory are alike in size; this only sizes the cache's tables.
        let expected = (settings.capacity_bytes / 4096).clamp(64, 1 << 20) as usize;
        let shared = Arc::new(Shared {
            hot: Cache::with_weighter(expected, settings.capacity_bytes, Bytes),
            pending: Mutex::new((0, None)),
            done: Condvar::new(),
        });
        let worker = settings.background_from.map(|_| {
            let (sender, jobs) = channel::<Job>();
            let shared = Arc::clone(&shared);
            let work = move || {
                for (generation, rows) in jobs {
                    let read = shared.fill(&generation, &rows);
                    let mut pending = shared.pending.lock().unwrap_or_else(PoisonError::into_inner);
                    pending.0 -= 1;
                    if let Err(error) = read {
                        pending.1.get_or_insert(error);
                    }
                    shared.done.notify_all();
                }
            };
            (sender, std::thread::spawn(work))
        });
        let (hits, misses, masked) = Default::default();
        Self { shared, background_from: settings.background_from, hits, misses, masked, worker }
    }

    /// The values of rows of a generation.
    ///
    /// # Errors   [`MemoryError::Corrupt`], also of a value that was read in the background before
    pub fn read(
        &self,
        generation: &Arc<Generation>,
        rows: &[Row],
    ) -> Result<CachedValues, MemoryError> {
        let mut values = CachedValues::default();
        self.read_into(generation, rows, &mut values)?;
        Ok(values)
    }

    /// [`ValueCache::read`] into what a caller may use again and again. All threads copy.
    ///
    /// # Errors   as [`ValueCache::read`]
    pub fn read_into(
        &self,
        generation: &Arc<Generation>,
        rows: &[Row],
        values: &mut CachedValues,
    ) -> Result<(), MemoryError> {
        if let Some(error) = self.pending().1.take() {
            return Err(error);
        }
        let mut found: HashMap<Row, Option<HotValue>> = HashMap::with_capacity(rows.len());
        let mut missing = Vec::new();
        for row in rows {
            if !found.contains_key(row) {
                let value = self.shared.hot.get(&generation.value_key(*row)?);
                if value.is_none() {
                    missing.push(*row);
                }
                found.insert(*row, value);
            }
        }
        let hits = found.len() - missing.len();
        self.hits.fetch_add(hits as u64, Ordering::Relaxed);
        self.misses.fetch_add(missing.len() as u64, Ordering::Relaxed);
        let rate = hits as f64 / found.len().max(1) as f64;
        let background = self.background_from.is_some_and(|from| rate >= from);
        match (&self.worker, background && !missing.is_empty()) {
            (Some((sender, _)), true) => {
                self.masked.fetch_add(missing.len() as u64, Ordering::Relaxed);
                self.pending().0 += 1;
                if sender.send((Arc::clone(generation), missing)).is_err() {
                    self.pending().0 -= 1;
                }
            }
            _ => {
                for (row, value) in missing.iter().zip(self.shared.fill(generation, &missing)?) {
                    found.insert(*row, Some(value));
                }
            }
        }
        let size = generation.value_len();
        let found: Vec<Option<&HotValue>> =
            rows.iter().map(|row| found.get(row).and_then(Option::as_ref)).collect();
        values.present.clear();
        values.present.extend(found.iter().map(Option::is_some));
        values.numbers.resize(rows.len() * size, 0.0);
        let places = values.numbers.par_chunks_mut(size.max(1)).zip(&found);
        places.for_each(|(place, value)| match value {
            Some(value) => value.read(place),
            None => place.fill(0.0),
        });
        Ok(())
    }

    /// Waits until nothing is read in the background.
    pub fn wait(&self) {
        let mut pending = self.pending();
        while pending.0 > 0 {
            pending = self.shared.done.wait(pending).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// What the cache has done so far.
    pub fn statistics(&self) -> CacheStatistics {
        CacheStatistics {
            hits: self.hits.load(Ordering::Relaxed),
            misses: self.misses.load(Ordering::Relaxed),
            masked: self.masked.load(Ordering::Relaxed),
            values: self.shared.hot.len() as u64,
            bytes: self.shared.hot.weight(),
        }
    }

    fn pending(&self) -> std::sync::MutexGuard<'_, (usize, Option<MemoryError>)> {
        self.shared.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shared {
    /// Reads values from the files and keeps them.
    fn fill(&self, generation: &Generation, rows: &[Row]) -> Result<Vec<HotValue>, MemoryError> {
        let read = |row: &Row| -> Result<HotValue, MemoryError> {
            let value = Arc::new(generation.stored_value(*row)?.copied());
            self.hot.insert(generation.value_key(*row)?, Arc::clone(&value));
            Ok(value)
        };
        rows.par_iter().map(read).collect()
    }
}

impl Drop for ValueCache {
    fn drop(&mut self) {
        if let Some((sender, worker)) = self.worker.take() {
            drop(sender);
            let _ = worker.join();
        }
    }
}
