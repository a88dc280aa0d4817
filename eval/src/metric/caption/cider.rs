//! CIDEr-D (named "CIDEr" in pycocoevalcap) and plain CIDEr.

use rayon::prelude::*;

use super::frequency::Weights;
use super::ngram::{Counts, Key, for_common};
use super::{CaptionCorpus, MAX_NGRAM_ORDER, Sentence};
use crate::metric::{MetricInfo, Unit};

pub use super::DocumentFrequency;

/// Name, version, direction and unit of CIDEr-D.
pub const CIDER_D_INFO: MetricInfo = MetricInfo::higher("cider_d", Unit::Points);

/// Name, version, direction and unit of plain CIDEr.
pub const CIDER_INFO: MetricInfo = MetricInfo::higher("cider", Unit::Points);

/// Standard deviation of the Gaussian length penalty.
const SIGMA: f64 = 6.0;

/// CIDEr-D of each image, from 0 to 10, and plain CIDEr: cosine similarities without clipping and
/// without a length penalty. The score of a corpus is the mean; papers often report it times 100.
///
/// The weight of an n-gram is its count times `ln N - ln max(1, df)`, where `df` of the `N` images
/// have the n-gram in a reference. `frequency` replaces these numbers; `None` counts them in
/// `corpus`. With a single image and no `frequency`, all weights are `ln 1 = 0`, and the score is
/// 0. The length penalty compares numbers of bigrams, so captions of zero words and of one word
/// have equal length.
///
/// # Source   R. Vedantam et al., CVPR 2015; pycocoevalcap `cider/cider_scorer.py`; vrama91/cider
pub fn cider_d_and_cider(
    corpus: &CaptionCorpus,
    frequency: Option<&DocumentFrequency>,
) -> (Vec<f64>, Vec<f64>) {
    let images: Vec<usize> = (0..corpus.len()).collect();
    scores(corpus, &images, frequency)
}

/// CIDEr-D and plain CIDEr of a subset of the images, with document frequencies of the subset.
///
/// `images` holds indices of images; indices without an image are ignored.
pub fn of_subset(corpus: &CaptionCorpus, images: &[usize]) -> (Vec<f64>, Vec<f64>) {
    let images: Vec<usize> = images.iter().copied().filter(|image| *image < corpus.len()).collect();
    scores(corpus, &images, None)
}

fn scores(
    corpus: &CaptionCorpus,
    images: &[usize],
    frequency: Option<&DocumentFrequency>,
) -> (Vec<f64>, Vec<f64>) {
    if corpus.has_short_keys() {
        scores_with_keys::<u64>(corpus, images, frequency)
    } else {
        scores_with_keys::<u128>(corpus, images, frequency)
    }
}

/// Processes one n-gram order after the other, so that the weights of only one order are in memory.
fn scores_with_keys<K: Key>(
    corpus: &CaptionCorpus,
    images: &[usize],
    frequency: Option<&DocumentFrequency>,
) -> (Vec<f64>, Vec<f64>) {
    let mut sums = vec![(0.0, 0.0); images.len()];
    for order in 1..=MAX_NGRAM_ORDER {
        let weights = match frequency {
            None => Weights::<K>::of_references(corpus, images, order),
            Some(frequency) => Weights::of_external(corpus, frequency, order),
        };
        let images_and_sums = images.par_iter().zip(&mut sums);
        images_and_sums.for_each_init(Buffers::new, |buffers, (image, sums)| {
            let (cider_d, cider) = buffers.summed_similarities(corpus, *image, order, &weights);
            *sums = (sums.0 + cider_d, sums.1 + cider);
        });
    }
    let score = |(sum, image): (f64, &usize)| {
        sum / MAX_NGRAM_ORDER as f64 / corpus.references(*image).count() as f64 * 10.0
    };
    let (cider_d, cider): (Vec<f64>, Vec<f64>) = sums.into_iter().unzip();
    let scores = |sums: Vec<f64>| sums.into_iter().zip(images).map(score).collect();
    (scores(cider_d), scores(cider))
}

/// Buffers, reused from image to image.
struct Buffers<K> {
    counts: Counts<K>,
    hypothesis: Vec<(K, f64)>,
    reference: Vec<(K, f64)>,
}

