//! N-grams as numbers: an n-gram is the number of its first n-1 words and its last word.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use super::{LONGEST_NGRAM, NgramCounts};

/// The numbers of all n-grams; each length has its own, from 0, and words have theirs already.
#[derive(Debug, Clone, Default)]
pub(super) struct NgramIndex {
    longer: [HashMap<u64, u32, BuildHasherDefault<KeyHasher>>; LONGEST_NGRAM - 1],
    words: u32,
}

impl NgramIndex {
    /// Counts the n-grams of a sentence, and numbers those that are new.
    pub(super) fn counts(&mut self, words: &[u32]) -> [NgramCounts; LONGEST_NGRAM] {
        let highest = words.iter().max().map_or(0, |&word| word + 1);
        self.words = self.words.max(highest);
        let mut ids = words.to_vec();
        std::array::from_fn(|order| {
            if order > 0 {
                let index = &mut self.longer[order - 1];
                let starts = words.len().saturating_sub(order);
                ids.truncate(starts);
                for (start, id) in ids.iter_mut().enumerate() {
                    let next = index.len() as u32;
                    *id = *index.entry(key(*id, words[start + order])).or_insert(next);
                }
            }
            counted(&ids)
        })
    }

    /// The number of an n-gram of known words, if any sentence has it.
    pub(super) fn get(&self, words: &[u32]) -> Option<u32> {
        let (&first, rest) = words.split_first()?;
        rest.iter().enumerate().try_fold(first, |id, (order, &word)| {
            self.longer.get(order)?.get(&key(id, word)).copied()
        })
    }

    /// How many n-grams of `order + 1` words have a number.
    pub(super) fn len(&self, order: usize) -> usize {
        match order.checked_sub(1) {
            None => self.words as usize,
            Some(longer) => self.longer[longer].len(),
        }
    }
}

fn key(id: u32, word: u32) -> u64 {
    u64::from(id) << 32 | u64::from(word)
}

fn counted(ids: &[u32]) -> NgramCounts {
    let mut sorted = ids.to_vec();
    sorted.sort_unstable();
    sorted.chunk_by(|a, b| a == b).map(|same| (same[0], same.len() as u32)).collect()
}

/// Mixes a key of two numbers; the numbers are given out here, so nobody can choose them to collide.
#[derive(Debug, Clone, Default)]
pub(super) struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }

    fn write_u64(&mut self, key: u64) {
        let product = u128::from(self.0 ^ key ^ 0x9E37_79B9_7F4A_7C15) * 0xD6E8_FEB8_6659_FD93;
        self.0 = (product >> 64) as u64 ^ product as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_ngrams_are_counted() {
        let mut index = NgramIndex::default();
        let counts = index.counts(&[0, 1, 0, 1, 0]);
        assert_eq!(*counts[0], [(0, 3), (1, 2)]);
        assert_eq!(*counts[1], [(0, 2), (1, 2)]);
        assert_eq!(*counts[2], [(0, 2), (1, 1)]);
        assert_eq!(*counts[3], [(0, 1), (1, 1)]);
        assert_eq!(index.get(&[1, 0, 1]), Some(1));
        assert_eq!(index.get(&[1, 1]), None);
        assert_eq!(index.get(&[]), None);
        assert_eq!([0, 1, 2, 3].map(|order| index.len(order)), [2, 2, 2, 2]);
        assert!(index.counts(&[]).iter().all(|counts| counts.is_empty()));
    }
}
