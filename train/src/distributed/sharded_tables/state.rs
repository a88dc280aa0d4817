//! The values, the optimiser state and the moving averages of the parts of a rank, to save and to
//! restore them.

use std::borrow::Cow;
use std::ops::Range;

use super::layout::Piece;
use super::placement::Part;
use super::{ShardedTables, damaged, fill};
use crate::error::Result;

/// The name of a table's values among its tensors.
pub(crate) const VALUES: &str = "values";
/// The name of the moving average of a table's values among its tensors.
pub(crate) const MEAN: &str = "mean";

/// The part of one tensor of a table that a rank keeps.
#[derive(Debug, Clone)]
pub struct PartTensor<'a> {
    /// `values`, `mean` (the moving average), or the name of a state tensor of the update rule, such
    /// as `first_moment`. Each has the shape of the table.
    pub name: &'static str,
    /// The table, rows and columns.
    pub part: Part,
    /// The values of the part, `[rows, columns]`.
    pub values: Cow<'a, [f32]>,
}

/// One tensor of a table: [`ShardedTables::gather_whole`].
pub(crate) struct WholeTensor {
    /// As [`PartTensor::name`].
    pub(crate) name: &'static str,
    /// The index of the table.
    pub(crate) table: usize,
    /// The values, `[V, D]`.
    pub(crate) values: Vec<f32>,
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
            let mean = self.means.as_ref().map(|means| (MEAN, Cow::from(self.mean(piece, means))));
            let state = std::iter::once((VALUES, values)).chain(rule.state()?).chain(mean);
            for (name, values) in state {
                tensors.push(PartTensor { name, part: piece.part.clone(), values });
            }
        }
        Ok(tensors)
    }

    /// Sends the tensors whose names satisfy `is_included` to rank 0, one after the other, and
    /// returns them there. The other ranks get none. All ranks call this function.
    ///
    /// # Errors
    /// [`TrainError::Ranks`](crate::TrainError::Ranks) if a rank has ended.
    pub(crate) fn gather_whole(
        &self,
        is_included: impl Fn(&str) -> bool,
    ) -> Result<Vec<WholeTensor>> {
        let state = self.state()?;
        let mut tensors = Vec::new();
        for (table, shape) in self.tables.iter().enumerate() {
            let mean = self.means.as_ref().map(|_| MEAN);
            let names = std::iter::once(VALUES).chain(self.state_names[table].clone()).chain(mean);
            for name in names.filter(|name| is_included(name)) {
                let own = state.iter().filter(|t| t.part.table == table && t.name == name);
                let own = own.flat_map(|tensor| tensor.values.iter().map(|value| value.to_bits()));
                let mut messages = vec![Vec::new(); self.ranks.size()];
                messages[0] = own.collect();
                let received = self.all_to_all(&messages)?;
                if !self.ranks.is_first() {
                    continue;
                }
                let mut values = vec![0.0; shape.rows * shape.width];
                for (rank, words) in received.iter().enumerate() {
                    let pieces = self.layout.of_tables[table].iter();
                    let pieces = pieces.filter(|piece| piece.rank == rank);
                    write_pieces(pieces, words, shape.width, &mut values)
                        .ok_or_else(|| damaged(rank))?;
                }
                tensors.push(WholeTensor { name, table, values });
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
            if let Some(means) = &mut self.means {
                let range = self.groups[piece.group].range(piece);
                read_part(MEAN, &mut means[piece.group][range])?;
            }
        }
        Ok(())
    }

    /// The moving average of a piece, among those of all groups.
    fn mean<'a>(&self, piece: &Piece, means: &'a [Vec<f32>]) -> &'a [f32] {
        &means[piece.group][self.groups[piece.group].range(piece)]
    }
}

/// Copies the bits of a table's pieces into the whole tensor. `None` if their number is not that of
/// the pieces' values.
fn write_pieces<'a>(
    pieces: impl Iterator<Item = &'a Piece>,
    mut words: &[u32],
    width: usize,
    values: &mut [f32],
) -> Option<()> {
    for piece in pieces {
        let (rows, columns) = (&piece.part.rows, &piece.part.columns);
        let source = words.split_off(..piece.part.values())?;
        let targets = values[rows.start * width..rows.end * width].chunks_exact_mut(width);
        for (target, source) in targets.zip(source.chunks_exact(columns.len())) {
            let target = target[columns.clone()].iter_mut();
            target.zip(source).for_each(|(value, bits)| *value = f32::from_bits(*bits));
        }
    }
    words.is_empty().then_some(())
}
