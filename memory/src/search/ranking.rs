//! Scores in double precision, and the order of hits.
//!
//! A store outside of this crate finds candidates itself, and scores and orders them here. So the
//! same keys give the same hits in all stores.

use super::products::dot;
use super::{Filter, Hit, PreparedFilter, Queries, searched_sources, unknown_source};
use crate::error::MemoryError;
use crate::generation::Row;
use crate::store::Description;

/// The score of a key for a query, in double precision.
#[derive(Debug, Clone, Copy)]
pub(super) struct Score {
    /// The product of query and key.
    product: f64,
    gate: f64,
    /// The product times the gate.
    pub(super) gated: f64,
}

impl Score {
    /// Scores a key. `gate` is 1 without gates.
    pub(super) fn new(query: &[f32], key: &[f32], gate: f32) -> Self {
        let (product, gate) = (dot(query, key), f64::from(gate));
        // Adding 0 turns -0 into 0, so that both compare as equal.
        Self { product, gate, gated: gate * product + 0.0 }
    }

    /// Returns the score of a hit. `scale` turns a product into a cosine.
    pub(super) fn of_hit(&self, scale: Option<f64>) -> f32 {
        // Rounded normalised keys may have a product slightly above 1.
        let cosine = scale.map(|scale| (self.product * scale).clamp(-1.0, 1.0));
        (self.gate * cosine.unwrap_or(self.product)) as f32
    }
}

/// Orders hits by their scores in double precision, best first. Equal scores are sorted by id.
pub(crate) fn by_score((a, hit_a): &(f64, Hit), (b, hit_b): &(f64, Hit)) -> std::cmp::Ordering {
    b.total_cmp(a).then(hit_a.id.cmp(&hit_b.id))
}

/// Checked queries with their filter. Ranks candidates.
pub struct Ranking<'a> {
    prepared: PreparedFilter<'a>,
    /// The query vectors, `[queries, width]`.
    vectors: &'a [f32],
    sources: Option<Vec<u32>>,
}

impl<'a> Ranking<'a> {
    /// Checks the queries and the filter of a search. The filter's ids are not checked.
    /// `entries_by_source` has the number of entries of each source, and `longest_key` is the
    /// largest norm of a key, or a larger number.
    ///
    /// # Errors
    /// The errors of [`Snapshot::search`](crate::Snapshot::search), without those of ids and files.
    pub fn new(
        description: &Description,
        entries_by_source: &[u64],
        longest_key: f32,
        queries: Queries<'a>,
        filter: &'a Filter,
    ) -> Result<Self, MemoryError> {
        let prepared = PreparedFilter::of_keys(description, longest_key, queries, filter)?;
        let sources = sources_with_entries(description, entries_by_source, filter)?;
        Ok(Self { prepared, vectors: queries.keys, sources })
    }

    /// The number of queries.
    pub fn queries(&self) -> usize {
        self.prepared.queries
    }

    /// The number of entries per query, at least 1 and at most the number of entries.
    pub fn k(&self) -> usize {
        self.prepared.k
    }

    /// A query vector.
    pub fn query(&self, query: usize) -> &'a [f32] {
        &self.vectors[query * self.prepared.width..][..self.prepared.width]
    }

    /// The indices of the searched sources; `None` if all sources are searched.
    pub fn sources(&self) -> Option<&[u32]> {
        self.sources.as_deref()
    }

    /// The hashes of the documents that a query excludes.
    pub fn excluded_documents(&self, query: usize) -> impl Iterator<Item = u64> + '_ {
        self.prepared.excluded.get(query).into_iter().flatten().copied()
    }

    /// The weight of a source for a query; `None` if scores are not weighted.
    pub fn gate(&self, query: usize, source: u32) -> Option<f32> {
        self.prepared.gates.as_ref().map(|_| self.prepared.gate(query, source))
    }

    /// Starts the list of the best entries for a query.
    pub fn best(&self, query: usize) -> BestEntries<'_> {
        let scale = self.prepared.scale(self.query(query));
        BestEntries { ranking: self, query, scale, hits: Vec::new() }
    }
}

/// The best entries for a query among the candidates so far.
pub struct BestEntries<'a> {
    ranking: &'a Ranking<'a>,
    query: usize,
    /// The factor that turns a product into a cosine.
    scale: Option<f64>,
    hits: Vec<(f64, Hit)>,
}

impl BestEntries<'_> {
    /// Scores a candidate that the filter allows. Each candidate must be added once.
    pub fn add(&mut self, row: Row, id: i64, source: u32, key: &[f32]) {
        let gate = self.ranking.prepared.gate(self.query, source);
        let score = Score::new(self.ranking.query(self.query), key, gate);
        let hit = Hit { id, score: score.of_hit(self.scale), source, row };
        self.hits.push((score.gated, hit));
        let k = self.ranking.k();
        if self.hits.len() >= k.saturating_mul(4).max(1024) {
            self.hits.select_nth_unstable_by(k - 1, by_score);
            self.hits.truncate(k);
        }
    }

    /// Returns how many of the best `k` entries of all lists are from each list. All lists are for
    /// the same query.
    pub fn counts(lists: &[&Self]) -> Vec<usize> {
        let mut counts = vec![0; lists.len()];
        let Some(first) = lists.first() else { return counts };
        let k = first.ranking.k();
        let hits = lists.iter().enumerate().flat_map(|(list, best)| {
            best.hits.iter().map(move |(score, hit)| ((*score, *hit), list))
        });
        let mut hits: Vec<((f64, Hit), usize)> = hits.collect();
        if hits.len() > k {
            hits.select_nth_unstable_by(k - 1, |(a, _), (b, _)| by_score(a, b));
            hits.truncate(k);
        }
        hits.iter().for_each(|(_, list)| counts[*list] += 1);
        counts
    }

    /// Adds the candidates of another list for the same query, such as the one of another server.
    pub fn merge(&mut self, other: Self) {
        self.hits.extend(other.hits);
    }

    /// Returns the best `k` entries, best first.
    pub fn finish(mut self) -> Vec<Hit> {
        self.hits.sort_unstable_by(by_score);
        self.hits.truncate(self.ranking.k());
        self.hits.into_iter().map(|(_, hit)| hit).collect()
    }
}

/// Returns the indices of the searched sources; `None` if all sources are searched.
/// `entries_by_source` has the number of entries of each source.
///
/// # Errors
/// [`MemoryError::UnknownSource`] for a source without entries.
pub fn sources_with_entries(
    description: &Description,
    entries_by_source: &[u64],
    filter: &Filter,
) -> Result<Option<Vec<u32>>, MemoryError> {
    let names = &description.sources;
    let sources = searched_sources(names, filter)?;
    let is_empty = |source: &&u32| entries_by_source.get(**source as usize).is_none_or(|n| *n == 0);
    match sources.iter().flatten().find(is_empty) {
        Some(source) => Err(unknown_source(&names[*source as usize], names)),
        None => Ok(sources),
    }
}
