//! Maximal marginal relevance: entries that are relevant to a query and differ from each other.
//!
//! Source: Carbonell and Goldstein, "The use of MMR, diversity-based reranking for reordering
//! documents and producing summaries", SIGIR 1998. The next entry is the candidate `d` with the
//! largest `λ · sim(d, query) - (1 - λ) · max sim(d, s)`, where `s` are the entries chosen so far.
//!
//! Both similarities are the score of the memory: the cosine, or the dot product if keys are not
//! normalised. `sim(d, query)` includes the gate if the search had gates. Of equal candidates, the
//! earlier in the search results is chosen. The paper does not state how ties are broken.

use rayon::prelude::*;

use crate::error::MemoryError;
use crate::generation::Row;
use crate::search::products::dot;
use crate::search::{Hit, SearchResults};
use crate::store::Snapshot;

/// Chooses at most `k` of each query's `candidates`, in the order of choice. Hits keep the scores
/// of the search. `lambda` is from 0 to 1: 1 keeps the order of the search, and smaller numbers
/// give more diverse entries.
///
/// The candidates are the results of a search in `snapshot` for more than `k` entries.
///
/// # Errors
/// [`MemoryError::InvalidOption`] for a `lambda` below 0 or above 1, and for candidates of another
/// generation; [`MemoryError::Corrupt`]
pub fn maximal_marginal_relevance(
    snapshot: &dyn Snapshot,
    candidates: &SearchResults,
    lambda: f64,
    k: usize,
) -> Result<SearchResults, MemoryError> {
    if !(0.0..=1.0).contains(&lambda) {
        return Err(MemoryError::invalid(
            "the weight of relevance (lambda)",
            lambda,
            "from 0 to 1",
        ));
    }
    let generation = snapshot.description().generation;
    if candidates.generation != generation {
        return Err(MemoryError::invalid(
            "the generation of the candidates",
            candidates.generation,
            "the generation of the snapshot",
        ));
    }
    let choose = |hits: &Vec<Hit>| choose(snapshot, hits, lambda, k);
    let hits = candidates.hits.par_iter().map(choose).collect::<Result<_, MemoryError>>()?;
    Ok(SearchResults { generation: candidates.generation, hits })
}

/// Chooses at most `k` candidates of one query.
fn choose(
    snapshot: &dyn Snapshot,
    candidates: &[Hit],
    lambda: f64,
    k: usize,
) -> Result<Vec<Hit>, MemoryError> {
    let rows: Vec<Row> = candidates.iter().map(|hit| hit.row).collect();
    let (keys, width) = (snapshot.keys(&rows)?, snapshot.description().width);
    let key = |candidate: usize| &keys[candidate * width..][..width];
    // The candidates that are not chosen, each with its largest similarity to a chosen entry.
    let mut remaining: Vec<(usize, f64)> =
        (0..candidates.len()).map(|candidate| (candidate, f64::NEG_INFINITY)).collect();
    let mut chosen = Vec::with_capacity(k.min(candidates.len()));
    while chosen.len() < k && !remaining.is_empty() {
        let marginal = |&(candidate, similarity): &(usize, f64)| {
            let relevance = lambda * f64::from(candidates[candidate].score);
            if chosen.is_empty() { relevance } else { relevance - (1.0 - lambda) * similarity }
        };
        let mut best = 0;
        for (position, candidate) in remaining.iter().enumerate() {
            if marginal(candidate) > marginal(&remaining[best]) {
                best = position;
            }
        }
        // `remaining` stays in the order of the search, which decides ties.
        let (last, _) = remaining.remove(best);
        chosen.push(candidates[last]);
        for (candidate, similarity) in &mut remaining {
            *similarity = similarity.max(dot(key(*candidate), key(last)));
        }
    }
    Ok(chosen)
}
