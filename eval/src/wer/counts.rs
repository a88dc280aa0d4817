//! Edit counts and the error rates computed from them.

use serde::{Deserialize, Serialize};

use super::alignment::Edit;

/// Numbers of hits, substitutions, deletions and insertions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EditCounts {
    /// Correct reference tokens.
    pub hits: u64,
    /// Replaced reference tokens.
    pub substitutions: u64,
    /// Reference tokens missing in the hypothesis.
    pub deletions: u64,
    /// Hypothesis tokens that are not in the reference.
    pub insertions: u64,
}

impl EditCounts {
    /// Counts the edits of an alignment.
    pub fn of(edits: &[Edit]) -> Self {
        let mut counts = Self::default();
        for edit in edits {
            match edit {
                Edit::Hit => counts.hits += 1,
                Edit::Substitution => counts.substitutions += 1,
                Edit::Deletion => counts.deletions += 1,
                Edit::Insertion => counts.insertions += 1,
            }
        }
        counts
    }

    /// The sum over a resample in which pair `i` occurs `counts[i]` times.
    pub fn sum(pairs: &[Self], counts: &[u32]) -> Self {
        let mut sum = Self::default();
        pairs.iter().zip(counts).for_each(|(pair, count)| sum.add(pair, u64::from(*count)));
        sum
    }

    /// Adds `times` copies of `other`.
    fn add(&mut self, other: &Self, times: u64) {
        self.hits += other.hits * times;
        self.substitutions += other.substitutions * times;
        self.deletions += other.deletions * times;
        self.insertions += other.insertions * times;
    }

    /// Number of errors.
    pub fn errors(&self) -> u64 {
        self.substitutions + self.deletions + self.insertions
    }

    /// Number of tokens in the reference.
    pub fn reference_tokens(&self) -> u64 {
        self.hits + self.substitutions + self.deletions
    }

    /// Number of tokens in the hypothesis.
    pub fn hypothesis_tokens(&self) -> u64 {
        self.hits + self.substitutions + self.insertions
    }

    /// WER or CER: errors per reference token. Without reference tokens, it is the number of
    /// insertions, as in jiwer.
    pub fn error_rate(&self) -> f64 {
        match self.reference_tokens() {
            0 => self.insertions as f64,
            tokens => self.errors() as f64 / tokens as f64,
        }
    }

    /// MER (match error rate): errors per step of the alignment. 0 if both texts are empty.
    pub fn match_error_rate(&self) -> f64 {
        match self.hits + self.errors() {
            0 => 0.0,
            steps => self.errors() as f64 / steps as f64,
        }
    }

    /// WIP (word information preserved): the share of correct reference tokens times the share of
    /// correct hypothesis tokens. 1 if both texts are empty, 0 if one is empty.
    pub fn information_preserved(&self) -> f64 {
        match (self.reference_tokens(), self.hypothesis_tokens()) {
            (0, 0) => 1.0,
            (0, _) | (_, 0) => 0.0,
            (reference, hypothesis) => {
                let hits = self.hits as f64;
                (hits / reference as f64) * (hits / hypothesis as f64)
            }
        }
    }

    /// WIL (word information lost): 1 minus WIP.
    pub fn information_lost(&self) -> f64 {
        1.0 - self.information_preserved()
    }
}

impl std::ops::AddAssign for EditCounts {
    fn add_assign(&mut self, other: Self) {
        self.add(&other, 1);
    }
}

impl std::iter::Sum for EditCounts {
    fn sum<I: Iterator<Item = Self>>(counts: I) -> Self {
        let mut sum = Self::default();
        counts.for_each(|counts| sum += counts);
        sum
    }
}
