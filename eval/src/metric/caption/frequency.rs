//! Weights of n-grams in CIDEr: the more images have an n-gram, the lower its weight.

use std::collections::HashMap;
use std::hash::BuildHasher;

use rayon::prelude::*;

use super::CaptionCorpus;
use super::ngram::{BuildKeyHasher, Key};

/// External document frequencies: the number of documents (images) of a collection in which each
/// n-gram occurs. They replace the frequencies in the references.
#[derive(Debug, Clone, PartialEq)]
pub struct DocumentFrequency {
    /// Number of documents.
    pub documents: f64,
    /// Number of documents with each n-gram. The words of an n-gram are joined by single spaces.
    pub counts: HashMap<String, f64>,
}

/// The weights `ln N - ln max(1, df)` of the n-grams of one order.
pub(super) enum Weights<K> {
    /// Counted in the references.
    Own {
        /// One table per thread; the hash of an n-gram selects the table.
        tables: Vec<Table<K>>,
        /// The weight by number of documents. An n-gram in no document has the weight of an n-gram
        /// in one document. An n-gram in one document may be missing in the tables.
        by_count: Vec<f64>,
    },
    /// Given by the user. `unknown` is the weight of an n-gram that is not in `weights`.
    External { weights: HashMap<K, f64, BuildKeyHasher>, unknown: f64 },
}

/// The number of images that have an n-gram in a reference, and the last such image.
type Table<K> = HashMap<K, (u32, u32), BuildKeyHasher>;

impl<K: Key> Weights<K> {
    /// Counts, for each n-gram of `order` words, the images that have it in at least one reference.
    ///
    /// Every thread reads all n-grams and counts its share, so the tables do not overlap. The first
    /// pass finds repeated n-grams. The other n-grams, most of a corpus, get no table entry.
    pub(super) fn of_references(corpus: &CaptionCorpus, images: &[usize], order: usize) -> Self {
        let shares = rayon::current_num_threads();
        let ngrams =
            |image: &usize| corpus.references(*image).map(|r| r.tokens.len()).sum::<usize>();
        let ngrams: usize = images.iter().map(ngrams).sum();
        let count = |own: usize| {
            let each = |take: &mut dyn FnMut(u32, K, u64)| {
                for (document, image) in (1..).zip(images) {
                    for reference in corpus.references(*image) {
                        for key in reference.tokens.windows(order).map(K::of) {
                            let hash = hash(&key);
                            if share(hash, shares) == own {
                                take(document, key, hash);
                            }
                        }
                    }
                }
            };
            let mut seen = Seen::with_capacity(ngrams / shares);
            each(&mut |_, _, hash| seen.mark(hash));
            let mut table = Table::<K>::default();
            each(&mut |document, key, hash| {
                if seen.is_repeated(hash) {
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

    pub(super) fn of_external(
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
        Self::External { weights, unknown }
    }

    pub(super) fn of(&self, key: &K) -> f64 {
        match self {
            Self::Own { tables, by_count } => {
                let found = tables[share(hash(key), tables.len())].get(key);
                by_count[found.map_or(0, |(count, _)| *count as usize)]
            }
            Self::External { weights, unknown } => weights.get(key).copied().unwrap_or(*unknown),
        }
    }
}

fn hash<K: Key>(key: &K) -> u64 {
    BuildKeyHasher::default().hash_one(key)
}

/// The table, out of `shares`, of an n-gram with this hash.
fn share(hash: u64, shares: usize) -> usize {
    // The tables use the lowest and the highest bits.
    (hash >> 32) as usize % shares
}

/// The hashes that occurred, and the hashes that occurred more than once. A collision counts as a
/// repetition.
struct Seen {
    once: Vec<u64>,
    again: Vec<u64>,
}

impl Seen {
    /// Allocates at least four bits for each of `hashes` hashes.
    fn with_capacity(hashes: usize) -> Self {
        let words = (hashes / 16).next_power_of_two();
        Self { once: vec![0; words], again: vec![0; words] }
    }

    fn mark(&mut self, hash: u64) {
        let (word, bit) = self.position(hash);
        self.again[word] |= self.once[word] & bit;
        self.once[word] |= bit;
    }

    fn is_repeated(&self, hash: u64) -> bool {
        let (word, bit) = self.position(hash);
        self.again[word] & bit != 0
    }

    /// The word index and the bit mask of a hash.
    fn position(&self, hash: u64) -> (usize, u64) {
        ((hash >> 6) as usize & (self.once.len() - 1), 1 << (hash % 64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_hashes_are_always_found() {
        let mut seen = Seen::with_capacity(1000);
        let hashes: Vec<u64> = (0..1000u64).map(|key| hash(&key)).collect();
        hashes.iter().for_each(|hash| seen.mark(*hash));
        let alone = hashes.iter().filter(|hash| !seen.is_repeated(**hash)).count();
        assert!(alone > 600, "{alone} of 1000 are known to occur once");
        hashes[..50].iter().for_each(|hash| seen.mark(*hash));
        assert!(hashes[..50].iter().all(|hash| seen.is_repeated(*hash)));
    }
}
