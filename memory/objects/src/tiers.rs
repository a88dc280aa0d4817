//! Values of memories whose keys are in local folders: main memory, the local disk, and a store.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use engram_memory::cache::{CacheSettings, StoredValue, ValueCache, ValueKey};
use engram_memory::{
    Generation, MemoryError, Row, SegmentValues, ValueFormat, ValueStorage, ValuesLocation,
};

use crate::address::Connect;
use crate::disk::DiskTier;
use crate::push::{PushSettings, push};
use crate::storage::ObjectStorage;
use crate::values::RemoteValues;

/// Settings of a [`ValueTiers`].
#[derive(Debug, Clone)]
pub struct TierSettings {
    /// The connections to stores.
    pub connect: Connect,
    /// The objects of new generations.
    pub push: PushSettings,
    /// The largest size of values in main memory, in bytes.
    pub memory_bytes: u64,
    /// The folder of values on the local disk, and their largest size in bytes for each size of
    /// blocks; `None` for none.
    pub disk: Option<(PathBuf, u64)>,
    /// The address to which transactions move the values of their changes; `None` to leave them in
    /// the folder.
    pub target: Option<String>,
}

impl Default for TierSettings {
    fn default() -> Self {
        Self {
            connect: Connect::default(),
            push: PushSettings::default(),
            memory_bytes: 1 << 30,
            disk: None,
            target: None,
        }
    }
}

/// Reads values from object stores, and keeps frequently read values in main memory and on the local
/// disk. For [`Memory::open_with`](engram_memory::Memory::open_with).
#[derive(Debug)]
pub struct ValueTiers {
    settings: TierSettings,
    cache: Arc<ValueCache>,
    /// The store of each address so far.
    stores: Mutex<HashMap<String, ObjectStorage>>,
    /// The disk tier of each size of blocks so far.
    disks: Mutex<HashMap<usize, Arc<DiskTier>>>,
}

impl ValueTiers {
    /// Creates the tiers. Sends no request.
    pub fn new(settings: TierSettings) -> Self {
        let capacity_bytes = settings.memory_bytes;
        let cache = ValueCache::new(CacheSettings { capacity_bytes, background_from: None });
        let cache = Arc::new(cache);
        Self { settings, cache, stores: Mutex::default(), disks: Mutex::default() }
    }

    /// Uses `storage` for its address, instead of the store that the address names.
    #[must_use]
    pub fn with_store(self, storage: ObjectStorage) -> Self {
        let address = storage.location().to_owned();
        self.stores.lock().unwrap_or_else(PoisonError::into_inner).insert(address, storage);
        self
    }

    /// The values in main memory.
    pub fn cache(&self) -> &ValueCache {
        &self.cache
    }

    fn store_at(&self, address: &str) -> Result<ObjectStorage, MemoryError> {
        let mut stores = self.stores.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(storage) = stores.get(address) {
            return Ok(storage.clone());
        }
        let storage = ObjectStorage::open(address, self.settings.connect.clone())?;
        stores.insert(address.to_owned(), storage.clone());
        Ok(storage)
    }

    /// The disk tier for blocks of this size; `None` without one.
    fn disk(&self, block_bytes: usize) -> Result<Option<Arc<DiskTier>>, MemoryError> {
        let Some((folder, capacity)) = &self.settings.disk else { return Ok(None) };
        let mut disks = self.disks.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(tier) = disks.get(&block_bytes) {
            return Ok(Some(Arc::clone(tier)));
        }
        let tier = Arc::new(DiskTier::open(folder, *capacity, block_bytes)?);
        disks.insert(block_bytes, Arc::clone(&tier));
        Ok(Some(tier))
    }
}

impl ValueStorage for ValueTiers {
    fn open(&self, at: &ValuesLocation) -> Result<Arc<dyn SegmentValues>, MemoryError> {
        let remote = RemoteValues::open(&self.store_at(&at.address)?, Some(at.generation))?;
        let remote = match self.disk(remote.block_bytes())? {
            Some(disk) => remote.with_disk(disk),
            None => remote,
        };
        Ok(Arc::new(Tiered { remote: Arc::new(remote), cache: Arc::clone(&self.cache) }))
    }

    fn store(&self, address: &str, generation: &Generation) -> Result<ValuesLocation, MemoryError> {
        let pushed = push(&self.store_at(address)?, generation, self.settings.push)?;
        Ok(ValuesLocation { address: address.to_owned(), generation: pushed.generation })
    }

    fn target(&self) -> Option<&str> {
        self.settings.target.as_deref()
    }
}

/// The values of a generation in a store, behind the other tiers.
#[derive(Debug)]
struct Tiered {
    remote: Arc<RemoteValues>,
    cache: Arc<ValueCache>,
}

impl Tiered {
    fn rows(&self, keys: &[ValueKey]) -> Result<Vec<Row>, MemoryError> {
        keys.iter().map(|key| self.remote.row(*key)).collect()
    }
}

impl SegmentValues for Tiered {
    fn check(&self, id: u64, rows: usize, format: ValueFormat) -> Result<(), MemoryError> {
        self.remote.check_segment(id, rows, format)
    }

    fn read(&self, keys: &[ValueKey]) -> Result<Vec<Arc<StoredValue<'static>>>, MemoryError> {
        self.cache.stored(&self.remote, &self.rows(keys)?)
    }

    fn prefetch(&self, keys: &[ValueKey]) -> Result<(), MemoryError> {
        self.cache.prefetch(&self.remote, &self.rows(keys)?)
    }
}
