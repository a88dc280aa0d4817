//! Exact search in two steps. First, `scan` bounds each score by the codes of the keys, and finds,
//! for each query, every row whose score may be among the best `k`. Then the scores of these rows
//! are computed from the keys in double precision. The hits are ordered by these scores, so the
//! results do not depend on the bounds, the blocks, the threads or the processor.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use rayon::prelude::*;

use super::kernels::Kernel;
use super::products::prefetch;
use super::query_codes::QueryCodes;
use super::ranking::{Score, by_score};
use super::scan::{Block, Scan};
use super::top_k::{Candidate, TopK};
use super::{Filter, Hit, PreparedFilter, Queries, SearchResults, norm};
use crate::error::MemoryError;
use crate::generation::{Generation, Row};

/// The maximum number of queries in a batch.
const MAX_BATCH_QUERIES: usize = 1024;
/// The maximum of `k` times the number of queries in a batch. It limits the candidates per thread.
const MAX_BATCH_CANDIDATES: usize = 1 << 22;
/// While a candidate is scored, the candidate this many positions later is prefetched.
const PREFETCH_DISTANCE: usize = 6;

/// The instructions that exact search uses on this processor: `avx512`, `avx2` or `portable`.
pub fn instructions() -> &'static str {
    Kernel::selected().name()
}

/// Returns the best `k` entries for each query. Compares all keys.
pub(crate) fn search(
    generation: &Generation,
    queries: Queries<'_>,
    filter: &Filter,
) -> Result<SearchResults, MemoryError> {
    let prepared = PreparedFilter::new(generation, queries, filter)?;
    let mut hits = Vec::with_capacity(prepared.queries);
    for batch in QueryBatch::batches(generation, &prepared, queries) {
        hits.extend(batch.search()?);
    }
    Ok(SearchResults { generation: generation.manifest().generation, hits })
}

/// A batch of the queries.
pub(super) struct QueryBatch<'a> {
    pub(super) generation: &'a Generation,
    pub(super) prepared: &'a PreparedFilter<'a>,
    /// The query vectors, `[queries, width]`.
    pub(super) vectors: &'a [f32],
    /// The index of the batch's first query among all queries.
    pub(super) first_query: usize,
    /// The norm of each query; 1 for a zero query.
    pub(super) norms: Vec<f64>,
    codes: OnceLock<QueryCodes>,
    /// For each query, the highest threshold of any thread, in the bits of [`to_ordered_bits`].
    thresholds: Vec<AtomicU32>,
}

impl<'a> QueryBatch<'a> {
    pub(super) fn new(
        generation: &'a Generation,
        prepared: &'a PreparedFilter<'a>,
        vectors: &'a [f32],
        first_query: usize,
    ) -> Self {
        let norms: Vec<f64> = vectors
            .chunks(prepared.width)
            .map(|query| Some(norm(query)).filter(|norm| *norm > 0.0).unwrap_or(1.0))
            .collect();
        let lowest = to_ordered_bits(f32::NEG_INFINITY);
        let thresholds = norms.iter().map(|_| AtomicU32::new(lowest)).collect();
        let codes = OnceLock::new();
        Self { generation, prepared, vectors, first_query, norms, codes, thresholds }
    }

    /// The codes of the queries. A search in which graphs have all rows needs none.
    pub(super) fn codes(&self) -> &QueryCodes {
        let new = || QueryCodes::new(self.vectors, self.prepared.width, Kernel::selected());
        self.codes.get_or_init(new)
    }

    /// Returns all queries in batches.
    pub(super) fn batches(
        generation: &'a Generation,
        prepared: &'a PreparedFilter<'a>,
        queries: Queries<'a>,
    ) -> impl Iterator<Item = Self> {
        let size = (MAX_BATCH_CANDIDATES / prepared.k).clamp(1, MAX_BATCH_QUERIES);
        let batches = queries.keys.chunks(size * prepared.width).enumerate();
        batches.map(move |(batch, vectors)| Self::new(generation, prepared, vectors, batch * size))
    }

