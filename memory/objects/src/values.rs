//! The values of a generation in an object store.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use engram_memory::cache::{StoredValue, ValueKey, ValueSource};
use engram_memory::{MemoryError, ValueFormat};
use futures_util::future::{try_join, try_join_all};

use crate::failure::{MISSING, damaged, is_missing};
use crate::manifest::{self, Manifest, SegmentRecord, ShardRecord};
use crate::shard::{Layout, Table};
use crate::storage::{Client, ObjectStorage};

/// Blocks with at most this many bytes between them are read by one request.
const MERGED_GAP: u64 = 128 << 10;
/// The largest range of merged blocks in bytes. Larger ranges are read by several requests, in
/// parallel.
const LARGEST_RANGE: u64 = 4 << 20;

/// The values of a generation in an object store.
#[derive(Debug)]
pub struct RemoteValues {
    storage: ObjectStorage,
    manifest: Manifest,
    /// The shards of all segments.
    shards: Vec<Arc<Shard>>,
}

/// A shard whose table may have been read.
#[derive(Debug)]
struct Shard {
    record: ShardRecord,
    layout: Layout,
    table: OnceLock<Table>,
}

/// A block: the index of its shard, and its index in the shard.
type BlockAt = (usize, usize);

impl RemoteValues {
    /// Opens a generation.
    ///
    /// # Errors
    /// [`MemoryError::UnknownFormat`]; [`MemoryError::Remote`] if the manifest is missing or
    /// damaged, or a request failed
    pub fn open(storage: &ObjectStorage, generation: u64) -> Result<Self, MemoryError> {
        let client = Arc::clone(&storage.client);
        let manifest = storage.wait(async move { Manifest::read(&client, generation).await })?;
        let shards = manifest.shards().map(|(record, layout)| {
            Arc::new(Shard { record: record.clone(), layout, table: OnceLock::new() })
        });
        let shards = shards.collect();
        Ok(Self { storage: storage.clone(), manifest, shards })
    }

    /// Checks that there is a segment with this identity, number of rows and format.
    pub(crate) fn check_segment(
        &self,
        id: u64,
        rows: usize,
        format: ValueFormat,
    ) -> Result<(), MemoryError> {
        let has_rows = |(segment, _): (&SegmentRecord, usize)| segment.rows == rows;
        if self.manifest.values == format && self.segment(id).is_some_and(has_rows) {
            return Ok(());
        }
        let location = self.storage.client.address(&manifest::name(self.manifest.generation));
        Err(damaged(&location, "has no values of this memory".to_owned()))
    }

    /// Reads the blocks of the shards of segments, or only the last block of each. Returns the
    /// errors, one per shard that is missing or damaged.
    pub(crate) fn verify(&self, ids: &[u64], all: bool) -> Result<Vec<MemoryError>, MemoryError> {
        let segments = self.manifest.segments.iter();
        let ids_of_shards = segments.flat_map(|segment| segment.shards.iter().map(|_| segment.id));
        let mut errors = Vec::new();
        for (number, _) in ids_of_shards.enumerate().filter(|(_, id)| ids.contains(id)) {
            let Shard { record, layout, .. } = self.shards[number].as_ref();
            let first = if all { 0 } else { layout.blocks() - 1 };
            match self.read_blocks((first..layout.blocks()).map(|block| (number, block))) {
                Err(error @ MemoryError::DamagedObject { .. }) => errors.push(error),
                Err(error) if is_missing(&error) => {
                    let location = self.storage.client.address(&record.name());
                    errors.push(damaged(&location, MISSING.to_owned()));
                }
                read => drop(read?),
            }
        }
        Ok(errors)
    }

    /// The segment with this identity, and the index of its first shard.
    fn segment(&self, id: u64) -> Option<(&SegmentRecord, usize)> {
        let segments = &self.manifest.segments;
        let index = segments.iter().position(|segment| segment.id == id)?;
        let shards_before = segments[..index].iter().map(|segment| segment.shards.len());
        Some((&segments[index], shards_before.sum()))
    }

    /// Reads blocks.
    fn read_blocks(
        &self,
        blocks: impl Iterator<Item = BlockAt>,
    ) -> Result<BTreeMap<BlockAt, Bytes>, MemoryError> {
        let mut by_shard: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (shard, block) in blocks {
            by_shard.entry(shard).or_default().push(block);
        }
        let reads = by_shard.into_iter().map(|(number, blocks)| {
            let (client, shard) =
                (Arc::clone(&self.storage.client), Arc::clone(&self.shards[number]));
            let ranges = merged(shard.layout, &blocks);
            async move { Ok((number, shard.read_blocks(&client, &blocks, &ranges).await?)) }
        });
        let reads: Vec<_> = reads.collect();
        let read = self.storage.wait(async move { try_join_all(reads).await })?;
        let blocks = read.into_iter().flat_map(|(shard, blocks)| {
            blocks.into_iter().map(move |(block, bytes)| ((shard, block), bytes))
        });
        Ok(blocks.collect())
    }
}

