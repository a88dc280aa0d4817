//! The memory of a training run: built when it is first read, and refreshed during training.
//!
//! A refresh encodes all entries on its own thread, with the parameters of the step at which it
//! starts. These parameters are saved in a file, the *snapshot*. The run adopts the refreshed
//! memory at a fixed later step, so that results do not depend on the speed of the thread. Every
//! checkpoint contains the snapshots of its memory and of a running refresh. A resumed run encodes
//! with these snapshots again and gets the same memory.
//!
//! On several ranks, each encodes and refreshes only its share of the entries: see [`shards`].
//!
//! A memory on servers is built in the run's folder and copied to the servers. Its refreshes are
//! written there. A reader sees each refresh completely or not at all.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use engram_durable as durable;
use engram_infer::reveal::encoding::Encoding;
use engram_infer::reveal::identity::Identity;
use engram_infer::reveal::memory_folder::remove_memory;
use engram_infer::reveal::retriever::{ItemEncoder, Retriever};
use engram_memory::refresh::{Adoption, Refresh, RefreshSteps, RetrievalLog};
use engram_memory::{Batch, EncoderRecord, MemoryError, Transaction};
use engram_models::compute::Compute;
use engram_models::params::Parameters;
use serde::{Deserialize, Serialize};

use super::placement::Placement;
use super::settings::RevealMemory;
use super::shards;
use super::snapshots::{remove_snapshots, snapshot_name};
use crate::Stop;
use crate::checkpoint::{write_file, write_parameters};
use crate::distributed::Ranks;
use crate::error::TrainError;
use crate::study::StudyResult;

/// The folder of snapshots in a run's folder.
pub(crate) const SNAPSHOTS: &str = "memory-snapshots";
/// The checkpoint file with the state of the memory.
const STATE: &str = "memory.json";

/// The memory, and its running refresh.
pub struct RunMemory {
    /// The folder of the memory.
    folder: PathBuf,
    /// The folder of the snapshots.
    snapshots: PathBuf,
    settings: RevealMemory,
    encoding: Arc<Encoding>,
    /// Where entries are encoded.
    compute: Compute,
    pub(super) placement: Placement,
    pub(super) ranks: Ranks,
    /// The memory, opened for reading; `None` before it is built.
    pub(super) retriever: Option<Retriever>,
    state: State,
    refresh: Option<Refresh>,
    /// The transaction of the next refresh. It keeps other processes from changing the memory.
    /// `None` before the memory is built, and while a refresh has it.
    next_change: Option<Box<dyn Transaction>>,
}

/// The state of the memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
struct State {
    /// The index of the phase that reads the memory.
    phase: usize,
    /// The step whose parameters encoded the current memory; `None` without a memory.
    made_at: Option<u64>,
    /// The step at which the running refresh started; `None` if none is running.
    next: Option<u64>,
    /// The mean of 1 − cosine between old and new keys in the last refresh.
    mean_drift: f64,
}

/// The memory's part of a checkpoint.
#[derive(Serialize, Deserialize)]
struct Saved {
    state: State,
    /// Retrieval statistics since the last refresh started.
    log: RetrievalLog,
}

impl RunMemory {
    /// The state before the first memory is built, on a single rank. The memory will be in the
    /// run's folder, and its entries are encoded on `compute`.
    pub fn new(
        run: &Path,
        settings: RevealMemory,
        encoding: Arc<Encoding>,
        compute: Compute,
    ) -> Self {
        Self {
            folder: run.join("memory"),
            snapshots: run.join(SNAPSHOTS),
            settings,
            encoding,
            compute,
            placement: Placement::Folder,
            ranks: Ranks::default(),
            retriever: None,
            state: State::default(),
            refresh: None,
            next_change: None,
        }
    }

