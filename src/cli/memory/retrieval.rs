//! Options that choose among the entries found: diversity, a minimum score, and search in texts.

use anyhow::Context;
use clap::Args;
use engram_memory::Snapshot;
use engram_memory::retrieval::mmr::maximal_marginal_relevance;
use engram_memory::retrieval::rank_fusion::{FusedHit, ListRank, reciprocal_rank_fusion};
use engram_memory::search::{Filter, Hit, SearchResults};
use serde::Serialize;

use super::query::Query;

/// The default number of candidates for each entry to find.
const CANDIDATES_PER_ENTRY: usize = 10;
/// The smallest default number of candidates.
const MIN_CANDIDATES: usize = 100;

/// Diversity, minimum score and search in texts.
#[derive(Debug, Args)]
pub(super) struct RetrievalOptions {
    /// Find entries that differ from each other, by maximal marginal relevance. LAMBDA is from 0
    /// (most diverse) to 1 (the order of the scores)
    #[arg(long, value_name = "LAMBDA", group = "choice",
        allow_negative_numbers = true, value_parser = lambda)]
    mmr: Option<f64>,
    /// Leave out entries with a lower score. With --hybrid, applies to the search by keys
    #[arg(long, value_name = "SCORE", allow_negative_numbers = true, value_parser = score)]
    min_score: Option<f32>,
    /// Also search the words of --text or --texts in the entries' texts (BM25), and fuse both lists
    /// by reciprocal rank
    #[arg(long, group = "choice", conflicts_with = "queries")]
    hybrid: bool,
    /// Number of candidates of --mmr, and of each list of --hybrid; default: 10 k, at least 100
    #[arg(long, value_name = "N", requires = "choice",
        value_parser = clap::value_parser!(u32).range(1..))]
    candidates: Option<u32>,
}

/// Parses the weight of relevance.
fn lambda(text: &str) -> Result<f64, String> {
    let lambda = text.parse().ok().filter(|lambda| (0.0..=1.0).contains(lambda));
    lambda.ok_or_else(|| "give a number from 0 to 1".to_owned())
}

/// Parses a score.
fn score(text: &str) -> Result<f32, String> {
    let score = text.parse().ok().filter(|score: &f32| score.is_finite());
    score.ok_or_else(|| "give a number".to_owned())
}

/// The chosen entries.
pub(super) struct Chosen {
    pub(super) results: SearchResults,
    /// The ranks of each query's entries in both lists; `None` without `--hybrid`.
    pub(super) ranks: Option<Vec<Vec<Ranks>>>,
}

/// The ranks of an entry, from 1, and its scores, in the search by keys and the search by texts.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Ranks {
    pub(super) vector: Option<ListRank>,
    pub(super) text: Option<ListRank>,
}

impl RetrievalOptions {
    /// The number of entries to search for, of which `k` are chosen.
    pub(super) fn candidates(&self, k: usize) -> usize {
        if k == 0 || (self.mmr.is_none() && !self.hybrid) {
            return k;
        }
        let default = || k.saturating_mul(CANDIDATES_PER_ENTRY).max(MIN_CANDIDATES);
        self.candidates.map_or_else(default, |candidates| candidates as usize).max(k)
    }

    /// Returns an error if a query has no text for `--hybrid`.
    pub(super) fn check_queries(&self, queries: &[Query]) -> anyhow::Result<()> {
        let without_text = queries.iter().find(|query| self.hybrid && query.text.is_none());
        without_text.map_or(Ok(()), |query| {
            anyhow::bail!(
                "{}: the query has no text for --hybrid; add a text, or search without --hybrid",
                query.location
            )
        })
    }

    /// Chooses `k` entries for each query from the results of the search for
    /// [`candidates`](Self::candidates).
    pub(super) fn choose(
        &self,
        snapshot: &dyn Snapshot,
        found: SearchResults,
        k: usize,
        queries: &[Query],
        filter: &Filter,
    ) -> anyhow::Result<Chosen> {
        let found = match self.min_score {
            Some(score) => found.with_min_score(score),
            None => found,
        };
        let results = match self.mmr {
            Some(lambda) => maximal_marginal_relevance(snapshot, &found, lambda, k)?,
            None => found,
        };
        if !self.hybrid {
            return Ok(Chosen { results, ranks: None });
        }
        let texts: Vec<&str> =
            queries.iter().map(|query| query.text.as_deref().unwrap_or_default()).collect();
        let by_text = snapshot.search_texts(&texts, self.candidates(k), filter);
        let by_text = by_text.context("cannot search the entries' texts")?;
        let fused = reciprocal_rank_fusion(&results, &by_text, k)?;
        let hits = |fused: &Vec<FusedHit>| fused.iter().map(|fused| fused.hit).collect();
        let hits: Vec<Vec<Hit>> = fused.iter().map(hits).collect();
        let ranks = |fused: Vec<FusedHit>| {
            fused
                .iter()
                .map(|FusedHit { vector, text, .. }| Ranks { vector: *vector, text: *text })
                .collect()
        };
        let ranks = fused.into_iter().map(ranks).collect();
        Ok(Chosen { results: SearchResults { hits, ..results }, ranks: Some(ranks) })
    }
}

impl Ranks {
    /// The ranks as text, such as `key 3, text -`.
    pub(super) fn to_text(self) -> String {
        let rank =
            |rank: Option<ListRank>| rank.map_or("-".to_owned(), |rank| rank.rank.to_string());
        format!("key {}, text {}", rank(self.vector), rank(self.text))
    }
}
