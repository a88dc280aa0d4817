//! Selects the best `k` scores of a stream, and all scores that are too close to the last of these
//! to be ranked in single precision.

/// A row with its score in single precision.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Candidate {
    /// The score, multiplied by the gate if gates are given.
    pub(super) score: f32,
    pub(super) row: u32,
}

/// Collects all candidates that may be among the best `k`, if scores have an error of at most
/// `margin / 2`.
#[derive(Debug, Clone)]
pub(super) struct TopK {
    k: usize,
    margin: f32,
    threshold: f32,
    candidates: Vec<Candidate>,
    /// The maximum number of candidates before those that cannot be among the best `k` are dropped.
    limit: usize,
}

impl TopK {
    pub(super) fn new(k: usize, margin: f32) -> Self {
        let limit = (2 * k).max(64);
        Self { k, margin, threshold: f32::NEG_INFINITY, candidates: Vec::new(), limit }
    }

    /// The threshold. A candidate with a lower score cannot be among the best `k`, so it need not
    /// be [offered](TopK::offer).
    pub(super) fn threshold(&self) -> f32 {
        self.threshold
    }

    /// Adds a candidate.
    pub(super) fn offer(&mut self, candidate: Candidate) {
        self.candidates.push(candidate);
        if self.candidates.len() > self.limit {
            self.prune();
            // All of many equal scores stay. A doubled limit avoids another sort for each new
            // candidate.
            self.limit = self.limit.max(2 * self.candidates.len());
        }
    }

    /// Raises the threshold, and drops the candidates below it.
    fn prune(&mut self) {
        if self.candidates.len() < self.k {
            return;
        }
        let by_score = |a: &Candidate, b: &Candidate| b.score.total_cmp(&a.score);
        let (_, last, _) = self.candidates.select_nth_unstable_by(self.k - 1, by_score);
        let threshold = last.score - self.margin;
        self.threshold = self.threshold.max(threshold);
        self.candidates.retain(|candidate| candidate.score >= threshold);
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
    fn the_best_scores_and_scores_within_the_margin_stay() {
        for (k, margin) in [(1, 0.0), (10, 0.0), (10, 0.02), (100, 0.1), (5000, 0.0)] {
            let score = |row: u32| ((row * 7919) % 3001) as f32 / 3001.0;
            let (mut left, mut right) = (TopK::new(k, margin), TopK::new(k, margin));
            for row in 0..3001 {
                let side = if row % 3 == 0 { &mut left } else { &mut right };
                if score(row) >= side.threshold() {
                    side.offer(Candidate { score: score(row), row });
                }
            }
            left.merge(right);
            let mut rows: Vec<u32> = left.into_candidates().iter().map(|c| c.row).collect();
            let mut scores: Vec<f32> = (0..3001).map(score).collect();
            scores.sort_by(|a, b| b.total_cmp(a));
            let threshold = scores.get(k - 1).map_or(f32::NEG_INFINITY, |last| last - margin);
            let mut expected: Vec<u32> = (0..3001).filter(|row| score(*row) >= threshold).collect();
            rows.sort_unstable();
            expected.sort_unstable();
            assert_eq!(rows, expected, "k {k}, margin {margin}");
        }
    }

    #[test]
    fn many_equal_scores_all_stay() {
        let mut best = TopK::new(2, 0.0);
        (0..100_000).for_each(|row| best.offer(Candidate { score: 0.5, row }));
        assert_eq!(best.into_candidates().len(), 100_000);
    }
}
