//! Blocks of remote values on the local disk.
//!
//! One file of limited size, in slots of the same size. A slot holds a header and a block:
//!
//! | bytes | content |
//! |---|---|
//! | 0–31 | the SHA-256 of the block's shard |
//! | 32–35 | the index of the block in the shard |
//! | 36–39 | the size of the block |
//! | 40–43 | the CRC-32 of the bytes 0–39 and of the block |
//! | 64– | the block |
//!
//! A read checks all of them, so a damaged slot is read from the store again. Nothing is synced: a
//! slot that was being written when the power went is a damaged slot. If the file is full, blocks
//! that were not read since the last round are replaced (CLOCK).

use std::collections::HashMap;
use std::fs::{File, TryLockError};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use engram_memory::MemoryError;

/// The size of a slot's header.
const HEADER: usize = 64;
/// The size of the part of the header with a meaning.
const RECORD: usize = 44;

/// A block of a shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BlockKey {
    pub(crate) shard: [u8; 32],
    pub(crate) block: u32,
}

/// A part of a [`BlockKey`], to save memory. The header has the whole key.
type ShortKey = (u64, u32);

impl BlockKey {
    fn short(&self) -> ShortKey {
        let mut start = [0; 8];
        start.copy_from_slice(&self.shard[..8]);
        (u64::from_le_bytes(start), self.block)
    }

    /// The header of a slot with this block, without its checksum.
    fn header(&self, bytes: &[u8]) -> [u8; HEADER] {
        let mut header = [0; HEADER];
        header[..32].copy_from_slice(&self.shard);
        header[32..36].copy_from_slice(&self.block.to_le_bytes());
        header[36..40].copy_from_slice(&(bytes.len() as u32).to_le_bytes());
        header
    }
}

/// The checksum of a slot.
fn checksum(header: &[u8; HEADER], bytes: &[u8]) -> [u8; 4] {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&header[..40]);
    hasher.update(bytes);
    hasher.finalize().to_le_bytes()
}

/// The statistics of a [`DiskTier`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct DiskStatistics {
    /// The number of blocks that were on the disk.
    pub hits: u64,
    /// The number of blocks that were not on the disk, or were damaged there.
    pub misses: u64,
    /// The number of damaged blocks.
    pub damaged: u64,
    /// The number of blocks that could not be written, for example because the disk is full.
    pub unwritten: u64,
    /// The number of blocks on the disk now.
    pub blocks: u64,
}

impl DiskStatistics {
    /// The fraction of hits among hits and misses; NaN before the first read.
    pub fn hit_rate(&self) -> f64 {
        self.hits as f64 / (self.hits + self.misses) as f64
    }
}

/// Keeps frequently read blocks of remote values in a file of limited size, also for later processes.
#[derive(Debug)]
pub struct DiskTier {
    /// Locked while it is open.
    file: File,
    slot_bytes: usize,
    index: Mutex<Index>,
    hits: AtomicU64,
    misses: AtomicU64,
    damaged: AtomicU64,
    unwritten: AtomicU64,
}

/// Which slot has which block.
#[derive(Debug, Default)]
struct Index {
    slot_of: HashMap<ShortKey, u32>,
    slots: Vec<Slot>,
    /// The maximum number of slots.
    capacity: usize,
    /// The next slot that may be replaced.
    hand: usize,
}

#[derive(Debug, Clone, Copy)]
struct Slot {
    /// `None` while the slot is written, or if its block is damaged.
    key: Option<ShortKey>,
    is_writing: bool,
    /// Whether the block was read since the hand passed.
    is_used: bool,
}

impl Index {
    /// Takes a slot for a new block; `None` if all are being written.
    fn take(&mut self) -> Option<u32> {
        let taken = Slot { key: None, is_writing: true, is_used: false };
        if self.slots.len() < self.capacity {
            self.slots.push(taken);
            return Some(self.slots.len() as u32 - 1);
        }
        for _ in 0..2 * self.slots.len() {
            let number = self.hand;
            self.hand = (self.hand + 1) % self.slots.len();
            let slot = &mut self.slots[number];
            if slot.is_writing {
                continue;
            }
            if std::mem::take(&mut slot.is_used) {
                continue;
            }
            if let Some(key) = std::mem::replace(slot, taken).key {
                self.slot_of.remove(&key);
            }
            return Some(number as u32);
        }
        None
    }

    /// Ends the writing of a slot. `key` is `None` if it failed.
    fn put(&mut self, number: u32, key: Option<ShortKey>) {
        // Another thread may have written the same block.
        let key = key.filter(|key| !self.slot_of.contains_key(key));
        self.slots[number as usize] = Slot { key, is_writing: false, is_used: false };
        if let Some(key) = key {
            self.slot_of.insert(key, number);
        }
    }
}

