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
        /// The weight of an n-gram by its number of documents; what is in none weighs as if it were in one.
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
    /// Every thread goes through all n-grams and counts its share of them, so no table is held twice.
    pub(super) fn of_references(corpus: &CaptionCorpus, images: &[usize], order: usize) -> Self {
        let shares = rayon::current_num_threads();
        let count = |own: usize| {
            let mut table = Table::<K>::default();
            for (document, image) in (1..).zip(images) {
                for reference in corpus.references(*image) {
                    let keys = reference.pieces.windows(order).map(K::of);
                    for key in keys.filter(|key| share(key, shares) == own) {
                        let (count, last) = table.entry(key).or_default();
                        if *last != document {
                            (*count, *last) = (*count + 1, document);
                        }
                    }
                }
            }
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
                let found = tables[share(key, tables.len())].get(key);
                by_count[found.map_or(0, |(count, _)| *count as usize)]
            }
            Self::Outside { weights, unknown } => weights.get(key).copied().unwrap_or(*unknown),
        }
    }
}

/// Which of `shares` an n-gram belongs to.
fn share<K: Key>(key: &K, shares: usize) -> usize {
    // The tables use the lowest and the highest bits.
    (BuildKeyHasher::default().hash_one(key) >> 32) as usize % shares
}
