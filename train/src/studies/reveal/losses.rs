//! The losses of training: generation, contrastive, decorrelation and alignment.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use candle_core::Tensor;
use engram_infer::reveal::forward::{EntriesOfQueries, EntryRef, Forward, Fresh};
use engram_infer::reveal::sequences::Target;
use engram_memory::search::Hit;
use engram_models::compute::to_host;
use engram_models::kernels::{CrossEntropy, Mode, cross_entropy, embedding_sum, linear};
use engram_models::packed::PackedTokens;
use engram_models::reveal::losses::{NoEntry, alignment, contrastive, decorrelation};
use engram_models::reveal::{BaseStates, RevealInput};

use super::settings::{Knowledge, RevealFeed};
use crate::step_features::StepFeatures;
use crate::study::StudyResult;

/// The targets and entries of a batch, with one element for each query.
#[derive(Clone, Copy)]
pub struct BatchTargets<'a> {
    /// The token sequences to generate.
    pub targets: &'a [Target],
    /// The query's own entry, which contains the answer: its index in `Corpus::items` and the index
    /// of its source. `None` if the memory does not have it.
    pub own_entries: &'a [Option<(usize, u32)>],
    /// Whether the query reads its own entry instead of its re-encoded entries. (The top retrieved
    /// entries are re-encoded with the current weights.)
    pub reads_own_entry: &'a [bool],
    /// Whether the query does not find its own entry.
    pub is_absent: &'a [bool],
    /// The document whose entries are excluded from retrieval; `None` to exclude none.
    pub excluded_documents: &'a [Option<&'a str>],
}

/// The losses of a batch.
pub struct Losses {
    /// The weighted sum of the losses.
    pub total: Tensor,
    /// Each loss by name, unweighted, and retrieval metrics.
    pub parts: Vec<(String, f64)>,
}

/// The losses of queries with their targets.
pub fn losses(
    forward: &Forward<'_>,
    input: &RevealInput,
    batch: BatchTargets<'_>,
    feed: &RevealFeed,
    mode: &Mode,
) -> StudyResult<Losses> {
    let BatchTargets { targets, own_entries, .. } = batch;
    let base = forward.model.encode(input, mode)?;
    let queries = forward.model.query(&base, mode)?;
    let mut parts = Vec::new();
    let entries_of_queries = match feed.knowledge {
        Knowledge::None => vec![Vec::new(); targets.len()],
        Knowledge::Own => own_and_next(own_entries)?,
        Knowledge::Batch => best_of_batch(forward, &queries, batch, feed.candidates)?,
        Knowledge::Retrieved => {
            let hits = forward.search(&queries, batch.excluded_documents)?;
            parts.extend(retrieval_metrics(forward, &hits, batch));
            let mut entries_of_queries = forward.entries_to_fuse(&hits);
            replace_by_own(&mut entries_of_queries, batch);
            entries_of_queries
        }
    };
    let own_indices = own_entries.iter().flatten().map(|(index, _)| *index);
    let contrastive_entries: Vec<usize> =
        if feed.contrastive > 0.0 { own_indices.collect() } else { Vec::new() };
    let fused = forward.fuse(&base, &queries, &entries_of_queries, &contrastive_entries, mode)?;
    let mut total = Total { parts, sum: None };
    let generation = generation_loss(forward, &fused.states, targets, feed, mode)?;
    total.add("generation", generation, 1.0 - feed.contrastive)?;
    if let Some(fresh) = &fused.fresh {
        // Examples without an own entry in the memory have no contrastive loss.
        if !contrastive_entries.is_empty() {
            let no_entry = forward.model.no_entry();
            let loss = own_contrastive(&queries, fresh, no_entry, batch, feed.temperature)?;
            total.add("contrastive", loss, feed.contrastive)?;
        }
        let tokens = forward.model.config.value_tokens;
        if feed.decorrelation > 0.0 && tokens > 1 && fresh.num_fused > 0 {
            let loss = decorrelation(&fresh.values, tokens)?;
            total.add("decorrelation", loss, feed.decorrelation)?;
        }
        if feed.alignment > 0.0 && fresh.num_fused > 0 {
            let loss = alignment(&fresh.values, &base.states)?;
            total.add("alignment", loss, feed.alignment)?;
        }
    }
    total.losses()
}

