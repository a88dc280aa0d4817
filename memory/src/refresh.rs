//! New keys and values for all entries, made by a worker while training goes on.
//!
//! A refresh begins at a step and is adopted at a later one that is fixed beforehand: the trainer waits where the worker
//! is late. So what a step retrieves depends on the steps alone, not on the speed of the machine.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::error::MemoryError;
use crate::generation::Generation;
use crate::memory::Memory;
use crate::search::{Found, length};
use crate::segment::Batch;
use crate::writer::Writer;

/// When a refresh begins and ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RefreshSteps {
    /// The step whose parameters encode the entries.
    pub start: u64,
    /// Steps until the new generation is adopted.
    pub lag: u64,
}

/// How far keys have moved: 1 less the cosine of an entry's old and new key.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct KeyDrift {
    /// Over all entries.
    pub mean: f64,
    /// Of the entry that has moved most.
    pub largest: f64,
}

/// A refresh that is under way.
#[derive(Debug)]
pub struct Refresh {
    worker: JoinHandle<(Writer, Result<KeyDrift, MemoryError>)>,
    steps: RefreshSteps,
}

/// A refresh that was adopted.
#[derive(Debug)]
pub struct Adopted {
    /// The new generation, which the memory's readers now get.
    pub generation: Arc<Generation>,
    /// For the next refresh.
    pub writer: Writer,
    /// How far the keys have moved.
    pub drift: KeyDrift,
    /// How many steps old the parameters are that the keys were made with.
    pub staleness: u64,
    /// How long the trainer waited for the worker.
    pub waited: Duration,
}

/// What [`Refresh::adopt`] gives.
#[derive(Debug)]
pub enum Adoption {
    /// The step of adoption has not come.
    Later(Refresh),
    /// The new generation is there.
    Now(Box<Adopted>),
}

impl Refresh {
    /// Starts a worker that encodes all entries, batch by batch, with a snapshot of the parameters that `encode` holds.
    pub fn start(
        mut writer: Writer,
        steps: RefreshSteps,
        mut encode: impl FnMut(Batch) -> Result<Batch, MemoryError> + Send + 'static,
    ) -> Self {
        let work = move || {
            let width = writer.generation().manifest().width;
            let (mut sum, mut largest, mut rows) = (0.0, 0f64, 0u32);
            let refreshed = writer.refresh(|batch| {
                let before = batch.keys.clone();
                let batch = encode(batch)?;
                for (old, new) in before.chunks(width).zip(batch.keys.chunks(width)) {
                    let drift = 1.0 - cosine(old, new);
                    (sum, largest, rows) = (sum + drift, largest.max(drift), rows + 1);
                }
                Ok(batch)
            });
            let drift = KeyDrift { mean: sum / f64::from(rows.max(1)), largest };
            (writer, refreshed.map(|()| drift))
        };
        Self { worker: std::thread::spawn(work), steps }
    }

    /// At the step of adoption, or after it, waits for the worker and makes `memory` take up the new generation.
    ///
    /// # Errors   those of the worker: the memory then stays as it was, but for [`MemoryError::Made`]
    pub fn adopt(self, step: u64, memory: &Memory) -> Result<Adoption, MemoryError> {
        let RefreshSteps { start, lag } = self.steps;
        if step < start.saturating_add(lag) {
            return Ok(Adoption::Later(self));
        }
        let began = Instant::now();
        let (writer, drift) = match self.worker.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        let drift = drift?;
        memory.reload()?;
        let (generation, waited) = (memory.generation(), began.elapsed());
        let staleness = step.saturating_sub(start);
        Ok(Adoption::Now(Box::new(Adopted { generation, writer, drift, staleness, waited })))
    }
}

/// The cosine of two vectors; 0 where one has no direction.
fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let product: f64 = a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
    let lengths = length(a) * length(b);
    if lengths > 0.0 { product / lengths } else { 0.0 }
}

/// Which entries searches have found since the log was begun or [cleared](RetrievalLog::clear).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RetrievalLog {
    queries: u64,
    of_entry: BTreeMap<i64, u64>,
}

/// How evenly the entries of a memory are retrieved.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct RetrievalSpread {
    /// Queries since the log was begun.
    pub queries: u64,
    /// Entries that any of them got.
    pub distinct: u64,
    /// The share of the queries that got the entry which most of them got.
    pub largest_share: f64,
}

/// From when on retrieval counts as collapsed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CollapseLimit {
    /// Before so many queries nothing is said.
    pub queries: u64,
    /// The largest share of the queries that may get one entry.
    pub largest_share: f64,
}

impl Default for CollapseLimit {
    fn default() -> Self {
        Self { queries: 1000, largest_share: 0.9 }
    }
}

impl RetrievalLog {
    /// Enters the results of a search.
    pub fn record(&mut self, found: &Found) {
        self.queries += found.hits.len() as u64;
        for hit in found.hits.iter().flatten() {
            *self.of_entry.entry(hit.id).or_default() += 1;
        }
    }

    /// How evenly entries were retrieved.
    pub fn spread(&self) -> RetrievalSpread {
        let most = self.of_entry.values().max().copied().unwrap_or(0);
        RetrievalSpread {
            queries: self.queries,
            distinct: self.of_entry.len() as u64,
            largest_share: most as f64 / self.queries.max(1) as f64,
        }
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// Refuses to go on where nearly all queries get the same entry of a memory of `entries` entries, `k` each.
    ///
    /// # Errors   [`MemoryError::Collapsed`]
    pub fn check(&self, limit: CollapseLimit, k: usize, entries: usize) -> Result<(), MemoryError> {
        let RetrievalSpread { queries, distinct, largest_share } = self.spread();
        // Who asks for most of the entries gets the same ones.
        let collapsed = queries >= limit.queries
            && entries >= 4 * k.max(1)
            && largest_share > limit.largest_share;
        match collapsed {
            true => Err(MemoryError::Collapsed { queries, distinct, largest_share }),
            false => Ok(()),
        }
    }
}
