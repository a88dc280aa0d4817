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
    Counted {
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
    /// Every thread reads all n-grams and counts those of its table, so the tables do not overlap.
    /// The first pass finds repeated n-grams. The other n-grams, most of a corpus, get no entry.
    pub(super) fn of_references(corpus: &CaptionCorpus, images: &[usize], order: usize) -> Self {
        let table_count = rayon::current_num_threads();
        let ngrams =
            |image: &usize| corpus.references(*image).map(|r| r.tokens.len()).sum::<usize>();
        let ngrams: usize = images.iter().map(ngrams).sum();
        let count = |index: usize| {
            let for_each_ngram = |visit: &mut dyn FnMut(u32, K, u64)| {
                for (document, image) in (1..).zip(images) {
                    for reference in corpus.references(*image) {
                        for key in reference.tokens.windows(order).map(K::of) {
                            let hash = hash(&key);
                            if table_index(hash, table_count) == index {
                                visit(document, key, hash);
                            }
                        }
                    }
                }
            };
            let mut hashes = SeenHashes::with_capacity(ngrams / table_count);
            for_each_ngram(&mut |_, _, hash| hashes.mark(hash));
            let mut table = Table::<K>::default();
            for_each_ngram(&mut |document, key, hash| {
                if hashes.is_repeated(hash) {
                    let (count, last) = table.entry(key).or_default();
                    if *last != document {
                        (*count, *last) = (*count + 1, document);
                    }
                }
            });
            table
        };
        let tables = (0..table_count).into_par_iter().map(count).collect();
        let ln_documents = (images.len() as f64).ln();
        let weight = |count: usize| ln_documents - (count.max(1) as f64).ln();
        Self::Counted { tables, by_count: (0..=images.len()).map(weight).collect() }
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
            Self::Counted { tables, by_count } => {
                let entry = tables[table_index(hash(key), tables.len())].get(key);
                by_count[entry.map_or(0, |(count, _)| *count as usize)]
            }
            Self::External { weights, unknown } => weights.get(key).copied().unwrap_or(*unknown),
        }
    }
}

fn hash<K: Key>(key: &K) -> u64 {
    BuildKeyHasher::default().hash_one(key)
}

/// The index of the table of an n-gram with this hash.
fn table_index(hash: u64, table_count: usize) -> usize {
    // The tables use the lowest and the highest bits.
    (hash >> 32) as usize % table_count
}

/// The hashes that occurred, and the hashes that occurred more than once. A collision counts as a
/// repetition.
struct SeenHashes {
    seen: Vec<u64>,
    repeated: Vec<u64>,
}

impl SeenHashes {
    /// Allocates at least four bits for each of `hashes` hashes.
    fn with_capacity(hashes: usize) -> Self {
        let words = (hashes / 16).next_power_of_two();
        Self { seen: vec![0; words], repeated: vec![0; words] }
    }

    fn mark(&mut self, hash: u64) {
        let (word, bit) = self.position(hash);
        self.repeated[word] |= self.seen[word] & bit;
        self.seen[word] |= bit;
    }

    fn is_repeated(&self, hash: u64) -> bool {
        let (word, bit) = self.position(hash);
        self.repeated[word] & bit != 0
    }

    /// The word index and the bit mask of a hash.
    fn position(&self, hash: u64) -> (usize, u64) {
        ((hash >> 6) as usize & (self.seen.len() - 1), 1 << (hash % 64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_hashes_are_always_found() {
        let mut marked = SeenHashes::with_capacity(1000);
        let hashes: Vec<u64> = (0..1000u64).map(|key| hash(&key)).collect();
        hashes.iter().for_each(|hash| marked.mark(*hash));
        let unrepeated = hashes.iter().filter(|hash| !marked.is_repeated(**hash)).count();
        assert!(unrepeated > 600, "{unrepeated} of 1000 are known to occur once");
        hashes[..50].iter().for_each(|hash| marked.mark(*hash));
        assert!(hashes[..50].iter().all(|hash| marked.is_repeated(*hash)));
    }
}
