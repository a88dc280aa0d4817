//! The sums of squares of gradients of tables, for clipping by the global norm.

use std::collections::BTreeMap;

use super::layout::Piece;
use super::{Reader, ShardedTables, TableGradients, damaged};
use crate::error::Result;

/// Values per block. Within `Gradients::global_norm`, blocks have the same size.
const BLOCK: usize = 1 << 14;

impl ShardedTables {
    /// Returns the sum of squares of each table's gradient, in f64, for
    /// [`Gradients::global_norm_with`](engram_models::gradients::Gradients::global_norm_with); 0
    /// for a table without a gradient. All ranks call this function.
    ///
    /// A sum of floating-point numbers depends on their order. So each block of a gradient is
    /// summed on one rank, to which the others send their values of the block. These are few,
    /// except for tables in column slices.
    pub(crate) fn sums_of_squares(&self, gradients: &TableGradients) -> Result<Vec<f64>> {
        let mut messages = vec![Vec::new(); self.ranks.size()];
        for piece in self.layout.of_rank(self.ranks.rank()) {
            let rows = &gradients.of_groups[piece.group];
            let columns = &piece.part.columns;
            let table_width = self.tables[piece.part.table].width;
            let found = piece.find_rows(&rows.ids);
            let values = &rows.values[found.start * columns.len()..found.end * columns.len()];
            for (row, mut values) in rows.ids[found].iter().zip(values.chunks_exact(columns.len()))
            {
                let mut position = piece.id_of(*row) * table_width + columns.start;
                while !values.is_empty() {
                    let (block, offset) = (position / BLOCK, position % BLOCK);
                    let in_block;
                    (in_block, values) = values.split_at(values.len().min(BLOCK - offset));
                    let message: &mut Vec<u32> = &mut messages[self.rank_of(piece, block)];
                    let header = [piece.part.table, block, offset, in_block.len()];
                    message.extend(header.map(|number| number as u32));
                    message.extend(in_block.iter().map(|value| value.to_bits()));
                    position += in_block.len();
                }
            }
        }
        let received = self.all_to_all(&messages)?;
        let mut blocks = BTreeMap::<(usize, usize), Vec<(usize, &[u32])>>::new();
        for (rank, words) in received.iter().enumerate() {
            let mut words = Reader(words);
            while !words.0.is_empty() {
                let mut read = || {
                    let key = (words.number()?, words.number()?);
                    let (offset, count) = (words.number()?, words.number()?);
                    Some((key, offset, words.take(count)?))
                };
                let (key, offset, values) = read().ok_or_else(|| damaged(rank))?;
                blocks.entry(key).or_default().push((offset, values));
            }
        }
        let mut own = Vec::new();
        for ((table, block), mut values) in blocks {
            values.sort_by_key(|(offset, _)| *offset);
            let values = values.into_iter().flat_map(|(_, values)| values);
            let values = values.map(|bits| f64::from(f32::from_bits(*bits)));
            let sum = values.map(|value| value * value).sum::<f64>().to_bits();
            own.extend([table as u32, block as u32, sum as u32, (sum >> 32) as u32]);
        }
        self.add_blocks(&self.gather(&own)?)
    }

    /// Returns the rank that sums the squares of a block of a table. The rank keeps values of the
    /// block.
    fn rank_of(&self, piece: &Piece, block: usize) -> usize {
        let width = self.tables[piece.part.table].width;
        let (start, end) = (block * BLOCK / width, ((block + 1) * BLOCK).div_ceil(width));
        let pieces = || {
            let pieces = self.layout.of_tables[piece.part.table].iter();
            pieces.filter(|piece| piece.part.rows.start < end && start < piece.part.rows.end)
        };
        pieces().nth(block % pieces().count()).map_or(piece.rank, |piece| piece.rank)
    }

    /// Adds the sums of all blocks of each table, in order.
    fn add_blocks(&self, of_ranks: &[Vec<u32>]) -> Result<Vec<f64>> {
        let mut blocks = BTreeMap::new();
        for (rank, words) in of_ranks.iter().enumerate() {
            let (sums, rest) = words.as_chunks::<4>();
            let is_valid = |[table, ..]: &[u32; 4]| (*table as usize) < self.tables.len();
            if !rest.is_empty() || !sums.iter().all(is_valid) {
                return Err(damaged(rank));
            }
            blocks.extend(sums.iter().map(|[table, block, low, high]| {
                let sum = f64::from_bits(u64::from(*low) | u64::from(*high) << 32);
                ((*table, *block), sum)
            }));
        }
        let mut sums = vec![0.0; self.tables.len()];
        blocks.into_iter().for_each(|((table, _), sum)| sums[table as usize] += sum);
        Ok(sums)
    }
}
