//! One optimiser step: micro-batches, checks, clipping, optimiser, EMA.

use engram_models::gradients::GradientFault;
use engram_models::layers::{branch_weight, up_projection};
use engram_models::params::{Parameter, Parameters, path_matches};

use super::phase::study_error;
use super::reducer::{Pass, Reducer};
use super::tables::{PhaseTables, RateFactors};
use crate::awp::Perturbation;
use crate::distributed::Ranks;
use crate::ema::Ema;
use crate::error::{Result, TrainError};
use crate::optimiser::{Optimiser, StepSize};
use crate::recipe::{BatchSettings, Phase, Recipe};
use crate::step_features::StepFeatures;
use crate::study::{StepContext, StudyExtension};

/// A phase's parameters with their gradients, optimiser and EMA.
pub(super) struct Stepper {
    pub(super) parameters: Parameters,
    pub(super) optimiser: Optimiser,
    pub(super) ema: Option<Ema>,
    pub(super) reducer: Reducer,
    /// The factor on the learning rate of each trainable parameter.
    rate_factors: Vec<f64>,
}

/// The position of a step in its run, with the settings of the step.
#[derive(Clone, Copy)]
pub(super) struct Position<'a> {
    pub(super) recipe: &'a Recipe,
    pub(super) phase: &'a Phase,
    pub(super) epoch: usize,
    /// The step over all phases, counted from 1.
    pub(super) step: u64,
    /// The completed fraction of the phase's steps, 0 to 1.
    pub(super) progress: f64,
    pub(super) learning_rate: f64,
    /// Whether the phase's gradients still have to be checked.
    pub(super) check_gradients: bool,
}

impl<'a> Position<'a> {
    /// The context of a micro-batch for the study.
    pub(super) fn context<'b>(
        &self,
        micro_batch: usize,
        features: Option<&'b StepFeatures>,
    ) -> StepContext<'b>
    where
        'a: 'b,
    {
        let seed = self.recipe.seed;
        StepContext {
            step_seed: super::state::step_seed(seed, self.step, micro_batch),
            step: self.step,
            micro_batch,
            phase: self.phase,
            epoch: self.epoch,
            progress: self.progress,
            recompute: self.recipe.compute.recompute,
            features,
        }
    }
}

/// The result of a step.
pub(super) enum StepOutcome {
    /// The parameters were updated. The second value is the gradient norm.
    Updated(Pass, f64),
    /// None of the examples can be used, so the step was skipped.
    Empty,
    /// A value was not finite, so the step was skipped. The text names the value.
    NotFinite(String),
}

impl Stepper {
    /// A stepper for these parameters, with initial optimiser state. Without `initial_tables`, the
    /// tables in parts are zero, and get their values later.
    pub(super) fn new(
        recipe: &Recipe,
        phase: &Phase,
        parameters: Parameters,
        ranks: &Ranks,
        initial_tables: bool,
    ) -> Result<Self> {
        let factors = RateFactors::new(recipe, &parameters);
        let tables =
            PhaseTables::new(recipe, phase, &parameters, &factors.tables, ranks, initial_tables)?;
        Ok(Self {
            reducer: Reducer::new(&parameters, tables, ranks),
            rate_factors: factors.parameters,
            optimiser: Optimiser::new(&recipe.rules(phase), &parameters),
            ema: recipe.ema.as_ref().map(|ema| Ema::new(ema.decay, &parameters)).transpose()?,
            parameters,
        })
    }

    /// The embedding tables that the ranks keep in parts.
    pub(super) fn tables(&mut self) -> Option<&mut PhaseTables> {
        self.reducer.tables.as_mut()
    }

    /// Takes one optimiser step with these micro-batches.
    pub(super) fn step<S: StudyExtension>(
        &mut self,
        study: &S,
        model: &S::Model,
        batches: &[S::Batch],
        position: &Position<'_>,
    ) -> Result<StepOutcome> {
        let mut pass = match self.pass(study, model, batches, position)? {
            Ok(pass) => pass,
            Err(not_finite) => return Ok(StepOutcome::NotFinite(not_finite)),
        };
        if pass.examples == 0 {
            return Ok(StepOutcome::Empty);
        }
        if position.check_gradients {
            self.check_gradients(position)?;
        }
        if let Some(awp) =
            position.recipe.awp.as_ref().filter(|awp| position.epoch >= awp.start_epoch)
        {
            let perturbation =
                Perturbation::apply(awp, &self.parameters, &self.reducer.gradients, pass.scale)?;
            let perturbed_pass = self.pass(study, model, batches, position);
            perturbation.restore(&self.parameters)?;
            match perturbed_pass? {
                // The logged loss is the loss of the unperturbed weights.
                Ok(perturbed_pass) => {
                    (pass.scale, pass.norm) = (perturbed_pass.scale, perturbed_pass.norm)
                }
                Err(not_finite) => return Ok(StepOutcome::NotFinite(not_finite)),
            }
        }
        let norm = pass.norm * pass.scale;
        let size = StepSize {
            learning_rate: position.learning_rate,
            gradient_scale: pass.scale * clip_factor(norm, position.recipe.optimiser.clip_norm),
        };
        self.optimiser.step(&self.parameters, &self.reducer.gradients, &self.rate_factors, size)?;
        self.reducer.step_tables(size)?;
        if let Some(ema) = &mut self.ema {
            ema.update(&self.parameters, self.optimiser.steps)?;
        }
        Ok(StepOutcome::Updated(pass, norm))
    }

