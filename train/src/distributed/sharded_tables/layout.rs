//! The position of each part of a table in the memory of its rank.
//!
//! A rank concatenates its parts of equal width to one matrix, a *group*. A message about any of
//! its tables names rows of groups.

use std::ops::Range;

use super::placement::{Part, Table};

/// The shape of a group: `[rows, width]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct GroupShape {
    pub(super) rows: usize,
    pub(super) width: usize,
}

/// A part of a table, with its position on its rank.
#[derive(Debug, Clone)]
pub(super) struct Piece {
    pub(super) part: Part,
    pub(super) rank: usize,
    pub(super) group: usize,
    /// The first row in the group.
    pub(super) first_row: usize,
}

/// The positions of all parts on all ranks.
#[derive(Debug)]
pub(super) struct Layout {
    pub(super) of_tables: Vec<Vec<Piece>>,
    /// The groups by rank.
    pub(super) groups: Vec<Vec<GroupShape>>,
}

impl Layout {
    /// The layout of the parts of all ranks.
    pub(super) fn new(tables: &[Table], of_ranks: &[Vec<Part>]) -> Self {
        let mut of_tables = vec![Vec::new(); tables.len()];
        let mut groups = vec![Vec::<GroupShape>::new(); of_ranks.len()];
        for (rank, (parts, groups)) in of_ranks.iter().zip(&mut groups).enumerate() {
            for part in parts {
                let width = part.columns.len();
                let group = groups.iter().position(|group| group.width == width);
                let group = group.unwrap_or_else(|| {
                    groups.push(GroupShape { rows: 0, width });
                    groups.len() - 1
                });
                let first_row = groups[group].rows;
                groups[group].rows += part.rows.len();
                of_tables[part.table].push(Piece { part: part.clone(), rank, group, first_row });
            }
        }
        Self { of_tables, groups }
    }

    /// The pieces of a rank, by table.
    pub(super) fn of_rank(&self, rank: usize) -> impl Iterator<Item = &Piece> {
        self.of_tables.iter().flatten().filter(move |piece| piece.rank == rank)
    }

    /// An empty list for each group of each rank.
    pub(super) fn lists<T: Clone + Default>(&self) -> Vec<Vec<T>> {
        self.groups.iter().map(|groups| vec![T::default(); groups.len()]).collect()
    }
}

impl Piece {
    /// The rows of the group.
    pub(super) fn rows(&self) -> Range<usize> {
        self.first_row..self.first_row + self.part.rows.len()
    }

    /// The index range of this piece's ids in an ascending list of ids of the table.
    pub(super) fn find(&self, ids: &[u32]) -> Range<usize> {
        find(&self.part.rows, ids)
    }

    /// The index range of this piece's rows in an ascending list of rows of the group.
    pub(super) fn find_rows(&self, rows: &[u32]) -> Range<usize> {
        find(&self.rows(), rows)
    }

    /// The row of the group that holds the row `id` of the table.
    pub(super) fn row_of(&self, id: u32) -> u32 {
        id - self.part.rows.start as u32 + self.first_row as u32
    }

    /// The row of the table that a row of the group holds.
    pub(super) fn id_of(&self, row: u32) -> usize {
        row as usize - self.first_row + self.part.rows.start
    }
}

/// The index range, in an ascending list, of the numbers that lie in `range`.
fn find(range: &Range<usize>, numbers: &[u32]) -> Range<usize> {
    let before = |end: usize| numbers.partition_point(|number| (*number as usize) < end);
    before(range.start)..before(range.end)
}
