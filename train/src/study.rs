//! The interface between a study and the trainer: data, model, loss and evaluation.

use std::path::Path;
use std::sync::Arc;

use candle_core::Tensor;
use engram_models::kernels::Mode;
use engram_models::params::{ExternalTable, ParameterBuilder, Parameters};
use engram_models::recompute::Recompute;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use sha2::{Digest, Sha256};

use crate::Stop;
pub use crate::error::StudyError;
use crate::recipe::Phase;
pub use crate::run_folder::Inputs;
use crate::step_features::{Features, StepFeatures};

/// The ids that a micro-batch looks up in embedding tables.
pub type TableIds = Vec<(Arc<ExternalTable>, Arc<[u32]>)>;

/// The result of a study's own code. Any error converts into it with `?`.
pub type StudyResult<T> = Result<T, StudyError>;

/// A study: its data, model, loss and evaluation. [`StudyExtension`] has the methods that only some
/// studies need.
///
/// The results of methods with `&self` may depend only on the recipe, the seed, the arguments, and
/// state that [`Study::begin_phase`] or [`StudyExtension::restore`] rebuilds. A resumed run calls
/// these methods again and must get the same bytes.
pub trait Study {
    /// The model that is trained.
    type Model;

    /// The input of one forward pass.
    type Batch;

    /// The value of `study` in a recipe.
    fn name(&self) -> &str;

    /// The metric for selecting the best checkpoint and for early stopping.
    fn primary_metric(&self) -> MetricSpec;

    /// Builds the model with the parameters of this builder.
    ///
    /// The trainer calls this method at the start of each phase, because frozen parameters are
    /// plain tensors and trainable parameters are variables. The trainer then copies values into
    /// the builder's parameters by name, from the previous phase or a checkpoint.
    fn build(&self, builder: &ParameterBuilder) -> StudyResult<Self::Model>;

    /// Called when a phase starts or is resumed. A study can prepare the phase's data here.
    fn begin_phase(&mut self, _: &Phase) -> StudyResult<()> {
        Ok(())
    }

    /// The micro-batches of an epoch in order. `rng` depends only on the run's seed, the phase and
    /// the epoch.
    fn batches(&self, phase: &Phase, rng: &mut ChaCha8Rng) -> StudyResult<Vec<Self::Batch>>;

    /// Called before each step with the current parameters. A study can update data that depend on
    /// them here, such as a memory.
    fn before_step(&mut self, _: &StepContext<'_>, _: &Parameters) -> StudyResult<()> {
        Ok(())
    }

    /// Computes the loss of one micro-batch, as a tensor for the backward pass.
    fn loss(
        &self,
        model: &Self::Model,
        batch: &Self::Batch,
        step: &StepContext<'_>,
    ) -> StudyResult<BatchLoss>;

    /// Evaluates a model during training, on rank 0. The result includes the primary metric.
    fn evaluate(
        &self,
        model: &Self::Model,
        context: &EvaluationContext<'_>,
    ) -> StudyResult<Evaluation>;

    /// Names and SHA-256 hashes of all inputs other than the recipe. A run can only be resumed with
    /// the same inputs.
    fn inputs(&self) -> StudyResult<Inputs> {
        Ok(Inputs::new())
    }

    /// The title of the model card.
    fn card_title(&self) -> String {
        format!("A model of the study `{}`", self.name())
    }

    /// Further entries for the model card: data sets with their sizes, base model, licence, and a
    /// command that uses the model.
    fn card(&self) -> Vec<(String, String)> {
        Vec::new()
    }
}

/// Methods that only some studies need, for example for state of their own, losses over a whole
/// step, or data and embedding tables that ranks share. Every method has a default, so most studies
/// need one line: `impl StudyExtension for MyStudy {}`.
pub trait StudyExtension: Study {
    /// Whether the study supports `[embedding_tables]`. Such a study implements
    /// [`StudyExtension::table_ids`]. It runs the model only in [`Study::loss`] and
    /// [`Study::evaluate`], because the model has the rows of its tables only there.
    const SUPPORTS_EMBEDDING_TABLES: bool = false;

    /// Writes the study's own state to a checkpoint folder, for resuming.
    fn save(&self, _folder: &Path) -> StudyResult<()> {
        Ok(())
    }

    /// Reads the state that [`StudyExtension::save`] wrote to a checkpoint folder. The parameters
    /// are already restored.
    fn restore(&mut self, _folder: &Path) -> StudyResult<()> {
        Ok(())
    }

    /// The ids that [`Study::loss`] looks up in the model's external embedding tables for a
    /// micro-batch.
    fn table_ids(&self, _: &Self::Model, _: &Self::Batch) -> StudyResult<TableIds> {
        Ok(TableIds::new())
    }

    /// Computes the features of a micro-batch for a loss over the whole step, such as its
    /// embeddings; `None` if the phase has no such loss. Only called with `batch.negatives =
    /// "step"`, for all micro-batches of a step before [`Study::loss`].
    fn features(
        &self,
        _: &Self::Model,
        _: &Self::Batch,
        _: &StepContext<'_>,
    ) -> StudyResult<Option<Features>> {
        Ok(None)
    }

