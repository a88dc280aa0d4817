//! ROUGE-L: F-score of the longest common subsequence of words.

use rayon::prelude::*;

use super::CaptionCorpus;
use crate::metric::{MetricInfo, Unit};

/// Name, version, direction and unit of the metric.
pub const INFO: MetricInfo = MetricInfo::higher("rouge_l", Unit::Fraction);

/// The β of the F-score: the weight of recall relative to precision.
const BETA: f64 = 1.2;

/// ROUGE-L of each image. The score of a corpus is the mean.
///
/// Precision is the best precision over the references, and recall the best recall: they may be
/// from two references. Words are separated by single spaces, so an empty caption is one empty word
/// and equals another empty caption.
///
/// # Source   C.-Y. Lin, 2004; pycocoevalcap `rouge/rouge.py`
pub fn rouge_l(corpus: &CaptionCorpus) -> Vec<f64> {
    let images = (0..corpus.len()).into_par_iter();
    images
        .map_init(Buffers::default, |buffers, image| image_rouge_l(corpus, image, buffers))
        .collect()
}

fn image_rouge_l(corpus: &CaptionCorpus, image: usize, buffers: &mut Buffers) -> f64 {
    let hypothesis = corpus.hypothesis(image).words;
    let (mut precision, mut recall) = (0.0_f64, 0.0_f64);
    for reference in corpus.references(image) {
        let common = buffers.common_subsequence(hypothesis, reference.words) as f64;
        precision = precision.max(common / hypothesis.len() as f64);
        recall = recall.max(common / reference.words.len() as f64);
    }
    if precision == 0.0 || recall == 0.0 {
        return 0.0;
    }
    (1.0 + BETA * BETA) * precision * recall / (recall + BETA * BETA * precision)
}

/// Buffers, reused from pair to pair.
#[derive(Default)]
struct Buffers {
    /// For each word among 64 words of `a`, its positions as a bit mask; in ascending order of
    /// words.
    positions: Vec<(u32, u64)>,
    /// For each word of `b`, the carry into the next 64 words of `a`.
    carries: Vec<bool>,
}

impl Buffers {
    /// Length of the longest common subsequence, 64 words of `a` at a time.
    ///
    /// # Source   H. Hyyrö, "Bit-Parallel LCS-length Computation Revisited", AWOCA 2004
    fn common_subsequence(&mut self, a: &[u32], b: &[u32]) -> usize {
        self.carries.clear();
        self.carries.resize(b.len(), false);
        let mut length = 0;
        for words in a.chunks(64) {
            self.find_positions(words);
            // One bit per word; 0 where the subsequence grows by one.
            let mut bits = u64::MAX;
            for (word, carry) in b.iter().zip(&mut self.carries) {
                let entry = self.positions.binary_search_by_key(word, |(word, _)| *word);
                let positions = entry.map_or(0, |entry| self.positions[entry].1);
                let (sum, overflow) = bits.overflowing_add(bits & positions);
                let (sum, carry_overflow) = sum.overflowing_add(u64::from(*carry));
                *carry = overflow || carry_overflow;
                bits = sum | (bits & !positions);
            }
            let used_bits = u64::MAX >> (64 - words.len());
            length += (!bits & used_bits).count_ones() as usize;
        }
        length
    }

    fn find_positions(&mut self, words: &[u32]) {
        self.positions.clear();
        self.positions
            .extend(words.iter().enumerate().map(|(position, word)| (*word, 1 << position)));
        self.positions.sort_unstable();
        self.positions.dedup_by(|later, earlier| {
            let is_same_word = later.0 == earlier.0;
            if is_same_word {
                earlier.1 |= later.1;
            }
            is_same_word
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::SplitMix64;

    /// The textbook algorithm, cell by cell.
    fn by_textbook(a: &[u32], b: &[u32]) -> usize {
        let mut row = vec![0; b.len() + 1];
        for word in a {
            let mut diagonal = 0;
            for (column, other) in b.iter().enumerate() {
                let above = row[column + 1];
                row[column + 1] = if word == other { diagonal + 1 } else { above.max(row[column]) };
                diagonal = above;
            }
        }
        row[b.len()]
    }

    #[test]
    fn subsequences_equal_the_textbook_algorithm() {
        let mut random = SplitMix64::stream(3, 0);
        let mut buffers = Buffers::default();
        for vocabulary_size in [2, 5, 40] {
            for max_length in [4, 70, 300] {
                for _ in 0..200 {
                    let mut sentence = || -> Vec<u32> {
                        let length = random.below(max_length);
                        (0..length).map(|_| random.below(vocabulary_size) as u32).collect()
                    };
                    let (a, b) = (sentence(), sentence());
                    assert_eq!(buffers.common_subsequence(&a, &b), by_textbook(&a, &b), "{a:?}");
                }
            }
        }
    }

    #[test]
    fn an_empty_caption_matches_only_an_empty_reference() {
        let corpus = CaptionCorpus::new(&["", "", "a"], &[[""], ["a"], [""]]).unwrap();
        assert_eq!(rouge_l(&corpus), [1.0, 0.0, 0.0]);
    }
}
