//! Collects the rows of a stream that may be among the best `k`, given bounds on their scores.

/// A row with bounds on its score: the product of the key and the query of norm 1, times the gate
/// if gates are given.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Candidate {
    pub(super) score: f32,
    /// The largest difference from the true score.
    pub(super) error: f32,
    pub(super) row: u32,
}

impl Candidate {
    pub(super) fn lower(&self) -> f32 {
        self.score - self.error
    }

    pub(super) fn upper(&self) -> f32 {
        self.score + self.error
    }
}

/// Collects all candidates that may be among the best `k`.
#[derive(Debug, Clone)]
pub(super) struct TopK {
    k: usize,
    /// The factor on errors in the threshold: 1, or 0 if the threshold is only an estimate.
    caution: f32,
    threshold: f32,
    candidates: Vec<Candidate>,
    /// With more candidates than this, candidates that cannot be among the best `k` are dropped.
    limit: usize,
}

impl TopK {
    pub(super) fn new(k: usize) -> Self {
        let limit = k.saturating_mul(4).max(256);
        let (threshold, candidates) = (f32::NEG_INFINITY, Vec::new());
        Self { k, caution: 1.0, threshold, candidates, limit }
    }

    /// Creates a list whose threshold is only an estimate: the `k`th best score, as if scores had
    /// no errors. The list keeps all candidates that may be better.
    pub(super) fn estimate(k: usize) -> Self {
        Self { caution: 0.0, limit: 2 * k + 16, ..Self::new(k) }
    }

    /// The threshold: at least `k` scores are not below it. So a candidate with a lower upper bound
    /// cannot be among the best `k`, and need not be [offered](TopK::offer).
    pub(super) fn threshold(&self) -> f32 {
        self.threshold
    }

    pub(super) fn offer(&mut self, candidate: Candidate) {
        self.candidates.push(candidate);
        if self.candidates.len() > self.limit {
            self.prune();
            // All of many equal scores stay. A doubled limit avoids another sort for each new
            // candidate.
            self.limit = self.limit.max(2 * self.candidates.len());
        }
    }

    /// Raises the threshold to the `k`th lower bound, and drops the candidates below it.
    pub(super) fn prune(&mut self) {
        if self.candidates.len() < self.k {
            return;
        }
        let caution = self.caution;
        let bound = |candidate: &Candidate| candidate.score - caution * candidate.error;
        let by_bound = |a: &Candidate, b: &Candidate| bound(b).total_cmp(&bound(a));
        let (_, last, _) = self.candidates.select_nth_unstable_by(self.k - 1, by_bound);
        self.threshold = self.threshold.max(bound(last));
        let threshold = self.threshold;
        self.candidates.retain(|candidate| candidate.upper() >= threshold);
    }

    /// Adds the candidates from another part of the stream.
    pub(super) fn merge(&mut self, other: Self) {
        self.threshold = self.threshold.max(other.threshold);
        self.candidates.extend(other.candidates);
        self.prune();
    }

    /// Returns the candidates, unordered.
    pub(super) fn into_candidates(mut self) -> Vec<Candidate> {
        self.prune();
        self.candidates
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_scores_and_candidates_that_may_be_among_them_stay() {
        for (k, error) in [(1, 0.0), (10, 0.0), (10, 0.01), (100, 0.05), (5000, 0.0)] {
            let score = |row: u32| ((row * 7919) % 3001) as f32 / 3001.0;
            let error = |row: u32| if row.is_multiple_of(2) { error } else { error / 2.0 };
            let bounds = |row: u32| (score(row) - error(row), score(row) + error(row));
            let (mut left, mut right) = (TopK::new(k), TopK::new(k));
            for row in 0..3001 {
                let side = if row % 3 == 0 { &mut left } else { &mut right };
                let candidate = Candidate { score: score(row), error: error(row), row };
                if candidate.upper() >= side.threshold() {
                    side.offer(candidate);
                }
            }
            left.merge(right);
            let mut rows: Vec<u32> = left.into_candidates().iter().map(|c| c.row).collect();
            let mut lowers: Vec<f32> = (0..3001).map(|row| bounds(row).0).collect();
            lowers.sort_by(|a, b| b.total_cmp(a));
            let threshold = lowers.get(k - 1).map_or(f32::NEG_INFINITY, |last| *last);
            let mut expected: Vec<u32> =
                (0..3001).filter(|row| bounds(*row).1 >= threshold).collect();
            rows.sort_unstable();
            expected.sort_unstable();
            assert_eq!(rows, expected, "k {k}");
        }
    }

    #[test]
    fn an_estimate_has_the_threshold_of_the_scores() {
        let mut best = TopK::estimate(3);
        for row in 0..100 {
            best.offer(Candidate { score: row as f32, error: 1.5, row });
        }
        best.prune();
        assert_eq!(best.threshold(), 97.0);
        let mut rows: Vec<u32> = best.into_candidates().iter().map(|c| c.row).collect();
        rows.sort_unstable();
        assert_eq!(rows, [96, 97, 98, 99]);
    }

    #[test]
    fn many_equal_scores_all_stay() {
        let mut best = TopK::new(2);
        (0..100_000).for_each(|row| best.offer(Candidate { score: 0.5, error: 0.0, row }));
        assert_eq!(best.into_candidates().len(), 100_000);
    }
}
