//! N-grams as integer keys: the word indices of an n-gram packed into one integer.

use std::hash::Hash;

/// The key of an n-gram of one to four words. Within one order, equal keys mean equal n-grams.
pub(super) trait Key: Copy + Ord + Hash + Send + Sync {
    /// Number of different words that fit.
    const MAX_WORDS: usize;

    /// The key of the given words.
    fn of(words: &[u32]) -> Self;
}

impl Key for u64 {
    const MAX_WORDS: usize = 1 << 16;

    fn of(words: &[u32]) -> Self {
        words.iter().fold(0, |key, word| key << 16 | Self::from(*word))
    }
}

impl Key for u128 {
    const MAX_WORDS: usize = 1 << 32;

    fn of(words: &[u32]) -> Self {
        words.iter().fold(0, |key, word| key << 32 | Self::from(*word))
    }
}

/// The count of each n-gram of `order` words in a sentence, in ascending order of keys.
#[derive(Debug, Default)]
pub(super) struct Counts<K> {
    keys: Vec<K>,
    /// The n-grams with their counts.
    pub(super) counts: Vec<(K, u32)>,
}

impl<K: Key> Counts<K> {
    pub(super) fn new() -> Self {
        Self { keys: Vec::new(), counts: Vec::new() }
    }

    /// Counts the n-grams of a sentence; replaces the counts of the previous sentence.
    pub(super) fn count(&mut self, tokens: &[u32], order: usize) {
        self.keys.clear();
        self.keys.extend(tokens.windows(order).map(K::of));
        self.keys.sort_unstable();
        self.counts.clear();
        let equal_keys = self.keys.chunk_by(|a, b| a == b);
        self.counts.extend(equal_keys.map(|keys| (keys[0], keys.len() as u32)));
    }
}

/// Calls `on_common` with the two indices of each n-gram that is in both lists. Both lists are in
/// ascending order of keys.
pub(super) fn for_common<K: Key, A, B>(
    a: &[(K, A)],
    b: &[(K, B)],
    mut on_common: impl FnMut(usize, usize),
) {
    let (mut index_a, mut index_b) = (0, 0);
    while let (Some((key_a, _)), Some((key_b, _))) = (a.get(index_a), b.get(index_b)) {
        let order = key_a.cmp(key_b);
        if order.is_eq() {
            on_common(index_a, index_b);
        }
        index_a += usize::from(order.is_le());
        index_b += usize::from(order.is_ge());
    }
}

/// The hasher of tables of n-grams. A key consists of word indices in order of first occurrence, so
/// input cannot force collisions.
pub(super) type BuildKeyHasher = foldhash::fast::FixedState;

#[cfg(test)]
mod tests {
    use super::*;

    fn counts<K: Key>(tokens: &[u32], order: usize) -> Vec<u32> {
        let mut counts = Counts::<K>::new();
        counts.count(&[7, 7, 7, 7, 7], 1);
        counts.count(tokens, order);
        counts.counts.iter().map(|(_, count)| *count).collect()
    }

    #[test]
    fn repeated_ngrams_are_counted() {
        let counts_of_order = |order| {
            let tokens = [0, 65535, 0, 65535, 0];
            let by_short_keys = counts::<u64>(&tokens, order);
            assert_eq!(by_short_keys, counts::<u128>(&tokens, order));
            by_short_keys
        };
        assert_eq!(
            [1, 2, 3, 4].map(counts_of_order),
            [vec![3, 2], vec![2, 2], vec![2, 1], vec![1, 1]]
        );
        assert_eq!(counts::<u64>(&[1, 2], 3), [0; 0]);
    }
}
