//! Exact search: scores every key for every query.
//!
//! Dot products are computed block by block in single precision, or faster in bfloat16. Every row
//! whose score could be among the best, given the error bound, is scored again in double precision.
//! The hits are ordered by this second score, so their order does not depend on the blocks, the
//! threads or the processor.

use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU32, Ordering};

use rayon::prelude::*;

use super::bf16;
use super::products::{dot, indices_at_least};
use super::top_k::{Candidate, TopK};
use super::{Filter, Hidden, Hit, Index, PreparedFilter, Queries, SearchResults, norm};
use crate::error::MemoryError;
use crate::format::manifest::SegmentRecord;
use crate::generation::{Generation, Part, Row};

/// The maximum number of queries in a batch.
const MAX_BATCH_QUERIES: usize = 1024;
/// The maximum of `k` times the number of queries in a batch. It limits the candidates per thread.
const MAX_BATCH_CANDIDATES: usize = 1 << 22;
/// The number of keys per block. Their products with the queries fit in the processor's cache.
const BLOCK_KEYS: usize = 512;

/// The minimum number of queries for bfloat16. With fewer queries, reading keys takes most of the
/// time, and rounding costs more than it saves.
const MIN_ROUNDED_QUERIES: usize = 16;
/// The norms of queries that can be rounded. Products of such queries with normalised keys do not
/// underflow.
const ROUNDED_NORMS: RangeInclusive<f64> = 1e-6..=1e6;

/// Exact search, the default.
#[derive(Debug, Clone, Copy, Default)]
pub struct Exact;

impl Index for Exact {
    fn search(
        &self,
        generation: &Generation,
        queries: Queries<'_>,
        filter: &Filter,
    ) -> Result<SearchResults, MemoryError> {
        let prepared = PreparedFilter::new(generation, queries, filter)?;
        let mut hits = Vec::with_capacity(prepared.queries);
        for batch in QueryBatch::batches(generation, &prepared, queries) {
            hits.extend(batch.rank_all(batch.candidates()?)?);
        }
        Ok(SearchResults { generation: generation.manifest().generation, hits })
    }
}

/// A batch of the queries.
pub(super) struct QueryBatch<'a> {
    generation: &'a Generation,
    prepared: &'a PreparedFilter<'a>,
    /// The query vectors, `[queries, width]`.
    vectors: &'a [f32],
    /// The index of the batch's first query among all queries.
    first_query: usize,
    /// The queries rounded to bfloat16; `None` if rounding is not possible or not faster.
    rounded: Option<bf16::RoundedQueries>,
    /// For each query, twice the largest possible error of a score.
    margins: Vec<f32>,
    /// For each query, the highest threshold of any thread, in the bits of [`to_ordered_bits`].
    thresholds: Vec<AtomicU32>,
}

/// A block of keys.
#[derive(Clone, Copy)]
struct Block<'a> {
    part_index: usize,
    part: &'a Part,
    /// The first row in the segment.
    start: usize,
    /// The number of rows.
    rows: usize,
}