impl DiskTier {
    /// Opens the file `blocks` in a folder, which is created if it is missing. `capacity_bytes` is
    /// the maximum size of the file. `block_bytes` is the largest size of a block:
    /// [`RemoteValues::block_bytes`](crate::RemoteValues::block_bytes). Blocks of earlier processes
    /// are used, unless `block_bytes` is another one.
    ///
    /// # Errors
    /// [`MemoryError::Remote`] if another process uses the folder; [`MemoryError::InvalidOption`] if
    /// not one block has room; [`MemoryError::Read`], [`MemoryError::Write`]
    pub fn open(
        folder: &Path,
        capacity_bytes: u64,
        block_bytes: usize,
    ) -> Result<Self, MemoryError> {
        let slot_bytes = HEADER + block_bytes;
        let capacity = (capacity_bytes / slot_bytes as u64).min(u32::MAX.into()) as usize;
        if capacity == 0 || block_bytes == 0 {
            return Err(MemoryError::InvalidOption {
                option: "the size of the disk tier",
                found: format!("{capacity_bytes} bytes"),
                expected: "enough for one block of values",
            });
        }
        // The size is in the name, so slots of another size are never read.
        let path = folder.join(format!("blocks-{block_bytes}"));
        let write = |file: PathBuf| move |source| MemoryError::Write { file, source };
        engram_durable::create_folder(folder).map_err(write(folder.to_owned()))?;
        let file = engram_durable::open_lock(&path).map_err(write(path.clone()))?;
        file.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => crate::failure::remote(
                &path.display().to_string(),
                "another process uses this disk tier",
                "give each process its own folder",
            ),
            TryLockError::Error(source) => MemoryError::Write { file: path.clone(), source },
        })?;
        let read = |source| MemoryError::Read { file: path.clone(), source };
        let slots = (file.metadata().map_err(read)?.len() as usize).div_ceil(slot_bytes);
        // The file may be from an earlier, larger limit.
        let slots = slots.min(capacity);
        let bytes = file.metadata().map_err(read)?.len().min((slots * slot_bytes) as u64);
        file.set_len(bytes).map_err(write(path.clone()))?;
        let mut index = Index { capacity, ..Index::default() };
        for slot in 0..slots {
            let mut header = [0; HEADER];
            let at = (slot * slot_bytes) as u64;
            let key = file.read_exact_at(&mut header, at).ok().map(|()| short_key(&header));
            index.slots.push(Slot { key: None, is_writing: true, is_used: false });
            index.put(slot as u32, key);
        }
        let (hits, misses, damaged, unwritten) = Default::default();
        Ok(Self { file, slot_bytes, index: Mutex::new(index), hits, misses, damaged, unwritten })
    }

    /// Reads a block of `size` bytes; `None` if it is not on the disk.
    pub(crate) fn get(&self, key: &BlockKey, size: usize) -> Option<Bytes> {
        let bytes = self.read(key, size);
        let counter = if bytes.is_some() { &self.hits } else { &self.misses };
        counter.fetch_add(1, Ordering::Relaxed);
        bytes
    }

    fn read(&self, key: &BlockKey, size: usize) -> Option<Bytes> {
        let short = key.short();
        let slot = {
            let mut index = self.index();
            let slot = *index.slot_of.get(&short)?;
            index.slots[slot as usize].is_used = true;
            slot
        };
        let mut bytes = vec![0; HEADER + size];
        let is_read = HEADER + size <= self.slot_bytes
            && self.file.read_exact_at(&mut bytes, self.at(slot)).is_ok();
        if is_read && let Some((header, block)) = bytes.split_first_chunk::<HEADER>() {
            let mut expected = key.header(block);
            let checksum = checksum(&expected, block);
            expected[40..RECORD].copy_from_slice(&checksum);
            if expected[..RECORD] == header[..RECORD] {
                return Some(Bytes::from(bytes).slice(HEADER..));
            }
        }
        // Damaged, unless another thread has just replaced the block.
        let mut index = self.index();
        if index.slot_of.get(&short) == Some(&slot) {
            index.slot_of.remove(&short);
            index.slots[slot as usize].key = None;
            self.damaged.fetch_add(1, Ordering::Relaxed);
        }
        None
    }

    /// Writes a block. A full disk is no error: the block is read from the store again.
    pub(crate) fn put(&self, key: &BlockKey, bytes: &[u8]) {
        let short = key.short();
        let slot = {
            let mut index = self.index();
            if index.slot_of.contains_key(&short) || HEADER + bytes.len() > self.slot_bytes {
                return;
            }
            index.take()
        };
        let Some(slot) = slot else { return };
        let mut header = key.header(bytes);
        let checksum = checksum(&header, bytes);
        header[40..RECORD].copy_from_slice(&checksum);
        let written = self.file.write_all_at(&[&header[..], bytes].concat(), self.at(slot));
        if written.is_err() {
            self.unwritten.fetch_add(1, Ordering::Relaxed);
        }
        self.index().put(slot, written.is_ok().then_some(short));
    }

    /// The statistics of the tier.
    pub fn statistics(&self) -> DiskStatistics {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        DiskStatistics {
            hits: count(&self.hits),
            misses: count(&self.misses),
            damaged: count(&self.damaged),
            unwritten: count(&self.unwritten),
            blocks: self.index().slot_of.len() as u64,
        }
    }

    fn at(&self, slot: u32) -> u64 {
        u64::from(slot) * self.slot_bytes as u64
    }

    fn index(&self) -> MutexGuard<'_, Index> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The key in a header. The header may be damaged, which a read of the block notices.
