//! Compares queries with all vectors, in single precision.

use std::cmp::Ordering;
use std::ops::Range;

use rayon::prelude::*;

/// The number of queries that are compared with a tile of vectors.
const GROUP: usize = 16;
/// The number of components in a tile of vectors.
const TILE: usize = 1 << 14;
/// The number of parallel sums of a product.
const LANES: usize = 16;

/// How queries and vectors are compared.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Metric {
    Product,
    Distance,
}

/// A candidate: a score, of which larger ones are better, and its row.
pub(super) type Candidate = (f32, u32);

/// Collects candidates.
pub(super) trait Collect: Send {
    /// Only candidates with larger scores are collected.
    fn threshold(&self) -> f32;
    fn push(&mut self, candidate: Candidate);
}

/// Collects the best `k` candidates.
pub(super) struct Best {
    k: usize,
    threshold: f32,
    pub(super) candidates: Vec<Candidate>,
}

impl Best {
    pub(super) fn new(k: usize) -> Self {
        Self { k, threshold: f32::MIN, candidates: Vec::new() }
    }
}

impl Collect for Best {
    fn threshold(&self) -> f32 {
        self.threshold
    }

    fn push(&mut self, candidate: Candidate) {
        self.candidates.push(candidate);
        if self.candidates.len() >= 2 * self.k + 16 {
            let (_, last, _) = self.candidates.select_nth_unstable_by(self.k - 1, by_score);
            self.threshold = last.0;
            self.candidates.truncate(self.k);
        }
    }
}

/// Collects all candidates with a larger score than the threshold.
pub(super) struct InRange {
    pub(super) threshold: f32,
    pub(super) found: Vec<Candidate>,
}

impl Collect for InRange {
    fn threshold(&self) -> f32 {
        self.threshold
    }

    fn push(&mut self, candidate: Candidate) {
        self.found.push(candidate);
    }
}

/// Orders candidates, best first; equal ones by row.
pub(super) fn by_score((a, row_a): &Candidate, (b, row_b): &Candidate) -> Ordering {
    b.total_cmp(a).then(row_a.cmp(row_b))
}

/// Compares each query with rows of `numbers`, `[rows, width]`. Returns the collected candidates of
/// each query, from one or more ranges of rows in order.
pub(super) fn compare<C: Collect>(
    (metric, width): (Metric, usize),
    numbers: &[f32],
    queries: &[f32],
    rows: Range<usize>,
    allowed: Option<&[bool]>,
    new: &(impl Fn() -> C + Sync),
) -> Vec<Vec<C>> {
    let num_rows = rows.len();
    let groups: Vec<&[f32]> = queries.chunks(GROUP * width).collect();
    let parts = (4 * rayon::current_num_threads()).div_ceil(groups.len().max(1));
    let size = num_rows.div_ceil(parts).max(TILE / width).max(1);
    let tasks: Vec<(usize, &[f32])> = groups
        .iter()
        .flat_map(|group| rows.clone().step_by(size).map(move |start| (start, *group)))
        .collect();
    let compared = tasks.par_iter().map(|(start, group)| {
        let mut collected: Vec<C> = group.chunks(width).map(|_| new()).collect();
        let tile = (TILE / width).max(1);
        let mut scores = vec![0.0; tile];
        let end = (start + size).min(rows.end);
        for first in (*start..end).step_by(tile) {
            let tile = &numbers[first * width..(first + tile).min(end) * width];
            for (query, collected) in group.chunks(width).zip(&mut collected) {
                let scores = &mut scores[..tile.len() / width];
                fill_scores(metric, query, tile, scores);
                for (row, score) in (first..).zip(scores) {
                    if *score > collected.threshold()
                        && allowed.is_none_or(|allowed| allowed.get(row) == Some(&true))
                    {
                        collected.push((*score, row as u32));
                    }
                }
            }
        }
        collected
    });
    let compared: Vec<Vec<C>> = compared.collect();
    let mut by_query: Vec<Vec<C>> = queries.chunks(width).map(|_| Vec::new()).collect();
    let parts = num_rows.div_ceil(size).max(1);
    for (task, compared) in compared.into_iter().enumerate() {
        let by_query = &mut by_query[task / parts * GROUP..];
        by_query.iter_mut().zip(compared).for_each(|(query, part)| query.push(part));
    }
    by_query
}

/// Computes the scores of a query with vectors `[rows, width]`.
fn fill_scores(metric: Metric, query: &[f32], vectors: &[f32], scores: &mut [f32]) {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        #[target_feature(enable = "avx2")]
        fn fill_avx2(metric: Metric, query: &[f32], vectors: &[f32], scores: &mut [f32]) {
            fill(metric, query, vectors, scores);
        }
        // SAFETY: the processor has these instructions.
        return unsafe { fill_avx2(metric, query, vectors, scores) };
    }
    fill(metric, query, vectors, scores);
}

#[inline(always)]
fn fill(metric: Metric, query: &[f32], vectors: &[f32], scores: &mut [f32]) {
    for (score, vector) in scores.iter_mut().zip(vectors.chunks_exact(query.len())) {
        *score = match metric {
            Metric::Product => sum(query, vector, |q, x| q * x),
            Metric::Distance => -sum(query, vector, |q, x| (q - x) * (q - x)),
        };
    }
}

#[inline(always)]
fn sum(a: &[f32], b: &[f32], term: impl Fn(f32, f32) -> f32) -> f32 {
    let mut sums = [0f32; LANES];
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
    for (a, b) in a.iter().zip(b) {
        for lane in 0..LANES {
            sums[lane] += term(a[lane], b[lane]);
        }
    }
    let rest: f32 = a_rest.iter().zip(b_rest).map(|(a, b)| term(*a, *b)).sum();
    sums.iter().sum::<f32>() + rest
}
