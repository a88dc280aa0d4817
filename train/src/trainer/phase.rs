//! One phase: epochs of steps, with log lines, evaluations and checkpoints.

mod patterns;

use std::path::Path;

use engram_models::layers::is_branch;
use engram_models::params::Parameters;
use serde_json::{Map, Value, json};

use super::Session;
use super::state::{Best, State};
use super::step::{Position, StepOutcome, Stepper, explain};
use super::tables::PhaseTables;
use crate::Stopped;
use crate::checkpoint::{self, Contents, Reason};
use crate::distributed::sharded_tables::PartValues;
use crate::error::{Result, StudyError, TrainError};
use crate::exact::Exact;
use crate::log::{Progress, Window};
use crate::recipe::{Phase, Recipe};
use crate::study::{Evaluation, EvaluationContext, StudyExtension, epoch_rng};

/// The maximum number of consecutive skipped steps; one more is an error.
const MAX_SKIPPED_STEPS: u32 = 2;

/// The parameters of a finished phase, and the values of the tables that the ranks keep in parts.
pub(super) struct Trained {
    pub(super) parameters: Parameters,
    tables: Option<PartValues>,
}

/// A running phase.
pub(super) struct PhaseRun<'s, 'a, S: StudyExtension> {
    session: &'s mut Session<'a>,
    study: &'s mut S,
    model: S::Model,
    phase: &'a Phase,
    stepper: Stepper,
    progress: Progress,
    /// The batches of the first epoch, computed early because their number gives the number of
    /// steps; `None` once the epoch has begun.
    first_batches: Option<Vec<S::Batch>>,
}

impl<'s, 'a, S: StudyExtension> PhaseRun<'s, 'a, S> {
    /// Starts a phase from the parameters of the previous phase. The first phase starts from the
    /// run in `[start]`, or from the study's initial parameters.
    pub(super) fn begin(
        session: &'s mut Session<'a>,
        study: &'s mut S,
        phase: &'a Phase,
        previous: Option<Trained>,
    ) -> Result<Self> {
        let (model, parameters) = build(session, study, phase)?;
        let previous_tables = match previous {
            Some(Trained { parameters: previous, tables }) => {
                carry_over(&previous, &parameters, phase)?;
                tables
            }
            None => {
                load_start(session.recipe, &parameters)?;
                None
            }
        };
        let first_batches = batches(session, study, phase, 0)?;
        let steps_per_epoch = first_batches.len().div_ceil(session.recipe.batch.accumulate) as u64;
        let planned_steps = phase.epochs.map_or(0, |epochs| epochs as u64 * steps_per_epoch);
        let frozen = parameters.fingerprint(|parameter| !parameter.is_trainable())?;
        session.state.start_phase(phase.index, phase.steps.unwrap_or(planned_steps), frozen);
        let ranks = &session.options.ranks;
        let mut stepper =
            Stepper::new(session.recipe, phase, parameters, ranks, previous_tables.is_none())?;
        if let Some(tables) = stepper.tables() {
            tables.start(previous_tables);
        }
        Ok(Self {
            first_batches: Some(first_batches),
            ..Self::new(session, study, model, phase, stepper)
        })
    }

    /// Resumes from a checkpoint. The session already holds its state.
    pub(super) fn restore(
        session: &'s mut Session<'a>,
        study: &'s mut S,
        phase: &'a Phase,
        path: &Path,
    ) -> Result<Self> {
        let (model, parameters) = build(session, study, phase)?;
        let ranks = &session.options.ranks;
        let mut stepper = Stepper::new(session.recipe, phase, parameters, ranks, false)?;
        let Stepper { parameters, optimiser, ema, reducer, .. } = &mut stepper;
        let steps = session.state.optimiser_steps;
        checkpoint::load(path, parameters, optimiser, steps, ema.as_mut())?;
        if let Some(tables) = &mut reducer.tables {
            tables.load(path, steps)?;
        }
        study.restore(path).map_err(study_error(study, "restore"))?;
        Ok(Self::new(session, study, model, phase, stepper))
    }

