//! Embedding tables in parts: each rank keeps some rows or columns, with their optimiser state.
//!
//! A [`Placement`] gives each rank its parts. In each step, all ranks do the following together:
//!
//! 1. [`ShardedTables::lookup`] fetches the rows for the ids of all micro-batches of the rank from
//!    the ranks that keep them. [`LookedUpRows::select`] gives the rows of one micro-batch as
//!    tensors. The backward pass stores their gradients.
//! 2. [`TableGradientSum::add`] adds the gradients of a micro-batch. [`ShardedTables::reduce`] sends
//!    these sums to the ranks that keep the rows.
//! 3. [`ShardedTables::sums_of_squares`] is the tables' share of the gradient norm, for clipping.
//! 4. [`ShardedTables::step`] updates the parts of the rank.
//!
//! [`ShardedTables::state`] and [`ShardedTables::restore`] are for checkpoints.
//!
//! Gradients are added in the same order as those of other parameters: values and state of a table
//! have the bytes of a dense parameter, for any placement and any number of ranks. This holds if each
//! micro-batch uses the rows of a table in a single operation, for example in
//! [`TableRows::embed`]. Otherwise rounding may differ from that of a dense parameter, but not with
//! the number of ranks.

mod averages;
mod gradients;
mod layout;
mod norm;
pub mod placement;
mod rows;
mod state;
mod words;

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use engram_models::ModelError;

use super::{Ranks, failed};
use crate::error::{Result, TrainError};
use crate::optimiser::{RuleSet, Step, StepSize, UpdateRule};
pub use gradients::{TableGradientSum, TableGradients};
use layout::{GroupShape, Layout, Piece};
use placement::{Placement, Table};
pub use rows::{LookedUpRows, MicroBatchRows, TableRows};
use rows::{SparseRows, sorted};
pub use state::PartTensor;
pub(crate) use state::{MEAN, VALUES};
use words::{Reader, from_bytes, to_bytes};

/// Initial values are read in blocks of at most this number, or of one row.
const READ: usize = 1 << 20;

