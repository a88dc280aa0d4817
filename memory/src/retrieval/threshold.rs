//! A minimum score for search results.

use crate::search::SearchResults;

impl SearchResults {
    /// Keeps the entries whose score is at least `min_score`. A query may keep fewer than `k`
    /// entries, or none.
    #[must_use]
    pub fn with_min_score(mut self, min_score: f32) -> Self {
        for hits in &mut self.hits {
            hits.retain(|hit| hit.score >= min_score);
        }
        self
    }
}