impl Shard {
    /// Reads blocks by some requests, and checks them.
    async fn read_blocks(
        &self,
        client: &Client,
        blocks: &[usize],
        ranges: &[Range<usize>],
    ) -> Result<Vec<(usize, Bytes)>, MemoryError> {
        let (name, size) = (self.record.name(), self.layout.bytes());
        let table = async {
            let bytes = self.layout.table_bytes() as u64;
            match self.table.get() {
                Some(_) => Ok(None),
                None => client.get_range(&name, size, 0..bytes).await.map(Some),
            }
        };
        let reads = ranges
            .iter()
            .map(|blocks| client.get_range(&name, size, self.layout.range(blocks.clone())));
        // The table of the first read comes together with the blocks.
        let (table, reads) = try_join(table, try_join_all(reads)).await?;
        let changed = |reason: String| damaged(&client.address(&name), reason);
        if let Some(bytes) = table {
            let table = Table::checked(bytes, &self.record.table_sha256)
                .ok_or_else(|| changed("the checksums of its blocks were changed".to_owned()))?;
            // Another thread may have read it meanwhile.
            let _ = self.table.set(table);
        }
        let table = self.table.get();
        let mut checked = Vec::with_capacity(blocks.len());
        for (range, bytes) in ranges.iter().zip(reads) {
            let start = self.layout.range(range.clone()).start;
            for &block in blocks.iter().filter(|block| range.contains(block)) {
                let at = self.layout.range(block..block + 1);
                let bytes = bytes.slice((at.start - start) as usize..(at.end - start) as usize);
                if !table.is_some_and(|table| table.is_block(block, &bytes)) {
                    return Err(changed(format!("block {block} was changed")));
                }
                checked.push((block, bytes));
            }
        }
        Ok(checked)
    }
}

/// Merges near blocks, which are in order, to ranges.
fn merged(layout: Layout, blocks: &[usize]) -> Vec<Range<usize>> {
    let mut ranges: Vec<Range<usize>> = Vec::new();
    for &block in blocks {
        let bytes = layout.range(block..block + 1);
        match ranges.last_mut() {
            Some(range)
                if {
                    let before = layout.range(range.clone());
                    bytes.start - before.end <= MERGED_GAP
                        && bytes.end - before.start <= LARGEST_RANGE
                } =>
            {
                range.end = block + 1;
            }
            _ => ranges.push(block..block + 1),
        }
    }
    ranges
}

impl ValueSource for RemoteValues {
    fn stored_values(&self, keys: &[ValueKey]) -> Result<Vec<StoredValue<'static>>, MemoryError> {
        let position = |&(id, row): &ValueKey| {
            let segment = self.segment(id).filter(|(segment, _)| (row as usize) < segment.rows);
            let (_, first_shard) = segment.ok_or_else(|| {
                MemoryError::invalid(
                    "a value",
                    format!("{id:016x}, {row}"),
                    "a value of this generation",
                )
            })?;
            let (row, shard_rows) = (row as usize, self.manifest.shard_rows);
            let (shard, row) = (first_shard + row / shard_rows, row % shard_rows);
            Ok(((shard, row / self.manifest.block_rows), row))
        };
        let positions = keys.iter().map(position).collect::<Result<Vec<_>, MemoryError>>()?;
        let mut blocks: Vec<BlockAt> = positions.iter().map(|(block, _)| *block).collect();
        blocks.sort_unstable();
        blocks.dedup();
        let blocks = self.read_blocks(blocks.into_iter())?;
        let values = positions.iter().map(|(at, row)| {
            let bytes = &blocks[at][self.shards[at.0].layout.in_block(*row)];
            StoredValue::from_bytes(self.manifest.values, bytes.to_vec().into())
        });
        values.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_blocks_are_read_together() {
        // 32 KiB per block: 4 blocks may be between two.
        let layout = Layout { rows: 2000, row_bytes: 16 << 10, block_rows: 2 };
        assert_eq!(merged(layout, &[0, 1, 6, 12, 13]), [0..7, 12..14]);
        // At most 4 MiB.
        let all: Vec<usize> = (0..200).collect();
        assert_eq!(merged(layout, &all), [0..128, 128..200]);
        // A larger block is a range of its own.
        let layout = Layout { rows: 9, row_bytes: 5 << 20, block_rows: 1 };
        assert_eq!(merged(layout, &[0, 1, 8]), [0..1, 1..2, 8..9]);
    }
}