fn short_key(header: &[u8; HEADER]) -> ShortKey {
    let mut key = BlockKey { shard: [0; 32], block: 0 };
    key.shard.copy_from_slice(&header[..32]);
    let mut block = [0; 4];
    block.copy_from_slice(&header[32..36]);
    key.block = u32::from_le_bytes(block);
    key.short()
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: usize = 100;

    fn key(number: u32) -> BlockKey {
        BlockKey { shard: [number as u8; 32], block: number }
    }

    fn block(number: u32) -> Vec<u8> {
        vec![number as u8; BLOCK - number as usize % 7]
    }

    fn get(tier: &DiskTier, number: u32) -> Option<Bytes> {
        tier.get(&key(number), block(number).len())
    }

    #[test]
    fn the_file_keeps_its_size_and_blocks_in_use() {
        let folder = tempfile::tempdir().unwrap();
        let limit = 10 * (HEADER + BLOCK) as u64;
        let tier = DiskTier::open(folder.path(), limit, BLOCK).unwrap();
        for number in 0..100 {
            tier.put(&key(number), &block(number));
            // Used again and again.
            assert_eq!(get(&tier, 0).unwrap(), block(0));
        }
        assert_eq!(get(&tier, 99).unwrap(), block(99));
        assert_eq!(tier.statistics().blocks, 10);
        let file = folder.path().join(format!("blocks-{BLOCK}"));
        assert!(file.metadata().unwrap().len() <= limit);
        // A later process finds the same blocks; with a smaller limit, some of them.
        let before: Vec<Option<Bytes>> = (0..100).map(|number| get(&tier, number)).collect();
        assert_eq!(before.iter().flatten().count(), 10);
        assert!(DiskTier::open(folder.path(), limit, BLOCK).is_err(), "in use");
        drop(tier);
        let tier = DiskTier::open(folder.path(), limit, BLOCK).unwrap();
        assert_eq!((0..100).map(|number| get(&tier, number)).collect::<Vec<_>>(), before);
        drop(tier);
        let tier = DiskTier::open(folder.path(), limit / 2, BLOCK).unwrap();
        assert_eq!((0..100).filter(|number| get(&tier, *number).is_some()).count(), 5);
        assert!(file.metadata().unwrap().len() <= limit / 2);
    }

    #[test]
    fn a_changed_byte_is_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let limit = 4 * (HEADER + BLOCK) as u64;
        let file = folder.path().join(format!("blocks-{BLOCK}"));
        let write = || {
            let tier = DiskTier::open(folder.path(), limit, BLOCK).unwrap();
            tier.put(&key(1), &block(1));
            assert_eq!(get(&tier, 1).unwrap(), block(1));
        };
        write();
        let bytes = std::fs::read(&file).unwrap();
        for at in (0..RECORD).chain(HEADER..bytes.len()) {
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            std::fs::write(&file, &changed).unwrap();
            let tier = DiskTier::open(folder.path(), limit, BLOCK).unwrap();
            assert_eq!(get(&tier, 1), None, "{at}");
            // The block can be written again.
            tier.put(&key(1), &block(1));
            assert_eq!(get(&tier, 1).unwrap(), block(1));
        }
        std::fs::write(&file, &bytes[..bytes.len() - 1]).unwrap();
        let tier = DiskTier::open(folder.path(), limit, BLOCK).unwrap();
        assert_eq!(get(&tier, 1), None);
        assert_eq!(tier.statistics().damaged, 1);
    }

    #[test]
    fn threads_share_a_tier() {
        let folder = tempfile::tempdir().unwrap();
        let limit = 8 * (HEADER + BLOCK) as u64;
        let tier = DiskTier::open(folder.path(), limit, BLOCK).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let tier = &tier;
                scope.spawn(move || {
                    for round in 0..2000 {
                        let number = (round * (thread + 3)) % 23;
                        match get(tier, number) {
                            Some(bytes) => assert_eq!(bytes, block(number)),
                            None => tier.put(&key(number), &block(number)),
                        }
                    }
                });
            }
        });
        let statistics = tier.statistics();
        assert_eq!((statistics.damaged, statistics.unwritten), (0, 0), "{statistics:?}");
        assert!(statistics.hits > 0 && statistics.blocks <= 8, "{statistics:?}");
    }
}
