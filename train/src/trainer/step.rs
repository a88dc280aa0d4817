//! One optimiser step: micro-batches, checks, clipping, optimiser, EMA.

use engram_models::compute::to_host;
use engram_models::gradients::{GradientFault, GradientSet, Gradients};
use engram_models::layers::{branch_weight, up_projection};
use engram_models::params::{Parameter, Parameters, path_matches};
use serde::{Deserialize, Serialize};

use super::phase::study_error;
use super::tables::{PhaseTables, RateFactors, StepRows};
use crate::awp::Perturbation;
use crate::distributed::sharded_tables::TableGradients;
use crate::distributed::tree::share;
use crate::distributed::{MicroBatchSum, Ranks};
use crate::ema::Ema;
use crate::error::{Result, TrainError};
use crate::optimiser::{Optimiser, StepSize};
use crate::recipe::{Negatives, Phase, Recipe};
use crate::step_features::{Features, StepFeatures};
use crate::study::{StepContext, Study, StudyResult};

/// A phase's parameters with their optimiser and EMA.
pub(super) struct Stepper {
    pub(super) parameters: Parameters,
    pub(super) optimiser: Optimiser,
    pub(super) ema: Option<Ema>,
    gradients: Gradients,
    /// Unused buffers for sums of micro-batches.
    spare: Vec<GradientSet>,
    /// The embedding tables that the ranks keep in parts.
    pub(super) tables: Option<PhaseTables>,
    /// The gradients of these tables, with each table's index and sum of squares.
    table_gradients: Option<(TableGradients, Vec<(usize, f64)>)>,
    ranks: Ranks,
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
        let seed = self.recipe.seed();
        StepContext {
            step_seed: super::state::step_seed(seed, self.step, micro_batch),
            step: self.step,
            micro_batch,
            phase: self.phase,
            epoch: self.epoch,
            progress: self.progress,
            recompute: self.recipe.recompute(),
            features,
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
    /// The means of the loss components over all examples, by name.
    pub(super) parts: Vec<(String, f64)>,
    /// The factor from summed gradients to their mean.
    scale: f64,
    /// The Euclidean norm of the summed gradients.
    norm: f64,
}

impl Pass {
    /// The means over all micro-batches of a step, which are in order.
    fn of(micro_batches: impl Iterator<Item = MicroBatch>) -> Self {
        let mut sum = Self::default();
        let mut first_examples = None;
        for MicroBatch { loss, examples, tokens, parts } in micro_batches {
            first_examples.get_or_insert(examples);
            sum.loss += f64::from_bits(loss) * examples as f64;
            sum.examples += examples;
            sum.tokens += tokens;
            for (name, value) in parts {
                let value = f64::from_bits(value) * examples as f64;
                match sum.parts.iter_mut().find(|(existing, _)| *existing == name) {
                    Some((_, total)) => *total += value,
                    None => sum.parts.push((name, value)),
                }
            }
        }
        let examples = sum.examples as f64;
        sum.loss /= examples;
        sum.parts.iter_mut().for_each(|(_, value)| *value /= examples);
        sum.scale = first_examples.unwrap_or(0) as f64 / examples;
        sum
    }
}

/// The passes of one rank in a step.
#[derive(Default, Serialize, Deserialize)]
struct RankPasses {
    micro_batches: Vec<MicroBatch>,
    /// Describes the first loss that is not finite.
    not_finite: Option<String>,
    /// See [`Study::take_record`]; empty for a single rank.
    records: Vec<String>,
    /// See [`MicroBatchSum::written`]; empty for a single rank.
    written: Vec<Vec<bool>>,
}

/// The record before the step and the records of all micro-batches, up to the first whose loss is
/// not finite: a single rank computes no further ones.
fn records(before: String, all: &[RankPasses]) -> Vec<String> {
    let first_fault = all.iter().position(|passes| passes.not_finite.is_some());
    let count = first_fault.map_or(all.len(), |rank| rank + 1);
    let records = all.iter().take(count).flat_map(|passes| passes.records.iter().cloned());
    std::iter::once(before).chain(records).collect()
}

/// The loss of one micro-batch. Numbers are stored as bits, because JSON has no NaN and no infinity.
#[derive(Serialize, Deserialize)]
struct MicroBatch {
    loss: u64,
    examples: usize,
    tokens: usize,
    parts: Vec<(String, u64)>,
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
        Ok(Self {
            tables: PhaseTables::new(
                recipe,
                phase,
                (&parameters, &factors.tables),
                ranks,
                initial_tables,
            )?,
            table_gradients: None,
            rate_factors: factors.parameters,
            optimiser: Optimiser::new(&recipe.rules(phase), &parameters),
            ema: recipe.ema().map(|ema| Ema::new(ema.decay, &parameters)).transpose()?,
            gradients: Gradients::new(&parameters),
            spare: Vec::new(),
            ranks: ranks.clone(),
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
            let perturbation =
                Perturbation::apply(awp, &self.parameters, &self.gradients, pass.scale)?;
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
            gradient_scale: pass.scale * clip_factor(norm, position.recipe.optimiser().clip_norm),
        };
        self.optimiser.step(&self.parameters, &self.gradients, &self.rate_factors, size)?;
        if let (Some(tables), Some((gradients, _))) =
            (&mut self.tables, self.table_gradients.take())
        {
            tables.step(&gradients, size)?;
        }
        if let Some(ema) = &mut self.ema {
            ema.update(&self.parameters, self.optimiser.steps())?;
        }
        Ok(StepOutcome::Updated(pass, norm))
    }