/// Embedding tables whose parts are kept by the ranks of a training run. They are on the CPU.
pub struct ShardedTables {
    ranks: Ranks,
    tables: Arc<[Table]>,
    layout: Layout,
    /// The parts of this rank.
    groups: Vec<Group>,
    /// The update rule of each part of this rank.
    rules: Vec<(Piece, Box<dyn UpdateRule>)>,
    /// The names of the state tensors of each table's update rule.
    state_names: Vec<Vec<&'static str>>,
    /// The moving averages of the groups of this rank, if there are any.
    means: Option<Vec<Vec<f32>>>,
    steps: u64,
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
    /// `initial(table, rows)` returns initial values of these rows of the table with this index,
    /// `[rows, D]`. It is called only for rows of which this rank keeps a part, and for some of them
    /// at a time.
    ///
    /// # Errors
    /// The errors of `initial`. [`TrainError::Table`] if it returns another number of values, if a
    /// table has no columns, if its rule needs whole tables (Adafactor and Muon), or if a rank would
    /// keep more rows of one width than 32-bit numbers can count. [`TrainError::Ranks`] if a rank has
    /// ended or has other arguments.
    pub fn new(
        tables: Vec<Table>,
        placement: &Placement,
        rules: &RuleSet,
        ranks: &Ranks,
        mut initial: impl FnMut(usize, Range<usize>) -> Result<Vec<f32>>,
    ) -> Result<Self> {
        ranks.expect_equal(
            &ranks.gather(format!("{tables:?} {placement:?} {rules:?}"))?,
            |rank| {
                format!(
                    "rank {rank} has other embedding tables than rank 0; give all ranks the same"
                )
            },
        )?;
        if let Some(table) = tables.iter().find(|table| table.width == 0) {
            return Err(table.error("its rows have no values".into()));
        }
        let layout = Layout::new(&tables, &placement.parts(&tables, ranks.size()));
        for piece in layout.of_tables.iter().flatten() {
            let rows = piece.rows().end;
            let rule = rules.rule_of(&tables[piece.part.table].name);
            let refused = if u32::try_from(rows).is_err() {
                format!("rank {} would keep {rows} rows of one width; use more ranks", piece.rank)
            } else if rule.needs_whole_tensors() {
                "is kept in parts, but the update rule needs whole tables; use another rule".into()
            } else {
                continue;
            };
            return Err(tables[piece.part.table].error(refused));
        }
        let groups = layout.groups[ranks.rank()].iter();
        let groups = groups
            .map(|shape| Group { shape: *shape, values: vec![0.0; shape.rows * shape.width] });
        let mut groups: Vec<Group> = groups.collect();
        let mut of_pieces = Vec::new();
        for piece in layout.of_rank(ranks.rank()) {
            let table = &tables[piece.part.table];
            let values = groups[piece.group].values_mut(piece);
            fill(values, piece, table, |rows| initial(piece.part.table, rows))?;
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
            tables: tables.into(),
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

    /// Replaces the values by those of tables with the same placement.
    pub(crate) fn set_values(&mut self, values: PartValues) {
        let groups = self.groups.iter_mut().zip(values.0);
        groups.for_each(|(group, values)| group.values = values);
    }

    /// The bytes of this rank's values, optimiser state, averages and gradient buffer.
    ///
    /// # Errors
    /// None on the CPU.
    pub fn bytes(&self) -> Result<usize> {
        let tensors: usize = self.state()?.iter().map(|tensor| tensor.values.len()).sum();
        Ok((tensors + self.gradient.len()) * size_of::<f32>())
    }

    /// Fetches rows from the ranks that keep them: for each table the rows of its ids, in any order
    /// and also several times. All ranks call this function, each with its own ids, which may be
    /// none. Each row is sent once.
    ///
    /// # Errors
    /// [`TrainError::Table`] if an id is not below the table's number of rows;
    /// [`TrainError::Ranks`] if a rank has ended.
    pub fn lookup(&self, ids: &[&[u32]]) -> Result<LookedUpRows> {
        expect_tables(&self.tables, ids)?;
        let ids: Vec<Vec<u32>> = ids.iter().map(|ids| sorted(ids)).collect();
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
        Ok(LookedUpRows { tables: Arc::clone(&self.tables), of_tables })
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
    ///
    /// # Errors
    /// [`TrainError::Model`] if a tensor operation fails.
    pub fn step(&mut self, gradients: &TableGradients, size: StepSize) -> Result<()> {
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

/// Writes the columns of a piece, from whole rows that `read` returns.
fn fill(
    values: &mut [f32],
    piece: &Piece,
    table: &Table,
    mut read: impl FnMut(Range<usize>) -> Result<Vec<f32>>,
) -> Result<()> {
    let (rows, columns) = (&piece.part.rows, &piece.part.columns);
    let at_a_time = (READ / table.width).max(1);
    let mut targets = values.chunks_exact_mut(columns.len());
    for start in rows.clone().step_by(at_a_time) {
        let block = start..(start + at_a_time).min(rows.end);
        let source = read(block.clone())?;
        if source.len() != block.len() * table.width {
            let (found, width) = (source.len(), table.width);
            return Err(table.error(format!(
                "its rows {block:?} of width {width} have {found} initial values"
            )));
        }
        for (source, target) in source.chunks_exact(table.width).zip(&mut targets) {
            target.copy_from_slice(&source[columns.clone()]);
        }
    }
    Ok(())
}

/// Returns an error unless there are ids for each table.
fn expect_tables(tables: &[Table], ids: &[&[u32]]) -> Result<()> {
    if ids.len() == tables.len() {
        return Ok(());
    }
    let (found, expected) = (ids.len(), tables.len());
    let reason = format!("{found} lists of ids for {expected} embedding tables; give one for each");
    Err(ModelError::BadInput(reason).into())
}

/// The words of the messages of all ranks.
fn words(messages: &[Vec<u8>]) -> Result<Vec<Vec<u32>>> {
    let messages = messages.iter().enumerate();
    messages.map(|(rank, bytes)| from_bytes(bytes).ok_or_else(|| damaged(rank))).collect()
}

fn damaged(rank: usize) -> TrainError {
    failed(format!("rank {rank} has sent a damaged message").into())
}

impl Table {
    fn error(&self, reason: String) -> TrainError {
        TrainError::Table { table: self.name.clone(), reason }
    }
}