    fn new(
        session: &'s mut Session<'a>,
        study: &'s mut S,
        model: S::Model,
        phase: &'a Phase,
        stepper: Stepper,
    ) -> Self {
        let (options, state) = (session.options, &session.state);
        let name = match &options.label {
            Some(label) => format!("{label}, {}", phase.name),
            None => phase.name.clone(),
        };
        let progress = Progress::new(options.quiet, &name, state.phase_step, state.phase_steps);
        Self { session, study, model, phase, stepper, progress, first_batches: None }
    }

    /// The parameters and tables at the end of the phase.
    pub(super) fn into_trained(self) -> Trained {
        let Stepper { parameters, reducer, .. } = self.stepper;
        Trained { parameters, tables: reducer.tables.map(PhaseTables::into_values) }
    }

    /// Trains until the phase ends.
    pub(super) fn train(&mut self) -> Result<()> {
        let accumulate = self.session.recipe.batch.accumulate;
        self.session.timing.restart();
        if let Some(epoch) = self.session.state.pending.take() {
            self.after_step(epoch)?;
        }
        if self.phase.steps == Some(0) && !self.session.state.phase_done {
            self.session.state.phase_done = true;
            self.after_step(0)?;
        }
        while !self.session.state.phase_done {
            let epoch = self.session.state.epoch;
            let batches = match self.first_batches.take() {
                Some(first_batches) => first_batches,
                None => batches(self.session, self.study, self.phase, epoch)?,
            };
            if batches.is_empty() {
                return Err(self.empty_phase(format!("epoch {epoch} has no batches")));
            }
            while self.session.state.epoch == epoch && !self.session.state.phase_done {
                if !self.session.begin_step()? {
                    return Err(self.stop());
                }
                let start = self.session.state.batch;
                if start >= batches.len() {
                    let reason = "has fewer batches than at the checkpoint: the data changed";
                    return Err(self.empty_phase(format!("epoch {epoch} {reason}")));
                }
                let end = (start + accumulate).min(batches.len());
                self.step(&batches[start..end])?;
                self.advance(end, batches.len());
                self.after_step(epoch)?;
            }
        }
        Ok(())
    }

    fn step(&mut self, batches: &[S::Batch]) -> Result<()> {
        let learning_rate = self.learning_rate(self.session.state.phase_step);
        let state = &mut self.session.state;
        state.step += 1;
        let position = Position {
            recipe: self.session.recipe,
            phase: self.phase,
            epoch: state.epoch,
            step: state.step,
            progress: (state.phase_step as f64 / state.phase_steps.max(1) as f64).min(1.0),
            learning_rate,
            check_gradients: !state.gradients_checked,
        };
        let context = position.context(0, None);
        self.study
            .before_step(&context, &self.stepper.parameters)
            .map_err(study_error(self.study, "before_step"))?;
        let outcome = self.stepper.step(self.study, &self.model, batches, &position);
        let batch = &self.session.recipe.batch;
        match outcome.map_err(|error| explain(error, self.study.name(), batch))? {
            StepOutcome::Updated(pass, norm) => {
                state.gradients_checked = true;
                state.bad_steps = 0;
                state.optimiser_steps = self.stepper.optimiser.steps;
                state.window.add(pass.loss, norm, pass.examples, pass.tokens, &pass.parts);
                Ok(())
            }
            StepOutcome::Empty => {
                state.window.skip();
                let step = state.step;
                self.progress
                    .print(&format!("step {step} is skipped: none of its examples can be used"));
                Ok(())
            }
            StepOutcome::NotFinite(what) => {
                state.bad_steps += 1;
                state.window.skip();
                self.progress.print(&format!("step {} is skipped: {what}", state.step));
                if state.bad_steps <= MAX_SKIPPED_STEPS {
                    return Ok(());
                }
                let (consecutive_steps, step) = (state.bad_steps, state.step);
                let newest_checkpoint = self.session.checkpoints.latest();
                Err(TrainError::NotFinite { what, consecutive_steps, step, newest_checkpoint })
            }
        }
    }

    /// Advances the position after a step. `end` is the index after its last micro-batch, `count`
    /// the number of micro-batches in the epoch.
    fn advance(&mut self, end: usize, count: usize) {
        let state = &mut self.session.state;
        state.phase_step += 1;
        state.batch = end;
        if end == count {
            state.epoch += 1;
            state.batch = 0;
        }
        let out_of_epochs = self.phase.epochs.is_some_and(|epochs| state.epoch >= epochs);
        let out_of_steps = self.phase.steps.is_some_and(|steps| state.phase_step >= steps);
        state.phase_done = out_of_epochs || out_of_steps;
        self.progress.step(state.phase_step);
    }

