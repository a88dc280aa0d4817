//! The most frequent confusions of words, or of characters.

use std::cmp::Reverse;
use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use super::alignment::Edit;
use super::read::Pairs;
use super::tokens::TokenUnit;
use super::{PairAligner, Step};

/// The most frequent confusions of each kind with their counts. Equally frequent confusions are in
/// alphabetical order.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Confusions {
    /// Reference token, hypothesis token, count.
    pub substitutions: Vec<(String, String, u64)>,
    /// Deleted token, count.
    pub deletions: Vec<(String, u64)>,
    /// Inserted token, count.
    pub insertions: Vec<(String, u64)>,
}

impl Confusions {
    /// Keeps the `count` most frequent confusions of each kind.
    pub fn truncate(&mut self, count: usize) {
        self.substitutions.truncate(count);
        self.deletions.truncate(count);
        self.insertions.truncate(count);
    }
}

/// Returns the `count` most frequent confusions of each kind.
pub fn confusions(pairs: &Pairs<'_>, unit: TokenUnit, count: usize) -> Confusions {
    let mut aligner = PairAligner::new(pairs.alignment);
    let mut substitutions: HashMap<(&str, &str), u64> = HashMap::new();
    let (mut deletions, mut insertions) = (HashMap::new(), HashMap::new());
    for (reference, hypothesis) in pairs.references.iter().zip(&pairs.hypotheses) {
        if reference == hypothesis {
            continue;
        }
        for Step { edit, reference, hypothesis } in
            aligner.align_tokens(unit, reference, hypothesis)
        {
            match edit {
                Edit::Hit => {}
                Edit::Substitution => {
                    *substitutions.entry((reference, hypothesis)).or_default() += 1
                }
                Edit::Deletion => *deletions.entry(reference).or_default() += 1,
                Edit::Insertion => *insertions.entry(hypothesis).or_default() += 1,
            }
        }
    }
    let single = |counts: HashMap<&str, u64>| {
        let frequent = most_frequent(counts, count);
        frequent.into_iter().map(|(token, n)| (token.to_owned(), n)).collect()
    };
    Confusions {
        substitutions: most_frequent(substitutions, count)
            .into_iter()
            .map(|((reference, hypothesis), n)| (reference.to_owned(), hypothesis.to_owned(), n))
            .collect(),
        deletions: single(deletions),
        insertions: single(insertions),
    }
}

fn most_frequent<K: Ord + Copy>(counts: HashMap<K, u64>, count: usize) -> Vec<(K, u64)> {
    let mut sorted: Vec<(K, u64)> = counts.into_iter().collect();
    sorted.sort_unstable_by_key(|(key, n)| (Reverse(*n), *key));
    sorted.truncate(count);
    sorted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn confusions_are_counted_by_kind() {
        let pairs = Pairs {
            ids: vec!["1".into(), "2".into()],
            references: vec!["a b c d".into(), "a b x".into()],
            hypotheses: vec!["a z c".into(), "a z y x".into()],
            ..Pairs::default()
        };
        let result = confusions(&pairs, TokenUnit::Word, 5);
        let substitutions = [("b".into(), "y".into(), 1), ("b".into(), "z".into(), 1)];
        assert_eq!(result.substitutions, substitutions);
        assert_eq!(
            (result.deletions, result.insertions),
            (vec![("d".into(), 1)], vec![("z".into(), 1)])
        );
    }
}
