//! Exact Shapley values: the answer's log-probability, shared fairly among its entries.
//!
//! The Shapley value of an entry is the increase of the log-probability when the entry joins the
//! entries before it, averaged over all orders of the entries. The values of all entries add up to
//! the log-probability with all entries minus the one without any. Leave-one-out gives two entries
//! that say the same no credit, because each replaces the other; their Shapley values are equal.

use super::evidence::AttributionCase;
use crate::error::{InferError, Result};

/// The largest number of entries whose subsets are all computed.
pub const MAX_ENTRIES: usize = 10;
/// Subsets per forward pass.
const SUBSETS_PER_PASS: usize = 128;

/// The log-probabilities of an answer's tokens, for each subset of its entries.
#[derive(Debug, Clone)]
pub struct Subsets {
    /// The number of entries.
    entries: usize,
    /// One list of tokens per subset. Entry `i` is in subset `s` if bit `i` of `s` is set.
    log_probabilities: Vec<Vec<f64>>,
}

impl Subsets {
    /// Computes the log-probabilities for all subsets of the entries, in `2^k` forward passes.
    ///
    /// # Errors
    /// [`InferError`] with more than [`MAX_ENTRIES`] entries.
    pub fn of(case: &AttributionCase<'_>) -> Result<Self> {
        let entries = case.entries_to_fuse[0].len();
        if entries > MAX_ENTRIES {
            return Err(InferError::from(format!(
                "Shapley values of {entries} entries need 2^{entries} passes; use -k {MAX_ENTRIES}"
            )));
        }
        let subsets: Vec<Vec<usize>> = (0..1_usize << entries)
            .map(|subset| (0..entries).filter(|entry| subset >> entry & 1 == 1).collect())
            .collect();
        let mut log_probabilities = Vec::with_capacity(subsets.len());
        for subsets in subsets.chunks(SUBSETS_PER_PASS) {
            log_probabilities.extend(case.log_probabilities(subsets)?);
        }
        Ok(Self { entries, log_probabilities })
    }

    /// The Shapley value of each entry for each token, in nats.
    pub fn shapley(&self) -> Vec<Vec<f64>> {
        // The share of the orders in which exactly `before` given entries come before an entry.
        let mut share = 1.0 / self.entries.max(1) as f64;
        let mut shares = Vec::with_capacity(self.entries);
        for before in 0..self.entries {
            shares.push(share);
            share *= (before + 1) as f64 / (self.entries - before - 1).max(1) as f64;
        }
        let value_of = |entry: usize| {
            let mut values = vec![0.0; self.log_probabilities[0].len()];
            for (subset, without) in self.log_probabilities.iter().enumerate() {
                if subset >> entry & 1 == 1 {
                    continue;
                }
                let share = shares[subset.count_ones() as usize];
                let with = &self.log_probabilities[subset | 1 << entry];
                for ((value, with), without) in values.iter_mut().zip(with).zip(without) {
                    *value += share * (with - without);
                }
            }
            values
        };
        (0..self.entries).map(value_of).collect()
    }

    /// The log-probability of the whole answer for each subset.
    pub fn sums(&self) -> Vec<f64> {
        self.log_probabilities.iter().map(|tokens| tokens.iter().sum()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The subsets of `entries` entries, with one token of this log-probability.
    fn subsets(entries: usize, of: impl Fn(usize) -> f64) -> Subsets {
        Subsets { entries, log_probabilities: (0..1 << entries).map(|s| vec![of(s)]).collect() }
    }

    fn assert_values(subsets: &Subsets, expected: &[f64]) {
        let values = subsets.shapley().concat();
        assert_eq!(values.len(), expected.len());
        for (value, expected) in values.iter().zip(expected) {
            assert!((value - expected).abs() < 1e-12, "{values:?}");
        }
    }

    #[test]
    fn independent_entries_get_what_they_add() {
        let gains = [0.5, -0.25, 2.0, 0.0];
        let sum = |subset: usize| (0..4).filter(|i| subset >> i & 1 == 1).map(|i| gains[i]).sum();
        assert_values(&subsets(4, sum), &gains);
    }

    #[test]
    fn entries_that_replace_each_other_share_their_gain() {
        // Either of the first two entries adds 3 nats; the third adds nothing.
        let gain = |subset: usize| if subset & 0b11 == 0 { -4.0 } else { -1.0 };
        assert_values(&subsets(3, gain), &[1.5, 1.5, 0.0]);
    }

    #[test]
    fn values_equal_the_mean_over_all_orders_and_add_up() {
        // Any numbers.
        let of = |subset: usize| ((subset * 37 + 11) % 23) as f64 / 7.0;
        let orders = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];
        let mut expected = [0.0; 3];
        for order in orders {
            let mut subset = 0;
            for entry in order {
                expected[entry] += (of(subset | 1 << entry) - of(subset)) / orders.len() as f64;
                subset |= 1 << entry;
            }
        }
        assert_values(&subsets(3, of), &expected);
        assert!((expected.iter().sum::<f64>() - (of(7) - of(0))).abs() < 1e-12);
    }

    #[test]
    fn an_answer_without_entries_has_no_values() {
        assert_values(&subsets(0, |_| -1.0), &[]);
    }
}