    /// Writes the log line, the evaluation and the checkpoint that are due after a step of `epoch`.
    /// If the run is asked to stop during the evaluation, the resumed run writes all three.
    fn after_step(&mut self, epoch: usize) -> Result<()> {
        let state_before = self.session.state.clone();
        let position = self.session.metrics.position();
        let result = self.write_due(epoch);
        match result {
            Err(TrainError::Study { source, .. }) if Stopped::is_cause_of(&*source) => {
                self.session.state = State { pending: Some(epoch), ..state_before };
                self.session.metrics.truncate(&position)?;
                Err(self.stop())
            }
            result => result,
        }
    }

    /// Does the work of [`Self::after_step`], without handling stop requests.
    fn write_due(&mut self, epoch: usize) -> Result<()> {
        let recipe = self.session.recipe;
        let epoch_ended = self.session.state.epoch != epoch;
        let is_due = |every: u64, step: u64| every > 0 && step.is_multiple_of(every);
        let step = self.session.state.phase_step;
        if is_due(recipe.log.every_steps, step) || self.session.state.phase_done {
            self.log_line(epoch)?;
        }
        let settings = &recipe.evaluation;
        let completed_epochs = self.session.state.epoch as u64;
        let evaluates = is_due(settings.every_steps, step)
            || (settings.every_steps == 0
                && epoch_ended
                && is_due(settings.every_epochs as u64, completed_epochs))
            || self.session.state.phase_done;
        let mut improved = false;
        if evaluates {
            improved = self.evaluate(epoch)?;
            let patience = settings.early_stop;
            if patience > 0 && self.session.state.evaluations_without_gain >= patience {
                self.log_line(epoch)?;
                self.session.state.phase_done = true;
            }
        }
        let phase_done = self.session.state.phase_done;
        if phase_done {
            self.check_frozen()?;
        }
        let every_steps = recipe.checkpoint.every_steps;
        let keeps_best = improved && settings.keep_best;
        let checkpoint_is_due = is_due(every_steps, step) || (every_steps == 0 && epoch_ended);
        if phase_done || keeps_best || checkpoint_is_due {
            self.save(if keeps_best { Reason::Best } else { Reason::Due })?;
        }
        if evaluates || phase_done {
            self.session.timing.restart();
        }
        Ok(())
    }

    /// The learning rate of a step of this phase, counted from 0.
    fn learning_rate(&self, step: u64) -> f64 {
        let recipe = self.session.recipe;
        let peak = self.phase.learning_rate.unwrap_or(recipe.optimiser.learning_rate);
        peak * recipe.schedule.factor(step, self.session.state.phase_steps)
    }

    /// Writes the log line of the steps since the last line, unless there are none.
    fn log_line(&mut self, epoch: usize) -> Result<()> {
        if self.session.state.window.is_empty() {
            return Ok(());
        }
        let state = &self.session.state;
        let values = state.window.values(self.learning_rate(state.phase_step - 1));
        let (examples, tokens) = state.window.example_and_token_counts();
        let (examples_per_second, tokens_per_second) =
            self.session.timing.write(state.step, examples, tokens)?;
        if let Some(loss) = state.window.mean_loss() {
            self.session.state.last_loss = Some(Exact(loss));
        }
        let state = &self.session.state;
        self.progress.report(state.phase_step, state.window.mean_loss(), examples_per_second);
        self.write_line(epoch, "train", &values)?;
        if let Some(events) = &mut self.session.events {
            let speeds = [
                ("examples_per_second", examples_per_second),
                ("tokens_per_second", tokens_per_second),
            ];
            events.scalars(self.session.state.step, speeds.into_iter())?;
        }
        self.session.state.window = Window::default();
        Ok(())
    }

