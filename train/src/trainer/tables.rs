//! The embedding tables of a phase that the ranks keep in parts: `[embedding_tables]`.
//!
//! In a step, each rank has only the rows that its micro-batches use. For evaluations and
//! checkpoints, rank 0 gets the whole tables.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use engram_models::ModelError;
use engram_models::compute::to_host;
use engram_models::gradients::GradientFault;
use engram_models::params::{ExternalTable, Parameters, Rows};
use engram_models::weights::Weights;

use super::phase::study_error;
use crate::checkpoint::{EMA, OPTIMISER, PARAMETERS, TableTensor};
use crate::distributed::Ranks;
use crate::distributed::sharded_tables::placement::Table;
use crate::distributed::sharded_tables::{
    MEAN, PartValues, ShardedTables, SparseRows, TableGradientSum, TableGradients, TableRows,
    VALUES,
};
use crate::ema;
use crate::error::Result;
use crate::layer_rate::layer_rates;
use crate::optimiser::{StepSize, full_name};
use crate::recipe::{Phase, Recipe};
use crate::study::StudyExtension;

/// The tables in parts, and the model's access to them.
pub(super) struct PhaseTables {
    sharded: ShardedTables,
    external: Vec<Arc<ExternalTable>>,
    ema_decay: Option<f64>,
}

/// The rows for the micro-batches of one rank in a step.
pub(super) struct StepRows {
    /// The number of the rank's first micro-batch.
    first: usize,
    /// For each micro-batch of the rank, the ids of each table.
    ids: Vec<Vec<Vec<u32>>>,
    rows: Vec<SparseRows>,
    /// The gradients of the micro-batches so far.
    pub(super) sum: TableGradientSum,
}

/// The factors on the learning rate of all trainable parameters, and of all tables in parts.
pub(super) struct RateFactors {
    pub(super) parameters: Vec<f64>,
    pub(super) tables: Vec<f64>,
}

impl RateFactors {
    pub(super) fn new(recipe: &Recipe, parameters: &Parameters) -> Self {
        let mut rates: Vec<(&str, f64)> =
            parameters.trainable().map(|p| (p.name(), p.rate())).collect();
        let external = parameters.external_tables();
        external.iter().for_each(|table| rates.insert(table.index(), (table.name(), table.rate())));
        let names: Vec<&str> = rates.iter().map(|(name, _)| *name).collect();
        let layers = layer_rates(&names, recipe.optimiser.layer_rate_decay);
        let factors = rates.iter().zip(layers).map(|((_, rate), layer)| rate * layer);
        let mut of_parameters: Vec<f64> = factors.collect();
        let last_first = external.iter().rev();
        let mut tables: Vec<f64> =
            last_first.map(|table| of_parameters.remove(table.index())).collect();
        tables.reverse();
        Self { parameters: of_parameters, tables }
    }
}

impl PhaseTables {
    /// Splits the external tables of a model. `None` if it has none. Without `initial_values`, all
    /// values are zero.
    pub(super) fn new(
        recipe: &Recipe,
        phase: &Phase,
        parameters: &Parameters,
        rates: &[f64],
        ranks: &Ranks,
        initial_values: bool,
    ) -> Result<Option<Self>> {
        let external = parameters.external_tables().to_vec();
        let Some(settings) = recipe.embedding_tables.as_ref().filter(|_| !external.is_empty())
        else {
            return Ok(None);
        };
        let tables = external.iter().zip(rates).map(|(table, rate)| {
            let [rows, width] = table.dims();
            Table { name: table.name().to_owned(), rows, width, rate: *rate }
        });
        let initial = |index: usize| {
            let table = &external[index];
            if !initial_values {
                return Ok(vec![0.0; table.dims().iter().product()]);
            }
            Ok(table.initial_values()?)
        };
        let rules = recipe.rules(phase);
        let sharded = ShardedTables::new(tables.collect(), settings, &rules, ranks, initial)?;
        let ema_decay = recipe.ema.as_ref().map(|ema| ema.decay);
        Ok(Some(Self { sharded, external, ema_decay }))
    }

    /// Starts a phase from the values at the end of the previous phase, or from initial values.
    pub(super) fn start(&mut self, previous: Option<PartValues>) {
        if let Some(previous) = previous {
            self.sharded.set_values(previous);
        }
        if self.ema_decay.is_some() {
            self.sharded.start_means();
        }
    }

    /// The values at the end of a phase.
    pub(super) fn into_values(self) -> PartValues {
        self.sharded.into_values()
    }

    /// Reads the tables from a checkpoint, with the optimiser state after `steps` steps.
    pub(super) fn load(&mut self, checkpoint: &Path, steps: u64) -> Result<()> {
        if self.ema_decay.is_some() {
            self.sharded.start_means();
        }
        let open = |file: &str| Weights::open(&checkpoint.join(file));
        let (parameters, optimiser) = (open(PARAMETERS)?, open(OPTIMISER)?);
        let means = self.ema_decay.map(|_| open(EMA)).transpose()?;
        let external = &self.external;
        self.sharded.restore(steps, |name, index| {
            let (file, name, shape) = stored(&external[index], name);
            let weights = match (file, &means) {
                (EMA, Some(means)) => means,
                (OPTIMISER, _) => &optimiser,
                _ => &parameters,
            };
            let tensor = weights.get(&name, &shape, DType::F32, &Device::Cpu)?;
            to_host(&tensor).map_err(|error| ModelError::from(error).into())
        })
    }