    /// Computes the gradients of a step: forward and backward for each micro-batch. The inner error
    /// describes a value that is not finite.
    fn pass<S: StudyExtension>(
        &mut self,
        study: &S,
        model: &S::Model,
        batches: &[S::Batch],
        position: &Position<'_>,
    ) -> Result<Result<Pass, String>> {
        let mut pass = self.reducer.begin(study, model, batches, position)?;
        for micro_batch in pass.micro_batches() {
            let context = pass.context(micro_batch)?;
            let loss = study.loss(model, &batches[micro_batch], &context);
            let loss = loss.map_err(study_error(study, "loss"))?;
            if !pass.backward(micro_batch, loss)? {
                break;
            }
        }
        pass.finish()
    }

    /// Returns an error if a parameter has a missing or invalid gradient that the recipe does not
    /// allow. An exception for a weight also applies to its low-rank branch. A branch's `A` may
    /// always have a zero gradient, because `B` is zero at the first step.
    fn check_gradients(&self, position: &Position<'_>) -> Result<()> {
        let allowed = &position.recipe.gradient_check.allow;
        let mut faults = self.reducer.faults();
        faults.retain(|(name, fault)| {
            let up = up_projection(name).and_then(|name| self.parameters.get(&name));
            let zero_at_start =
                *fault == GradientFault::Zero && up.is_some_and(Parameter::is_trainable);
            let weight = branch_weight(name);
            let matches = |pattern: &String| {
                let pattern = pattern.as_bytes();
                path_matches(pattern, name.as_bytes())
                    || weight.as_ref().is_some_and(|name| path_matches(pattern, name.as_bytes()))
            };
            !zero_at_start && !allowed.iter().any(matches)
        });
        if faults.is_empty() {
            return Ok(());
        }
        let faults = faults.iter().map(|(name, fault)| format!("`{name}`: {fault}"));
        Err(TrainError::Refused(format!(
            "gradient check in phase `{}`: {}; freeze them with a [[group]] of rate 0, allow them in \
             [gradient_check], or fix the model",
            position.phase.name,
            faults.collect::<Vec<_>>().join(", ")
        )))
    }
}

/// The factor that clips a norm to `limit` (0 for no limit), like `torch.nn.utils.clip_grad_norm_`.
fn clip_factor(norm: f64, limit: f64) -> f64 {
    if limit > 0.0 { (limit / (norm + 1e-6)).min(1.0) } else { 1.0 }
}

/// The errors of failed allocations, by the driver and by cuBLAS.
const ALLOCATION_FAILED: [&str; 2] = ["CUDA_ERROR_OUT_OF_MEMORY", "CUBLAS_STATUS_ALLOC_FAILED"];

/// Replaces the error of a failed allocation on a GPU by an error with the study, the batch and the
/// remedies. Returns other errors unchanged.
pub(super) fn explain(error: TrainError, study: &str, batch: &BatchSettings) -> TrainError {
    let text = error.to_string();
    if !ALLOCATION_FAILED.iter().any(|code| text.contains(code)) {
        return error;
    }
    let BatchSettings { examples, tokens, .. } = batch;
    let tokens = if *tokens > 0 { format!(" and {tokens} tokens") } else { String::new() };
    TrainError::Refused(format!(
        "the GPU's memory is too small for a step of `{study}` with a batch of {examples} \
         examples{tokens}; set `compute.recompute`, or a smaller `batch.examples` with a larger \
         `batch.accumulate`"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_allocation_names_the_batch_and_the_remedies() {
        let explained = |text: &str| {
            let source = text.to_string().into();
            let error = TrainError::Study { study: "clip".into(), part: "loss", source };
            explain(error, "clip", &BatchSettings { examples: 48, ..BatchSettings::default() })
        };
        let error =
            explained("DriverError(CUDA_ERROR_OUT_OF_MEMORY, \"out of memory\")").to_string();
        for part in ["`clip`", "48 examples;", "compute.recompute", "batch.accumulate"] {
            assert!(error.contains(part), "{error}");
        }
        assert!(explained("another error").to_string().contains("another error"));
    }
}
