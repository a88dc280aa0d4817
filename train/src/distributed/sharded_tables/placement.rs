//! The placement of embedding tables on ranks: the part of each table that each rank keeps.
//!
//! The rules are those of Distributed-Embeddings (NVIDIA): large tables are split by row over all
//! ranks, or into column slices; a strategy then places slices and whole tables. The placement
//! depends only on its arguments, so all ranks compute the same. A row split gives each rank a
//! contiguous range. If frequent words come first, rank 0 therefore sends the most rows.

use std::ops::Range;

use crate::distributed::tree::share;
use crate::recipe::{EmbeddingTableSettings, Strategy};

/// One embedding table: `rows` embeddings of `width` values, `[V, D]`.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Table {
    /// The name, for error messages.
    pub name: String,
    /// The number of rows, `V`: one for each id from 0.
    pub rows: usize,
    /// The number of values of a row, `D`.
    pub width: usize,
    /// The factor on the learning rate.
    pub rate: f64,
}

/// A part of a table: the values in a range of rows and a range of columns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Part {
    /// The index of the table.
    pub table: usize,
    /// The rows.
    pub rows: Range<usize>,
    /// The columns.
    pub columns: Range<usize>,
}

impl Part {
    /// The number of values.
    pub(crate) fn values(&self) -> usize {
        self.rows.len() * self.columns.len()
    }
}

impl EmbeddingTableSettings {
    /// The parts of each rank, by table, then by row, then by column. Each value of each table is
    /// in one part of one rank. A rank may have no part.
    pub(crate) fn parts(&self, tables: &[Table], ranks: usize) -> Vec<Vec<Part>> {
        let mut of_ranks = vec![Vec::new(); ranks];
        let mut units = Vec::new();
        for (table, shape) in tables.iter().enumerate() {
            let values = shape.rows * shape.width;
            if values == 0 {
                continue;
            }
            if self.row_threshold.is_some_and(|threshold| values > threshold) {
                for (rank, parts) in of_ranks.iter_mut().enumerate() {
                    let rows = share(shape.rows, ranks, rank);
                    parts.push(Part { table, rows, columns: 0..shape.width });
                }
            } else {
                let slices = self.slices(shape, ranks);
                units.extend((0..slices).map(|slice| Part {
                    table,
                    rows: 0..shape.rows,
                    columns: share(shape.width, slices, slice),
                }));
            }
        }
        self.place(units, &mut of_ranks);
        for parts in &mut of_ranks {
            parts.retain(|part| !part.rows.is_empty());
            parts.sort_by_key(|part| (part.table, part.rows.start, part.columns.start));
            parts.dedup_by(|right, left| {
                let is_one_slice = left.table == right.table
                    && left.rows == right.rows
                    && left.columns.end == right.columns.start;
                if is_one_slice {
                    left.columns.end = right.columns.end;
                }
                is_one_slice
            });
        }
        of_ranks
    }

    /// The number of column slices of a table.
    fn slices(&self, table: &Table, ranks: usize) -> usize {
        let Some(threshold) = self.column_threshold else { return 1 };
        let most = ranks.min(table.width);
        let mut slices = 1;
        while slices < most && table.rows * table.width.div_ceil(slices) > threshold {
            slices *= 2;
        }
        slices.min(most)
    }

    /// Adds tables and slices to the parts of the ranks.
    fn place(&self, mut units: Vec<Part>, of_ranks: &mut [Vec<Part>]) {
        let ranks = of_ranks.len();
        if self.strategy != Strategy::Basic {
            units.sort_by_key(|unit| std::cmp::Reverse(unit.values()));
        }
        for (i, unit) in units.into_iter().enumerate() {
            let (round, position) = (i / ranks, i % ranks);
            let rank = match self.strategy {
                Strategy::Basic => position,
                Strategy::MemoryBalanced if round % 2 == 0 => position,
                Strategy::MemoryBalanced => ranks - 1 - position,
                Strategy::MemoryOptimised => {
                    let load =
                        |rank: &usize| of_ranks[*rank].iter().map(Part::values).sum::<usize>();
                    (0..ranks).min_by_key(load).unwrap_or(0)
                }
            };
            of_ranks[rank].push(unit);
        }
    }
}

