//! Storages of memories outside of the run's folder.

use std::fmt;
use std::sync::Arc;

use engram_memory::{MemoryServer, ValueStorage};

use crate::study::StudyResult;

type Open<T> = dyn Fn(&str) -> StudyResult<Arc<T>> + Send + Sync;

/// Opens storages by their addresses. The default has no client, and opens none.
pub struct Storages<T: ?Sized>(Option<Arc<Open<T>>>);

/// Object stores for the values of memories, by their [targets](ValueStorage::target).
pub type ValueStorages = Storages<dyn ValueStorage>;

/// Servers for memories.
pub type MemoryServers = Storages<dyn MemoryServer>;

impl<T: ?Sized> Clone for Storages<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T: ?Sized> Default for Storages<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<T: ?Sized> fmt::Debug for Storages<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "storages" } else { "no storages" })
    }
}

impl<T: ?Sized> Storages<T> {
    /// Opens storages with this function.
    pub fn new(open: impl Fn(&str) -> StudyResult<Arc<T>> + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(open)))
    }

    /// Opens the storage at an address; `None` without a client.
    pub(crate) fn open(&self, address: &str) -> Option<StudyResult<Arc<T>>> {
        Some(self.0.as_ref()?(address))
    }
}
