//! What a study brings to the trainer: data, model, loss and evaluation.

use std::path::Path;

use candle_core::Tensor;
use engram_models::params::{ParameterGroup, Parameters};

pub use crate::error::StudyError;
use crate::recipe::Phase;
pub use crate::run_folder::Inputs;
use crate::stop::Stop;

/// Results of a study's own code; any error converts into it with `?`.
pub type StudyResult<T> = Result<T, StudyError>;

/// One study. The trainer knows nothing else about it.
///
/// Everything that a study computes has to be a pure function of the recipe, the seed and the
/// arguments given here: a resumed run calls the same functions again and must get the same bytes.
pub trait Study {
    /// What one forward pass takes.
    type Batch;

    /// The name that a recipe gives in `study`.
    fn name(&self) -> &str;

    /// The metric that chooses the best checkpoint and stops early.
    fn primary_metric(&self) -> MetricSpec;

    /// Builds the model afresh with these groups and keeps it; returns its parameters.
    ///
    /// Called at the start of each phase, because a frozen parameter is a plain tensor and a
    /// trainable one a variable. The trainer then writes the values of the phase before, or of a
    /// checkpoint, into the returned parameters by name, and the model that shares them sees it.
    fn build(&mut self, groups: Vec<ParameterGroup>, seed: u64) -> StudyResult<Parameters>;

    /// The micro-batches of an epoch (counted from 0 within the phase), in order.
    fn batches(&mut self, phase: &Phase, epoch: usize) -> StudyResult<Vec<Self::Batch>>;

    /// Called before each step, with the parameters as they stand: the place to make anew what
    /// depends on them, such as a memory.
    fn before_step(&mut self, _: &StepContext<'_>, _: &Parameters) -> StudyResult<()> {
        Ok(())
    }

    /// Writes into a checkpoint's folder what a resumed run needs beside the parameters.
    fn save(&self, _: &Path) -> StudyResult<()> {
        Ok(())
    }

    /// Takes up what [`Study::save`] wrote; the parameters are those of the checkpoint already.
    fn restore(&mut self, _: &Path) -> StudyResult<()> {
        Ok(())
    }

    /// The loss of one micro-batch, with the graph that leads to it.
    fn loss(&self, batch: &Self::Batch, step: &StepContext<'_>) -> StudyResult<BatchLoss>;

    /// Measures the model as it stands.
    fn evaluate(&self, context: &EvaluationContext<'_>) -> StudyResult<Evaluation>;

    /// Everything that the study reads beside the recipe, by name and SHA-256: a run is only
    /// resumed on the same.
    fn inputs(&self) -> StudyResult<Inputs> {
        Ok(Inputs::new())
    }

    /// Further facts for the model card: data sets with their counts, base model, licence.
    fn card(&self) -> Vec<(String, String)> {
        Vec::new()
    }
}

/// The name of a metric and which way is better.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MetricSpec {
    /// A name among those that the study's evaluation returns.
    pub name: String,
    /// Whether a larger figure is better.
    pub higher_is_better: bool,
}

impl MetricSpec {
    /// A metric of which more is better, such as Pearson's r.
    pub fn higher(name: impl Into<String>) -> Self {
        Self { name: name.into(), higher_is_better: true }
    }

    /// A metric of which less is better, such as the word error rate.
    pub fn lower(name: impl Into<String>) -> Self {
        Self { name: name.into(), higher_is_better: false }
    }

    /// Whether `new` beats `old` by more than `margin`; a figure that is not a number never does.
    pub fn improves(&self, new: f64, old: Option<f64>, margin: f64) -> bool {
        match old {
            None => !new.is_nan(),
            Some(old) if self.higher_is_better => new > old + margin,
            Some(old) => new < old - margin,
        }
    }
}

/// Where training stands when a loss is asked for.
#[derive(Debug, Clone, Copy)]
pub struct StepContext<'a> {
    /// The seed of all randomness in this forward pass (dropout, sampling): it depends on the
    /// run's seed, the step and the micro-batch alone.
    pub step_seed: u64,
    /// The step over all phases, counted from 1.
    pub step: u64,
    /// The micro-batch within the step, counted from 0.
    pub micro_batch: usize,
    /// The phase.
    pub phase: &'a Phase,
    /// The epoch within the phase, counted from 0.
    pub epoch: usize,
    /// The share of the phase's steps that are done, 0 to 1.
    pub progress: f64,
}

/// The loss of one micro-batch.
#[derive(Debug, Clone)]
pub struct BatchLoss {
    /// The mean loss over the examples: a scalar.
    pub loss: Tensor,
    /// How many examples the mean runs over; micro-batches of a step are weighted by it.
    pub examples: usize,
    /// How many tokens, frames or patches were computed, for the speed log.
    pub tokens: usize,
    /// Named parts of the loss, for the log.
    pub parts: Vec<(String, f64)>,
}

/// Where training stands at an evaluation.
#[derive(Debug, Clone, Copy)]
pub struct EvaluationContext<'a> {
    /// Steps done over all phases.
    pub step: u64,
    /// The phase.
    pub phase: &'a Phase,
    /// The epoch within the phase, counted from 0.
    pub epoch: usize,
    /// The run folder, for samples that the study wants to keep.
    pub run: &'a Path,
    /// To be checked between batches: an evaluation may end with [`Stopped`](crate::Stopped), and
    /// the run that resumes makes it from its beginning.
    pub stop: &'a Stop,
}

/// What an evaluation found.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Evaluation {
    /// Metrics in the order in which they are shown; the primary one is among them.
    pub metrics: Vec<(String, f64)>,
    /// How many examples each split or class has.
    pub counts: Vec<(String, u64)>,
}

impl Evaluation {
    /// The metric of this name.
    pub fn get(&self, name: &str) -> Option<f64> {
        self.metrics.iter().find(|(n, _)| n == name).map(|(_, value)| *value)
    }
}
