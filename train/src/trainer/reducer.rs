//! Adds the gradients of a step: over its micro-batches, and over all ranks.
//!
//! This module has all code for several ranks, for tables in parts and for losses over a whole
//! step, so that [`step`](super::step) reads like training on one machine.

use std::ops::Range;

use engram_models::compute::to_host;
use engram_models::gradients::{GradientFault, GradientSet, Gradients};
use engram_models::params::Parameters;
use serde::{Deserialize, Serialize};

use super::phase::study_error;
use super::step::Position;
use super::tables::{PhaseTables, StepRows};
use crate::distributed::rounds::OpenReads;
use crate::distributed::sharded_tables::{TableGradients, TableRows};
use crate::distributed::tree::share;
use crate::distributed::{MicroBatchSum, Ranks};
use crate::error::{Result, TrainError};
use crate::exact::Exact;
use crate::optimiser::StepSize;
use crate::recipe::Negatives;
use crate::step_features::{Features, StepFeatures};
use crate::study::{BatchLoss, StepContext, StudyExtension, StudyResult};

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
    pub(super) scale: f64,
    /// The Euclidean norm of the summed gradients.
    pub(super) norm: f64,
}

impl Pass {
    /// The means over all micro-batches of a step, which are in order.
    fn of(micro_batches: impl Iterator<Item = MicroBatch>) -> Self {
        let mut sum = Self::default();
        let mut first_examples = None;
        for MicroBatch { loss, examples, tokens, parts } in micro_batches {
            first_examples.get_or_insert(examples.max(1));
            sum.loss += loss.0 * examples as f64;
            sum.examples += examples;
            sum.tokens += tokens;
            for (name, value) in parts {
                let value = value.0 * examples as f64;
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
    /// See [`StudyExtension::take_record`]; empty for a single rank.
    records: Vec<String>,
    /// See [`MicroBatchSum::written`]; empty for a single rank.
    written: Vec<Vec<bool>>,
}

/// The record before the step, then the records of the micro-batches up to the first whose loss is
/// not finite, because a single rank stops there.
fn records(before: String, all: &[RankPasses]) -> Vec<String> {
    let first_fault = all.iter().position(|passes| passes.not_finite.is_some());
    let count = first_fault.map_or(all.len(), |rank| rank + 1);
    let records = all.iter().take(count).flat_map(|passes| passes.records.iter().cloned());
    std::iter::once(before).chain(records).collect()
}

/// The loss of one micro-batch.
#[derive(Serialize, Deserialize)]
struct MicroBatch {
    loss: Exact,
    examples: usize,
    tokens: usize,
    parts: Vec<(String, Exact)>,
}

/// The gradients of a phase's parameters and tables.
pub(super) struct Reducer {
    ranks: Ranks,
    pub(super) gradients: Gradients,
    /// Unused buffers for sums of micro-batches.
    spare: Vec<GradientSet>,
    /// The embedding tables that the ranks keep in parts.
    pub(super) tables: Option<PhaseTables>,
    /// The gradients of these tables, with each table's index and sum of squares.
    table_gradients: Option<(TableGradients, Vec<(usize, f64)>)>,
}

/// The passes of this rank over its micro-batches, while they are computed.
pub(super) struct RunningPass<'a, S: StudyExtension> {
    reducer: &'a mut Reducer,
    study: &'a S,
    position: &'a Position<'a>,
    /// The micro-batches of this rank.
    own: Range<usize>,
    /// The record before the step; empty for a single rank.
    record: String,
    sum: MicroBatchSum,
    features: Option<StepFeatures>,
    /// The rows of tables in parts that this rank uses.
    rows: Option<StepRows>,
    /// The rows of the current micro-batch.
    selected: Option<Vec<TableRows>>,
    reads: OpenReads,
    /// The number of examples in the first micro-batch of the step.
    first_examples: Option<usize>,
    passes: RankPasses,
}

impl Reducer {
    pub(super) fn new(parameters: &Parameters, tables: Option<PhaseTables>, ranks: &Ranks) -> Self {
        Self {
            ranks: ranks.clone(),
            gradients: Gradients::new(parameters),
            spare: Vec::new(),
            tables,
            table_gradients: None,
        }
    }

    /// Begins a pass over the micro-batches of a step. All ranks call this function, and then
    /// [`RunningPass::finish`].
    pub(super) fn begin<'a, S: StudyExtension>(
        &'a mut self,
        study: &'a S,
        model: &S::Model,
        batches: &[S::Batch],
        position: &'a Position<'a>,
    ) -> Result<RunningPass<'a, S>> {
        self.table_gradients = None;
        let record = match self.ranks.size() {
            1 => String::new(),
            _ => study.take_record().map_err(study_error(study, "records"))?,
        };
        let own = share(batches.len(), self.ranks.size(), self.ranks.rank());
        let tables = self.tables.as_ref();
        let rows = tables.map(|tables| tables.look_up(study, model, batches, own.clone()));
        let rows = rows.transpose()?;
        let reads = self.ranks.open_reads();
        self.gradients.clear();
        let features = self.features(study, model, batches, position, own.clone())?;
        Ok(RunningPass {
            reducer: self,
            study,
            position,
            own,
            record,
            sum: MicroBatchSum::new(batches.len()),
            features,
            rows,
            selected: None,
            reads,
            first_examples: None,
            passes: RankPasses::default(),
        })
    }

