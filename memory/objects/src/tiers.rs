//! Values of memories whose keys are in local folders: main memory, and a store.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use engram_memory::cache::{StoredValue, ValueCache, ValueKey};
use engram_memory::{
    Generation, MemoryError, SegmentValues, ValueFormat, ValueStorage, ValuesLocation,
};

use crate::address::Connect;
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
            target: None,
        }
    }
}

/// Reads values from object stores, and keeps frequently read values in main memory. Pass it to
/// [`Memory::open_with`](engram_memory::Memory::open_with).
#[derive(Debug)]
pub struct ValueTiers {
    settings: TierSettings,
    cache: Arc<ValueCache>,
    /// The store of each address so far.
    stores: Mutex<HashMap<String, ObjectStorage>>,
}

impl ValueTiers {
    /// Creates the tiers. Sends no request.
    pub fn new(settings: TierSettings) -> Self {
        let cache = Arc::new(ValueCache::new(settings.memory_bytes));
        Self { settings, cache, stores: Mutex::default() }
    }

    /// Uses `storage` for its address, instead of the store that the address names.
    #[must_use]
    pub fn with_store(self, storage: ObjectStorage) -> Self {
        let address = storage.location().to_owned();
        self.stores.lock().unwrap_or_else(PoisonError::into_inner).insert(address, storage);
        self
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
}

impl ValueStorage for ValueTiers {
    fn open(&self, at: &ValuesLocation) -> Result<Arc<dyn SegmentValues>, MemoryError> {
        let remote = RemoteValues::open(&self.store_at(&at.address)?, at.generation)?;
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

/// The values of a generation in a store, behind the cache.
#[derive(Debug)]
struct Tiered {
    remote: Arc<RemoteValues>,
    cache: Arc<ValueCache>,
}

impl SegmentValues for Tiered {
    fn check(&self, id: u64, rows: usize, format: ValueFormat) -> Result<(), MemoryError> {
        self.remote.check_segment(id, rows, format)
    }

    fn verify(&self, ids: &[u64], all: bool) -> Result<Vec<MemoryError>, MemoryError> {
        self.remote.verify(ids, all)
    }

    fn read(&self, keys: &[ValueKey]) -> Result<Vec<Arc<StoredValue<'static>>>, MemoryError> {
        self.cache.read(&self.remote, keys)
    }

    fn prefetch(&self, keys: &[ValueKey]) {
        self.cache.prefetch(&self.remote, keys);
    }
}