    /// The memory's age in steps, and the mean change of keys in the last refresh. Empty without a
    /// memory.
    pub fn metrics(&self, step: u64) -> Vec<(String, f64)> {
        let Some(made_at) = self.state.made_at else { return Vec::new() };
        vec![
            ("memory_staleness".to_owned(), step.saturating_sub(made_at) as f64),
            ("memory_key_drift".to_owned(), self.state.mean_drift),
        ]
    }

    /// Before a step, builds the memory at the start of a phase, adopts a refresh that is due, and
    /// starts a refresh that is due.
    pub fn before_step(
        &mut self,
        phase: usize,
        step: u64,
        parameters: &Parameters,
    ) -> StudyResult<()> {
        if self.retriever.is_none() || self.state.phase != phase {
            // Each phase starts with a memory that is encoded with the phase's initial parameters.
            self.refresh = None;
            write_parameters(&self.snapshot(step)?, parameters)?;
            self.build(step)?;
            self.state.phase = phase;
        }
        self.adopt_refresh(step)?;
        let every = self.settings.refresh_every;
        let is_due = every > 0 && step.is_multiple_of(every) && self.state.made_at != Some(step);
        if is_due && self.refresh.is_none() {
            if let Some(retriever) = &self.retriever {
                retriever.check_collapse(self.settings.k)?;
            }
            write_parameters(&self.snapshot(step)?, parameters)?;
            self.start_refresh(step)?;
            self.adopt_refresh(step)?;
        }
        Ok(())
    }

    /// Ends the running refresh and closes the memory. Afterwards nothing writes to it.
    pub(crate) fn close(&mut self) {
        self.refresh = None;
        self.next_change = None;
        self.retriever = None;
    }

    /// Takes the retrieval statistics out of the memory; empty without a memory.
    pub(crate) fn take_log(&self) -> StudyResult<String> {
        let Some(retriever) = &self.retriever else { return Ok(String::new()) };
        let log = retriever.log();
        retriever.set_log(RetrievalLog::default());
        Ok(serde_json::to_string(&log)?)
    }

    /// Adds retrieval statistics of [`RunMemory::take_log`], also of other ranks.
    pub(crate) fn add_logs(&self, logs: &[String]) -> StudyResult<()> {
        let Some(retriever) = &self.retriever else { return Ok(()) };
        let mut sum = retriever.log();
        for log in logs {
            sum.add(&serde_json::from_str(log)?);
        }
        retriever.set_log(sum);
        Ok(())
    }

    /// Writes the memory's part of a checkpoint into its folder.
    pub fn save(&self, folder: &Path) -> StudyResult<()> {
        for step in [self.state.made_at, self.state.next].into_iter().flatten() {
            link(&self.snapshots.join(snapshot_name(step)), &folder.join(snapshot_name(step)))?;
        }
        let path = folder.join(STATE);
        let log = self.retriever.as_ref().map(Retriever::log).unwrap_or_default();
        let state = serde_json::to_vec(&Saved { state: self.state, log })?;
        Ok(write_file(&path, &state)?)
    }

    /// Restores the memory to its state at a checkpoint.
    pub fn restore(&mut self, folder: &Path) -> StudyResult<()> {
        let path = folder.join(STATE);
        let bytes = engram_durable::read_file(&path).map_err(TrainError::io(&path))?;
        let Saved { state, log } = serde_json::from_slice(&bytes)
            .map_err(|error| format!("{}: {error}", path.display()))?;
        // The second snapshot is linked after `build`, which removes snapshots that it does not
        // need.
        if let Some(step) = state.made_at {
            link(&folder.join(snapshot_name(step)), &self.snapshot(step)?)?;
            self.build(step)?;
        }
        if let Some(step) = state.next {
            link(&folder.join(snapshot_name(step)), &self.snapshot(step)?)?;
            self.start_refresh(step)?;
        }
        self.state = state;
        if let Some(retriever) = &self.retriever {
            retriever.set_log(log);
        }
        Ok(())
    }

