//! The one loop that trains every study.

mod finish;
mod phase;
mod state;
mod step;

use std::path::PathBuf;

use crate::checkpoint::Checkpoints;
use crate::error::{Result, TrainError};
use crate::log::{self, EventWriter, Metrics, Timing};
use crate::recipe::Recipe;
use crate::run_folder::RunFolder;
use crate::stop::Stop;
use crate::study::{Evaluation, Study};
pub(crate) use finish::WEIGHTS;
pub(crate) use phase::study_error;
use phase::{Outcome, PhaseRun};
pub(crate) use state::State;

/// How a run is started.
#[derive(Debug, Clone, Default)]
pub struct RunOptions {
    /// The run folder; it is made if it is missing.
    pub run: PathBuf,
    /// Goes on with the run in the folder, if there is one.
    pub resume: bool,
    /// Shows no progress; warnings are shown all the same.
    pub quiet: bool,
    /// What progress lines call the run, where there are several (`fold-2`).
    pub label: Option<String>,
    /// Stops dead after this many steps of this call, as a kill would; for tests.
    pub stop_after_steps: Option<u64>,
    /// Through which the run is asked to stop: it then writes a checkpoint and ends with
    /// [`TrainError::Stopped`].
    pub stop: Stop,
}

/// What a run came to.
#[derive(Debug, Clone)]
pub struct RunSummary {
    /// The run folder.
    pub run: PathBuf,
    /// Whether all phases were finished; if not, `weights` and `check` say nothing.
    pub finished: bool,
    /// Steps done over all phases, by all calls.
    pub steps: u64,
    /// The training loss of the last log line.
    pub last_loss: Option<f64>,
    /// The last evaluation.
    pub last_evaluation: Option<Evaluation>,
    /// The best figure of the primary metric in the last phase, and its step.
    pub best: Option<(f64, u64)>,
    /// The weights to use: of the best checkpoint (or the last one, as the recipe says), and the
    /// running mean's where one is kept.
    pub weights: PathBuf,
    /// The recipe's hash.
    pub recipe_hash: String,
    /// What the recipe's `[check]` found.
    pub check: CheckOutcome,
}

/// What the recipe's `[check]` found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CheckOutcome {
    /// What was not as the recipe says; empty if all was.
    pub failures: Vec<String>,
}

impl CheckOutcome {
    /// Whether everything was as the recipe says.
    pub fn passed(&self) -> bool {
        self.failures.is_empty()
    }
}

/// What the phases of a run share.
struct Session<'a> {
    recipe: &'a Recipe,
    options: &'a RunOptions,
    folder: &'a RunFolder,
    checkpoints: Checkpoints,
    metrics: Metrics,
    timing: Timing,
    events: Option<EventWriter>,
    state: State,
    /// Steps that this call may still make.
    steps_left: Option<u64>,
}

impl Session<'_> {
    /// Makes all log lines durable.
    fn sync_logs(&self) -> Result<()> {
        self.metrics.sync()?;
        self.timing.sync()?;
        self.events.as_ref().map_or(Ok(()), EventWriter::sync)
    }
}

/// Trains `study` by `recipe` and leaves everything in the run folder.
///
/// The study's model ends with the last step's values; the ones to use are in
/// [`RunSummary::weights`].
///
/// # Errors
/// See [`TrainError`]. After one that says nothing else the run can be resumed from its last
/// checkpoint.
pub fn train<S: Study>(study: &mut S, recipe: &Recipe, options: &RunOptions) -> Result<RunSummary> {
    if study.name() != recipe.study() {
        let (recipe, study) = (recipe.study().to_string(), study.name().to_string());
        return Err(TrainError::WrongStudy { recipe, study });
    }
    if recipe.has_variants() {
        return Err(recipe.error("variant", "is not known to this study; leave variants out"));
    }
    let recipe_text = recipe.resolved()?;
    let inputs = study.inputs().map_err(study_error(study, "inputs"))?;
    let folder = RunFolder::open(&options.run, options.resume, &recipe_text, &inputs)?;
    train_in(&folder, study, recipe, options)
}

/// As [`train`], in a folder that the caller holds.
pub(crate) fn train_in<S: Study>(
    folder: &RunFolder,
    study: &mut S,
    recipe: &Recipe,
    options: &RunOptions,
) -> Result<RunSummary> {
    let checkpoints = Checkpoints::open(folder.path())?;
    let mut warn = |error: &TrainError| {
        log::print(&format!("warning: {error}; trying the one before it"));
    };
    let restored = checkpoints.newest_good(&mut warn)?;
    let state = restored.as_ref().map_or_else(State::default, |(_, state)| state.clone());
    let best = state.best.filter(|_| recipe.evaluation().keep_best).map(|best| best.step);
    let newest = restored.as_ref().map(|(path, _)| path.as_path());
    checkpoints.go_back(newest, best, recipe.checkpoint().keep)?;
    let mut session = Session {
        recipe,
        options,
        metrics: Metrics::open(folder.path(), state.metrics_bytes)?,
        timing: Timing::open(folder.path())?,
        events: match recipe.log().tensorboard {
            true => Some(EventWriter::create(folder.path(), state.step + 1)?),
            false => None,
        },
        folder,
        checkpoints,
        state,
        steps_left: options.stop_after_steps,
    };
    let mut checkpoint = restored.map(|(path, _)| path);
    let mut before = None;
    for phase in &recipe.phases()[session.state.phase..] {
        let mut run = match checkpoint.take() {
            Some(path) => PhaseRun::restore(&mut session, study, phase, &path)?,
            None => PhaseRun::begin(&mut session, study, phase, before)?,
        };
        if run.train(study)? == Outcome::OutOfSteps {
            return finish::summary(&session);
        }
        before = Some(run.into_parameters());
        if options.stop.is_requested() {
            // The phase ended with a checkpoint.
            let (run, step) = (folder.path().to_path_buf(), session.state.step);
            return Err(TrainError::Stopped { run, step });
        }
    }
    finish::finish(&session, study, before.as_ref())
}
