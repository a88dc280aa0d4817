//! CIDEr-D, which pycocoevalcap calls "CIDEr", and plain CIDEr.

use std::collections::HashMap;

use rayon::prelude::*;

use super::{CaptionCorpus, ImageCaptions, LONGEST_NGRAM, NgramCounts, Sentence};
use crate::metric::MetricInfo;

/// Name, version and direction of CIDEr-D.
pub const CIDER_D_INFO: MetricInfo =
    MetricInfo { name: "cider_d", version: 1, higher_is_better: Some(true) };

/// Name, version and direction of plain CIDEr.
pub const CIDER_INFO: MetricInfo =
    MetricInfo { name: "cider", version: 1, higher_is_better: Some(true) };

/// Width of the penalty on a difference in length.
const SIGMA: f64 = 6.0;

/// In how many documents (images) of some collection each n-gram occurs, instead of in the references at hand.
#[derive(Debug, Clone, PartialEq)]
pub struct DocumentFrequency {
    /// Number of documents.
    pub documents: f64,
    /// Number of documents with the n-gram, whose words are joined by single spaces.
    pub counts: HashMap<String, f64>,
}

/// CIDEr-D of each image; the figure of a corpus is their mean. Tables often give it times 100.
///
/// The weight of an n-gram is its count times `ln N - ln max(1, df)`, where `df` of the `N` images have it in a
/// reference. With a single image, and no outside `frequency`, all weights are `ln 1 = 0`, and so is the score. The
/// lengths that are compared are numbers of bigrams, so no word and one word are equally long.
///
/// # Source   R. Vedantam et al., CVPR 2015; pycocoevalcap `cider/cider_scorer.py`
pub fn cider_d(corpus: &CaptionCorpus, frequency: Option<&DocumentFrequency>) -> Vec<f64> {
    scores(corpus, frequency, None, Variant::D)
}

/// Plain CIDEr of each image: cosines, without clipping and without a penalty on the length.
///
/// # Source   R. Vedantam et al., CVPR 2015; vrama91/cider
pub fn cider(corpus: &CaptionCorpus, frequency: Option<&DocumentFrequency>) -> Vec<f64> {
    scores(corpus, frequency, None, Variant::Plain)
}

