//! Gradients of tables: the sum over the micro-batches of a step.

use std::convert::Infallible;

use super::{Reader, ShardedTables, SparseRows, TableRows, damaged};
use crate::distributed::failed;
use crate::distributed::tree::{Node, push};
use crate::error::Result;

/// Adds the gradients of a rank's micro-batches, each as soon as its neighbour in the tree is
/// finished.
#[derive(Debug)]
pub(crate) struct TableGradientSum {
    /// The number of micro-batches of the step, over all ranks.
    count: usize,
    /// Finished nodes, with the sum of each table; `None` for a table without a gradient.
    finished: Vec<(Node, Vec<Option<SparseRows>>)>,
}

/// The summed gradients of a step, for the parts that this rank keeps.
#[derive(Debug)]
pub(crate) struct TableGradients {
    /// For each table, whether any micro-batch has a gradient.
    pub(crate) written: Vec<bool>,
    pub(super) of_groups: Vec<SparseRows>,
}

impl TableGradientSum {
    /// An empty sum for a step of `count` micro-batches over all ranks.
    pub(crate) fn new(count: usize) -> Self {
        Self { count, finished: Vec::new() }
    }

    /// Adds the gradients of a micro-batch, and removes them from its rows. Each rank adds its
    /// micro-batches in ascending order, also those without a gradient. `micro_batch` is the number
    /// over all ranks.
    pub(crate) fn add(&mut self, micro_batch: usize, rows: &[TableRows]) {
        let node = micro_batch..micro_batch + 1;
        let gradients = rows.iter().map(TableRows::take_gradient).collect();
        let add = |left: Vec<Option<SparseRows>>, right: Vec<Option<SparseRows>>| {
            let pairs = left.into_iter().zip(right).zip(rows);
            let sums = pairs.map(|((left, right), rows)| match (left, right) {
                (Some(left), Some(right)) => Some(left.plus(right, rows.width)),
                (left, right) => left.or(right),
            });
            Ok::<_, Infallible>(sums.collect())
        };
        let Ok(()) = push(self.count, &mut self.finished, (node, gradients), add);
    }
}

impl ShardedTables {
    /// Sends the gradients of this rank's micro-batches to the ranks that keep the rows. These
    /// ranks add all gradients in the order of the tree. All ranks call this function.
    pub(crate) fn reduce(&self, sum: TableGradientSum) -> Result<TableGradients> {
        let count = sum.count;
        let mut messages = vec![vec![sum.finished.len() as u32]; self.ranks.size()];
        for (node, of_tables) in &sum.finished {
            let of_groups = self.by_group(of_tables);
            for (message, of_groups) in messages.iter_mut().zip(of_groups) {
                message.extend([node.start as u32, node.end as u32]);
                message.extend(of_tables.iter().map(|rows| u32::from(rows.is_some())));
                for SparseRows { ids, values } in of_groups {
                    message.push(ids.len() as u32);
                    message.extend(ids);
                    message.extend(values.into_iter().map(f32::to_bits));
                }
            }
        }
        drop(sum);
        let mut written = vec![false; self.tables.len()];
        let mut nodes = Vec::new();
        for (rank, words) in self.all_to_all(&messages)?.iter().enumerate() {
            let read = self.read_nodes(&mut Reader(words), &mut written);
            nodes.extend(read.ok_or_else(|| damaged(rank))?);
        }
        nodes.sort_by_key(|(node, _)| node.start);
        let mut finished = Vec::new();
        for node in nodes {
            let Ok(()) = push(count, &mut finished, node, |left: Vec<SparseRows>, right| {
                let pairs = left.into_iter().zip(right).zip(&self.groups);
                let sums = pairs.map(|((left, right), group)| left.plus(right, group.shape.width));
                Ok::<_, Infallible>(sums.collect())
            });
        }
        match finished.pop() {
            Some((node, of_groups)) if node == (0..count) => {
                Ok(TableGradients { written, of_groups })
            }
            _ => Err(failed("the gradients of some micro-batches are missing".into())),
        }
    }

    /// The rows of tables by rank and group, with the row numbers of the group.
    fn by_group(&self, of_tables: &[Option<SparseRows>]) -> Vec<Vec<SparseRows>> {
        let mut of_groups = self.layout.lists::<SparseRows>();
        for (table, (rows, pieces)) in of_tables.iter().zip(&self.layout.of_tables).enumerate() {
            let Some(rows) = rows else { continue };
            let width = self.tables[table].width;
            for piece in pieces {
                let found = piece.find(&rows.ids);
                let target = &mut of_groups[piece.rank][piece.group];
                target.ids.extend(rows.ids[found.clone()].iter().map(|id| piece.row_of(*id)));
                let values = &rows.values[found.start * width..found.end * width];
                let parts = values.chunks_exact(width).map(|row| &row[piece.part.columns.clone()]);
                target.values.extend(parts.flatten());
            }
        }
        of_groups
    }

    /// Reads the nodes of a rank, and which tables have a gradient. `None` for a damaged message.
    fn read_nodes(
        &self,
        words: &mut Reader<'_>,
        written: &mut [bool],
    ) -> Option<Vec<(Node, Vec<SparseRows>)>> {
        let mut nodes = Vec::new();
        for _ in 0..words.number()? {
            let node = words.number()?..words.number()?;
            let flags = words.take(written.len())?;
            written.iter_mut().zip(flags).for_each(|(written, flag)| *written |= *flag == 1);
            let mut of_groups = Vec::with_capacity(self.groups.len());
            for group in &self.groups {
                let count = words.number()?;
                let ids = words.take(count)?.to_vec();
                let values = words.rows(count, group.shape.width)?;
                let values = values.iter().map(|bits| f32::from_bits(*bits)).collect();
                let is_valid = ids.is_sorted_by(|left, right| left < right)
                    && ids.last().is_none_or(|last| (*last as usize) < group.shape.rows);
                of_groups.push(is_valid.then_some(SparseRows { ids, values })?);
            }
            nodes.push((node, of_groups));
        }
        words.0.is_empty().then_some(nodes)
    }
}