    /// Encodes all entries with the snapshot of a step, and waits.
    fn build(&mut self, step: u64) -> StudyResult<()> {
        let model = self.encoding.load(&self.snapshot(step)?, &self.compute)?;
        // Ends the lock on the previous memory.
        self.next_change = None;
        let (dtype, stop) = (self.settings.value_type, Stop::default());
        let retriever =
            shards::build(&self.folder, &model, &self.encoding, dtype, &stop, &self.ranks)?;
        let retriever = self.placement.put(retriever, &self.folder, self.encoders(step)?)?;
        if self.placement.is_server() {
            remove_memory(&self.folder)?;
        }
        self.next_change = Some(retriever.memory().begin()?);
        self.retriever = Some(retriever);
        self.state = State { made_at: Some(step), phase: self.state.phase, ..State::default() };
        self.remove_unneeded_snapshots()
    }

    /// Starts a thread that encodes all entries with the snapshot of a step.
    fn start_refresh(&mut self, step: u64) -> StudyResult<()> {
        let change = self.next_change.take().ok_or("the memory is not built")?;
        let model = self.encoding.load(&self.snapshot(step)?, &self.compute)?;
        let encoding = Arc::clone(&self.encoding);
        let steps = RefreshSteps { start: step, lag: self.settings.refresh_lag };
        // Entries are encoded in the same batches as in `build`, so that keys are equal.
        let encoders = self.encoders(step)?;
        self.refresh = Some(Refresh::start(change, encoders, steps, move |batch| {
            let Encoding { corpus, sequencer, .. } = encoding.as_ref();
            let index = |id| {
                corpus.index_of(id).ok_or(MemoryError::UnknownId { id, missing: 1, requested: 1 })
            };
            let indices = batch.entries.iter().map(|entry| index(entry.id));
            let indices: Vec<usize> = indices.collect::<Result<_, _>>()?;
            let mut items = ItemEncoder::new(&model, corpus, sequencer);
            let (keys, values) =
                items.encode(&indices).map_err(|error| MemoryError::Rows(error.into()))?;
            Ok(Batch { keys, values, ..batch })
        }));
        self.state.next = Some(step);
        Ok(())
    }

    /// Adopts the running refresh if it is due at `step` or was due earlier.
    fn adopt_refresh(&mut self, step: u64) -> StudyResult<()> {
        let (Some(refresh), Some(retriever)) = (self.refresh.take(), &self.retriever) else {
            return Ok(());
        };
        match refresh.adopt(step, retriever.memory())? {
            Adoption::Later(refresh) => self.refresh = Some(refresh),
            Adoption::Now(adopted) => {
                let mean_drift = shards::mean_drift_of_all(&adopted, retriever, &self.ranks)?;
                self.next_change = Some(adopted.next);
                self.state = State {
                    phase: self.state.phase,
                    made_at: self.state.next,
                    next: None,
                    mean_drift,
                };
                self.remove_unneeded_snapshots()?;
            }
        }
        Ok(())
    }

    /// The record of the model with the snapshot of a step.
    fn encoders(&self, step: u64) -> StudyResult<Vec<EncoderRecord>> {
        let snapshot = self.snapshot(step)?;
        self.placement.encoders(|| Identity::of_weights(&snapshot), self.encoding.config.key_dim)
    }

    /// The path of a step's snapshot.
    fn snapshot(&self, step: u64) -> StudyResult<PathBuf> {
        durable::create_folder(&self.snapshots).map_err(TrainError::io(&self.snapshots))?;
        Ok(self.snapshots.join(snapshot_name(step)))
    }

    /// Removes the snapshots that neither the memory nor the running refresh needs.
    fn remove_unneeded_snapshots(&self) -> StudyResult<()> {
        let needed = [self.state.made_at, self.state.next];
        let needed: Vec<String> = needed.into_iter().flatten().map(snapshot_name).collect();
        remove_snapshots(&self.snapshots, &needed)
    }
}

/// Links a file to another path, or copies it if the system cannot link.
fn link(from: &Path, to: &Path) -> StudyResult<()> {
    Ok(durable::link_file(from, to).map_err(TrainError::io(from))?)
}
