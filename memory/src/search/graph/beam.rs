//! Best-first search of a graph: expands the best row found until all of the best are expanded.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::super::exact::{from_ordered_bits, to_ordered_bits};
use super::super::products::prefetch;
use super::similarity::{Cosines, Similarity};

/// A row with its cosine, ordered by the cosine. Of equal cosines the lower row is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Scored(u64);

impl Scored {
    pub(super) fn new(cosine: f32, row: u32) -> Self {
        Self(u64::from(to_ordered_bits(cosine)) << 32 | u64::from(!row))
    }

    pub(super) fn cosine(self) -> f32 {
        from_ordered_bits((self.0 >> 32) as u32)
    }

    pub(super) fn row(self) -> u32 {
        !(self.0 as u32)
    }
}

/// The lists of neighbours of a graph.
pub(super) trait Neighbours {
    /// The neighbours of a row.
    fn of(&self, row: u32) -> &[u32];
}

/// The buffers of a search.
#[derive(Debug, Default)]
pub(crate) struct Beam {
    /// One bit per row.
    visited: Vec<u64>,
    candidates: BinaryHeap<Scored>,
    best: BinaryHeap<Reverse<Scored>>,
    /// Neighbours of the expanded row that were not visited before.
    new: Vec<u32>,
    cosines: Cosines,
    /// The expanded rows, in order.
    pub(super) expanded: Vec<Scored>,
}

impl Beam {
    /// Returns approximately the `count` best rows for which `is_visible` is true, unordered. The
    /// search also passes through other rows.
    pub(super) fn search<S: Similarity>(
        &mut self,
        similarity: &S,
        query: &S::Query,
        (starts, neighbours): (&[u32], &impl Neighbours),
        count: usize,
        is_visible: impl Fn(u32) -> bool,
    ) -> Vec<Scored> {
        self.visited.clear();
        self.visited.resize(similarity.rows().div_ceil(64), 0);
        self.candidates.clear();
        self.best.clear();
        self.expanded.clear();
        self.visit(similarity, query, starts, count, &is_visible, |_| ());
        while let Some(node) = self.candidates.pop() {
            if self.best.len() >= count && self.best.peek().is_some_and(|worst| node < worst.0) {
                break;
            }
            self.expanded.push(node);
            let rows = neighbours.of(node.row());
            let prefetch = |row| prefetch(neighbours.of(row));
            self.visit(similarity, query, rows, count, &is_visible, prefetch);
        }
        self.best.drain().map(|Reverse(scored)| scored).collect()
    }

    /// Scores the rows that have not been visited. Calls `on_candidate` with each new candidate.
    fn visit<S: Similarity>(
        &mut self,
        similarity: &S,
        query: &S::Query,
        rows: &[u32],
        count: usize,
        is_visible: &impl Fn(u32) -> bool,
        on_candidate: impl Fn(u32),
    ) {
        self.new.clear();
        for row in rows {
            let (word, bit) = (&mut self.visited[*row as usize / 64], 1 << (row % 64));
            if *word & bit == 0 {
                *word |= bit;
                self.new.push(*row);
            }
        }
        similarity.cosines(query, &self.new, &mut self.cosines);
        for (row, cosine) in self.new.iter().zip(&self.cosines.values) {
            let next = Scored::new(*cosine, *row);
            let is_full = self.best.len() >= count;
            if is_full && self.best.peek().is_some_and(|worst| next < worst.0) {
                continue;
            }
            on_candidate(*row);
            self.candidates.push(next);
            if is_visible(*row) {
                self.best.push(Reverse(next));
                if is_full {
                    self.best.pop();
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn better_rows_compare_as_larger() {
        let ordered = [
            Scored::new(-0.5, 3),
            Scored::new(0.0, 9),
            Scored::new(0.25, 7),
            Scored::new(0.25, 2),
            Scored::new(1.0, u32::MAX),
        ];
        assert!(ordered.is_sorted());
        assert_eq!((ordered[0].cosine(), ordered[0].row()), (-0.5, 3));
        assert_eq!((ordered[4].cosine(), ordered[4].row()), (1.0, u32::MAX));
    }
}
