//! The values of a generation in an object store.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use engram_memory::cache::{StoredValue, ValueKey, ValueSource};
use engram_memory::{Generation, MemoryError, Row, ValueFormat};
use futures_util::future::{try_join, try_join_all};
use sha2::{Digest, Sha256};

use crate::disk::{BlockKey, DiskTier};
use crate::failure::{RESTORE, remote};
use crate::manifest::{self, Manifest, SegmentRecord, ShardRecord};
use crate::shard::{Layout, Table};
use crate::storage::{Client, ObjectStorage};

/// Blocks with at most this many bytes between them are read by one request.
const MERGED_GAP: u64 = 128 << 10;
/// The largest range of merged blocks in bytes. Larger ranges are read by several requests, in
/// parallel.
const LARGEST_RANGE: u64 = 4 << 20;

/// The values of a generation in an object store. The rows have the same numbers as in the local
/// generation that was pushed.
#[derive(Debug)]
pub struct RemoteValues {
    storage: ObjectStorage,
    generation: u64,
    memory_generation: u64,
    format: ValueFormat,
    block_rows: usize,
    segments: Vec<Segment>,
    shards: Vec<Arc<Shard>>,
    rows: usize,
    disk: Option<Arc<DiskTier>>,
    blocks: AtomicU64,
    ranges: AtomicU64,
}

/// The place of a segment's rows.
#[derive(Debug)]
struct Segment {
    id: u64,
    rows: usize,
    /// The first row in the generation.
    start: usize,
    /// The index of the first shard.
    shard: usize,
    shard_rows: usize,
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

/// The reads of a [`RemoteValues`] so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct ReadStatistics {
    /// The number of blocks that were read from the store.
    pub blocks: u64,
    /// The number of ranges of blocks that were read, each by one request.
    pub ranges: u64,
}

impl RemoteValues {
    /// Opens a generation, by default the current one. `disk` keeps blocks on the local disk: see
    /// [`RemoteValues::with_disk`].
    ///
    /// # Errors
    /// [`MemoryError::NoMemory`] without a generation; [`MemoryError::NewerFormat`];
    /// [`MemoryError::Remote`] if the manifest is missing or damaged, or a request failed
    pub fn open(storage: &ObjectStorage, generation: Option<u64>) -> Result<Self, MemoryError> {
        let client = Arc::clone(&storage.client);
        let manifest = storage.wait(async move {
            let current = match generation {
                Some(number) => Some(number),
                None => manifest::generations(&client).await?.last().copied(),
            };
            let folder = || PathBuf::from(client.address("").trim_end_matches('/'));
            let current = current.ok_or_else(|| MemoryError::NoMemory { folder: folder() })?;
            Manifest::read(&client, current).await
        })?;
        let (mut segments, mut start, mut shard) = (Vec::new(), 0, 0);
        for SegmentRecord { id, rows, shards } in &manifest.segments {
            let (id, rows) = (u64::from_be_bytes(id.0), *rows);
            segments.push(Segment { id, rows, start, shard, shard_rows: manifest.shard_rows });
            start += rows;
            shard += shards.len();
        }
        let shards = manifest.shards().map(|(record, layout)| {
            Arc::new(Shard { record: record.clone(), layout, table: OnceLock::new() })
        });
        let (blocks, ranges) = Default::default();
        Ok(Self {
            storage: storage.clone(),
            generation: manifest.generation,
            memory_generation: manifest.memory_generation,
            format: manifest.values,
            block_rows: manifest.block_rows,
            shards: shards.collect(),
            segments,
            rows: start,
            disk: None,
            blocks,
            ranges,
        })
    }

    /// Returns the numbers of all generations of a storage, in order. The last one is current.
    ///
    /// # Errors
    /// [`MemoryError::Remote`]
    pub fn generations(storage: &ObjectStorage) -> Result<Vec<u64>, MemoryError> {
        let client = Arc::clone(&storage.client);
        storage.wait(async move { manifest::generations(&client).await })
    }

    /// Keeps blocks on the local disk. Several generations may share the tier.
    #[must_use]
    pub fn with_disk(mut self, disk: Arc<DiskTier>) -> Self {
        self.disk = Some(disk);
        self
    }

    /// The number of the generation in the store.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// The number of rows, including deleted rows of the local memory.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// The format of the values.
    pub fn format(&self) -> ValueFormat {
        self.format
    }

    /// The largest size of a block in bytes, for [`DiskTier::open`].
    pub fn block_bytes(&self) -> usize {
        self.block_rows * self.format.bytes()
    }

    /// The reads from the store so far.
    pub fn statistics(&self) -> ReadStatistics {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        ReadStatistics { blocks: count(&self.blocks), ranges: count(&self.ranges) }
    }

    /// Checks that the rows of a local generation are the rows of these values, so that rows of a
    /// local search can be read here.
    ///
    /// # Errors
    /// [`MemoryError::Remote`] if they are not
    pub fn check_rows_of(&self, local: &Generation) -> Result<(), MemoryError> {
        let segments = self.segments.iter().map(|segment| (segment.id, segment.rows));
        if self.format == local.manifest().values.unwrap_or(self.format)
            && segments.eq(local.value_segments())
        {
            return Ok(());
        }
        let found = local.manifest().generation;
        let reason = format!(
            "generation {} has the values of generation {} of another state of the memory than \
             generation {found} in {}",
            self.generation,
            self.memory_generation,
            local.folder().display()
        );
        let remedy = "push the memory, or open the generation that was pushed from this state";
        Err(remote(self.storage.location(), reason, remedy))
    }

