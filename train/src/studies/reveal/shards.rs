//! Building the memory of a training run: on several ranks, each encodes its shard.

use std::path::Path;

use engram_infer::reveal::encoding::Encoding;
use engram_infer::reveal::retriever::{ENTRIES_PER_BATCH, Retriever};
use engram_memory::ValueDtype;
use engram_memory::refresh::{Adopted, mean_drift};
use engram_models::reveal::Reveal;

use crate::Stop;
use crate::distributed::Ranks;
use crate::distributed::sharded_memory::{ShardedMemory, shard_of};
use crate::study::StudyResult;

/// Encodes the entries of this rank into a new memory in `folder`, and opens the memory of all
/// ranks.
pub(super) fn build(
    folder: &Path,
    model: &Reveal,
    encoding: &Encoding,
    dtype: ValueDtype,
    stop: &Stop,
    ranks: &Ranks,
) -> StudyResult<Retriever> {
    let Encoding { corpus, sequencer, .. } = encoding;
    if ranks.size() == 1 {
        return Ok(Retriever::build(folder, model, corpus, sequencer, dtype, stop)?);
    }
    let items = shard_of(corpus.items.len(), ENTRIES_PER_BATCH, ranks);
    Retriever::build_part(folder, model, corpus, sequencer, dtype, (items, stop))?;
    Ok(Retriever::of(Box::new(ShardedMemory::open(folder, ranks)?)))
}

/// The mean drift of the keys of all ranks in a refresh that all ranks have adopted.
pub(super) fn mean_drift_of_all(
    adopted: &Adopted,
    retriever: &Retriever,
    ranks: &Ranks,
) -> StudyResult<f64> {
    let own: Vec<u64> = adopted.drift_sums.iter().map(|sum| sum.to_bits()).collect();
    let sums = ranks.gather(own)?.into_iter().flatten().map(f64::from_bits);
    let entries = retriever.snapshot().description().entries;
    Ok(mean_drift(&sums.collect::<Vec<_>>(), entries))
}