/// The mean cross-entropy of all target tokens, in nats.
fn generation_loss(
    forward: &Forward<'_>,
    states: &BaseStates,
    targets: &[Target],
    feed: &RevealFeed,
    mode: &Mode,
) -> StudyResult<Tensor> {
    let inputs: Vec<&[u32]> = targets.iter().map(|target| target.input.as_slice()).collect();
    let logits = forward.model.decode(&PackedTokens::new(&inputs), states, mode)?;
    let outputs: Arc<[u32]> =
        targets.iter().flat_map(|target| target.output.iter().copied()).collect();
    let label_smoothing = feed.label_smoothing;
    let options = CrossEntropy { targets: outputs, ignore_index: None, label_smoothing };
    Ok(cross_entropy(&logits, options)?.mean_all()?)
}

/// The contrastive loss of queries and keys `[images, key_dim]`, where query `i` matches key `i`.
/// With `features`, they are joined with those of the step's other micro-batches.
pub fn contrast(
    [queries, keys]: [&Tensor; 2],
    temperature: f64,
    features: Option<&StepFeatures>,
) -> StudyResult<Losses> {
    let contrast = |queries: &Tensor, keys: &Tensor| -> StudyResult<Tensor> {
        let matching_keys = (0..queries.dim(0)? as u32).collect();
        Ok(contrastive(queries, keys, None, matching_keys, temperature)?)
    };
    let loss = match features {
        None => contrast(queries, keys)?,
        Some(features) => {
            let (queries, keys) = (features.join(0, queries)?, features.join(1, keys)?);
            features.loss(&contrast(&queries, &keys)?)?
        }
    };
    let mut total = Total { parts: Vec::new(), sum: None };
    total.add("contrastive", loss, 1.0)?;
    total.losses()
}

/// The metrics of retrieval: recall@1 and recall@k of the queries' own entries, and the fraction of
/// retrieved entries that are distinct.
fn retrieval_metrics(
    forward: &Forward<'_>,
    hits: &[Vec<Hit>],
    batch: BatchTargets<'_>,
) -> Vec<(String, f64)> {
    let id = |index: usize| forward.corpus.items[index].entry.id;
    // Examples that exclude their document cannot retrieve their own entry and are not counted.
    let own_if_retrievable = batch.own_entries.iter().zip(batch.excluded_documents);
    let own_if_retrievable =
        own_if_retrievable.map(|(own, document)| own.filter(|_| document.is_none()));
    let counted_queries =
        hits.iter().zip(own_if_retrievable).filter_map(|(hits, own)| Some((hits, id(own?.0))));
    let (mut num_first, mut num_retrieved, mut num_queries) = (0, 0, 0);
    for (hits, id) in counted_queries {
        num_queries += 1;
        num_first += usize::from(hits.first().is_some_and(|hit| hit.id == id));
        num_retrieved += usize::from(hits.iter().any(|hit| hit.id == id));
    }
    let retrieved_ids = hits.iter().flatten().map(|hit| hit.id);
    let num_distinct = retrieved_ids.clone().collect::<HashSet<i64>>().len();
    let fraction = |part: usize, whole: usize| part as f64 / whole.max(1) as f64;
    let mut parts = Vec::new();
    if batch.excluded_documents.iter().any(Option::is_none) {
        parts.push(("recall_at_1".to_owned(), fraction(num_first, num_queries)));
        parts.push((format!("recall_at_{}", forward.k), fraction(num_retrieved, num_queries)));
    }
    parts.push(("distinct_retrieved".to_owned(), fraction(num_distinct, retrieved_ids.count())));
    parts
}

/// The entries that examples read in the warm start: the own entry of each, and the own entry of
/// the next example as a negative.
fn own_and_next(own_entries: &[Option<(usize, u32)>]) -> StudyResult<EntriesOfQueries> {
    let own_entries: Option<Vec<(usize, u32)>> = own_entries.iter().copied().collect();
    let own_entries = own_entries.ok_or("a warm-start example needs its own entry")?;
    let count = own_entries.len();
    let entries_of_query = |i: usize| {
        let (own, next) = (own_entries[i], own_entries[(i + 1) % count]);
        let mut entries_of_query = vec![(EntryRef::Fresh(own.0), own.1)];
        if next.0 != own.0 {
            entries_of_query.push((EntryRef::Fresh(next.0), next.1));
        }
        entries_of_query
    };
    Ok((0..count).map(entries_of_query).collect())
}

/// For queries with `reads_own_entry`, replaces the re-encoded entries by the own entry.
fn replace_by_own(entries_of_queries: &mut EntriesOfQueries, batch: BatchTargets<'_>) {
    let own_entries = batch.own_entries.iter().zip(batch.reads_own_entry);
    for (entries, (own_entry, reads_own_entry)) in entries_of_queries.iter_mut().zip(own_entries) {
        if let (Some((index, source)), true) = (own_entry, reads_own_entry) {
            entries.retain(|(entry, _)| matches!(entry, EntryRef::Stored(_)));
            entries.insert(0, (EntryRef::Fresh(*index), *source));
        }
    }
}

