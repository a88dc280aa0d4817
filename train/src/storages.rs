//! Object stores for the values of memories.

use std::fmt;
use std::sync::Arc;

use engram_memory::ValueStorage;

use crate::study::StudyResult;

type Open = dyn Fn(&str) -> StudyResult<Arc<dyn ValueStorage>> + Send + Sync;

/// Opens the object store at an address. The default has no client of object stores.
#[derive(Clone, Default)]
pub struct ValueStorages(Option<Arc<Open>>);

impl fmt::Debug for ValueStorages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "object stores" } else { "no object stores" })
    }
}

impl ValueStorages {
    /// Opens stores with this function. The address is the [target](ValueStorage::target) of its
    /// stores.
    pub fn new(
        open: impl Fn(&str) -> StudyResult<Arc<dyn ValueStorage>> + Send + Sync + 'static,
    ) -> Self {
        Self(Some(Arc::new(open)))
    }

    /// Opens the store at an address; `None` without a client of object stores.
    pub(crate) fn open(&self, address: &str) -> Option<StudyResult<Arc<dyn ValueStorage>>> {
        Some(self.0.as_ref()?(address))
    }
}
