//! Embedding tables in parts: each rank keeps some rows or columns, with their optimiser state.
//!
//! The recipe's [settings](EmbeddingTableSettings) give each rank its parts. In each step, all
//! ranks do the following together:
//!
//! 1. [`ShardedTables::lookup`] fetches the rows for the ids of all micro-batches of the rank from
//!    the ranks that keep them. [`ShardedTables::select`] gives the rows of one micro-batch as
//!    tensors. The backward pass stores their gradients.
//! 2. [`TableGradientSum::add`] adds the gradients of a micro-batch. [`ShardedTables::reduce`]
//!    sends these sums to the ranks that keep the rows.
//! 3. [`ShardedTables::sums_of_squares`] is the tables' share of the gradient norm, for clipping.
//! 4. [`ShardedTables::step`] updates the parts of the rank.
//!
//! [`ShardedTables::gather_whole`] and [`ShardedTables::restore`] are for checkpoints.
//!
//! Gradients are added in the same order as those of other parameters. So the values and the state
//! of a table have the same bytes as those of a dense parameter, for any placement and any number
//! of ranks. This holds if each micro-batch uses the rows of a table in a single operation.
//! Otherwise rounding may differ from a dense parameter, but not between numbers of ranks.

mod gradients;
mod layout;
mod norm;
pub(crate) mod placement;
mod rows;
mod state;

use std::fmt;
use std::ops::Range;

use super::{Ranks, failed};
use crate::error::{Result, TrainError};
use crate::optimiser::{RuleSet, Step, StepSize, UpdateRule};
use crate::recipe::EmbeddingTableSettings;
pub(crate) use gradients::{TableGradientSum, TableGradients};
use layout::{GroupShape, Layout, Piece};
use placement::{Part, Table};
use rows::sorted;
pub(crate) use rows::{SparseRows, TableRows};
pub(crate) use state::{MEAN, VALUES};

/// Embedding tables whose parts are kept by the ranks of a training run. They are on the CPU.
pub(crate) struct ShardedTables {
    ranks: Ranks,
    tables: Vec<Table>,
    layout: Layout,
    /// The parts of this rank.
    groups: Vec<Group>,
    /// The update rule of each part of this rank.
    rules: Vec<(Piece, Box<dyn UpdateRule>)>,
    /// The names of the state tensors of each table's update rule.
    state_names: Vec<Vec<&'static str>>,
    /// The moving averages of the groups of this rank, if there are any.
    means: Option<Vec<Vec<f32>>>,
    /// The number of steps done.
    pub(crate) steps: u64,
    /// Zeros between steps: the gradient of one part.
    gradient: Vec<f32>,
    scratch: Vec<f32>,
}

/// The values of the parts of one rank.
pub(crate) struct PartValues(Vec<Vec<f32>>);

/// A group of this rank with its values, `[rows, width]`.
struct Group {
    shape: GroupShape,
    values: Vec<f32>,
}

impl fmt::Debug for ShardedTables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "parts of {} tables on {:?}", self.tables.len(), self.ranks)
    }
}

impl ShardedTables {
    /// Creates the parts of this rank. All ranks call this function, with equal arguments.
    ///
    /// `initial` returns the initial values of the table with this index, `[V, D]`. It is called
    /// only for tables of which this rank keeps a part. The update rules must not need whole
    /// tables.
    ///
    /// # Errors
    /// The errors of `initial`. [`TrainError::Refused`] if a rank would keep more rows of one width
    /// than 32-bit numbers can count.
    pub(crate) fn new(
        tables: Vec<Table>,
        placement: &EmbeddingTableSettings,
        rules: &RuleSet,
        ranks: &Ranks,
        initial: impl Fn(usize) -> Result<Vec<f32>>,
    ) -> Result<Self> {
        let layout = Layout::new(&tables, &placement.parts(&tables, ranks.size()));
        for piece in layout.of_tables.iter().flatten() {
            let rows = piece.rows().end;
            if u32::try_from(rows).is_err() {
                let rank = piece.rank;
                return Err(tables[piece.part.table].error(format!(
                    "rank {rank} would keep {rows} rows of one width; use more ranks"
                )));
            }
        }
        let groups = layout.groups[ranks.rank()].iter();
        let groups = groups
            .map(|shape| Group { shape: *shape, values: vec![0.0; shape.rows * shape.width] });
        let mut groups: Vec<Group> = groups.collect();
        let mut of_pieces = Vec::new();
        for piece in layout.of_rank(ranks.rank()) {
            let table = &tables[piece.part.table];
            fill(groups[piece.group].values_mut(piece), piece, table, &initial(piece.part.table)?);
            let shape = [piece.part.rows.len(), piece.part.columns.len()];
            of_pieces.push((piece.clone(), rules.rule_of(&table.name).build(&shape)));
        }
        let mut state_names = Vec::with_capacity(tables.len());
        for table in &tables {
            let state = rules.rule_of(&table.name).build(&[1, 1]);
            state_names.push(state.state()?.into_iter().map(|(name, _)| name).collect());
        }
        let largest = of_pieces.iter().map(|(piece, _)| piece.part.values()).max().unwrap_or(0);
        Ok(Self {
            ranks: ranks.clone(),
            tables,
            layout,
            groups,
            rules: of_pieces,
            state_names,
            means: None,
            steps: 0,
            gradient: vec![0.0; largest],
            scratch: Vec::new(),
        })
    }

