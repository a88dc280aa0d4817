//! Rows of tables on the rank that uses them, and their gradients.

use std::sync::{Arc, Mutex, PoisonError};

use candle_core::{CpuStorage, CustomOp1, Device, Layout, Shape, Tensor, Var};
use engram_models::ModelError;
use engram_models::compute::to_host;

use crate::error::Result;

/// Some rows of a matrix: `ids` in ascending order, and their values `[ids, width]`.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct SparseRows {
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
pub(super) fn sorted(mut ids: Vec<u32>) -> Vec<u32> {
    ids.sort_unstable();
    ids.dedup();
    ids
}

/// A gradient, once the backward pass has computed it.
type StoredGradient = Arc<Mutex<Option<Vec<f32>>>>;

/// The rows of one table that one micro-batch uses, with their gradients after the backward pass.
#[derive(Debug)]
pub(crate) struct TableRows {
    pub(super) width: usize,
    /// The ids in ascending order, each once: `[U]`.
    pub(crate) ids: Arc<[u32]>,
    /// The rows of these ids, `[U, D]`, on the CPU. Every backward pass through them stores their
    /// gradient.
    pub(crate) rows: Tensor,
    gradient: StoredGradient,
}

impl TableRows {
    /// Selects the rows with these ids, all of which `source` has.
    pub(super) fn select(width: usize, source: &SparseRows, ids: &[u32]) -> Result<Self> {
        let ids = sorted(ids.to_vec());
        let mut values: Vec<f32> = Vec::with_capacity(ids.len() * width);
        let mut of_source = source.ids.iter().zip(source.values.chunks_exact(width));
        for id in &ids {
            let found = of_source.find(|(other, _)| *other == id);
            values.extend(found.map_or(&[][..], |(_, row)| row));
        }
        let gradient = StoredGradient::default();
        let rows = Var::from_vec(values, (ids.len(), width), &Device::Cpu)
            .and_then(|rows| rows.apply_op1(StoreGradient(Arc::clone(&gradient))))
            .map_err(ModelError::from)?;
        Ok(Self { width, ids: ids.into(), rows, gradient })
    }

    /// Removes the gradient. `None` if the loss does not depend on the table.
    pub(super) fn take_gradient(&self) -> Option<SparseRows> {
        let mut gradient = self.gradient.lock().unwrap_or_else(PoisonError::into_inner);
        // Without -0, rows that a micro-batch does not use can be left out of sums: adding a 0
        // changes no other value.
        let values = gradient.take()?.into_iter().map(|value| 0.0 + value).collect();
        Some(SparseRows { ids: self.ids.to_vec(), values })
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
