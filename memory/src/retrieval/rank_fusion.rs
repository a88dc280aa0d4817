//! Reciprocal rank fusion: one list from a search by keys and a search by texts.
//!
//! Source: Cormack, Clarke and Büttcher, "Reciprocal rank fusion outperforms Condorcet and
//! individual rank learning methods", SIGIR 2009. The score of an entry is the sum of
//! `1 / (60 + rank)` over the lists that contain it, where ranks start at 1. Only ranks count, so
//! cosines and BM25 scores need no common scale. Equal scores are sorted by id, which the paper
//! does not state.

use std::collections::HashMap;

use serde::Serialize;

use crate::error::MemoryError;
use crate::search::{Hit, SearchResults};

/// The constant of the paper, which lowers the weight of the first ranks.
pub const RANK_CONSTANT: f64 = 60.0;

/// The position of an entry in one of the fused lists.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct ListRank {
    /// The rank, from 1.
    pub rank: usize,
    /// The score in this list.
    pub score: f32,
}

/// An entry of a fused list.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FusedHit {
    /// The entry with its fused score.
    pub hit: Hit,
    /// The rank in the search by keys; `None` if that search did not find the entry.
    pub vector: Option<ListRank>,
    /// The rank in the search by texts; `None` if that search did not find the entry.
    pub text: Option<ListRank>,
}

/// Returns the best `k` entries of the two lists of each query, best first.
///
/// # Errors
/// [`MemoryError::InvalidOption`] if the lists belong to different generations, or to different
/// numbers of queries.
pub fn reciprocal_rank_fusion(
    vector: &SearchResults,
    text: &SearchResults,
    k: usize,
) -> Result<Vec<Vec<FusedHit>>, MemoryError> {
    let check = |option: &'static str, found: u64, vector: u64| match found == vector {
        true => Ok(()),
        false => Err(MemoryError::InvalidOption {
            option,
            found: found.to_string(),
            expected: "equal in the search by keys and the search by texts",
        }),
    };
    check("the generation", text.generation, vector.generation)?;
    check("the number of queries", text.hits.len() as u64, vector.hits.len() as u64)?;
    Ok(vector.hits.iter().zip(&text.hits).map(|(vector, text)| fuse(vector, text, k)).collect())
}

fn fuse(vector: &[Hit], text: &[Hit], k: usize) -> Vec<FusedHit> {
    let mut by_id: HashMap<i64, FusedHit> = HashMap::new();
    let unranked = |hit: &Hit| FusedHit { hit: *hit, vector: None, text: None };
    for (rank, hit) in (1..).zip(vector) {
        let position = Some(ListRank { rank, score: hit.score });
        by_id.entry(hit.id).or_insert_with(|| unranked(hit)).vector = position;
    }
    for (rank, hit) in (1..).zip(text) {
        let position = Some(ListRank { rank, score: hit.score });
        by_id.entry(hit.id).or_insert_with(|| unranked(hit)).text = position;
    }
    let part = |position: Option<ListRank>| {
        position.map_or(0.0, |position| 1.0 / (RANK_CONSTANT + position.rank as f64))
    };
    let score = |fused: FusedHit| part(fused.vector) + part(fused.text);
    let mut scored: Vec<(f64, FusedHit)> =
        by_id.into_values().map(|fused| (score(fused), fused)).collect();
    scored.sort_unstable_by(|(a, fused_a), (b, fused_b)| {
        b.total_cmp(a).then(fused_a.hit.id.cmp(&fused_b.hit.id))
    });
    scored.truncate(k);
    let with_score = |(score, fused): (f64, FusedHit)| FusedHit {
        hit: Hit { score: score as f32, ..fused.hit },
        ..fused
    };
    scored.into_iter().map(with_score).collect()
}