impl<K: Key> Buffers<K> {
    fn new() -> Self {
        Self { counts: Counts::new(), hypothesis: Vec::new(), reference: Vec::new() }
    }

    /// The similarities of a hypothesis to its references for n-grams of `order` words, summed over
    /// the references. Returns the sum for CIDEr-D and the sum for plain CIDEr.
    fn summed_similarities(
        &mut self,
        corpus: &CaptionCorpus,
        image: usize,
        order: usize,
        weights: &Weights<K>,
    ) -> (f64, f64) {
        let hypothesis = corpus.hypothesis(image);
        self.counts.count(hypothesis.tokens, order);
        let hypothesis_norm = weigh_ngrams(&self.counts, weights, &mut self.hypothesis);
        let (mut cider_d, mut cider) = (0.0, 0.0);
        for reference in corpus.references(image) {
            self.counts.count(reference.tokens, order);
            let reference_norm = weigh_ngrams(&self.counts, weights, &mut self.reference);
            let (mut clipped, mut product) = (0.0, 0.0);
            for_common(&self.hypothesis, &self.reference, |index, reference_index| {
                let weight = self.hypothesis[index].1;
                let reference_weight = self.reference[reference_index].1;
                clipped += reference_weight * weight.min(reference_weight);
                product += reference_weight * weight;
            });
            let norms = hypothesis_norm * reference_norm;
            if norms != 0.0 {
                (clipped, product) = (clipped / norms, product / norms);
            }
            cider_d += clipped * length_penalty(hypothesis, reference);
            cider += product;
        }
        (cider_d, cider)
    }
}

/// Multiplies the count of each n-gram by its weight; returns the norm.
fn weigh_ngrams<K: Key>(
    counts: &Counts<K>,
    weights: &Weights<K>,
    weighted: &mut Vec<(K, f64)>,
) -> f64 {
    weighted.clear();
    let weight = |(key, count): &(K, u32)| (*key, f64::from(*count) * weights.of(key));
    weighted.extend(counts.counts.iter().map(weight));
    weighted.iter().map(|(_, weight)| weight * weight).sum::<f64>().sqrt()
}

/// The length penalty of CIDEr-D.
fn length_penalty(hypothesis: Sentence<'_>, reference: Sentence<'_>) -> f64 {
    let bigrams = |sentence: Sentence<'_>| sentence.tokens.len().saturating_sub(1) as f64;
    let difference = bigrams(hypothesis) - bigrams(reference);
    (-(difference * difference) / (2.0 * SIGMA * SIGMA)).exp()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_image_scores_0_without_external_frequencies() {
        let corpus = CaptionCorpus::new(&["a man"], &[["a man"]]).unwrap();
        assert_eq!(cider_d_and_cider(&corpus, None), (vec![0.0], vec![0.0]));
        let counts = [("a".to_owned(), 90.0), ("a man".to_owned(), 10.0)].into_iter().collect();
        let external = DocumentFrequency { documents: 100.0, counts };
        // Orders 1 and 2 have a cosine of 1, orders 3 and 4 have no n-grams.
        let (cider_d, cider) = cider_d_and_cider(&corpus, Some(&external));
        assert!((cider_d[0] - 5.0).abs() < 1e-12 && (cider[0] - 5.0).abs() < 1e-12);
    }

    #[test]
    fn external_frequencies_equal_to_those_of_the_references_change_no_score() {
        let hypotheses = ["a b", "a c"];
        let references = [vec!["a b", "b"], vec!["a c d"]];
        let corpus = CaptionCorpus::new(&hypotheses, &references).unwrap();
        let counts = ["a", "b", "a b", "a c", "c d", "c", "d", "a c d", "x", "x y z v w", ""]
            .map(|ngram| (ngram.to_owned(), if ngram == "a" { 2.0 } else { 1.0 }));
        let external = DocumentFrequency { documents: 2.0, counts: counts.into_iter().collect() };
        let scores = |frequency| cider_d_and_cider(&corpus, frequency);
        assert_eq!(scores(Some(&external)), scores(None));
    }
}