    /// Computes the gradients, each rank those of its micro-batches, and adds them. The inner error
    /// describes a value that is not finite.
    fn pass<S: Study>(
        &mut self,
        study: &S,
        model: &S::Model,
        batches: &[S::Batch],
        position: &Position<'_>,
    ) -> Result<Result<Pass, String>> {
        self.table_gradients = None;
        let ranks = self.ranks.clone();
        let several = ranks.size() > 1;
        let study_failed = |error| study_error(study, "records")(error);
        let record =
            if several { study.take_record().map_err(study_failed)? } else { String::new() };
        let mut sum = MicroBatchSum::new(batches.len());
        let own = share(batches.len(), ranks.size(), ranks.rank());
        let rows = self.tables.as_ref().map(|tables| tables.look_up(study, model, batches, own));
        let mut rows = rows.transpose()?;
        let own = ranks.share_reads(|| {
            self.own_passes(study, model, batches, position, (&mut sum, rows.as_mut()))
        });
        if let Some(tables) = &self.tables {
            tables.hide();
        }
        let mut own = own?;
        if several {
            own.written = sum.written(&self.gradients);
        }
        let all = ranks.gather(own)?;
        if several {
            study.add_records(&records(record, &all)).map_err(study_failed)?;
        }
        if let Some(not_finite) = all.iter().find_map(|passes| passes.not_finite.clone()) {
            return Ok(Err(not_finite));
        }
        let written: Vec<Vec<Vec<bool>>> =
            all.iter().map(|passes| passes.written.clone()).collect();
        sum.reduce(&ranks, &written, &mut self.gradients, &mut self.spare)?;
        let tables = self.tables.as_ref().zip(rows);
        self.table_gradients = tables.map(|(tables, rows)| tables.reduce(rows.sum)).transpose()?;
        let mut pass = Pass::of(all.into_iter().flat_map(|passes| passes.micro_batches));
        let squares = self.table_gradients.as_ref().map_or(&[][..], |(_, squares)| squares);
        pass.norm = self.gradients.global_norm_with(squares);
        if !pass.norm.is_finite() {
            let faults = self.faults().into_iter();
            let not_finite = faults.filter(|(_, fault)| *fault == GradientFault::NotFinite);
            let names: Vec<String> =
                not_finite.take(5).map(|(name, _)| format!("`{name}`")).collect();
            return Ok(Err(format!("the gradients of {} were not finite", names.join(", "))));
        }
        Ok(Ok(pass))
    }

