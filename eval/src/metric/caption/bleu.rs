//! BLEU-1 to BLEU-4 of a corpus and of each image, equal to pycocoevalcap.

use rayon::prelude::*;

use super::ngram::{Counts, Key, for_common};
use super::{CaptionCorpus, MAX_NGRAM_ORDER};
use crate::metric::{MetricInfo, Unit};

/// BLEU with n-grams of one word.
pub const BLEU_1: MetricInfo = MetricInfo::higher("bleu_1", Unit::Fraction);
/// BLEU with n-grams of up to two words.
pub const BLEU_2: MetricInfo = MetricInfo::higher("bleu_2", Unit::Fraction);
/// BLEU with n-grams of up to three words.
pub const BLEU_3: MetricInfo = MetricInfo::higher("bleu_3", Unit::Fraction);
/// BLEU with n-grams of up to four words.
pub const BLEU_4: MetricInfo = MetricInfo::higher("bleu_4", Unit::Fraction);

/// `TINY` is added to each numerator and `SMALL` to each denominator, so that no fraction is 0 / 0.
const TINY: f64 = 1e-15;
const SMALL: f64 = 1e-9;

/// The counts from which BLEU of one image is computed. Their sum over images gives BLEU of the
/// corpus.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BleuStatistics {
    /// Number of words in the hypothesis.
    pub hypothesis_length: u64,
    /// Number of words in the reference of closest length; of two equally close lengths, the
    /// shorter.
    pub reference_length: u64,
    /// Number of n-grams in the hypothesis.
    pub ngrams: [u64; MAX_NGRAM_ORDER],
    /// Number of n-grams that are in a reference. An n-gram counts at most as often as in the
    /// reference that has it most often.
    pub matched: [u64; MAX_NGRAM_ORDER],
}

impl BleuStatistics {
    /// The summed statistics of a resample in which image `i` occurs `counts[i]` times.
    pub fn of_resample(images: &[Self], counts: &[u32]) -> Self {
        let mut total = Self::default();
        for (image, &count) in images.iter().zip(counts) {
            total.add(image, u64::from(count));
        }
        total
    }

    /// Adds `times` copies of `other`.
    fn add(&mut self, other: &Self, times: u64) {
        self.hypothesis_length += times * other.hypothesis_length;
        self.reference_length += times * other.reference_length;
        for order in 0..MAX_NGRAM_ORDER {
            self.ngrams[order] += times * other.ngrams[order];
            self.matched[order] += times * other.matched[order];
        }
    }

    /// BLEU-1 to BLEU-4: the geometric mean of the n-gram precisions, times the brevity penalty.
    pub fn scores(&self) -> [f64; MAX_NGRAM_ORDER] {
        let ratio = (self.hypothesis_length as f64 + TINY) / (self.reference_length as f64 + SMALL);
        let brevity = if ratio < 1.0 { (1.0 - 1.0 / ratio).exp() } else { 1.0 };
        let mut product = 1.0;
        std::array::from_fn(|order| {
            product *= (self.matched[order] as f64 + TINY) / (self.ngrams[order] as f64 + SMALL);
            product.powf(1.0 / (order + 1) as f64) * brevity
        })
    }
}

impl std::iter::Sum for BleuStatistics {
    fn sum<I: Iterator<Item = Self>>(images: I) -> Self {
        let mut total = Self::default();
        images.for_each(|image| total.add(&image, 1));
        total
    }
}

/// BLEU of a corpus and of its images.
#[derive(Debug, Clone, PartialEq)]
pub struct Bleu {
    /// BLEU-1 to BLEU-4 of the corpus: lengths and matches are summed over images first.
    pub corpus: [f64; MAX_NGRAM_ORDER],
    /// BLEU-1 to BLEU-4 of each image; nearly 0, but not exactly 0, if no n-gram of some order
    /// matches.
    pub images: Vec<[f64; MAX_NGRAM_ORDER]>,
    /// The counts of each image from which the scores are computed.
    pub statistics: Vec<BleuStatistics>,
}

/// Computes BLEU with the closest reference length. There is no smoothing, except that `1e-15` is
/// added to numerators and `1e-9` to denominators.
///
/// # Source   K. Papineni et al., ACL 2002; pycocoevalcap `bleu/bleu_scorer.py`, option `closest`
pub fn bleu(corpus: &CaptionCorpus) -> Bleu {
    let statistics = if corpus.has_short_keys() {
        statistics::<u64>(corpus)
    } else {
        statistics::<u128>(corpus)
    };
    let images = statistics.par_iter().map(BleuStatistics::scores).collect();
    let total: BleuStatistics = statistics.iter().copied().sum();
    Bleu { corpus: total.scores(), images, statistics }
}

fn statistics<K: Key>(corpus: &CaptionCorpus) -> Vec<BleuStatistics> {
    let images = (0..corpus.len()).into_par_iter();
    images.map_init(Buffers::<K>::new, |buffers, image| buffers.statistics(corpus, image)).collect()
}

/// Buffers, reused from image to image.
struct Buffers<K> {
    hypothesis: Counts<K>,
    reference: Counts<K>,
    /// For each n-gram of the hypothesis, its highest count in one reference.
    highest_counts: Vec<u32>,
}

impl<K: Key> Buffers<K> {
    fn new() -> Self {
        Self { hypothesis: Counts::new(), reference: Counts::new(), highest_counts: Vec::new() }
    }

    fn statistics(&mut self, corpus: &CaptionCorpus, image: usize) -> BleuStatistics {
        let length = corpus.hypothesis(image).tokens.len() as u64;
        let lengths = corpus.references(image).map(|reference| reference.tokens.len() as u64);
        let closest = lengths
            .min_by_key(|reference_length| (reference_length.abs_diff(length), *reference_length));
        BleuStatistics {
            hypothesis_length: length,
            reference_length: closest.unwrap_or(0),
            ngrams: std::array::from_fn(|index| length.saturating_sub(index as u64)),
            matched: std::array::from_fn(|index| self.matched(corpus, image, index + 1)),
        }
    }

    /// Number of n-grams of `order` words in the hypothesis that match a reference, clipped.
    fn matched(&mut self, corpus: &CaptionCorpus, image: usize, order: usize) -> u64 {
        self.hypothesis.count(corpus.hypothesis(image).tokens, order);
        let hypothesis = &self.hypothesis.counts;
        self.highest_counts.clear();
        self.highest_counts.resize(hypothesis.len(), 0);
        for reference in corpus.references(image) {
            self.reference.count(reference.tokens, order);
            let reference = &self.reference.counts;
            for_common(hypothesis, reference, |index, reference_index| {
                let highest = &mut self.highest_counts[index];
                *highest = (*highest).max(reference[reference_index].1);
            });
        }
        let clipped = |(highest, (_, count)): (&u32, &(K, u32))| u64::from(*highest.min(count));
        self.highest_counts.iter().zip(hypothesis).map(clipped).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scores_of_empty_captions_are_finite() {
        let corpus = CaptionCorpus::new(&["", "a"], &[["a b"], [""]]).unwrap();
        let bleu = bleu(&corpus);
        assert!(bleu.corpus.iter().chain(bleu.images.iter().flatten()).all(|v| v.is_finite()));
        assert_eq!(bleu.images[0], [0.0; 4]);
        let no_texts: [&str; 0] = [];
        let empty = CaptionCorpus::new(&no_texts, &[[""]; 0]).unwrap();
        assert!(super::bleu(&empty).corpus.iter().all(|v| v.is_finite()));
    }
}
