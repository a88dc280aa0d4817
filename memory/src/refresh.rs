//! New keys and values for all entries, computed by a worker during training (a refresh), because a
//! trained encoder makes the stored ones outdated.
//!
//! A refresh starts at one step and is adopted at a fixed later step; the trainer waits if the
//! worker is late. So the retrieved entries depend on the steps, not on the speed of the machine.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::error::MemoryError;
use crate::format::manifest::EncoderRecord;
use crate::search::{SearchResults, norm};
use crate::segment::Batch;
use crate::store::{Snapshot, Store, Transaction};

/// The start and the duration of a refresh, in training steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RefreshSteps {
    /// The step whose parameters encode the entries.
    pub start: u64,
    /// The number of steps from `start` until the new generation is adopted.
    pub lag: u64,
}

/// The drift of keys in a refresh: 1 minus the cosine of an entry's old and new keys.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct KeyDrift {
    /// The mean over all entries.
    pub mean: f64,
    /// The maximum over all entries.
    pub largest: f64,
}

/// The number of entries per sum in [`Adopted::drift_sums`].
pub const ENTRIES_PER_DRIFT_SUM: usize = 256;

/// The uncommitted transaction of a refresh, and the drift of its keys.
type Written = (Box<dyn Transaction>, DriftSums);

/// The drift of the keys so far.
#[derive(Debug, Default)]
struct DriftSums {
    /// One sum per [`ENTRIES_PER_DRIFT_SUM`] entries; the last sum may have fewer.
    sums: Vec<f64>,
    largest: f64,
    rows: usize,
}

impl DriftSums {
    fn add(&mut self, drift: f64) {
        if self.rows.is_multiple_of(ENTRIES_PER_DRIFT_SUM) {
            self.sums.push(0.0);
        }
        if let Some(sum) = self.sums.last_mut() {
            *sum += drift;
        }
        self.largest = self.largest.max(drift);
        self.rows += 1;
    }

    fn drift(&self) -> KeyDrift {
        KeyDrift { mean: mean_drift(&self.sums, self.rows), largest: self.largest }
    }
}

/// Returns the mean drift of `entries` entries, from their [sums](Adopted::drift_sums) in row
/// order. The sums of a memory's parts can be joined if only the last part ends with an incomplete
/// sum.
pub fn mean_drift(sums: &[f64], entries: usize) -> f64 {
    sums.iter().sum::<f64>() / entries.max(1) as f64
}

/// A running refresh. If it is dropped, the worker stops after its current batch and removes its
/// files.
#[derive(Debug)]
pub struct Refresh {
    worker: Option<JoinHandle<Result<Written, MemoryError>>>,
    is_cancelled: Arc<AtomicBool>,
    steps: RefreshSteps,
}

/// An adopted refresh.
#[derive(Debug)]
pub struct Adopted {
    /// The new state, which the readers of the store now use.
    pub snapshot: Arc<dyn Snapshot>,
    /// The transaction of the next refresh. No other process changed the memory meanwhile.
    pub next: Box<dyn Transaction>,
    /// The drift of the keys.
    pub drift: KeyDrift,
    /// The sums of the drifts of each [`ENTRIES_PER_DRIFT_SUM`] entries, in row order, for
    /// [`mean_drift`].
    pub drift_sums: Vec<f64>,
    /// The number of steps from the start of the refresh until its adoption.
    pub staleness: u64,
    /// The time that the trainer waited for the worker.
    pub waited: Duration,
}

/// The result of [`Refresh::adopt`].
#[derive(Debug)]
pub enum Adoption {
    /// The step of adoption has not been reached; the refresh continues.
    Later(Refresh),
    /// The new generation is current.
    Now(Box<Adopted>),
}

impl Refresh {
    /// Starts a worker that passes all entries to `encode` in batches, and writes the keys and
    /// values that `encode` returns. `encoders` are the models of the new keys. Training continues
    /// meanwhile, so `encode` must use a snapshot of the parameters.
    pub fn start(
        mut transaction: Box<dyn Transaction>,
        encoders: Vec<EncoderRecord>,
        steps: RefreshSteps,
        mut encode: impl FnMut(Batch) -> Result<Batch, MemoryError> + Send + 'static,
    ) -> Self {
        let is_cancelled = Arc::new(AtomicBool::new(false));
        let cancelled = Arc::clone(&is_cancelled);
        let work = move || {
            let width = transaction.base().description().width;
            let mut drifts = DriftSums::default();
            transaction.re_encode(encoders, width, &mut |batch| {
                if cancelled.load(Ordering::Relaxed) {
                    return Err(MemoryError::RefreshCancelled);
                }
                let old_keys = batch.keys.clone();
                let batch = encode(batch)?;
                for (old, new) in old_keys.chunks(width).zip(batch.keys.chunks(width)) {
                    drifts.add(1.0 - cosine(old, new));
                }
                Ok(batch)
            })?;
            transaction.prepare()?;
            Ok((transaction, drifts))
        };
        Self { worker: Some(std::thread::spawn(work)), is_cancelled, steps }
    }

