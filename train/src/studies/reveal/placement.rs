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

/// Opens the object store of a recipe; `None` for values in the run's folder.
pub(super) fn open_store(
    recipe: &Recipe,
    address: Option<&str>,
    options: &RunOptions,
) -> Result<Option<Arc<dyn ValueStorage>>> {
    let Some(address) = address else { return Ok(None) };
    let error = |reason: String| recipe.error("memory.values", reason);
    if options.ranks.size() > 1 {
        return Err(error("is not supported on several ranks, which share the values".into()));
    }
    let store = options.value_storages.open(address).ok_or_else(|| {
        let reason = "needs a program with the feature `objects`; build it with `--features \
                      objects`, or remove the key";
        error(reason.into())
    })?;
    store.map(Some).map_err(|reason| error(reason.to_string()))
}

/// Moves the values of the memory in `folder` to the target of `store`, if there is a store.
pub(super) fn place_values(
    retriever: Retriever,
    folder: &Path,
    store: Option<&Arc<dyn ValueStorage>>,
) -> StudyResult<Retriever> {
    let Some(store) = store else { return Ok(retriever) };
    drop(retriever);
    let target = store.target().ok_or("the object store moves no values")?;
    Writer::open(folder)?.move_values(store.as_ref(), target)?;
    let memory = Memory::open_with(folder, Some(Arc::clone(store)))?;
    Ok(Retriever::of(Box::new(memory)))
}
