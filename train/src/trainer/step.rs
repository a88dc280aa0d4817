//! One optimiser step: micro-batches, checks, clipping, optimiser, EMA.

use engram_models::compute::to_host;
use engram_models::gradients::{GradientFault, Gradients};
use engram_models::params::{Parameters, path_matches};

use crate::awp::Perturbation;
use crate::ema::Ema;
use crate::error::{Result, TrainError};
use crate::layer_rate::layer_rates;
use crate::optimiser::{Optimiser, StepSize};
use crate::recipe::{Phase, Recipe};
use crate::study::{StepContext, Study};

/// A phase's parameters with their optimiser and EMA.
pub(super) struct Stepper {
    pub(super) parameters: Parameters,
    pub(super) optimiser: Optimiser,
    pub(super) ema: Option<Ema>,
    gradients: Gradients,
    rates: Vec<f64>,
}

/// The position of a step in its run.
#[derive(Clone, Copy)]
pub(super) struct Position<'a> {
    pub(super) recipe: &'a Recipe,
    pub(super) phase: &'a Phase,
    pub(super) epoch: usize,
    /// The step over all phases, counted from 1.
    pub(super) step: u64,
    pub(super) progress: f64,
    pub(super) learning_rate: f64,
    /// Whether the phase's gradients still have to be checked.
    pub(super) check_gradients: bool,
}

impl<'a> Position<'a> {
    /// The context of a micro-batch for the study.
    pub(super) fn context(&self, micro_batch: usize) -> StepContext<'a> {
        let seed = self.recipe.seed();
        StepContext {
            step_seed: super::state::step_seed(seed, self.step, micro_batch),
            step: self.step,
            micro_batch,
            phase: self.phase,
            epoch: self.epoch,
            progress: self.progress,
        }
    }
}

/// The result of a step.
pub(super) enum StepOutcome {
    /// The parameters were updated. The second value is the gradient norm.
    Updated(Pass, f64),
    /// A value was not finite, so the step was skipped. The text names the value.
    NotFinite(String),
}

/// One forward and backward pass over the micro-batches of a step.
#[derive(Default)]
pub(super) struct Pass {
    /// The mean loss over all examples.
    pub(super) loss: f64,
    pub(super) examples: usize,
    pub(super) tokens: usize,
    pub(super) parts: Vec<(String, f64)>,
    /// The factor from summed gradients to their mean.
    scale: f64,
    /// The Euclidean norm of the summed gradients.
    norm: f64,
}

impl Stepper {
    /// A stepper with fresh optimiser state for these parameters.
    pub(super) fn new(recipe: &Recipe, phase: &Phase, parameters: Parameters) -> Result<Self> {
        let names: Vec<&str> = parameters.trainable().map(|p| p.name()).collect();
        let layers = layer_rates(&names, recipe.optimiser().layer_rate_decay);
        let rates = parameters.trainable().zip(layers).map(|(p, layer)| p.rate() * layer);
        Ok(Self {
            rates: rates.collect(),
            optimiser: Optimiser::new(&recipe.rules(phase), &parameters),
            ema: recipe.ema().map(|ema| Ema::new(ema.decay, &parameters)).transpose()?,
            gradients: Gradients::new(&parameters),
            parameters,
        })
    }

    /// Takes one optimiser step with these micro-batches.
    pub(super) fn step<S: Study>(
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
        if position.check_gradients {
            self.check_gradients(position)?;
        }
        if let Some(awp) = position.recipe.awp().filter(|awp| position.epoch >= awp.start_epoch) {
            let moved = Perturbation::apply(awp, &self.parameters, &self.gradients, pass.scale)?;
            let second = self.pass(study, model, batches, position);
            moved.restore(&self.parameters)?;
            match second? {
                // The logged loss is the loss of the unperturbed weights.
                Ok(second) => (pass.scale, pass.norm) = (second.scale, second.norm),
                Err(not_finite) => return Ok(StepOutcome::NotFinite(not_finite)),
            }
        }
        let norm = pass.norm * pass.scale;
        let size = StepSize {
            learning_rate: position.learning_rate,
            gradient_scale: pass.scale * clip_factor(norm, position.recipe.optimiser().clip_norm),
        };
        self.optimiser.step(&self.parameters, &self.gradients, &self.rates, size)?;
        if let Some(ema) = &mut self.ema {
            ema.update(&self.parameters, self.optimiser.steps())?;
        }
        Ok(StepOutcome::Updated(pass, norm))
    }

