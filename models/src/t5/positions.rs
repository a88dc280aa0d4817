//! Learned positions. Published T5 has only relative biases, from which a model that starts from
//! random weights hardly learns to copy a name: they do not tell a state its place.

use std::sync::Arc;

use candle_core::Tensor;

use crate::error::Result;
use crate::kernels::embedding_sum;
use crate::params::{Init, ParameterBuilder};

/// A table of learned positions, which starts with sinusoids; or none.
#[derive(Debug, Clone)]
pub(crate) struct Positions {
    /// `[P, D]`.
    table: Option<Tensor>,
}

impl Positions {
    /// Creates `count` positions of width `D`: the parameter `positions` below the builder's path.
    pub(crate) fn new(count: usize, width: usize, builder: &ParameterBuilder) -> Result<Self> {
        let table = || builder.get("positions", &[count, width], Init::Sinusoids(width));
        Ok(Self { table: if count == 0 { None } else { Some(table()?) } })
    }

    /// Whether there are none.
    pub(crate) fn is_none(&self) -> bool {
        self.table.is_none()
    }

    /// Adds to each row of `x` `[T, D]` the position of its place. Places beyond the table share the
    /// last position.
    pub(crate) fn add(&self, x: Tensor, places: impl Iterator<Item = usize>) -> Result<Tensor> {
        let Some(table) = &self.table else { return Ok(x) };
        let last = table.dim(0)? - 1;
        let places: Arc<[u32]> = places.map(|place| place.min(last) as u32).collect();
        Ok((&x + embedding_sum(&[(table, places)])?.to_dtype(x.dtype())?)?)
    }
}
