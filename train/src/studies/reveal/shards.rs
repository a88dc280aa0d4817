//! Building the memory of a training run: on several ranks, each encodes its shard.

use std::path::Path;

use engram_infer::reveal::encoding::Encoding;
use engram_infer::reveal::retriever::{ENTRIES_PER_BATCH, Retriever};
use engram_memory::ValueDtype;
use engram_memory::refresh::{Adopted, ENTRIES_PER_DRIFT_SUM, mean_drift};
use engram_models::reveal::Reveal;

use crate::distributed::Ranks;
use crate::distributed::sharded_memory::{ShardedMemory, shard_of};
use crate::study::StudyResult;
use crate::{Stop, Stopped};

// Each sum of drifts is of one shard, so that the mean does not depend on the number of ranks.
const _: () = assert!(ENTRIES_PER_BATCH.is_multiple_of(ENTRIES_PER_DRIFT_SUM));

/// Encodes the entries of this rank into a new memory in `folder`, and opens the memory of all
/// ranks. If rank 0 is asked to stop, all ranks return [`Stopped`].
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
    let items = shard_of(corpus.stored, ENTRIES_PER_BATCH, ranks);
    let stop = if ranks.is_first() { stop.clone() } else { Stop::default() };
    let built = Retriever::build_part(folder, model, corpus, sequencer, dtype, (items, &stop));
    let is_stopped = built.as_ref().is_err_and(|error| Stopped::is_cause_of(error));
    if ranks.gather(is_stopped)?.contains(&true) {
        return Err(Stopped.into());
    }
    built?;
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