    /// Computes the gradients of this rank's micro-batches, up to the first loss that is not finite.
    fn own_passes<S: Study>(
        &mut self,
        study: &S,
        model: &S::Model,
        batches: &[S::Batch],
        position: &Position<'_>,
        (sum, mut rows): (&mut MicroBatchSum, Option<&mut StepRows>),
    ) -> Result<RankPasses> {
        self.gradients.clear();
        let own = share(batches.len(), self.ranks.size(), self.ranks.rank());
        let mut passes = RankPasses::default();
        let mut first_examples = None;
        let mut features = self.features(study, model, batches, position)?;
        for micro_batch in own.clone() {
            if let Some(features) = &mut features {
                features.select(micro_batch);
            }
            let selected = self.tables.as_ref().zip(rows.as_deref());
            let selected =
                selected.map(|(tables, rows)| tables.select(rows, micro_batch)).transpose()?;
            let context = position.context(micro_batch, features.as_ref());
            let batch_loss = study.loss(model, &batches[micro_batch], &context);
            let batch_loss = batch_loss.map_err(study_error(study, "loss"))?;
            if self.ranks.size() > 1 {
                let record = study.take_record();
                passes.records.push(record.map_err(study_error(study, "records"))?);
            }
            let examples = batch_loss.examples.max(1);
            // The first micro-batch has weight 1, so a step of a single micro-batch needs no
            // scaling.
            let first_examples = match first_examples {
                Some(first_examples) => first_examples,
                None => *first_examples.insert(self.ranks.broadcast(examples)?),
            };
            let loss = model_result(to_host(&batch_loss.loss))?;
            let [loss] = loss[..] else {
                let reason =
                    format!("the loss has shape {:?}, not one value", batch_loss.loss.dims());
                return Err(study_error(study, "loss")(reason.into()));
            };
            let loss = f64::from(loss);
            if !loss.is_finite() {
                passes.not_finite = Some(format!("the loss was {loss}"));
                return Ok(passes);
            }
            let weighted = if examples == first_examples {
                batch_loss.loss
            } else {
                let weight = examples as f64 / first_examples as f64;
                model_result(batch_loss.loss.affine(weight, 0.0))?
            };
            sum.make_room(&mut self.gradients, &mut self.spare);
            self.gradients.backward(&weighted)?;
            sum.add(micro_batch, &mut self.gradients, &mut self.spare)?;
            if let Some((rows, selected)) = rows.as_mut().zip(selected) {
                rows.sum.add(micro_batch, &selected);
            }
            let parts = batch_loss.parts.into_iter().map(|(name, value)| (name, value.to_bits()));
            passes.micro_batches.push(MicroBatch {
                loss: loss.to_bits(),
                examples,
                tokens: batch_loss.tokens,
                parts: parts.collect(),
            });
        }
        if own.is_empty() {
            // All ranks take part in the broadcast.
            self.ranks.broadcast(0)?;
        }
        Ok(passes)
    }

    /// Computes the features of all micro-batches, each rank those of its own. `None` if losses
    /// compare only the examples of a micro-batch.
    fn features<S: Study>(
        &self,
        study: &S,
        model: &S::Model,
        batches: &[S::Batch],
        position: &Position<'_>,
    ) -> Result<Option<StepFeatures>> {
        if position.recipe.batch().negatives == Negatives::MicroBatch {
            return Ok(None);
        }
        let own = share(batches.len(), self.ranks.size(), self.ranks.rank());
        let features = own.map(|micro_batch| {
            let context = position.context(micro_batch, None);
            study.features(model, &batches[micro_batch], &context)
        });
        let features: Vec<Option<Features>> =
            features.collect::<StudyResult<_>>().map_err(study_error(study, "features"))?;
        let features = StepFeatures::gather(features, &self.ranks)?;
        if let Some(features) = &features {
            features.check().map_err(study_error(study, "features"))?;
        }
        Ok(features)
    }

    /// The names and faults of all trainable parameters and tables whose gradient is missing, zero or
    /// not finite.
    fn faults(&self) -> Vec<(String, GradientFault)> {
        let mut faults = Vec::new();
        if let (Some(tables), Some((gradients, squares))) = (&self.tables, &self.table_gradients) {
            faults.extend(tables.faults(gradients, squares));
        }
        faults.extend(self.gradients.faults());
        faults
    }

    /// Returns an error if a parameter has a missing or invalid gradient that the recipe does not
    /// allow. A zero gradient of a low-rank branch's `A` is allowed: `B` is zero at the first step.
    /// What is allowed for a weight is allowed for its low-rank branch.
    fn check_gradients(&self, position: &Position<'_>) -> Result<()> {
        let allowed = &position.recipe.gradient_check().allow;
        let mut faults = self.faults();
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
        Err(TrainError::GradientCheck { phase: position.phase.name.clone(), faults })
    }
}

/// The factor that clips a norm to `limit` (0 for no limit), like `torch.nn.utils.clip_grad_norm_`.
fn clip_factor(norm: f64, limit: f64) -> f64 {
    if limit > 0.0 { (limit / (norm + 1e-6)).min(1.0) } else { 1.0 }
}

fn model_result<T>(result: candle_core::Result<T>) -> Result<T> {
    result.map_err(|e| TrainError::Model(e.into()))
}