    /// Computes the gradients. The inner error describes a value that is not finite.
    fn pass<S: Study>(
        &mut self,
        study: &S,
        model: &S::Model,
        batches: &[S::Batch],
        position: &Position<'_>,
    ) -> Result<Result<Pass, String>> {
        self.gradients.clear();
        let mut sum = Pass::default();
        let mut first_examples = 0;
        for (micro_batch, batch) in batches.iter().enumerate() {
            let context = position.context(micro_batch);
            let found = study.loss(model, batch, &context);
            let found = found.map_err(super::phase::study_error(study, "loss"))?;
            let examples = found.examples.max(1);
            let loss = candle(to_host(&found.loss))?;
            let [loss] = loss[..] else {
                let reason = format!("the loss has shape {:?}, not one value", found.loss.dims());
                return Err(super::phase::study_error(study, "loss")(reason.into()));
            };
            let loss = f64::from(loss);
            if !loss.is_finite() {
                return Ok(Err(format!("the loss was {loss}")));
            }
            // The first micro-batch has weight 1, so a step of a single micro-batch needs no
            // scaling.
            if micro_batch == 0 {
                first_examples = examples;
            }
            let weight = examples as f64 / first_examples as f64;
            let weighted = if examples == first_examples {
                found.loss
            } else {
                candle(found.loss.affine(weight, 0.0))?
            };
            self.gradients.backward(&weighted)?;
            sum.loss += loss * examples as f64;
            sum.examples += examples;
            sum.tokens += found.tokens;
            for (name, value) in found.parts {
                let value = value * examples as f64;
                match sum.parts.iter_mut().find(|(existing, _)| *existing == name) {
                    Some((_, total)) => *total += value,
                    None => sum.parts.push((name, value)),
                }
            }
        }
        let examples = sum.examples as f64;
        sum.loss /= examples;
        sum.parts.iter_mut().for_each(|(_, value)| *value /= examples);
        sum.scale = first_examples as f64 / examples;
        sum.norm = self.gradients.global_norm();
        if !sum.norm.is_finite() {
            let faults = self.gradients.missing_or_invalid().into_iter();
            let named = faults.filter(|(_, fault)| *fault == GradientFault::NotFinite);
            let names: Vec<String> = named.take(5).map(|(name, _)| format!("`{name}`")).collect();
            return Ok(Err(format!("the gradients of {} were not finite", names.join(", "))));
        }
        Ok(Ok(sum))
    }

    fn check_gradients(&self, position: &Position<'_>) -> Result<()> {
        let allowed = &position.recipe.gradient_check().allow;
        let mut found = self.gradients.missing_or_invalid();
        found.retain(|(name, _)| {
            !allowed.iter().any(|pattern| path_matches(pattern.as_bytes(), name.as_bytes()))
        });
        if found.is_empty() {
            return Ok(());
        }
        Err(TrainError::GradientCheck { phase: position.phase.name.clone(), found })
    }
}

/// The factor that clips a norm to `limit` (0 for none), like `torch.nn.utils.clip_grad_norm_`.
fn clip_factor(norm: f64, limit: f64) -> f64 {
    if limit > 0.0 { (limit / (norm + 1e-6)).min(1.0) } else { 1.0 }
}

fn candle<T>(result: candle_core::Result<T>) -> Result<T> {
    result.map_err(|e| TrainError::Model(e.into()))
}
