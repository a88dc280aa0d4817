//! The training loop of every study.

mod finish;
mod phase;
mod reducer;
mod state;
mod step;
mod tables;

use std::path::PathBuf;

use crate::Stop;
use crate::checkpoint::Checkpoints;
use crate::distributed::Ranks;
use crate::error::{Result, TrainError};
use crate::log::{self, EventWriter, Metrics, Timing};
use crate::recipe::Recipe;
use crate::run_folder::RunFolder;
use crate::storages::{MemoryServers, ValueStorages};
use crate::study::{Evaluation, StudyExtension};
use phase::{PhaseRun, study_error};
pub(crate) use state::State;

/// How a run is started.
#[derive(Debug, Clone, Default)]
pub struct RunOptions {
    /// The run folder, created if missing.
    pub run: PathBuf,
    /// Continues the run in the folder, if there is one.
    pub resume: bool,
    /// Prints no progress. Warnings are still printed.
    pub quiet: bool,
    /// The name of the run in progress lines, such as `fold-2`; `None` for a single run.
    pub label: Option<String>,
    /// The stop request. A run that is asked to stop writes a checkpoint and returns
    /// [`TrainError::Stopped`].
    pub stop: Stop,
    /// The processes that share each step. A rank other than 0 needs a new folder as `run`, for
    /// temporary data, and ends with [`TrainError::OtherRank`].
    pub ranks: Ranks,
    /// Opens the object stores that a recipe names.
    pub value_storages: ValueStorages,
    /// Opens the servers that a recipe names.
    pub memory_servers: MemoryServers,
}

/// The result of a finished run.
#[derive(Debug, Clone)]
pub struct RunSummary {
    /// The run folder.
    pub run: PathBuf,
    /// Steps over all phases, including the steps before the run was resumed.
    pub steps: u64,
    /// The training loss of the last phase's last log line; `None` if there is none.
    pub last_loss: Option<f64>,
    /// The last evaluation; `None` if there was none.
    pub last_evaluation: Option<Evaluation>,
    /// The best value of the primary metric in the last phase, and the step of this evaluation;
    /// `None` without an evaluation.
    pub best: Option<(f64, u64)>,
    /// The file of the final weights. With `evaluation.keep_best` the weights come from the best
    /// checkpoint of the last phase, otherwise from its last checkpoint. With `[ema]` they are the
    /// averaged weights.
    pub weights: PathBuf,
    /// The SHA-256 of the resolved recipe.
    pub recipe_hash: String,
    /// The result of the recipe's `[check]`.
    pub check: CheckOutcome,
}

/// The result of the recipe's `[check]`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CheckOutcome {
    /// The conditions of `[check]` that failed.
    pub failures: Vec<String>,
}

impl CheckOutcome {
    /// Whether all conditions of `[check]` hold.
    pub fn passed(&self) -> bool {
        self.failures.is_empty()
    }
}

/// The state that all phases of a run share.
struct Session<'a> {
    recipe: &'a Recipe,
    options: &'a RunOptions,
    folder: &'a RunFolder,
    checkpoints: Checkpoints,
    metrics: Metrics,
    timing: Timing,
    events: Option<EventWriter>,
    state: State,
}

impl Session<'_> {
    /// Whether rank 0 was asked to stop.
    fn stop_is_requested(&self) -> Result<bool> {
        self.options.ranks.broadcast(self.options.stop.is_requested())
    }

    /// Records on rank 0 that a step begins. Returns `false`, and records nothing, if rank 0 was
    /// asked to stop.
    fn begin_step(&self) -> Result<bool> {
        let RunOptions { ranks, stop, .. } = self.options;
        ranks.broadcast(ranks.is_first() && stop.begin_step())
    }

    /// Whether rank 0 has begun steps since the last checkpoint.
    fn has_unsaved(&self) -> Result<bool> {
        self.options.ranks.broadcast(self.options.stop.has_unsaved())
    }

    /// Syncs all logs to disk.
    fn sync_logs(&self) -> Result<()> {
        self.metrics.sync()?;
        self.timing.sync()?;
        self.events.as_ref().map_or(Ok(()), EventWriter::sync)
    }
}

/// Trains `study` with `recipe` and writes all results to the run folder.
///
/// The final weights are in [`RunSummary::weights`].
///
/// # Errors
/// See [`TrainError`]. Unless the error says otherwise, the run can be resumed from its last
/// checkpoint.
pub fn train<S: StudyExtension>(
    study: &mut S,
    recipe: &Recipe,
    options: &RunOptions,
) -> Result<RunSummary> {
    recipe.expect_study(study.name())?;
    if recipe.has_variants() {
        return Err(recipe.error("variant", "is not supported by this study; remove the variants"));
    }
    recipe.check_start()?;
    recipe.compute()?;
    options.ranks.check(recipe)?;
    let recipe_text = recipe.resolved()?;
    let inputs = study.inputs().map_err(study_error(study, "inputs"))?;
    let folder = RunFolder::open(&options.run, options.resume, &recipe_text, &inputs)?;
    train_in(&folder, study, recipe, options)
}

/// Does the same as [`train`], in a folder that the caller has locked.
pub(crate) fn train_in<S: StudyExtension>(
    folder: &RunFolder,
    study: &mut S,
    recipe: &Recipe,
    options: &RunOptions,
) -> Result<RunSummary> {
    // An earlier run of this process may have failed with unsaved steps.
    options.stop.clear_unsaved();
    let ranks = &options.ranks;
    ranks.expect_same_run(&format!("{} {:?}", recipe.hash()?, folder.inputs))?;
    let checkpoints = Checkpoints::open(folder.path())?;
    let mut warn = |error: &TrainError| {
        log::print(&format!("warning: {error}; skipping this checkpoint"));
    };
    let restored = checkpoints.newest_intact(&mut warn)?;
    let restored = ranks.share_checkpoint(&checkpoints, restored)?;
    let state = restored.as_ref().map_or_else(State::default, |(_, state)| state.clone());
    let best = state.best.filter(|_| recipe.evaluation.keep_best).map(|best| best.step);
    let newest = restored.as_ref().map(|(path, _)| path.as_path());
    checkpoints.reset_to(newest, best, recipe.checkpoint.keep)?;
    let mut session = Session {
        recipe,
        options,
        metrics: Metrics::open(folder.path(), &state.log)?,
        timing: Timing::open(folder.path())?,
        events: if recipe.log.tensorboard && ranks.is_first() {
            Some(EventWriter::create(folder.path(), state.step + 1)?)
        } else {
            None
        },
        folder,
        checkpoints,
        state,
    };
    let mut checkpoint = restored.map(|(path, _)| path);
    let mut previous = None;
    for phase in &recipe.phases[session.state.phase..] {
        let mut run = match checkpoint.take() {
            Some(path) => PhaseRun::restore(&mut session, study, phase, &path)?,
            None => PhaseRun::begin(&mut session, study, phase, previous)?,
        };
        run.train()?;
        previous = Some(run.into_trained());
        if session.stop_is_requested()? {
            // No checkpoint is written here, because the phase ended with one.
            let (run, step) = (folder.path().to_path_buf(), session.state.step);
            return Err(TrainError::Stopped { run, step });
        }
    }
    ranks.end()?;
    finish::finish(&session, study, previous.as_ref().map(|trained| &trained.parameters))
}