#[cfg(test)]
mod tests {
    use rand::{Rng, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    use super::*;

    const STRATEGIES: [Strategy; 3] =
        [Strategy::Basic, Strategy::MemoryBalanced, Strategy::MemoryOptimised];

    fn tables(shapes: &[(usize, usize)]) -> Vec<Table> {
        let table = |(i, (rows, width)): (usize, &(usize, usize))| Table {
            name: i.to_string(),
            rows: *rows,
            width: *width,
            rate: 1.0,
        };
        shapes.iter().enumerate().map(table).collect()
    }

    fn random_tables(rng: &mut ChaCha8Rng) -> Vec<Table> {
        let count = rng.random_range(0..9);
        let shape = |_| (rng.random_range(0..60), rng.random_range(1..20));
        tables(&(0..count).map(shape).collect::<Vec<_>>())
    }

    fn loads(parts: &[Vec<Part>]) -> Vec<usize> {
        parts.iter().map(|parts| parts.iter().map(Part::values).sum()).collect()
    }

    #[test]
    fn every_value_is_on_one_rank() {
        for seed in 0..2000 {
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            let tables = random_tables(&mut rng);
            let ranks = rng.random_range(1..7);
            let mut threshold = || rng.random_bool(0.5).then(|| rng.random_range(0..900));
            let (row_threshold, column_threshold) = (threshold(), threshold());
            let strategy = STRATEGIES[seed as usize % 3];
            let placement = EmbeddingTableSettings {
                strategy,
                row_threshold,
                column_threshold,
                ..EmbeddingTableSettings::default()
            };
            let parts = placement.parts(&tables, ranks);
            assert_eq!(parts, placement.parts(&tables, ranks));
            assert_eq!(parts.len(), ranks, "seed {seed}");
            let mut owners: Vec<Vec<usize>> =
                tables.iter().map(|table| vec![0; table.rows * table.width]).collect();
            for part in parts.iter().flatten() {
                assert!(part.values() > 0, "seed {seed}");
                for row in part.rows.clone() {
                    for column in part.columns.clone() {
                        owners[part.table][row * tables[part.table].width + column] += 1;
                    }
                }
            }
            assert!(owners.iter().flatten().all(|owners| *owners == 1), "seed {seed}");
        }
    }

    #[test]
    fn column_slices_are_below_the_threshold_or_as_many_as_possible() {
        let placement = EmbeddingTableSettings {
            column_threshold: Some(100),
            ..EmbeddingTableSettings::default()
        };
        for (rows, width, ranks, slices) in [
            (10, 10, 8, 1),
            (10, 11, 8, 2),
            (10, 24, 8, 4),
            (10, 70, 8, 8),
            // Two columns; six ranks; a threshold that no slice of whole columns meets.
            (1000, 2, 8, 2),
            (1000, 60, 6, 6),
            (101, 3, 8, 3),
        ] {
            let parts = placement.parts(&tables(&[(rows, width)]), ranks).concat();
            assert_eq!(parts.len(), slices, "{rows} x {width} on {ranks} ranks");
            let widths = || parts.iter().map(|part| part.columns.len());
            assert!(widths().max() <= widths().min().map(|least| least + 1));
            let is_small = parts.iter().all(|part| part.values() <= 100);
            assert!(is_small || slices == ranks.min(width));
        }
    }

    /// Two slices of a table on one rank are one part if they are neighbours.
    #[test]
    fn neighbouring_slices_on_a_rank_are_one_part() {
        let placement = EmbeddingTableSettings {
            strategy: Strategy::MemoryBalanced,
            column_threshold: Some(8),
            ..EmbeddingTableSettings::default()
        };
        let parts = placement.parts(&tables(&[(4, 3), (4, 4)]), 2);
        let columns = |parts: &[Part]| -> Vec<_> {
            parts.iter().map(|part| (part.table, part.columns.clone())).collect()
        };
        // Sizes 8 (0: 0..2), 8 (1: 0..2), 8 (1: 2..4), 4 (0: 2..3) in snake order.
        assert_eq!(columns(&parts[0]), [(0, 0..3)]);
        assert_eq!(columns(&parts[1]), [(1, 0..4)]);
    }

    #[test]
    fn the_strategies_place_as_documented() {
        let tables = tables(&[(1, 1), (8, 1), (2, 1), (5, 1), (3, 1), (4, 1)]);
        let on_two = |strategy| {
            let parts = EmbeddingTableSettings { strategy, ..EmbeddingTableSettings::default() }
                .parts(&tables, 2);
            parts.iter().map(|parts| parts.iter().map(|part| part.table).collect()).collect()
        };
        let found: Vec<Vec<Vec<usize>>> = STRATEGIES.map(on_two).to_vec();
        // Values 1 + 2 + 3 and 8 + 5 + 4.
        assert_eq!(found[0], [[0, 2, 4], [1, 3, 5]]);
        // Values 8 + 3 + 2 and 5 + 4 + 1.
        assert_eq!(found[1], [[1, 2, 4], [0, 3, 5]]);
        // Values 8 + 3 + 1 and 5 + 4 + 2.
        assert_eq!(found[2], [[0, 1, 4], [2, 3, 5]]);
    }

    #[test]
    fn loads_are_within_the_bounds_of_their_strategies() {
        for seed in 0..2000 {
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            let tables = random_tables(&mut rng);
            let ranks = rng.random_range(1..7);
            let parts = STRATEGIES.map(|strategy| {
                EmbeddingTableSettings { strategy, ..EmbeddingTableSettings::default() }
                    .parts(&tables, ranks)
            });
            let [basic, balanced, optimised] = &parts;
            let count = tables.iter().filter(|table| table.rows > 0).count();
            for parts in [basic, balanced] {
                let mut counts = parts.iter().map(Vec::len);
                assert!(counts.all(|own| own == count / ranks || own == count.div_ceil(ranks)));
            }
            let largest = tables.iter().map(|table| table.rows * table.width).max().unwrap_or(0);
            let most = |parts: &[Vec<Part>]| loads(parts).into_iter().max().unwrap_or(0);
            for parts in [balanced, optimised] {
                let least = loads(parts).into_iter().min().unwrap_or(0);
                assert!(most(parts) - least <= largest, "seed {seed}");
            }
            // At most 4/3 − 1/(3 ranks) of any other placement.
            for other in [basic, balanced] {
                assert!(
                    3 * ranks * most(optimised) <= (4 * ranks - 1) * most(other),
                    "seed {seed}"
                );
            }
        }
    }
}
