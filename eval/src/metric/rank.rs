//! Ranks with ties, for the rank correlations.

/// The dense rank of each value among the distinct values, from 0. Equal values share one rank.
#[derive(Debug, Clone)]
pub struct DenseRanks {
    /// The dense rank of each row.
    pub ranks: Vec<u32>,
    /// Number of distinct values.
    pub distinct: usize,
}

impl DenseRanks {
    /// Ranks `values`; `None` if one is NaN. `0.0` and `-0.0` are equal, infinities are allowed.
    pub fn new(values: &[f64]) -> Option<Self> {
        if values.iter().any(|v| v.is_nan()) {
            return None;
        }
        let mut order: Vec<usize> = (0..values.len()).collect();
        // `total_cmp` separates 0.0 from -0.0; adding 0.0 makes them equal.
        order.sort_unstable_by(|&a, &b| (values[a] + 0.0).total_cmp(&(values[b] + 0.0)));
        let mut ranks = vec![0; values.len()];
        let mut rank = 0;
        for pair in order.windows(2) {
            rank += u32::from(values[pair[0]] != values[pair[1]]);
            ranks[pair[1]] = rank;
        }
        let distinct = if values.is_empty() { 0 } else { rank as usize + 1 };
        Some(Self { ranks, distinct })
    }

    /// Number of rows of a resample with each distinct value, where row `i` occurs `counts[i]`
    /// times.
    pub(crate) fn tie_counts(&self, counts: &[u32]) -> Vec<u64> {
        let mut ties = vec![0; self.distinct];
        for (&rank, &count) in self.ranks.iter().zip(counts) {
            ties[rank as usize] += u64::from(count);
        }
        ties
    }

    /// Average ranks of a resample, from 1: tied rows share the mean of their positions.
    pub(crate) fn average_ranks(&self, counts: &[u32]) -> Vec<f64> {
        let mut before = 0;
        let by_value: Vec<f64> = self
            .tie_counts(counts)
            .into_iter()
            .map(|ties| {
                let rank = before as f64 + (ties as f64 + 1.0) / 2.0;
                before += ties;
                rank
            })
            .collect();
        self.ranks.iter().map(|&rank| by_value[rank as usize]).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ties_share_the_mean_of_their_positions() {
        let ranks = DenseRanks::new(&[10.0, 0.0, 20.0, 10.0, -0.0, f64::INFINITY]).unwrap();
        assert_eq!(ranks.ranks, [1, 0, 2, 1, 0, 3]);
        assert_eq!(ranks.distinct, 4);
        assert_eq!(ranks.average_ranks(&[1; 6]), [3.5, 1.5, 5.0, 3.5, 1.5, 6.0]);
        assert_eq!(ranks.tie_counts(&[2, 0, 1, 1, 5, 0]), [5, 3, 1, 0]);
    }

    #[test]
    fn nan_has_no_ranks_and_an_empty_input_has_0_distinct_values() {
        assert!(DenseRanks::new(&[1.0, f64::NAN]).is_none());
        assert_eq!(DenseRanks::new(&[]).unwrap().distinct, 0);
    }
}
