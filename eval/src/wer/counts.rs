//! Counts of edits, and the rates that are made of them.

use serde::{Deserialize, Serialize};

use super::alignment::Edit;

/// How many tokens were right, wrong, left out and put in.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EditCounts {
    /// Reference tokens that the hypothesis has.
    pub hits: u64,
    /// Reference tokens that became others.
    pub substitutions: u64,
    /// Reference tokens that the hypothesis lacks.
    pub deletions: u64,
    /// Hypothesis tokens that are too many.
    pub insertions: u64,
}

impl EditCounts {
    /// The counts of an alignment.
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

    /// The sum of pairs, the pair `i` taken `times[i]` times.
    pub fn sum(pairs: &[Self], times: &[u32]) -> Self {
        let mut sum = Self::default();
        for (pair, times) in pairs.iter().zip(times) {
            let times = u64::from(*times);
            sum.hits += pair.hits * times;
            sum.substitutions += pair.substitutions * times;
            sum.deletions += pair.deletions * times;
            sum.insertions += pair.insertions * times;
        }
        sum
    }

    /// The number of edits.
    pub fn errors(&self) -> u64 {
        self.substitutions + self.deletions + self.insertions
    }

    /// Tokens of the reference.
    pub fn reference_tokens(&self) -> u64 {
        self.hits + self.substitutions + self.deletions
    }

    /// Tokens of the hypothesis.
    pub fn hypothesis_tokens(&self) -> u64 {
        self.hits + self.substitutions + self.insertions
    }

    /// WER or CER: edits for each reference token. Without any reference token it is the number of insertions, as
    /// in jiwer.
    pub fn error_rate(&self) -> f64 {
        match self.reference_tokens() {
            0 => self.insertions as f64,
            tokens => self.errors() as f64 / tokens as f64,
        }
    }

    /// MER: the share of the alignment's steps that are edits; 0 without steps.
    pub fn match_error_rate(&self) -> f64 {
        match self.hits + self.errors() {
            0 => 0.0,
            steps => self.errors() as f64 / steps as f64,
        }
    }

    /// WIP: the share of the reference that is right, times the share of the hypothesis that is. 1 where both are
    /// empty, 0 where one is.
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

    /// WIL: 1 less WIP.
    pub fn information_lost(&self) -> f64 {
        1.0 - self.information_preserved()
    }
}

impl std::ops::AddAssign for EditCounts {
    fn add_assign(&mut self, other: Self) {
        self.hits += other.hits;
        self.substitutions += other.substitutions;
        self.deletions += other.deletions;
        self.insertions += other.insertions;
    }
}

impl std::iter::Sum for EditCounts {
    fn sum<I: Iterator<Item = Self>>(counts: I) -> Self {
        let mut sum = Self::default();
        counts.for_each(|counts| sum += counts);
        sum
    }
}