    /// The values of this rank's parts, without their state.
    pub(crate) fn into_values(self) -> PartValues {
        PartValues(self.groups.into_iter().map(|group| group.values).collect())
    }

    /// Replaces the values by values of tables with the same placement.
    pub(crate) fn set_values(&mut self, values: PartValues) {
        let groups = self.groups.iter_mut().zip(values.0);
        groups.for_each(|(group, values)| group.values = values);
    }

    /// Fetches the rows for the ids of each table from the ranks that keep them. Ids may be in any
    /// order and may repeat; each row is sent once. All ranks call this function, each with its own
    /// ids, which may be none.
    ///
    /// # Errors
    /// [`TrainError::Refused`] if an id is not below the table's number of rows;
    /// [`TrainError::Ranks`] if a rank has ended.
    pub(crate) fn lookup(&self, ids: Vec<Vec<u32>>) -> Result<Vec<SparseRows>> {
        let ids: Vec<Vec<u32>> = ids.into_iter().map(sorted).collect();
        let mut requests = self.layout.lists::<Vec<u32>>();
        for ((table, ids), pieces) in self.tables.iter().zip(&ids).zip(&self.layout.of_tables) {
            if let Some(id) = ids.last().filter(|id| **id as usize >= table.rows) {
                let rows = table.rows;
                return Err(table.error(format!("id {id} is beyond the last of {rows} rows")));
            }
            for piece in pieces {
                let rows = ids[piece.find(ids)].iter().map(|id| piece.row_of(*id));
                requests[piece.rank][piece.group].extend(rows);
            }
        }
        let message = |groups: &Vec<Vec<u32>>| {
            let lists = groups.iter().map(|rows| [&[rows.len() as u32], rows.as_slice()].concat());
            lists.collect::<Vec<_>>().concat()
        };
        let asked = self.all_to_all(&requests.iter().map(message).collect::<Vec<_>>())?;
        let mut replies = Vec::with_capacity(asked.len());
        for (rank, rows) in asked.iter().enumerate() {
            replies.push(self.answer(Reader(rows)).ok_or_else(|| damaged(rank))?);
        }
        let replies = self.all_to_all(&replies)?;
        let mut of_groups = Vec::with_capacity(replies.len());
        for (rank, words) in replies.iter().enumerate() {
            let mut words = Reader(words);
            let shapes = self.layout.groups[rank].iter().zip(&requests[rank]);
            let values =
                shapes.map(|(shape, rows)| words.rows(rows.len(), shape.width).map(Reader));
            let values: Vec<Reader<'_>> =
                values.collect::<Option<_>>().ok_or_else(|| damaged(rank))?;
            of_groups.push(values);
        }
        let mut of_tables = Vec::with_capacity(ids.len());
        for ((table, ids), pieces) in self.tables.iter().zip(ids).zip(&self.layout.of_tables) {
            let mut values = vec![0.0; ids.len() * table.width];
            for piece in pieces {
                let (found, columns) = (piece.find(&ids), &piece.part.columns);
                let source = of_groups[piece.rank][piece.group].rows(found.len(), columns.len());
                let source = source.ok_or_else(|| damaged(piece.rank))?;
                let rows = values[found.start * table.width..].chunks_exact_mut(table.width);
                for (row, source) in rows.zip(source.chunks_exact(columns.len())) {
                    let row = row[columns.clone()].iter_mut().zip(source);
                    row.for_each(|(value, bits)| *value = f32::from_bits(*bits));
                }
            }
            of_tables.push(SparseRows { ids, values });
        }
        Ok(of_tables)
    }

    /// Returns the rows for the ids of one micro-batch, from the rows that were looked up. The ids
    /// of a table may be in any order and may repeat; each row is copied once. A table without ids
    /// is not used.
    pub(crate) fn select(
        &self,
        looked_up: &[SparseRows],
        ids: &[Vec<u32>],
    ) -> Result<Vec<TableRows>> {
        let tables = self.tables.iter().zip(looked_up).zip(ids);
        tables.map(|((table, rows), ids)| TableRows::select(table.width, rows, ids)).collect()
    }