    /// Returns the best `k` entries for each query, best first.
    ///
    /// A sample of the rows is scanned first. It gives each query a threshold, which the `k`th best
    /// score very probably reaches. So most other rows are ruled out at once. If the `k`th best
    /// score does not reach the threshold, all rows are scanned again.
    fn search(&self) -> Result<Vec<Vec<Hit>>, MemoryError> {
        let k = self.prepared.k;
        let (sample, rest) = Block::sample(Block::all(self.generation, self.prepared));
        let mut sampled = self.scan(&sample, &TopK::estimate(Block::sample_rank(k)))?;
        let mut thresholds = Vec::with_capacity(sampled.len());
        for (query, best) in sampled.iter_mut().enumerate() {
            best.prune();
            thresholds.push(best.threshold());
            self.raise_threshold(query, best.threshold());
        }
        let others = self.scan(&rest, &TopK::new(k))?;
        let candidates = sampled.into_par_iter().zip(others).map(|(sampled, others)| {
            let mut candidates = others.into_candidates();
            candidates.extend(sampled.into_candidates());
            candidates
        });
        let mut ranked = self.rank(candidates.collect())?;
        for (query, (ranked, threshold)) in ranked.iter_mut().zip(thresholds).enumerate() {
            let last = ranked.get(k - 1).map_or(f64::NEG_INFINITY, |(score, _)| *score);
            if last / self.norms[query] < f64::from(threshold) {
                let vector = &self.vectors[query * self.prepared.width..][..self.prepared.width];
                let first = self.first_query + query;
                let only = Self::new(self.generation, self.prepared, vector, first);
                *ranked = only.rank(only.candidates()?)?.pop().unwrap_or_default();
            }
        }
        Ok(ranked.into_iter().map(hits).collect())
    }

    /// Returns, for each query, all rows that may be among the best `k`.
    pub(super) fn candidates(&self) -> Result<Vec<Vec<Candidate>>, MemoryError> {
        let blocks = Block::all(self.generation, self.prepared);
        let best = self.scan(&blocks, &TopK::new(self.prepared.k))?;
        Ok(best.into_iter().map(TopK::into_candidates).collect())
    }