    /// Fetches the rows for the micro-batches `own` of this rank.
    pub(super) fn look_up<S: StudyExtension>(
        &self,
        study: &S,
        model: &S::Model,
        batches: &[S::Batch],
        own: Range<usize>,
    ) -> Result<StepRows> {
        let (first, mut ids) = (own.start, Vec::with_capacity(own.len()));
        for batch in &batches[own] {
            let used = study.table_ids(model, batch).map_err(study_error(study, "table_ids"))?;
            let of_table = |table: &Arc<ExternalTable>| -> Vec<u32> {
                let used = used.iter().filter(|(other, _)| Arc::ptr_eq(other, table));
                used.flat_map(|(_, ids)| ids.iter().copied()).collect()
            };
            ids.push(self.external.iter().map(of_table).collect());
        }
        let all = (0..self.external.len()).map(|table| {
            ids.iter().flat_map(|ids: &Vec<Vec<u32>>| ids[table].iter().copied()).collect()
        });
        let rows = self.sharded.lookup(all.collect())?;
        Ok(StepRows { first, ids, rows, sum: TableGradientSum::new(batches.len()) })
    }

    /// Gives the model the rows of a micro-batch of this rank.
    pub(super) fn select(&self, step: &StepRows, micro_batch: usize) -> Result<Vec<TableRows>> {
        let rows = self.sharded.select(&step.rows, &step.ids[micro_batch - step.first])?;
        for (external, rows) in self.external.iter().zip(&rows) {
            let values = rows.rows.clone();
            external.set_rows(Some(Rows { ids: Some(Arc::clone(&rows.ids)), values }));
        }
        Ok(rows)
    }

    /// Adds the gradients of all ranks. Returns them with each table's index and sum of squares.
    pub(super) fn reduce(
        &self,
        sum: TableGradientSum,
    ) -> Result<(TableGradients, Vec<(usize, f64)>)> {
        let gradients = self.sharded.reduce(sum)?;
        let squares = self.sharded.sums_of_squares(&gradients)?;
        let indices = self.external.iter().map(|table| table.index());
        Ok((gradients, indices.zip(squares).collect()))
    }

    /// The names and faults of tables whose gradient is missing, zero or not finite.
    pub(super) fn faults(
        &self,
        gradients: &TableGradients,
        squares: &[(usize, f64)],
    ) -> Vec<(String, GradientFault)> {
        let tables = self.external.iter().zip(squares).enumerate();
        let fault = |(index, (table, (_, squares))): (usize, (&Arc<ExternalTable>, &(_, f64)))| {
            let fault = if !gradients.written[index] {
                GradientFault::Missing
            } else if !squares.is_finite() {
                GradientFault::NotFinite
            } else if *squares == 0.0 {
                GradientFault::Zero
            } else {
                return None;
            };
            Some((table.name().to_owned(), fault))
        };
        tables.filter_map(fault).collect()
    }

    /// Updates the parts of this rank, and their moving averages.
    pub(super) fn step(&mut self, gradients: &TableGradients, size: StepSize) -> Result<()> {
        self.sharded.step(gradients, size)?;
        if let Some(decay) = self.ema_decay {
            self.sharded.update_means(ema::value_weight(decay, self.sharded.steps));
        }
        Ok(())
    }

    /// Gives the model of rank 0 the whole tables, or their averages with `[ema]`. All ranks call
    /// this function.
    pub(super) fn show(&self) -> Result<()> {
        let shown = if self.ema_decay.is_some() { MEAN } else { VALUES };
        for tensor in self.sharded.gather_whole(|name| name == shown)? {
            let table = &self.external[tensor.table];
            let [rows, width] = table.dims();
            let values = Tensor::from_vec(tensor.values, (rows, width), &Device::Cpu);
            let values = values.map_err(ModelError::from)?;
            table.set_rows(Some(Rows { ids: None, values }));
        }
        Ok(())
    }

    /// Removes all table rows from the model.
    pub(super) fn hide(&self) {
        self.external.iter().for_each(|table| table.set_rows(None));
    }

    /// The whole tables with all their state, on rank 0; nothing on other ranks. All ranks call
    /// this function.
    pub(super) fn gather(&self) -> Result<Vec<TableTensor>> {
        let tensors = self.sharded.gather_whole(|_| true)?.into_iter();
        let tensors = tensors.map(|tensor| {
            let (file, name, shape) = stored(&self.external[tensor.table], tensor.name);
            TableTensor { file, name, shape, values: tensor.values }
        });
        Ok(tensors.collect())
    }
}

/// The file, name and shape under which a checkpoint stores a tensor of a table.
fn stored(table: &ExternalTable, tensor: &str) -> (&'static str, String, Vec<usize>) {
    let [rows, width] = table.dims();
    match tensor {
        VALUES => (PARAMETERS, table.name().to_owned(), vec![rows, width]),
        MEAN => (EMA, table.name().to_owned(), vec![rows, width]),
        state => (OPTIMISER, full_name(table.name(), state), vec![rows * width]),
    }
}
