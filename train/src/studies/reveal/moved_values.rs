//! The values of the run's memory in an object store (`memory.values`). The keys stay in the run's
//! folder.

use std::path::Path;
use std::sync::Arc;

use engram_infer::reveal::retriever::Retriever;
use engram_memory::{Memory, ValueStorage, Writer};

use crate::error::Result;
use crate::recipe::Recipe;
use crate::study::StudyResult;
use crate::trainer::RunOptions;

/// The store for the values of a memory, and its address.
#[derive(Debug, Clone)]
pub(super) struct ValueStore {
    address: String,
    storage: Arc<dyn ValueStorage>,
}

impl ValueStore {
    /// Opens the store of a recipe; `None` for values in the run's folder.
    pub(super) fn open(
        recipe: &Recipe,
        address: Option<&str>,
        options: &RunOptions,
    ) -> Result<Option<Self>> {
        let Some(address) = address else { return Ok(None) };
        let error = |reason: String| recipe.error("memory.values", reason);
        if options.ranks.size() > 1 {
            return Err(error("is not supported on several ranks, which share the values".into()));
        }
        let storage = options.value_storages.open(address).ok_or_else(|| {
            let reason = "needs a program with the feature `objects`; build it with `--features \
                          objects`, or remove the key";
            error(reason.into())
        })?;
        let storage = storage.map_err(|reason| error(reason.to_string()))?;
        Ok(Some(Self { address: address.to_owned(), storage }))
    }

    /// Moves the values of the memory in `folder` to the store, and opens the memory.
    pub(super) fn move_values(&self, folder: &Path) -> StudyResult<Retriever> {
        // The target is the address with an absolute path.
        let address = self.storage.target().unwrap_or(&self.address);
        Writer::open(folder)?.move_values(self.storage.as_ref(), address)?;
        let memory = Memory::open_with(folder, Some(Arc::clone(&self.storage)))?;
        Ok(Retriever::of(Box::new(memory)))
    }
}

/// Moves values to `store`, if there is one.
pub(super) fn place_values(
    retriever: Retriever,
    folder: &Path,
    store: Option<&ValueStore>,
) -> StudyResult<Retriever> {
    match store {
        None => Ok(retriever),
        Some(store) => {
            drop(retriever);
            store.move_values(folder)
        }
    }
}
