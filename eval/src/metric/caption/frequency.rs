//! How much an n-gram weighs in CIDEr: the less, the more images have it.

use std::collections::HashMap;
use std::hash::BuildHasher;

use rayon::prelude::*;

use super::CaptionCorpus;
use super::ngram::{BuildKeyHasher, Key};

/// In how many documents (images) of some collection each n-gram occurs, instead of in the references at hand.
#[derive(Debug, Clone, PartialEq)]
pub struct DocumentFrequency {
    /// Number of documents.
    pub documents: f64,
    /// Number of documents with the n-gram, whose words are joined by single spaces.
    pub counts: HashMap<String, f64>,
}

/// `ln N - ln max(1, df)` of the n-grams of one length.
pub(super) enum Weights<K> {
    /// Counted over references.
    Own {
        /// Each n-gram is in the table that its hash names.
        tables: Vec<Table<K>>,
        /// The weight of an n-gram by its number of documents; what is in none weighs as if it were in one, and what is
        /// in one may be in no table.
        by_count: Vec<f64>,
    },
    /// Given from outside.
    Outside { weights: HashMap<K, f64, BuildKeyHasher>, unknown: f64 },
}

/// How many images have an n-gram in a reference, and the last of them.
type Table<K> = HashMap<K, (u32, u32), BuildKeyHasher>;

impl<K: Key> Weights<K> {
    /// Counts the images that have an n-gram of `order` words in a reference, whether in one or in all.
    ///
    /// Every thread goes through all n-grams and counts its share of them, so no table is held twice. It goes twice: most
    /// n-grams come once in a corpus, and what comes once needs no place in a table.
    pub(super) fn of_references(corpus: &CaptionCorpus, images: &[usize], order: usize) -> Self {
        let shares = rayon::current_num_threads();
        let ngrams =
            |image: &usize| corpus.references(*image).map(|r| r.pieces.len()).sum::<usize>();
        let ngrams: usize = images.iter().map(ngrams).sum();
        let count = |own: usize| {
            let each = |take: &mut dyn FnMut(u32, K, u64)| {
                for (document, image) in (1..).zip(images) {
                    for reference in corpus.references(*image) {
                        for key in reference.pieces.windows(order).map(K::of) {
                            let hash = hash(&key);
                            if share(hash, shares) == own {
                                take(document, key, hash);
                            }
                        }
                    }
                }
            };
            let mut seen = Seen::with_room(ngrams / shares);
            each(&mut |_, _, hash| seen.mark(hash));
            let mut table = Table::<K>::default();
            each(&mut |document, key, hash| {
                if seen.twice(hash) {
                    let (count, last) = table.entry(key).or_default();
                    if *last != document {
                        (*count, *last) = (*count + 1, document);
                    }
                }
            });
            table
        };
        let tables = (0..shares).into_par_iter().map(count).collect();
        let documents = (images.len() as f64).ln();
        let weight = |count: usize| documents - (count.max(1) as f64).ln();
        Self::Own { tables, by_count: (0..=images.len()).map(weight).collect() }
    }

    pub(super) fn of_outside(
        corpus: &CaptionCorpus,
        frequency: &DocumentFrequency,
        order: usize,
    ) -> Self {
        let unknown = frequency.documents.ln();
        let vocabulary = corpus.sentences.vocabulary();
        let mut weights = HashMap::default();
        for (ngram, count) in &frequency.counts {
            let words: Option<Vec<u32>> =
                ngram.split(' ').map(|word| vocabulary.get(word)).collect();
            if let Some(words) = words.filter(|words| words.len() == order) {
                weights.insert(K::of(&words), unknown - count.max(1.0).ln());
            }
        }
        Self::Outside { weights, unknown }
    }

    pub(super) fn of(&self, key: &K) -> f64 {
        match self {
            Self::Own { tables, by_count } => {
                let found = tables[share(hash(key), tables.len())].get(key);
                by_count[found.map_or(0, |(count, _)| *count as usize)]
            }
            Self::Outside { weights, unknown } => weights.get(key).copied().unwrap_or(*unknown),
        }
    }
}

fn hash<K: Key>(key: &K) -> u64 {
    BuildKeyHasher::default().hash_one(key)
}

/// Which of `shares` an n-gram of this hash belongs to.
fn share(hash: u64, shares: usize) -> usize {
    // The tables use the lowest and the highest bits.
    (hash >> 32) as usize % shares
}

/// Hashes that came, and those that came again; some that came once are taken for the latter.
struct Seen {
    once: Vec<u64>,
    again: Vec<u64>,
}

impl Seen {
    /// Room for so many hashes, at least four bits each.
    fn with_room(hashes: usize) -> Self {
        let words = (hashes / 16).next_power_of_two();
        Self { once: vec![0; words], again: vec![0; words] }
    }

    fn mark(&mut self, hash: u64) {
        let (word, bit) = self.place(hash);
        self.again[word] |= self.once[word] & bit;
        self.once[word] |= bit;
    }

    fn twice(&self, hash: u64) -> bool {
        let (word, bit) = self.place(hash);
        self.again[word] & bit != 0
    }

    /// The word and the bit of a hash.
    fn place(&self, hash: u64) -> (usize, u64) {
        ((hash >> 6) as usize & (self.once.len() - 1), 1 << (hash % 64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_again_is_never_missed() {
        let mut seen = Seen::with_room(1000);
        let hashes: Vec<u64> = (0..1000u64).map(|key| hash(&key)).collect();
        hashes.iter().for_each(|hash| seen.mark(*hash));
        let alone = hashes.iter().filter(|hash| !seen.twice(**hash)).count();
        assert!(alone > 600, "{alone} of 1000 are known to have come once");
        hashes[..50].iter().for_each(|hash| seen.mark(*hash));
        assert!(hashes[..50].iter().all(|hash| seen.twice(*hash)));
    }
}
