//! The values, the optimiser state and the moving averages of the parts of a rank, to save and to
//! restore them.

use std::borrow::Cow;

use super::layout::Piece;
use super::{ShardedTables, damaged, fill};
use crate::ema;
use crate::error::Result;

/// The name of a table's values among its tensors.
pub(crate) const VALUES: &str = "values";
/// The name of the moving average of a table's values among its tensors.
pub(crate) const MEAN: &str = "mean";

/// The part of one tensor of a table that a rank keeps.
struct PartTensor<'a> {
    /// As [`WholeTensor::name`].
    name: &'static str,
    /// The index of the table.
    table: usize,
    /// The values of the part, `[rows, columns]`.
    values: Cow<'a, [f32]>,
}

/// One tensor of a table: [`ShardedTables::gather_whole`].
pub(crate) struct WholeTensor {
    /// `values`, `mean` (the moving average), or the name of a state tensor of the update rule,
    /// such as `first_moment`. Each has the shape of the table.
    pub(crate) name: &'static str,
    /// The index of the table.
    pub(crate) table: usize,
    /// The values, `[V, D]`.
    pub(crate) values: Vec<f32>,
}

impl ShardedTables {
    /// Starts moving averages at the current values.
    pub(crate) fn start_means(&mut self) {
        self.means = Some(self.groups.iter().map(|group| group.values.clone()).collect());
    }

    /// Moves the averages towards the current values, like
    /// [`Ema::update`](crate::ema::Ema::update).
    pub(crate) fn update_means(&mut self, value_weight: f32) {
        for (mean, group) in self.means.iter_mut().flatten().zip(&self.groups) {
            ema::move_towards(mean, &group.values, value_weight);
        }
    }

    /// The tensors of the parts of this rank.
    fn state(&self) -> Result<Vec<PartTensor<'_>>> {
        let mut tensors = Vec::new();
        for (piece, rule) in &self.rules {
            let values = Cow::from(self.groups[piece.group].values(piece));
            let range = self.groups[piece.group].range(piece);
            let mean = self.means.as_ref();
            let mean = mean.map(|means| (MEAN, Cow::from(&means[piece.group][range])));
            let state = std::iter::once((VALUES, values)).chain(rule.state()?).chain(mean);
            for (name, values) in state {
                tensors.push(PartTensor { name, table: piece.part.table, values });
            }
        }
        Ok(tensors)
    }

    /// Sends the tensors whose names satisfy `is_included` to rank 0, one after the other, and
    /// returns them there. The other ranks get none. All ranks call this function.
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
                let own = state.iter().filter(|t| t.table == table && t.name == name);
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

    /// Restores the parts of this rank after `steps` steps. `read(name, table)` returns the tensor
    /// of this name, `[V, D]`, of the table with this index. The tensors are those of
    /// [`ShardedTables::gather_whole`]; placement and number of ranks may have been others.
    pub(crate) fn restore(
        &mut self,
        steps: u64,
        read: impl Fn(&str, usize) -> Result<Vec<f32>>,
    ) -> Result<()> {
        self.steps = steps;
        for (piece, rule) in &mut self.rules {
            let table = piece.part.table;
            let read_part = |name: &str, values: &mut [f32]| -> Result<()> {
                fill(values, piece, &self.tables[table], &read(name, table)?);
                Ok(())
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
}

/// Copies the bits of a table's pieces into the whole tensor. `None` if there are too few or too
/// many bits for the pieces.
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