    /// Scans blocks on all threads. `empty` is the result of a query without rows.
    fn scan(&self, blocks: &[Block<'_>], empty: &TopK) -> Result<Vec<TopK>, MemoryError> {
        let (next, workers) = (AtomicUsize::new(0), rayon::current_num_threads());
        let workers = (0..workers.min(blocks.len())).into_par_iter();
        let scans = workers.map(|_| -> Result<Vec<TopK>, MemoryError> {
            let mut scan = Scan::new(self, empty);
            while let Some(block) = blocks.get(next.fetch_add(1, Ordering::Relaxed)) {
                scan.block(*block)?;
            }
            Ok(scan.best)
        });
        let merged = scans.try_reduce_with(|mut left, right| {
            left.iter_mut().zip(right).for_each(|(left, right)| left.merge(right));
            Ok(left)
        });
        merged.unwrap_or_else(|| Ok(vec![empty.clone(); self.norms.len()]))
    }

    /// The highest threshold of any thread for a query.
    pub(super) fn threshold(&self, query: usize) -> f32 {
        from_ordered_bits(self.thresholds[query].load(Ordering::Relaxed))
    }

    /// Raises the threshold of a query for all threads.
    pub(super) fn raise_threshold(&self, query: usize, threshold: f32) {
        self.thresholds[query].fetch_max(to_ordered_bits(threshold), Ordering::Relaxed);
    }

    /// Returns, for each query, the best `k` of its candidates, best first.
    pub(super) fn rank_all(
        &self,
        candidates: Vec<Vec<Candidate>>,
    ) -> Result<Vec<Vec<Hit>>, MemoryError> {
        Ok(self.rank(candidates)?.into_iter().map(hits).collect())
    }

    /// Returns, for each query, the best `k` of its candidates with their scores in double
    /// precision, best first.
    fn rank(&self, mut best: Vec<Vec<Candidate>>) -> Result<Vec<Vec<(f64, Hit)>>, MemoryError> {
        let k = self.prepared.k;
        let mut others: Vec<Vec<Candidate>> = best
            .par_iter_mut()
            .map(|candidates| {
                if candidates.len() <= k {
                    return Vec::new();
                }
                let by_bound = |a: &Candidate, b: &Candidate| b.lower().total_cmp(&a.lower());
                candidates.select_nth_unstable_by(k - 1, by_bound);
                candidates.split_off(k)
            })
            .collect();
        let scored = self.score(&best)?;
        // The scores of any `k` candidates rule out others.
        others.par_iter_mut().zip(&scored).enumerate().for_each(|(query, (others, scored))| {
            let lowest =
                scored.iter().fold(f64::INFINITY, |lowest, hit| lowest.min(hit.score.gated));
            let threshold = lowest / self.norms[query];
            others.retain(|candidate| f64::from(candidate.upper()) >= threshold);
        });
        let other_scored = self.score(&others)?;
        let queries = scored.into_par_iter().zip(other_scored).enumerate();
        let ranked = queries.map(|(query, (mut scored, others))| {
            scored.extend(others);
            if scored.len() > k {
                let by_score = |a: &Scored, b: &Scored| b.score.gated.total_cmp(&a.score.gated);
                let last = scored.select_nth_unstable_by(k - 1, by_score).1.score.gated;
                // All rows with the last score stay, because equal scores are sorted by id.
                scored.retain(|hit| hit.score.gated >= last);
            }
            let vector = &self.vectors[query * self.prepared.width..][..self.prepared.width];
            let scale = self.prepared.scale(vector);
            let hits = scored.iter().map(|scored| {
                let hit = self.hit(scored, scale)?;
                Ok((scored.score.gated, hit))
            });
            let mut hits: Vec<(f64, Hit)> = hits.collect::<Result<_, MemoryError>>()?;
            hits.sort_unstable_by(by_score);
            hits.truncate(k);
            Ok(hits)
        });
        ranked.collect()
    }

    /// Scores the candidates of each query in double precision.
    ///
    /// The keys are read in the order of the rows, so that each is read once for all queries.
    fn score(&self, candidates: &[Vec<Candidate>]) -> Result<Vec<Vec<Scored>>, MemoryError> {
        let mut pairs: Vec<(u32, u32)> = Vec::with_capacity(candidates.iter().map(Vec::len).sum());
        for (query, candidates) in candidates.iter().enumerate() {
            pairs.extend(candidates.iter().map(|candidate| (candidate.row, query as u32)));
        }
        pairs.par_sort_unstable();
        let scored: Vec<Scored> = pairs
            .par_iter()
            .enumerate()
            .map(|(i, (row, query))| {
                if let Some((next, _)) = pairs.get(i + PREFETCH_DISTANCE) {
                    let (part, row) = self.generation.locate(Row(*next))?;
                    prefetch(part.segment.keys(row..row + 1)?);
                }
                self.score_row(*query as usize, *row)
            })
            .collect::<Result<_, MemoryError>>()?;
        let mut by_query: Vec<Vec<Scored>> =
            candidates.iter().map(|candidates| Vec::with_capacity(candidates.len())).collect();
        for ((_, query), scored) in pairs.iter().zip(scored) {
            by_query[*query as usize].push(scored);
        }
        Ok(by_query)
    }

    fn score_row(&self, query: usize, row: u32) -> Result<Scored, MemoryError> {
        let vector = &self.vectors[query * self.prepared.width..][..self.prepared.width];
        let (part, row_in_part) = self.generation.locate(Row(row))?;
        let key = part.segment.keys(row_in_part..row_in_part + 1)?;
        let gate = match &self.prepared.gates {
            None => 1.0,
            Some(_) => {
                let source = part.segment.sources()?[row_in_part];
                self.prepared.gate(self.first_query + query, source)
            }
        };
        Ok(Scored { row, score: Score::new(vector, key, gate) })
    }

    /// Returns the hit of a scored row. `scale` turns a product into a cosine.
    fn hit(&self, scored: &Scored, scale: Option<f64>) -> Result<Hit, MemoryError> {
        let row = Row(scored.row);
        let (part, row_in_part) = self.generation.locate(row)?;
        let (id, source) = (part.segment.ids()?[row_in_part], part.segment.sources()?[row_in_part]);
        Ok(Hit { id, score: scored.score.of_hit(scale), source, row })
    }
}

/// A row with its score in double precision.
#[derive(Debug, Clone, Copy)]
struct Scored {
    row: u32,
    score: Score,
}

/// Returns the hits without their double-precision scores.
fn hits(ranked: Vec<(f64, Hit)>) -> Vec<Hit> {
    ranked.into_iter().map(|(_, hit)| hit).collect()
}

/// Returns bits that are ordered like the numbers: a larger number has larger bits.
pub(super) fn to_ordered_bits(number: f32) -> u32 {
    let bits = number.to_bits();
    if bits >> 31 == 1 { !bits } else { bits | 1 << 31 }
}

/// The inverse of [`to_ordered_bits`].
pub(super) fn from_ordered_bits(bits: u32) -> f32 {
    f32::from_bits(if bits >> 31 == 1 { bits & !(1 << 31) } else { !bits })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ordered_bits_ascend_with_numbers() {
        let numbers = [f32::NEG_INFINITY, -2.5, -1e-30, -0.0, 0.0, 1e-30, 7.0, f32::INFINITY];
        for pair in numbers.windows(2) {
            assert!(to_ordered_bits(pair[0]) < to_ordered_bits(pair[1]), "{pair:?}");
        }
        for number in numbers {
            assert_eq!(from_ordered_bits(to_ordered_bits(number)).to_bits(), number.to_bits());
        }
    }
}