/// The contrastive loss of the examples that have an own entry. The candidates are all freshly
/// encoded entries of the batch (own entries, and the top retrieved entries, which are the hardest
/// negatives) and, with its score, finding no entry. An absent own entry is no candidate.
fn own_contrastive(
    queries: &Tensor,
    fresh: &Fresh,
    no_entry: Option<&Tensor>,
    batch: BatchTargets<'_>,
    temperature: f64,
) -> StudyResult<Tensor> {
    let (mut query_indices, mut key_rows, mut excluded) = (Vec::new(), Vec::new(), Vec::new());
    let no_entry_row = fresh.keys.dim(0)? as u32;
    let own_entries = batch.own_entries.iter().zip(batch.is_absent).enumerate();
    for (query, (own_entry, is_absent)) in own_entries {
        let Some((index, _)) = own_entry else { continue };
        if *is_absent && no_entry.is_none() {
            continue;
        }
        let row = fresh.row_of[index];
        query_indices.push(query as u32);
        key_rows.push(if *is_absent { no_entry_row } else { row });
        excluded.push(is_absent.then_some(row));
    }
    let queries = embedding_sum(&[(queries, query_indices.into())])?;
    let no_entry = no_entry.map(|score| NoEntry { score, excluded: &excluded });
    Ok(contrastive(&queries, &fresh.keys, no_entry, key_rows.into(), temperature)?)
}

/// The entries that examples read with [`Knowledge::Batch`], by descending score.
fn best_of_batch(
    forward: &Forward<'_>,
    queries: &Tensor,
    batch: BatchTargets<'_>,
    candidates: usize,
) -> StudyResult<EntriesOfQueries> {
    let entries: BTreeMap<usize, u32> = batch.own_entries.iter().flatten().copied().collect();
    let entries: Vec<(usize, u32)> = entries.into_iter().collect();
    let indices: Vec<usize> = entries.iter().map(|(index, _)| *index).collect();
    let scores = to_host(&linear(&queries.detach(), &forward.keys(&indices)?, None)?)?;
    let best_of = |(query, scores): (usize, &[f32])| {
        let own = batch.own_entries[query].and_then(|(own, _)| indices.binary_search(&own).ok());
        let best = best(scores, own, batch.is_absent[query], candidates).into_iter();
        best.map(|entry| (EntryRef::Fresh(entries[entry].0), entries[entry].1)).collect()
    };
    Ok(scores.chunks(entries.len().max(1)).enumerate().map(best_of).collect())
}

/// The indices of the `count` highest scores, best first. The last one gives its place to `own` if
/// this has a lower score; an absent one is left out.
fn best(scores: &[f32], own: Option<usize>, is_absent: bool, count: usize) -> Vec<usize> {
    let mut order: Vec<usize> =
        (0..scores.len()).filter(|entry| !is_absent || Some(*entry) != own).collect();
    order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]));
    let own_place = order.iter().position(|entry| Some(*entry) == own);
    if let Some(place) = own_place.filter(|place| *place >= count) {
        order.swap(place, count - 1);
    }
    order.truncate(count);
    order
}

/// A running weighted sum of losses.
struct Total {
    parts: Vec<(String, f64)>,
    sum: Option<Tensor>,
}

impl Total {
    /// Adds a scalar loss with a weight, and records the unweighted loss by name.
    fn add(&mut self, name: &str, loss: Tensor, weight: f64) -> StudyResult<()> {
        self.parts.push((name.to_owned(), f64::from(loss.to_scalar::<f32>()?)));
        let weighted = (loss * weight)?;
        self.sum = Some(match self.sum.take() {
            Some(sum) => (sum + weighted)?,
            None => weighted,
        });
        Ok(())
    }

    /// The weighted sum and its parts.
    fn losses(self) -> StudyResult<Losses> {
        Ok(Losses { total: self.sum.ok_or("no loss")?, parts: self.parts })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_own_entry_is_read_unless_it_is_absent() {
        let scores = [0.1, 0.9, 0.5, 0.5, -0.2];
        assert_eq!(best(&scores, Some(1), false, 3), [1, 2, 3]);
        assert_eq!(best(&scores, Some(4), false, 3), [1, 2, 4]);
        assert_eq!(best(&scores, Some(1), true, 3), [2, 3, 0]);
        assert_eq!(best(&scores, None, false, 9), [1, 2, 3, 0, 4]);
    }
}