    /// Computes the features of all micro-batches. Each rank computes those of its range `own`, and
    /// the ranks exchange them. `None` if losses compare only the examples of a micro-batch.
    fn features<S: StudyExtension>(
        &self,
        study: &S,
        model: &S::Model,
        batches: &[S::Batch],
        position: &Position<'_>,
        own: Range<usize>,
    ) -> Result<Option<StepFeatures>> {
        if position.recipe.batch.negatives == Negatives::MicroBatch {
            return Ok(None);
        }
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

    /// The names and faults of all trainable parameters and tables whose gradient is missing, zero
    /// or not finite.
    pub(super) fn faults(&self) -> Vec<(String, GradientFault)> {
        let mut faults = Vec::new();
        if let (Some(tables), Some((gradients, squares))) = (&self.tables, &self.table_gradients) {
            faults.extend(tables.faults(gradients, squares));
        }
        faults.extend(self.gradients.faults());
        faults
    }

    /// Updates the tables in parts with their gradients of the last pass.
    pub(super) fn step_tables(&mut self, size: StepSize) -> Result<()> {
        match (&mut self.tables, self.table_gradients.take()) {
            (Some(tables), Some((gradients, _))) => tables.step(&gradients, size),
            _ => Ok(()),
        }
    }
}

impl<S: StudyExtension> RunningPass<'_, S> {
    /// The micro-batches of this rank.
    pub(super) fn micro_batches(&self) -> Range<usize> {
        self.own.clone()
    }

    /// Gives the model the table rows that a micro-batch uses, and returns the micro-batch's
    /// context.
    pub(super) fn context(&mut self, micro_batch: usize) -> Result<StepContext<'_>> {
        if let Some(features) = &mut self.features {
            features.select(micro_batch);
        }
        let tables = self.reducer.tables.as_ref().zip(self.rows.as_ref());
        let selected = tables.map(|(tables, rows)| tables.select(rows, micro_batch));
        self.selected = selected.transpose()?;
        Ok(self.position.context(micro_batch, self.features.as_ref()))
    }

    /// Adds the gradients of a micro-batch's loss. Returns `false` if the loss is not finite, which
    /// ends the step.
    pub(super) fn backward(&mut self, micro_batch: usize, batch: BatchLoss) -> Result<bool> {
        let Reducer { ranks, gradients, spare, .. } = &mut *self.reducer;
        if ranks.size() > 1 {
            let record = self.study.take_record();
            self.passes.records.push(record.map_err(study_error(self.study, "records"))?);
        }
        let examples = batch.examples;
        // The first micro-batch has weight 1, so a step of a single micro-batch needs no scaling.
        let first_examples = match self.first_examples {
            Some(first_examples) => first_examples,
            None => *self.first_examples.insert(ranks.broadcast(examples.max(1))?),
        };
        let loss = model_result(to_host(&batch.loss))?;
        let [loss] = loss[..] else {
            let reason = format!("the loss has shape {:?}, not one value", batch.loss.dims());
            return Err(study_error(self.study, "loss")(reason.into()));
        };
        let loss = f64::from(loss);
        if !loss.is_finite() {
            self.passes.not_finite = Some(format!("the loss was {loss}"));
            return Ok(false);
        }
        let weighted = if examples == first_examples {
            batch.loss
        } else {
            let weight = examples as f64 / first_examples as f64;
            model_result(batch.loss.affine(weight, 0.0))?
        };
        self.sum.make_room(gradients, spare);
        gradients.backward(&weighted)?;
        self.sum.add(micro_batch, gradients, spare)?;
        if let Some((rows, selected)) = self.rows.as_mut().zip(self.selected.take()) {
            rows.sum.add(micro_batch, &selected);
        }
        let parts = batch.parts.into_iter().map(|(name, value)| (name, Exact(value)));
        self.passes.micro_batches.push(MicroBatch {
            loss: Exact(loss),
            examples,
            tokens: batch.tokens,
            parts: parts.collect(),
        });
        Ok(true)
    }

    /// Adds the gradients of all ranks. The inner error describes a value that is not finite.
    pub(super) fn finish(self) -> Result<Result<Pass, String>> {
        let Self { reducer, study, sum, rows, record, mut passes, .. } = self;
        let Reducer { ranks, gradients, spare, tables, table_gradients } = reducer;
        if self.first_examples.is_none() {
            // A rank without a micro-batch takes part in the broadcast, too.
            ranks.broadcast(0)?;
        }
        self.reads.close()?;
        if let Some(tables) = tables {
            tables.hide();
        }
        if ranks.size() > 1 {
            passes.written = sum.written(gradients);
        }
        let all = ranks.gather(passes)?;
        if ranks.size() > 1 {
            let records = study.add_records(&records(record, &all));
            records.map_err(study_error(study, "records"))?;
        }
        if let Some(not_finite) = all.iter().find_map(|passes| passes.not_finite.clone()) {
            return Ok(Err(not_finite));
        }
        let written: Vec<Vec<Vec<bool>>> =
            all.iter().map(|passes| passes.written.clone()).collect();
        sum.reduce(ranks, &written, gradients, spare)?;
        let with_rows = tables.as_ref().zip(rows);
        *table_gradients = with_rows.map(|(tables, rows)| tables.reduce(rows.sum)).transpose()?;
        let mut pass = Pass::of(all.into_iter().flat_map(|passes| passes.micro_batches));
        let squares = table_gradients.as_ref().map_or(&[][..], |(_, squares)| squares);
        pass.norm = gradients.global_norm_with(squares);
        if !pass.norm.is_finite() {
            let faults = reducer.faults().into_iter();
            let not_finite = faults.filter(|(_, fault)| *fault == GradientFault::NotFinite);
            let names: Vec<String> =
                not_finite.take(5).map(|(name, _)| format!("`{name}`")).collect();
            return Ok(Err(format!("the gradients of {} were not finite", names.join(", "))));
        }
        Ok(Ok(pass))
    }
}

fn model_result<T>(result: candle_core::Result<T>) -> Result<T> {
    result.map_err(|e| TrainError::Model(e.into()))
}