    /// Writes one line of `metrics.jsonl`, and its numbers as TensorBoard scalars. `kind` is
    /// `train` or `evaluation`.
    fn write_line(&mut self, epoch: usize, kind: &str, values: &Map<String, Value>) -> Result<()> {
        let step = self.session.state.step;
        let mut line = Map::new();
        line.insert("kind".to_string(), json!(kind));
        line.insert("step".to_string(), json!(step));
        line.insert("phase".to_string(), json!(self.phase.name));
        line.insert("epoch".to_string(), json!(epoch));
        line.extend(values.clone());
        self.session.metrics.write(&Value::Object(line))?;
        if let Some(events) = &mut self.session.events {
            let scalars = values.iter().filter_map(|(name, value)| Some((name, value.as_f64()?)));
            let tagged: Vec<(String, f64)> =
                scalars.map(|(name, value)| (format!("{kind}/{name}"), value)).collect();
            events.scalars(step, tagged.iter().map(|(tag, value)| (tag.as_str(), *value)))?;
        }
        Ok(())
    }

    /// Evaluates the model (the averaged weights, with `[ema]`) and returns whether it is the best
    /// so far.
    fn evaluate(&mut self, epoch: usize) -> Result<bool> {
        let context = EvaluationContext {
            step: self.session.state.step,
            phase: self.phase,
            epoch,
            run: self.session.folder.path(),
            stop: &self.session.options.stop,
        };
        let parameters = &self.stepper.parameters;
        if let Some(ema) = &mut self.stepper.ema {
            ema.swap(parameters)?;
        }
        if let Some(tables) = &self.stepper.reducer.tables {
            tables.show()?;
        }
        let ranks = &self.session.options.ranks;
        let prepared = self.study.before_evaluation(&self.model, &context);
        let evaluation =
            prepared.and_then(|()| ranks.evaluate(|| self.study.evaluate(&self.model, &context)));
        if let Some(tables) = &self.stepper.reducer.tables {
            tables.hide();
        }
        if let Some(ema) = &mut self.stepper.ema {
            ema.swap(parameters)?;
        }
        let evaluation = evaluation.map_err(study_error(self.study, "evaluate"))?;
        let metric = self.study.primary_metric();
        let Some(value) = evaluation.get(&metric.name) else {
            let names: Vec<&str> = evaluation.metrics.iter().map(|(name, _)| &**name).collect();
            return Err(TrainError::Refused(format!(
                "the evaluation has no metric `{}`; it has {}",
                metric.name,
                names.join(", ")
            )));
        };
        let values = metric_values(&evaluation);
        self.write_line(epoch, "evaluation", &values)?;
        let state = &mut self.session.state;
        // Metrics of subsets, such as `exact_match/held_out`, are only in `metrics.jsonl`.
        let main_metrics = evaluation.metrics.iter().filter(|(name, _)| !name.contains('/'));
        let values: Vec<String> =
            main_metrics.map(|(name, value)| format!("{name} {value:.4}")).collect();
        self.progress.print_unless_quiet(&format!("step {}, {}", state.step, values.join(", ")));
        let margin = self.session.recipe.evaluation.margin;
        let improved = metric.improves(value, state.best.map(|best| best.value.0), margin);
        if improved {
            state.best = Some(Best { value: Exact(value), step: state.step });
            state.evaluations_without_gain = 0;
        } else {
            state.evaluations_without_gain += 1;
        }
        let metrics = evaluation.metrics.into_iter();
        state.metrics = metrics.map(|(name, value)| (name, Exact(value))).collect();
        state.counts = evaluation.counts;
        Ok(improved)
    }

    /// Returns an error if a frozen parameter changed during the phase.
    fn check_frozen(&self) -> Result<()> {
        let after = self.stepper.parameters.fingerprint(|p| !p.is_trainable())?;
        let before = self.session.state.frozen.clone();
        if before == after {
            return Ok(());
        }
        Err(TrainError::FrozenChanged { phase: self.phase.name.clone(), before, after })
    }