    /// Takes the study's record of all [`Study::loss`] calls since the last call of this method, as
    /// text: for example, statistics that [`StudyExtension::save`] writes. Empty for a study
    /// without a record. Only called if several ranks share the micro-batches of a step.
    fn take_record(&self) -> StudyResult<String> {
        Ok(String::new())
    }

    /// Restores a record from its parts: the record before a step, then the records of its
    /// micro-batches. Only called if several ranks share the micro-batches of a step.
    fn add_records(&self, _: &[String]) -> StudyResult<()> {
        Ok(())
    }

    /// Called on all ranks before [`Study::evaluate`]. A study can update data that the ranks share
    /// here, such as a memory. If rank 0 is asked to stop, all ranks return
    /// [`Stopped`](crate::Stopped).
    fn before_evaluation(&mut self, _: &Self::Model, _: &EvaluationContext<'_>) -> StudyResult<()> {
        Ok(())
    }
}

/// The random number generator for the batches of an epoch. Epochs count from 0 within the phase.
pub(crate) fn epoch_rng(seed: u64, phase: &Phase, epoch: usize) -> ChaCha8Rng {
    let mut hash = Sha256::new();
    for number in [seed, phase.index as u64, epoch as u64] {
        hash.update(number.to_le_bytes());
    }
    ChaCha8Rng::from_seed(hash.finalize().into())
}

/// The name and the direction of a metric.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MetricSpec {
    /// The name of a metric that the study's evaluation returns.
    pub name: String,
    /// Whether a higher value is better.
    pub higher_is_better: bool,
}

impl MetricSpec {
    /// A metric where higher is better, such as Pearson's r.
    pub fn higher(name: impl Into<String>) -> Self {
        Self { name: name.into(), higher_is_better: true }
    }

    /// A metric where lower is better, such as the word error rate.
    pub fn lower(name: impl Into<String>) -> Self {
        Self { name: name.into(), higher_is_better: false }
    }

    /// Whether `new` is better than `old` by more than `margin`. NaN is never better. If `old` is
    /// `None`, any other value is better.
    pub fn improves(&self, new: f64, old: Option<f64>, margin: f64) -> bool {
        match old {
            None => !new.is_nan(),
            Some(old) if self.higher_is_better => new > old + margin,
            Some(old) => new < old - margin,
        }
    }
}

/// The position in training for which a loss is computed.
#[derive(Debug, Clone, Copy)]
pub struct StepContext<'a> {
    /// The seed of all randomness in this forward pass (dropout, sampling). It depends only on the
    /// run's seed, the step and the micro-batch.
    pub step_seed: u64,
    /// The step over all phases, counted from 1.
    pub step: u64,
    /// The micro-batch within the step, counted from 0.
    pub micro_batch: usize,
    /// The phase.
    pub phase: &'a Phase,
    /// The epoch within the phase, counted from 0.
    pub epoch: usize,
    /// The completed fraction of the phase's steps, 0 to 1.
    pub progress: f64,
    /// The values that the backward pass computes again.
    pub recompute: Recompute,
    /// The features of the step's micro-batches, for a loss over all of them.
    pub features: Option<&'a StepFeatures>,
}

impl StepContext<'_> {
    /// The mode of this forward pass: training, with the dropout masks of `step_seed`.
    pub fn mode(&self) -> Mode {
        Mode::train(self.step_seed).recompute(self.recompute)
    }
}

/// The loss of one micro-batch.
#[derive(Debug, Clone)]
pub struct BatchLoss {
    /// The mean loss over the examples, a scalar.
    pub loss: Tensor,
    /// The number of examples. It is the weight of this micro-batch within a step: 0 if none of them
    /// can be used.
    pub examples: usize,
    /// The number of tokens, frames or patches, for the speed log.
    pub tokens: usize,
    /// Components of the loss with their names, for the log.
    pub parts: Vec<(String, f64)>,
}

/// The position in training at an evaluation.
#[derive(Debug, Clone, Copy)]
pub struct EvaluationContext<'a> {
    /// Steps done over all phases.
    pub step: u64,
    /// The phase.
    pub phase: &'a Phase,
    /// The epoch within the phase, counted from 0.
    pub epoch: usize,
    /// The run folder, where the study may write samples.
    pub run: &'a Path,
    /// The stop request, which the study checks between batches. An evaluation may return
    /// [`Stopped`](crate::Stopped). The resumed run then repeats it from the start.
    pub stop: &'a Stop,
}

/// The result of an evaluation.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Evaluation {
    /// Metrics in display order, including the primary metric.
    pub metrics: Vec<(String, f64)>,
    /// The number of examples of each split or class.
    pub counts: Vec<(String, u64)>,
}

impl Evaluation {
    /// The value of the metric with this name; `None` if there is none.
    pub fn get(&self, name: &str) -> Option<f64> {
        self.metrics.iter().find(|(n, _)| n == name).map(|(_, value)| *value)
    }
}