    /// Checks that there is a segment with this identity, number of rows and format.
    pub(crate) fn check_segment(
        &self,
        id: u64,
        rows: usize,
        format: ValueFormat,
    ) -> Result<(), MemoryError> {
        if self.format == format && self.segment(id).is_some_and(|segment| segment.rows == rows) {
            return Ok(());
        }
        let reason = format!("generation {} has no values of this memory", self.generation);
        let remedy =
            "restore the objects of the generation, or a copy of the memory with its values";
        Err(remote(self.storage.location(), reason, remedy))
    }

    fn segment(&self, id: u64) -> Option<&Segment> {
        self.segments.iter().find(|segment| segment.id == id)
    }

    /// The row of a value.
    pub(crate) fn row(&self, (id, row): ValueKey) -> Result<Row, MemoryError> {
        let segment = self.segment(id).filter(|segment| (row as usize) < segment.rows);
        let row = segment.map(|segment| Row::new((segment.start + row as usize) as u32));
        row.ok_or_else(|| MemoryError::InvalidOption {
            option: "a value",
            found: format!("{id:016x}"),
            expected: "a value of this generation",
        })
    }

    /// Reads all shards, and compares them with their checksums. Returns the errors, one per shard
    /// that is damaged or cannot be read; an empty list if there is none.
    pub fn verify(&self) -> Vec<MemoryError> {
        let shards = self.shards.iter();
        let errors = shards.map(|shard| {
            let (client, shard) = (Arc::clone(&self.storage.client), Arc::clone(shard));
            self.storage.wait(async move {
                let (name, size) = (shard.record.name(), shard.layout.bytes());
                let bytes = client.get(&name, size).await?;
                if Sha256::digest(&bytes)[..] == shard.record.sha256.0 {
                    return Ok(());
                }
                let reason = match bytes.len() as u64 {
                    found if found == size => "was changed".to_owned(),
                    found => format!("has {found} bytes instead of {size}"),
                };
                Err(remote(&client.address(&name), reason, RESTORE))
            })
        });
        errors.filter_map(Result::err).collect()
    }

    /// Returns the segment of a row, and the row's index in it.
    fn locate(&self, row: Row) -> Result<(&Segment, usize), MemoryError> {
        let number = row.number() as usize;
        let segment = self.segments.partition_point(|segment| segment.start <= number);
        let segment = segment.checked_sub(1).and_then(|segment| self.segments.get(segment));
        let located = segment.map(|segment| (segment, number - segment.start));
        located.filter(|(segment, row)| *row < segment.rows).ok_or(MemoryError::InvalidOption {
            option: "a row",
            found: number.to_string(),
            expected: "a row of this generation",
        })
    }

    /// Returns the blocks, from the disk or the store.
    fn read_blocks(
        &self,
        blocks: impl Iterator<Item = BlockAt>,
    ) -> Result<BTreeMap<BlockAt, Bytes>, MemoryError> {
        let mut read = BTreeMap::new();
        let mut missing: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (shard, block) in blocks {
            let bytes = self.disk.as_ref().and_then(|disk| {
                disk.get(
                    &self.block_key((shard, block)),
                    self.shards[shard].layout.block_bytes(block),
                )
            });
            match bytes {
                Some(bytes) => drop(read.insert((shard, block), bytes)),
                None => missing.entry(shard).or_default().push(block),
            }
        }
        if missing.is_empty() {
            return Ok(read);
        }
        self.blocks
            .fetch_add(missing.values().map(|blocks| blocks.len() as u64).sum(), Ordering::Relaxed);
        let reads = missing.into_iter().map(|(number, blocks)| {
            let (client, shard) =
                (Arc::clone(&self.storage.client), Arc::clone(&self.shards[number]));
            let ranges = merged(shard.layout, &blocks);
            self.ranges.fetch_add(ranges.len() as u64, Ordering::Relaxed);
            async move { Ok((number, shard.read_blocks(&client, &blocks, &ranges).await?)) }
        });
        let reads: Vec<_> = reads.collect();
        for (shard, blocks) in self.storage.wait(async move { try_join_all(reads).await })? {
            for (block, bytes) in blocks {
                if let Some(disk) = &self.disk {
                    disk.put(&self.block_key((shard, block)), &bytes);
                }
                read.insert((shard, block), bytes);
            }
        }
        Ok(read)
    }

    fn block_key(&self, (shard, block): BlockAt) -> BlockKey {
        BlockKey { shard: self.shards[shard].record.sha256.0, block: block as u32 }
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
        let changed = |reason: String| remote(&client.address(&name), reason, RESTORE);
        if let Some(bytes) = table {
            let table = Table::checked(bytes, self.record.table_sha256.0)
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
    fn value_len(&self) -> usize {
        self.format.tokens * self.format.width
    }

    fn value_key(&self, row: Row) -> Result<ValueKey, MemoryError> {
        let (segment, row) = self.locate(row)?;
        Ok((segment.id, row as u32))
    }

    fn stored_values(&self, rows: &[Row]) -> Result<Vec<StoredValue<'static>>, MemoryError> {
        let position = |row: &Row| {
            let (segment, row) = self.locate(*row)?;
            let (shard, row) = (segment.shard + row / segment.shard_rows, row % segment.shard_rows);
            Ok(((shard, row / self.block_rows), row))
        };
        let positions = rows.iter().map(position).collect::<Result<Vec<_>, MemoryError>>()?;
        let mut blocks: Vec<BlockAt> = positions.iter().map(|(block, _)| *block).collect();
        blocks.sort_unstable();
        blocks.dedup();
        let blocks = self.read_blocks(blocks.into_iter())?;
        let values = positions.iter().map(|(at, row)| {
            let bytes = &blocks[at][self.shards[at.0].layout.in_block(*row)];
            StoredValue::from_bytes(self.format, bytes.to_vec().into())
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