/// CIDEr-D and plain CIDEr of some of the images, as if they were the whole corpus.
///
/// Positions without an image are left out.
pub fn of_part(corpus: &CaptionCorpus, images: &[usize]) -> (Vec<f64>, Vec<f64>) {
    let of = |variant| scores(corpus, None, Some(images), variant);
    (of(Variant::D), of(Variant::Plain))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Variant {
    D,
    Plain,
}

fn scores(
    corpus: &CaptionCorpus,
    frequency: Option<&DocumentFrequency>,
    part: Option<&[usize]>,
    variant: Variant,
) -> Vec<f64> {
    let images: Vec<&ImageCaptions> = match part {
        None => corpus.images.iter().collect(),
        Some(part) => part.iter().filter_map(|&image| corpus.images.get(image)).collect(),
    };
    let weights = match frequency {
        None => InverseFrequency::of_references(corpus, &images),
        Some(frequency) => InverseFrequency::of_outside(corpus, frequency),
    };
    images.par_iter().map(|image| weights.score(image, variant)).collect()
}

/// `ln N - ln max(1, df)` of every n-gram of a corpus.
struct InverseFrequency([Vec<f64>; LONGEST_NGRAM]);

impl InverseFrequency {
    fn of_references(corpus: &CaptionCorpus, images: &[&ImageCaptions]) -> Self {
        let documents = (images.len() as f64).ln();
        Self(std::array::from_fn(|order| {
            let mut counts = vec![0_u32; corpus.ngrams.len(order)];
            let mut ids = Vec::new();
            for image in images {
                // Each n-gram counts once an image, however many of its references have it.
                ids.clear();
                ids.extend(
                    image.references.iter().flat_map(|r| r.ngrams[order].iter().map(|n| n.0)),
                );
                ids.sort_unstable();
                ids.dedup();
                ids.iter().for_each(|&id| counts[id as usize] += 1);
            }
            counts.iter().map(|&count| documents - f64::from(count.max(1)).ln()).collect()
        }))
    }

    fn of_outside(corpus: &CaptionCorpus, frequency: &DocumentFrequency) -> Self {
        let documents = frequency.documents.ln();
        let mut weights: [Vec<f64>; LONGEST_NGRAM] =
            std::array::from_fn(|order| vec![documents; corpus.ngrams.len(order)]);
        let mut words = Vec::new();
        for (ngram, &count) in &frequency.counts {
            words.clear();
            let known = ngram.split(' ').all(|word| match corpus.words.get(word) {
                Some(&id) => {
                    words.push(id);
                    true
                }
                None => false,
            });
            if known
                && let Some(of_order) = weights.get_mut(words.len() - 1)
                && let Some(id) = corpus.ngrams.get(&words)
                && let Some(weight) = of_order.get_mut(id as usize)
            {
                *weight = documents - count.max(1.0).ln();
            }
        }
        Self(weights)
    }

    fn score(&self, image: &ImageCaptions, variant: Variant) -> f64 {
        let hypothesis = &image.hypothesis;
        let hypothesis_norms = self.norms(hypothesis);
        let mut similarities = [0.0; LONGEST_NGRAM];
        for reference in &image.references {
            let reference_norms = self.norms(reference);
            let bigrams = |sentence: &Sentence| f64::from(sentence.length.saturating_sub(1));
            let difference = bigrams(hypothesis) - bigrams(reference);
            let penalty = match variant {
                Variant::D => (-(difference * difference) / (2.0 * SIGMA * SIGMA)).exp(),
                Variant::Plain => 1.0,
            };
            for (order, similarity) in similarities.iter_mut().enumerate() {
                let mut product = self.product(
                    order,
                    &hypothesis.ngrams[order],
                    &reference.ngrams[order],
                    variant,
                );
                let norms = hypothesis_norms[order] * reference_norms[order];
                if norms != 0.0 {
                    product /= norms;
                }
                *similarity += product * penalty;
            }
        }
        let mean = similarities.iter().sum::<f64>() / LONGEST_NGRAM as f64;
        mean / image.references.len() as f64 * 10.0
    }

    fn norms(&self, sentence: &Sentence) -> [f64; LONGEST_NGRAM] {
        std::array::from_fn(|order| {
            let square = |&(id, count): &(u32, u32)| {
                let weight = f64::from(count) * self.0[order][id as usize];
                weight * weight
            };
            sentence.ngrams[order].iter().map(square).sum::<f64>().sqrt()
        })
    }

    /// Σ over the common n-grams of the product of their weights.
    fn product(
        &self,
        order: usize,
        hypothesis: &NgramCounts,
        reference: &NgramCounts,
        variant: Variant,
    ) -> f64 {
        let mut sum = 0.0;
        let mut reference = reference.iter().peekable();
        for &(id, count) in hypothesis {
            while reference.next_if(|&&(other, _)| other < id).is_some() {}
            let of_reference = match reference.peek() {
                Some(&&(other, count)) if other == id => count,
                Some(_) => 0,
                None => break,
            };
            let weight = self.0[order][id as usize];
            let (ours, theirs) = (f64::from(count) * weight, f64::from(of_reference) * weight);
            sum += theirs * if variant == Variant::D { ours.min(theirs) } else { ours };
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests_data::golden;
    use super::*;
    use crate::metric::mean::mean;

    #[test]
    fn golden_values() {
        let values = cider_d(&golden(), None);
        let expected = [3.7905395709024643, 1.2953060131319978, 10.0];
        for (ours, expected) in values.iter().zip(expected) {
            assert!((ours - expected).abs() < 1e-13, "{ours} {expected}");
        }
        assert!((mean(&values) - 5.028615194678154).abs() < 1e-13);
    }

    #[test]
    fn one_image_has_no_weights() {
        let corpus = CaptionCorpus::new(&["a man"], &[["a man"]]).unwrap();
        assert_eq!(cider_d(&corpus, None), [0.0]);
        assert_eq!(of_part(&golden(), &[2, 9]), (vec![0.0], vec![0.0]));
        let counts = [("a".to_owned(), 90.0), ("a man".to_owned(), 10.0)].into_iter().collect();
        let outside = DocumentFrequency { documents: 100.0, counts };
        // Orders 1 and 2 have a cosine of 1, orders 3 and 4 no n-grams.
        assert!((cider_d(&corpus, Some(&outside))[0] - 5.0).abs() < 1e-12);
        assert!((cider(&corpus, Some(&outside))[0] - 5.0).abs() < 1e-12);
    }

    /// The frequencies of the references themselves, given from outside, change nothing.
    #[test]
    fn outside_frequencies_take_the_place_of_the_own() {
        let hypotheses = ["a b", "a c"];
        let references = [vec!["a b", "b"], vec!["a c d"]];
        let corpus = CaptionCorpus::new(&hypotheses, &references).unwrap();
        let counts = ["a", "b", "a b", "a c", "c d", "c", "d", "a c d", "x", "x y z v w", ""]
            .map(|ngram| (ngram.to_owned(), if ngram == "a" { 2.0 } else { 1.0 }));
        let outside = DocumentFrequency { documents: 2.0, counts: counts.into_iter().collect() };
        assert_eq!(cider_d(&corpus, Some(&outside)), cider_d(&corpus, None));
        assert_eq!(cider(&corpus, Some(&outside)), cider(&corpus, None));
    }
}