    /// Writes a checkpoint, on rank 0. All ranks must have the same parameters.
    fn save(&mut self, reason: Reason) -> Result<()> {
        let ranks = &self.session.options.ranks;
        ranks.expect_same_parameters(&self.stepper.parameters)?;
        let tables = self.stepper.reducer.tables.as_ref().map(PhaseTables::gather).transpose()?;
        if !ranks.is_first() {
            return Ok(());
        }
        // Logs are synced first, so that a checkpoint never refers to log lines that are lost.
        self.session.sync_logs()?;
        self.session.state.log = self.session.metrics.position();
        let contents = Contents {
            parameters: &self.stepper.parameters,
            optimiser: &self.stepper.optimiser,
            ema: self.stepper.ema.as_ref(),
            tables: tables.as_deref().unwrap_or_default(),
            state: &self.session.state,
            study: &|folder| self.study.save(folder).map_err(study_error(self.study, "save")),
        };
        let keep = self.session.recipe.checkpoint.keep;
        self.session.checkpoints.save(&contents, reason, keep)?;
        self.session.options.stop.clear_unsaved();
        Ok(())
    }

    /// Writes a checkpoint if there are unsaved steps, and returns the error that ends the run:
    /// [`TrainError::Stopped`], or the error of the checkpoint.
    fn stop(&mut self) -> TrainError {
        let saved = match self.session.has_unsaved() {
            Ok(true) => self.save(Reason::Stop),
            Ok(false) => Ok(()),
            Err(error) => Err(error),
        };
        let (run, step) = (self.session.folder.path().to_path_buf(), self.session.state.step);
        saved.err().unwrap_or(TrainError::Stopped { run, step })
    }

    fn empty_phase(&self, reason: String) -> TrainError {
        TrainError::Refused(format!("phase `{}`: {reason}", self.phase.name))
    }
}

/// Wraps an error of the study's own code, for `map_err`.
pub(super) fn study_error<S: StudyExtension>(
    study: &S,
    part: &'static str,
) -> impl FnOnce(StudyError) -> TrainError + use<S> {
    let study = study.name().to_string();
    move |source| TrainError::Study { study, part, source }
}

/// Builds the phase's model and prepares the study for the phase.
fn build<S: StudyExtension>(
    session: &Session<'_>,
    study: &mut S,
    phase: &Phase,
) -> Result<(S::Model, Parameters)> {
    let (model, parameters) = patterns::build(session.recipe, study, phase)?;
    if parameters.trainable().next().is_none() && parameters.external_tables().is_empty() {
        return Err(TrainError::Refused(format!(
            "phase `{}`: all parameters are frozen; give at least one group a rate above 0",
            phase.name
        )));
    }
    study.begin_phase(phase).map_err(study_error(study, "begin_phase"))?;
    Ok((model, parameters))
}

/// The micro-batches of an epoch.
fn batches<S: StudyExtension>(
    session: &Session<'_>,
    study: &S,
    phase: &Phase,
    epoch: usize,
) -> Result<Vec<S::Batch>> {
    let mut rng = epoch_rng(session.recipe.seed, phase, epoch);
    study.batches(phase, &mut rng).map_err(study_error(study, "batches"))
}

/// Loads the parameters of the run in `[start]`, if the recipe has this table.
fn load_start(recipe: &Recipe, parameters: &Parameters) -> Result<()> {
    match recipe.start.as_ref() {
        None => Ok(()),
        Some(start) => {
            // The weights of a finished run contain no low-rank branches.
            let is_selected = |name: &str| start.loads_parameter(name) && !is_branch(name);
            Ok(parameters.load_selected(&start.weights(), is_selected)?)
        }
    }
}

/// Copies the values of the previous phase's parameters to the current parameters by name.
fn carry_over(previous: &Parameters, current: &Parameters, phase: &Phase) -> Result<()> {
    for old in previous.iter() {
        let shape = old.tensor().dims();
        let Some(new) = current.get(old.name()).filter(|new| new.tensor().dims() == shape) else {
            return Err(TrainError::Refused(format!(
                "phase `{}` builds no parameter `{}` of shape {shape:?}, but the previous phase did",
                phase.name,
                old.name()
            )));
        };
        let values = old.read(<[f32]>::to_vec)?;
        new.update(&mut |data| data.copy_from_slice(&values))?;
    }
    Ok(())
}

/// The values of an evaluation's log line: metrics by name, and counts as `count/NAME`.
fn metric_values(evaluation: &Evaluation) -> Map<String, Value> {
    let mut values = Map::new();
    for (name, value) in &evaluation.metrics {
        values.insert(name.clone(), json!(value));
    }
    for (name, count) in &evaluation.counts {
        values.insert(format!("count/{name}"), json!(count));
    }
    values
}