    /// Adopts the new generation at step `start + lag` or later: waits for the worker, commits its
    /// transaction and reloads `store`. Before this step, returns [`Adoption::Later`] at once.
    ///
    /// # Errors
    /// The errors of the worker; the memory is then unchanged, except for
    /// [`MemoryError::ChangeMade`].
    pub fn adopt(mut self, step: u64, store: &dyn Store) -> Result<Adoption, MemoryError> {
        let RefreshSteps { start, lag } = self.steps;
        if step < start.saturating_add(lag) {
            return Ok(Adoption::Later(self));
        }
        let wait_start = Instant::now();
        let written = match self.worker.take().map(JoinHandle::join) {
            Some(Ok(result)) => result,
            Some(Err(panic)) => std::panic::resume_unwind(panic),
            // Only `adopt`, which consumes the refresh, and `drop` take the worker.
            None => return Err(MemoryError::RefreshCancelled),
        };
        let (transaction, drifts) = written?;
        let next = transaction.commit_and_begin()?;
        store.reload()?;
        let (snapshot, waited) = (store.snapshot(), wait_start.elapsed());
        let staleness = step.saturating_sub(start);
        let (drift, drift_sums) = (drifts.drift(), drifts.sums);
        let adopted = Adopted { snapshot, next, drift, drift_sums, staleness, waited };
        Ok(Adoption::Now(Box::new(adopted)))
    }
}

impl Drop for Refresh {
    fn drop(&mut self) {
        self.is_cancelled.store(true, Ordering::Relaxed);
        if let Some(worker) = self.worker.take() {
            // Nobody reads the result of a cancelled refresh.
            let _ = worker.join();
        }
    }
}

/// The cosine of two vectors; 0 if either is a zero vector.
fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let product: f64 = a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
    let norms = norm(a) * norm(b);
    if norms > 0.0 { product / norms } else { 0.0 }
}

/// The entries retrieved by searches since the log was created or [cleared](RetrievalLog::clear).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RetrievalLog {
    queries: u64,
    /// The number of queries that retrieved each entry, by the entry's id.
    hit_counts: BTreeMap<i64, u64>,
}

/// How evenly the entries of a memory are retrieved.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct RetrievalStatistics {
    /// The number of queries in the log.
    pub queries: u64,
    /// The number of distinct entries that the queries retrieved.
    pub distinct: u64,
    /// The fraction of queries that retrieved the most frequent entry.
    pub largest_share: f64,
}

/// The limits of [`RetrievalLog::check`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CollapseLimit {
    /// The minimum number of queries in the log. With fewer queries, the check never fails.
    pub queries: u64,
    /// The maximum fraction of queries that may retrieve the same entry.
    pub largest_share: f64,
}

impl Default for CollapseLimit {
    fn default() -> Self {
        Self { queries: 1000, largest_share: 0.9 }
    }
}

impl RetrievalLog {
    /// Adds the results of a search.
    pub fn record(&mut self, results: &SearchResults) {
        self.queries += results.hits.len() as u64;
        for hit in results.hits.iter().flatten() {
            *self.hit_counts.entry(hit.id).or_default() += 1;
        }
    }

    /// Adds the entries of another log.
    pub fn add(&mut self, other: &Self) {
        self.queries += other.queries;
        for (id, count) in &other.hit_counts {
            *self.hit_counts.entry(*id).or_default() += count;
        }
    }

    /// Returns the statistics of the log.
    pub fn statistics(&self) -> RetrievalStatistics {
        let highest_count = self.hit_counts.values().max().copied().unwrap_or(0);
        RetrievalStatistics {
            queries: self.queries,
            distinct: self.hit_counts.len() as u64,
            largest_share: highest_count as f64 / self.queries.max(1) as f64,
        }
    }

    /// Clears the log.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// Returns an error if nearly all queries retrieved the same entry. `k` is the number of hits
    /// per query, and `entries` the number of entries in the memory. With fewer than `4 * k`
    /// entries, the check never fails.
    ///
    /// # Errors
    /// [`MemoryError::Collapsed`]
    pub fn check(&self, limit: CollapseLimit, k: usize, entries: usize) -> Result<(), MemoryError> {
        let RetrievalStatistics { queries, distinct, largest_share } = self.statistics();
        // If `k` is a large fraction of the entries, most queries retrieve the same entries anyway.
        let is_collapsed = queries >= limit.queries
            && entries >= 4 * k.max(1)
            && largest_share > limit.largest_share;
        if is_collapsed {
            Err(MemoryError::Collapsed { queries, distinct, largest_share })
        } else {
            Ok(())
        }
    }
}
