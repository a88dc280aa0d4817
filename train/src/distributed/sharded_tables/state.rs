//! The values and the optimiser state of the parts of a rank, to save and to restore them.

use std::borrow::Cow;
use std::ops::Range;

use super::placement::Part;
use super::{ShardedTables, fill};
use crate::error::Result;

/// The name of a table's values among its tensors.
const VALUES: &str = "values";

/// The part of one tensor of a table that a rank keeps.
#[derive(Debug, Clone)]
pub struct PartTensor<'a> {
    /// `values`, or the name of a state tensor of the update rule, such as `first_moment`. Each has
    /// the shape of the table.
    pub name: &'static str,
    /// The table, rows and columns.
    pub part: Part,
    /// The values of the part, `[rows, columns]`.
    pub values: Cow<'a, [f32]>,
}

impl ShardedTables {
    /// The number of steps done.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// The tensors of the parts of this rank.
    ///
    /// # Errors
    /// None on the CPU.
    pub fn state(&self) -> Result<Vec<PartTensor<'_>>> {
        let mut tensors = Vec::new();
        for (piece, rule) in &self.rules {
            let values = Cow::from(self.groups[piece.group].values(piece));
            for (name, values) in std::iter::once((VALUES, values)).chain(rule.state()?) {
                tensors.push(PartTensor { name, part: piece.part.clone(), values });
            }
        }
        Ok(tensors)
    }

    /// Restores the parts of this rank after `steps` steps. `read(name, table, rows)` returns rows
    /// of the tensor of this name, `[rows, D]`, of the table with this index. The tensors are those
    /// of [`ShardedTables::state`] of all ranks; placement and number of ranks may have been others.
    ///
    /// # Errors
    /// The errors of `read`; [`TrainError::Table`](crate::TrainError::Table) if it returns another
    /// number of values.
    pub fn restore(
        &mut self,
        steps: u64,
        mut read: impl FnMut(&str, usize, Range<usize>) -> Result<Vec<f32>>,
    ) -> Result<()> {
        self.steps = steps;
        for (piece, rule) in &mut self.rules {
            let table = piece.part.table;
            let mut read_part = |name: &str, values: &mut [f32]| {
                fill(values, piece, &self.tables[table], |rows| read(name, table, rows))
            };
            read_part(VALUES, self.groups[piece.group].values_mut(piece))?;
            let names: Vec<&str> = rule.state()?.iter().map(|(name, _)| *name).collect();
            for name in names {
                let mut values = vec![0.0; piece.part.values()];
                read_part(name, &mut values)?;
                rule.set_state(name, values);
            }
        }
        Ok(())
    }
}