impl<'a> QueryBatch<'a> {
    pub(super) fn new(
        generation: &'a Generation,
        prepared: &'a PreparedFilter<'a>,
        vectors: &'a [f32],
        first_query: usize,
    ) -> Self {
        let largest = |value: fn(&SegmentRecord) -> f32| {
            let segments = generation.manifest().segments.iter();
            f64::from(segments.map(value).fold(0f32, f32::max))
        };
        let longest_key = largest(|segment| segment.longest_key);
        let key_rounding = largest(|segment| segment.largest_rounding);
        let queries = || vectors.chunks(prepared.width);
        let is_rounded = generation.manifest().normalised
            && queries().len() >= MIN_ROUNDED_QUERIES
            && bf16::RoundedQueries::is_supported()
            && queries().all(|query| ROUNDED_NORMS.contains(&norm(query)));
        // The relative error of a sum of `width` products, in any order: `width` rounding errors of
        // the product of the norms (Cauchy-Schwarz). Eight more cover the gate, keys whose norm is
        // not exactly 1, and bfloat16.
        let relative_error = 1.01 * (prepared.width + 8) as f64 * f64::from(f32::EPSILON) / 2.0;
        let margin = |(i, query): (usize, &[f32])| {
            let gate = f64::from(prepared.largest_gate(first_query + i));
            let (norm, mut error) = (norm(query), relative_error * norm(query) * longest_key);
            if is_rounded {
                // The rounding error of the query times any key, plus the rounding error of a key
                // times the query.
                let query_rounding = bf16::rounding_error(query);
                error += query_rounding * longest_key + (norm + query_rounding) * key_rounding;
            }
            // Products below the smallest normal number lose more than one rounding error.
            let underflow = (prepared.width + 8) as f64 * f64::from(f32::MIN_POSITIVE);
            (2.0 * (error * gate + underflow * gate.max(1.0))) as f32
        };
        let margins: Vec<f32> = queries().enumerate().map(margin).collect();
        let rounded = is_rounded.then(|| bf16::RoundedQueries::new(vectors, prepared.width));
        let lowest = to_ordered_bits(f32::NEG_INFINITY);
        let thresholds = margins.iter().map(|_| AtomicU32::new(lowest)).collect();
        Self { generation, prepared, vectors, first_query, rounded, margins, thresholds }
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

    /// Returns the index of the batch's first query, and the batch's query vectors.
    pub(super) fn queries(&self) -> (usize, std::slice::Chunks<'a, f32>) {
        (self.first_query, self.vectors.chunks(self.prepared.width))
    }

    /// Returns, for each query, all rows that may be among the best `k`.
    pub(super) fn candidates(&self) -> Result<Vec<Vec<Candidate>>, MemoryError> {
        let parts = self.generation.parts().iter().enumerate();
        let blocks = parts.flat_map(|(part_index, part)| {
            let block = move |start| {
                let rows = BLOCK_KEYS.min(part.segment.rows - start);
                Block { part_index, part, start, rows }
            };
            (0..part.segment.rows).step_by(BLOCK_KEYS).map(block)
        });
        let blocks: Vec<Block<'_>> = blocks.filter(|block| self.has_rows(block)).collect();
        let empty = || -> Vec<TopK> {
            self.margins.iter().map(|margin| TopK::new(self.prepared.k, *margin)).collect()
        };
        let best = blocks
            .into_par_iter()
            .try_fold(
                || (empty(), Buffers::default()),
                |(mut best, mut buffers), block| {
                    self.score(block, &mut buffers)?;
                    self.collect_candidates(block, &buffers.scores, &mut best)?;
                    Ok((best, buffers))
                },
            )
            .map(|folded: Result<_, MemoryError>| folded.map(|(best, _)| best))
            .try_reduce(empty, |mut left, right| {
                left.iter_mut().zip(right).for_each(|(left, right)| left.merge(right));
                Ok(left)
            })?;
        Ok(best.into_iter().map(TopK::into_candidates).collect())
    }

    /// Whether a block has searchable rows.
    fn has_rows(&self, block: &Block<'_>) -> bool {
        match &self.prepared.hidden[block.part_index] {
            Hidden::Nothing => true,
            Hidden::Rows(hidden) => {
                (block.start..block.start + block.rows).any(|row| !hidden.get(row))
            }
            Hidden::Everything => false,
        }
    }

    /// Returns, for each query, the best `k` of its candidates, best first.
    pub(super) fn rank_all(
        &self,
        candidates: Vec<Vec<Candidate>>,
    ) -> Result<Vec<Vec<Hit>>, MemoryError> {
        let candidates = candidates.into_par_iter().enumerate();
        candidates.map(|(query, candidates)| self.rank(query, candidates)).collect()
    }

    /// Computes the products of all queries with a block's keys, times the gates, as the scores in
    /// `buffers`.
    fn score(&self, block: Block<'_>, buffers: &mut Buffers) -> Result<(), MemoryError> {
        let (width, rows) = (self.prepared.width, block.rows);
        let keys = block.part.segment.keys(block.start..block.start + rows)?;
        let Buffers { scores, rounded_keys } = buffers;
        scores.resize(self.margins.len() * rows, 0.0);
        match &self.rounded {
            Some(queries) => queries.products(keys, width, rounded_keys, scores),
            None => products(self.vectors, keys, width, scores),
        }
        if self.prepared.gates.is_some() {
            let sources = &block.part.segment.sources()?[block.start..block.start + rows];
            for (query, scores) in scores.chunks_mut(rows).enumerate() {
                for (score, source) in scores.iter_mut().zip(sources) {
                    *score *= self.prepared.gate(self.first_query + query, *source);
                }
            }
        }
        Ok(())
    }

    /// Adds the rows of a block that may be among the best to each query's `best`.
    fn collect_candidates(
        &self,
        block: Block<'_>,
        scores: &[f32],
        best: &mut [TopK],
    ) -> Result<(), MemoryError> {
        let hidden = &self.prepared.hidden[block.part_index];
        let documents =
            if self.prepared.excluded.is_empty() { &[] } else { block.part.segment.documents()? };
        let mut above_threshold = Vec::new();
        for (query, (scores, best)) in scores.chunks(block.rows).zip(best).enumerate() {
            let shared = &self.thresholds[query];
            let shared_threshold = from_ordered_bits(shared.load(Ordering::Relaxed));
            let threshold = best.threshold().max(shared_threshold);
            indices_at_least(threshold, scores, &mut above_threshold);
            let excluded = self.prepared.excluded.get(self.first_query + query);
            for index in above_threshold.drain(..) {
                let (score, row) = (scores[index as usize], block.start + index as usize);
                if score < best.threshold()
                    || hidden.has(row)
                    || excluded.is_some_and(|excluded| excluded.contains(&documents[row]))
                {
                    continue;
                }
                best.offer(Candidate { score, row: (block.part.start + row) as u32 });
            }
            shared.fetch_max(to_ordered_bits(best.threshold()), Ordering::Relaxed);
        }
        Ok(())
    }

    /// Scores the candidates of a query in double precision, and returns the best `k`.
    fn rank(&self, query: usize, candidates: Vec<Candidate>) -> Result<Vec<Hit>, MemoryError> {
        let query_vector = &self.vectors[query * self.prepared.width..][..self.prepared.width];
        let scale = self.prepared.scale(query_vector);
        let mut scored = Vec::with_capacity(candidates.len());
        for candidate in candidates {
            let row = Row(candidate.row);
            let (part, row_in_part) = self.generation.locate(row)?;
            let key = part.segment.keys(row_in_part..row_in_part + 1)?;
            let source = part.segment.sources()?[row_in_part];
            let gate = f64::from(self.prepared.gate(self.first_query + query, source));
            let product = dot(query_vector, key);
            // Rounded normalised keys may have a product slightly above 1.
            let cosine = scale.map(|scale| (product * scale).clamp(-1.0, 1.0));
            let score = (gate * cosine.unwrap_or(product)) as f32;
            let hit = Hit { id: part.segment.ids()?[row_in_part], score, source, row };
            scored.push((gate * product, hit));
        }
        // Adding 0 turns -0 into 0, so that both compare as equal.
        scored.sort_unstable_by(|(a, hit_a), (b, hit_b)| {
            (b + 0.0).total_cmp(&(a + 0.0)).then(hit_a.id.cmp(&hit_b.id))
        });
        scored.truncate(self.prepared.k);
        Ok(scored.into_iter().map(|(_, hit)| hit).collect())
    }
}

/// The buffers of a thread, reused for each block.
#[derive(Default)]
struct Buffers {
    /// The scores of a block, `[queries, rows]`.
    scores: Vec<f32>,
    rounded_keys: Vec<u32>,
}

/// Computes the products of queries `[queries, width]` and keys `[rows, width]` in single
/// precision, `[queries, rows]`.
fn products(queries: &[f32], keys: &[f32], width: usize, out: &mut [f32]) {
    let (num_queries, rows) = (queries.len() / width, keys.len() / width);
    assert_eq!(out.len(), num_queries * rows);
    // SAFETY: the three matrices have the given sizes and strides: queries `[queries, width]`, keys
    // `[rows, width]` as their transpose, products `[queries, rows]`.
    unsafe {
        gemm::gemm(
            num_queries,
            rows,
            width,
            out.as_mut_ptr(),
            1,
            rows as isize,
            false,
            queries.as_ptr(),
            1,
            width as isize,
            keys.as_ptr(),
            width as isize,
            1,
            0.0,
            1.0,
            false,
            false,
            false,
            gemm::Parallelism::None,
        );
    }
}

/// Returns bits that are ordered like the numbers: a larger number has larger bits.
fn to_ordered_bits(number: f32) -> u32 {
    let bits = number.to_bits();
    if bits >> 31 == 1 { !bits } else { bits | 1 << 31 }
}

/// The inverse of [`to_ordered_bits`].
fn from_ordered_bits(bits: u32) -> f32 {
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
