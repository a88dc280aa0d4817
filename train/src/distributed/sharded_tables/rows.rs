//! Rows of tables on the rank that uses them, and their gradients.

use std::sync::{Arc, Mutex, PoisonError};

use candle_core::{CpuStorage, CustomOp1, Device, Layout, Shape, Tensor, Var};
use engram_models::ModelError;
use engram_models::compute::to_host;
use engram_models::kernels::embedding_sum;

use super::expect_tables;
use super::placement::Table;
use crate::error::Result;

/// Some rows of a matrix: `ids` in ascending order, and their values `[ids, width]`.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct SparseRows {
    pub(super) ids: Vec<u32>,
    pub(super) values: Vec<f32>,
}

impl SparseRows {
    /// The sum with rows of the same matrix. A row that only one of them has stays unchanged. No
    /// value is -0.
    pub(super) fn plus(self, right: Self, width: usize) -> Self {
        if self.ids.is_empty() {
            return right;
        }
        let most = self.ids.len() + right.ids.len();
        let mut sum =
            Self { ids: Vec::with_capacity(most), values: Vec::with_capacity(most * width) };
        let (mut left_ids, mut right_ids) =
            (self.ids.iter().peekable(), right.ids.iter().peekable());
        let (mut left, mut right) =
            (self.values.chunks_exact(width), right.values.chunks_exact(width));
        while let Some(id) = left_ids.peek().into_iter().chain(right_ids.peek()).min().copied() {
            let left = left_ids.next_if_eq(&id).and_then(|_| left.next());
            let right = right_ids.next_if_eq(&id).and_then(|_| right.next());
            sum.ids.push(*id);
            match (left, right) {
                (Some(left), Some(right)) => {
                    sum.values.extend(left.iter().zip(right).map(|(left, right)| left + right));
                }
                (left, right) => sum.values.extend(left.or(right).unwrap_or_default()),
            }
        }
        sum
    }
}

/// The ids in ascending order, each once.
pub(super) fn sorted(ids: &[u32]) -> Vec<u32> {
    let mut sorted = ids.to_vec();
    sorted.sort_unstable();
    sorted.dedup();
    sorted
}

/// The rows that a rank has looked up: [`ShardedTables::lookup`](super::ShardedTables::lookup).
#[derive(Debug)]
pub struct LookedUpRows {
    pub(super) tables: Arc<[Table]>,
    pub(super) of_tables: Vec<SparseRows>,
}

impl LookedUpRows {
    /// Returns the rows for the ids of one micro-batch: for each table its ids, `[T]`, in any order
    /// and also several times. A table without ids is not used. Each row is copied once.
    ///
    /// # Errors
    /// [`TrainError::Table`](crate::TrainError::Table) if an id was not looked up.
    pub fn select(&self, ids: &[&[u32]]) -> Result<MicroBatchRows> {
        expect_tables(&self.tables, ids)?;
        let tables = self.tables.iter().zip(&self.of_tables).zip(ids);
        let tables = tables.map(|((table, rows), ids)| TableRows::select(table, rows, ids));
        Ok(MicroBatchRows { tables: tables.collect::<Result<_>>()? })
    }

    /// The values of the rows of a table, `[U, D]`: of its ids in ascending order, each once.
    pub fn values(&self, table: usize) -> &[f32] {
        &self.of_tables[table].values
    }
}

/// The rows that one micro-batch uses. After the backward pass, they hold their gradients.
#[derive(Debug)]
pub struct MicroBatchRows {
    tables: Vec<TableRows>,
}

impl MicroBatchRows {
    /// The rows of a table.
    pub fn of(&self, table: usize) -> &TableRows {
        &self.tables[table]
    }

    /// The widths of all tables.
    pub(super) fn widths(&self) -> impl Iterator<Item = usize> {
        self.tables.iter().map(|rows| rows.width)
    }

    /// Removes the gradients. `None` for a table that the loss does not depend on.
    pub(super) fn take_gradients(&self) -> Vec<Option<SparseRows>> {
        let gradient = |rows: &TableRows| {
            let mut gradient = rows.gradient.lock().unwrap_or_else(PoisonError::into_inner);
            // Without -0, rows that a micro-batch does not use can be left out of sums: adding a 0
            // changes no other value.
            let values = gradient.take()?.into_iter().map(|value| 0.0 + value).collect();
            Some(SparseRows { ids: rows.ids.to_vec(), values })
        };
        self.tables.iter().map(gradient).collect()
    }
}

/// A gradient, once the backward pass has computed it.
type StoredGradient = Arc<Mutex<Option<Vec<f32>>>>;

/// The rows of one table for one micro-batch.
#[derive(Debug)]
pub struct TableRows {
    width: usize,
    ids: Arc<[u32]>,
    positions: Arc<[u32]>,
    rows: Tensor,
    gradient: StoredGradient,
}

impl TableRows {
    fn select(table: &Table, source: &SparseRows, ids: &[u32]) -> Result<Self> {
        let unique = sorted(ids);
        let mut values: Vec<f32> = Vec::with_capacity(unique.len() * table.width);
        for id in &unique {
            let index = source.ids.binary_search(id).map_err(|_| {
                table.error(format!("id {id} was not looked up; look up all ids of the step"))
            })?;
            values.extend(&source.values[index * table.width..][..table.width]);
        }
        let position = |id: &u32| unique.binary_search(id).unwrap_or_default() as u32;
        let positions = ids.iter().map(position).collect();
        let gradient = StoredGradient::default();
        let rows = Var::from_vec(values, (unique.len(), table.width), &Device::Cpu)
            .and_then(|rows| rows.apply_op1(StoreGradient(Arc::clone(&gradient))))
            .map_err(ModelError::from)?;
        Ok(Self { width: table.width, ids: unique.into(), positions, rows, gradient })
    }

    /// The ids in ascending order, each once: `[U]`.
    pub fn ids(&self) -> Arc<[u32]> {
        Arc::clone(&self.ids)
    }

    /// The rows of the ids in ascending order, each once: `[U, D]`, on the CPU. Every backward pass
    /// through them stores their gradient.
    pub fn rows(&self) -> &Tensor {
        &self.rows
    }

    /// For each id that was given, in the given order, its row in [`TableRows::rows`]: `[T]`.
    pub fn positions(&self) -> Arc<[u32]> {
        Arc::clone(&self.positions)
    }

    /// The row of each id that was given, in the given order: `[T, D]`.
    ///
    /// # Errors
    /// [`TrainError::Model`](crate::TrainError::Model) if a tensor operation fails.
    pub fn embed(&self) -> Result<Tensor> {
        Ok(embedding_sum(&[(&self.rows, self.positions())]).map_err(ModelError::from)?)
    }
}

/// The identity. Its backward pass stores the gradient, or adds to the one that is stored.
struct StoreGradient(StoredGradient);

impl CustomOp1 for StoreGradient {
    fn name(&self) -> &'static str {
        "store-gradient"
    }

    fn cpu_fwd(
        &self,
        storage: &CpuStorage,
        layout: &Layout,
    ) -> candle_core::Result<(CpuStorage, Shape)> {
        Ok((storage.clone(), layout.shape().clone()))
    }

    fn bwd(
        &self,
        _: &Tensor,
        _: &Tensor,
        gradient: &Tensor,
    ) -> candle_core::Result<Option<Tensor>> {
        let mut values = to_host(gradient)?;
        let mut stored = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(stored) = &*stored {
            values.iter_mut().zip(stored).for_each(|(value, stored)| *value += stored);
        }
        *stored = Some(values);
        Ok(None)
    }
}
