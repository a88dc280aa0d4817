//! A shard: an object with the values of some rows.
//!
//! 1. the CRC-32 of each block, 4 bytes each: the table
//! 2. the values, without gaps; each as in a local memory: its numbers, then its scales
//!
//! A block is a fixed number of values. So a reader can check a range of blocks without the rest of
//! the shard. The manifest has the SHA-256 of the table and of the whole shard. All bytes are
//! little endian.

use std::ops::Range;

use bytes::Bytes;
use sha2::{Digest, Sha256};

use crate::manifest::{ShardRecord, hex};

/// The bytes of a checksum in the table.
const CHECKSUM_BYTES: usize = 4;

/// The sizes of a shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Layout {
    /// The number of values.
    pub(crate) rows: usize,
    /// The size of a value.
    pub(crate) row_bytes: usize,
    /// The number of values of a block. The last block may have fewer.
    pub(crate) block_rows: usize,
}

impl Layout {
    pub(crate) fn blocks(&self) -> usize {
        self.rows.div_ceil(self.block_rows)
    }

    pub(crate) fn table_bytes(&self) -> usize {
        self.blocks() * CHECKSUM_BYTES
    }

    /// The size of the shard.
    pub(crate) fn bytes(&self) -> u64 {
        self.table_bytes() as u64 + self.rows as u64 * self.row_bytes as u64
    }

    /// The bytes of some neighbouring blocks in the shard.
    pub(crate) fn range(&self, blocks: Range<usize>) -> Range<u64> {
        let at = |row: usize| self.table_bytes() as u64 + row as u64 * self.row_bytes as u64;
        at(blocks.start * self.block_rows)..at((blocks.end * self.block_rows).min(self.rows))
    }

    /// The bytes of a row in its block.
    pub(crate) fn in_block(&self, row: usize) -> Range<usize> {
        let start = row % self.block_rows * self.row_bytes;
        start..start + self.row_bytes
    }
}

/// A shard in main memory.
#[derive(Debug)]
pub(crate) struct Shard {
    pub(crate) bytes: Bytes,
    pub(crate) record: ShardRecord,
}

impl Shard {
    /// Makes a shard. `push_values` appends the values.
    pub(crate) fn new<E>(
        layout: Layout,
        push_values: impl FnOnce(&mut Vec<u8>) -> Result<(), E>,
    ) -> Result<Self, E> {
        let table_bytes = layout.table_bytes();
        let mut bytes = Vec::with_capacity(layout.bytes() as usize);
        bytes.resize(table_bytes, 0);
        push_values(&mut bytes)?;
        let (table, values) = bytes.split_at_mut(table_bytes);
        let blocks = values.chunks(layout.block_rows * layout.row_bytes);
        for (checksum, block) in table.chunks_mut(CHECKSUM_BYTES).zip(blocks) {
            checksum.copy_from_slice(&crc32fast::hash(block).to_le_bytes());
        }
        let table_sha256 = hex(&Sha256::digest(&bytes[..table_bytes]));
        let record = ShardRecord { sha256: hex(&Sha256::digest(&bytes)), table_sha256 };
        Ok(Self { bytes: bytes.into(), record })
    }
}

/// The checksums of the blocks of a shard.
#[derive(Debug)]
pub(crate) struct Table(Bytes);

impl Table {
    /// Reads a table; `None` if it was changed.
    pub(crate) fn checked(bytes: Bytes, sha256: &str) -> Option<Self> {
        (hex(&Sha256::digest(&bytes)) == sha256).then_some(Self(bytes))
    }

    /// Whether these are the bytes of the block.
    pub(crate) fn is_block(&self, block: usize, bytes: &[u8]) -> bool {
        let start = block * CHECKSUM_BYTES;
        let checksum = self.0.get(start..start + CHECKSUM_BYTES);
        checksum == Some(&crc32fast::hash(bytes).to_le_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_cover_the_values_and_every_changed_byte_is_noticed() {
        let layout = Layout { rows: 7, row_bytes: 3, block_rows: 2 };
        assert_eq!((layout.blocks(), layout.bytes()), (4, 16 + 21));
        assert_eq!((layout.range(0..1), layout.range(1..4)), (16..22, 22..37));
        assert_eq!(layout.in_block(5), 3..6);
        let shard = Shard::new(layout, |bytes| {
            bytes.extend(0..21);
            Ok::<_, ()>(())
        });
        let Shard { bytes, record: ShardRecord { table_sha256, .. } } = shard.unwrap();
        let table = Table::checked(bytes.slice(..16), &table_sha256).unwrap();
        for at in 0..bytes.len() {
            let mut changed = bytes.to_vec();
            changed[at] ^= 1;
            let changed = Bytes::from(changed);
            if at < 16 {
                assert!(Table::checked(changed.slice(..16), &table_sha256).is_none());
                continue;
            }
            for block in 0..4 {
                let range = layout.range(block..block + 1);
                let is_in_block = range.contains(&(at as u64));
                let block_bytes = &changed[range.start as usize..range.end as usize];
                assert_eq!(table.is_block(block, block_bytes), !is_in_block);
            }
        }
    }
}