    /// The bits of the rows that another rank has asked for. `None` if its message is damaged.
    fn answer(&self, mut words: Reader<'_>) -> Option<Vec<u32>> {
        let mut reply = Vec::new();
        for Group { shape, values } in &self.groups {
            let count = words.number()?;
            for row in words.take(count)? {
                let row = values.chunks_exact(shape.width).nth(*row as usize)?;
                reply.extend(row.iter().map(|value| value.to_bits()));
            }
        }
        words.0.is_empty().then_some(reply)
    }

    /// Updates the parts of this rank. As with other parameters, a table without a gradient is not
    /// changed; in a table with a gradient, rows without one have a gradient of zero.
    pub(crate) fn step(&mut self, gradients: &TableGradients, size: StepSize) -> Result<()> {
        self.steps += 1;
        for (piece, rule) in &mut self.rules {
            let table = piece.part.table;
            if !gradients.written[table] {
                continue;
            }
            let width = piece.part.columns.len();
            let rows = &gradients.of_groups[piece.group];
            let found = piece.find_rows(&rows.ids);
            let buffer = &mut self.gradient[..piece.part.values()];
            let starts = rows.ids[found.clone()].iter();
            let starts = starts.map(|row| (*row as usize - piece.first_row) * width);
            for (start, row) in
                starts.clone().zip(rows.values.chunks_exact(width).skip(found.start))
            {
                buffer[start..start + width].copy_from_slice(row);
            }
            let step = Step { number: self.steps, size, rate_factor: self.tables[table].rate };
            let values = self.groups[piece.group].values_mut(piece);
            rule.update(values, buffer, &step, &mut self.scratch)?;
            starts.for_each(|start| buffer[start..start + width].fill(0.0));
        }
        Ok(())
    }

    /// Sends a message to each rank, and returns the messages of all ranks.
    fn all_to_all(&self, messages: &[Vec<u32>]) -> Result<Vec<Vec<u32>>> {
        let messages = messages.iter().map(|message| to_bytes(message)).collect();
        words(&self.ranks.all_to_all(messages)?)
    }

    /// Sends a message to all ranks, and returns the messages of all ranks.
    fn gather(&self, message: &[u32]) -> Result<Vec<Vec<u32>>> {
        words(&self.ranks.gather_bytes(to_bytes(message))?)
    }
}

impl Group {
    /// The values of a piece of this group, `[rows, width]`.
    fn values(&self, piece: &Piece) -> &[f32] {
        &self.values[self.range(piece)]
    }

    /// See [`Group::values`].
    fn values_mut(&mut self, piece: &Piece) -> &mut [f32] {
        let range = self.range(piece);
        &mut self.values[range]
    }

    /// The range of the values of a piece of this group.
    fn range(&self, piece: &Piece) -> Range<usize> {
        let rows = piece.rows();
        rows.start * self.shape.width..rows.end * self.shape.width
    }
}

/// Writes the rows and columns of a piece, from the values of the whole table.
fn fill(values: &mut [f32], piece: &Piece, table: &Table, whole: &[f32]) {
    let Part { rows, columns, .. } = &piece.part;
    let source = whole.chunks_exact(table.width).skip(rows.start);
    for (target, source) in values.chunks_exact_mut(columns.len()).zip(source) {
        target.copy_from_slice(&source[columns.clone()]);
    }
}

fn to_bytes(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// The words of the messages of all ranks: the inverse of [`to_bytes`].
fn words(messages: &[Vec<u8>]) -> Result<Vec<Vec<u32>>> {
    let message = |(rank, bytes): (usize, &Vec<u8>)| {
        let (words, rest) = bytes.as_chunks::<4>();
        let words = words.iter().map(|word| u32::from_le_bytes(*word)).collect();
        rest.is_empty().then_some(words).ok_or_else(|| damaged(rank))
    };
    messages.iter().enumerate().map(message).collect()
}

/// The words of a message that are not yet read: numbers of rows, and the bits of values.
struct Reader<'a>(&'a [u32]);

impl<'a> Reader<'a> {
    /// The next word as a number.
    fn number(&mut self) -> Option<usize> {
        Some(*self.0.split_off_first()? as usize)
    }

    /// The next `count` words.
    fn take(&mut self, count: usize) -> Option<&'a [u32]> {
        self.0.split_off(..count)
    }

    /// The next `rows` rows of `width` words.
    fn rows(&mut self, rows: usize, width: usize) -> Option<&'a [u32]> {
        self.take(rows.checked_mul(width)?)
    }
}

fn damaged(rank: usize) -> TrainError {
    failed(format!("rank {rank} has sent a damaged message").into())
}

impl Table {
    fn error(&self, reason: String) -> TrainError {
        TrainError::Refused(format!("embedding table `{}`: {reason}", self.name))
    }
}
