//! Metrics of image captions, equal to pycocoevalcap: BLEU, ROUGE-L, CIDEr-D and CIDEr.
//!
//! All metrics take a [`CaptionCorpus`]: for each image, one hypothesis and one or more references,
//! already tokenized ([`ptb::tokenize`](crate::tokenize::ptb::tokenize)). METEOR and SPICE are
//! large Java programs and are not included.

pub mod bleu;
pub mod cider;
mod frequency;
mod ngram;
pub mod rouge_l;
mod sentences;

use super::MetricError;
use ngram::Key;
use sentences::Sentence;

pub use frequency::DocumentFrequency;
pub(crate) use sentences::Sentences;

/// Highest n-gram order of the metrics.
pub const MAX_NGRAM_ORDER: usize = 4;

/// The tokenized captions of a set of images, prepared once for all metrics.
#[derive(Debug, Clone)]
pub struct CaptionCorpus {
    /// The references of all images, then their hypotheses.
    sentences: Sentences,
    /// The end of the references of each image, as a sentence index.
    ends: Vec<usize>,
}

impl CaptionCorpus {
    /// Builds a corpus from the hypothesis and the references of each image. Tokens are separated
    /// by one space.
    ///
    /// # Errors
    /// [`MetricError::LengthMismatch`]; [`MetricError::NoReference`]
    pub fn new<S: AsRef<str>, R: AsRef<[T]>, T: AsRef<str>>(
        hypotheses: &[S],
        references: &[R],
    ) -> Result<Self, MetricError> {
        if hypotheses.len() != references.len() {
            let (first, second) = (hypotheses.len(), references.len());
            return Err(MetricError::LengthMismatch { metric: "captions".into(), first, second });
        }
        let mut sentences = Sentences::default();
        references.iter().flat_map(AsRef::as_ref).for_each(|text| sentences.push(text.as_ref()));
        hypotheses.iter().for_each(|text| sentences.push(text.as_ref()));
        Self::of(sentences, references.iter().map(|references| references.as_ref().len()))
    }

    /// Builds a corpus from sentences: the references of all images, then the hypotheses.
    /// `reference_counts` gives the number of references of each image.
    pub(crate) fn of(
        sentences: Sentences,
        reference_counts: impl Iterator<Item = usize>,
    ) -> Result<Self, MetricError> {
        let mut ends = Vec::with_capacity(reference_counts.size_hint().0);
        let mut end = 0;
        for (image, count) in reference_counts.enumerate() {
            if count == 0 {
                return Err(MetricError::NoReference { image });
            }
            end += count;
            ends.push(end);
        }
        Ok(Self { sentences, ends })
    }

    /// Number of images.
    fn len(&self) -> usize {
        self.ends.len()
    }

    fn hypothesis(&self, image: usize) -> Sentence<'_> {
        self.sentences.get(self.ends.last().copied().unwrap_or(0) + image)
    }

    fn references(&self, image: usize) -> impl Iterator<Item = Sentence<'_>> + Clone {
        let start = image.checked_sub(1).map_or(0, |previous| self.ends[previous]);
        (start..self.ends[image]).map(|sentence| self.sentences.get(sentence))
    }

    /// Whether n-grams fit into `u64` keys.
    fn has_short_keys(&self) -> bool {
        self.sentences.vocabulary().len() <= u64::MAX_WORDS
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metric::mean::mean;

    fn assert_close(values: &[f64], expected: &[f64], tolerance: f64) {
        assert_eq!(values.len(), expected.len());
        for (value, expected) in values.iter().zip(expected) {
            assert!((value - expected).abs() < tolerance * expected, "{values:?} {expected}");
        }
    }

    /// The expected values are from pycocoevalcap 1.2.
    #[test]
    fn scores_equal_pycocoevalcap() {
        let hypotheses = ["a man riding a wave", "a dog in the grass", "a red bus on the street"];
        let references = [
            vec!["a man riding a wave on top of a surfboard", "a man rides a wave"],
            vec!["two dogs play in the grass", "dogs playing on grass", "two brown dogs"],
            vec!["a red bus on the street"],
        ];
        let corpus = CaptionCorpus::new(&hypotheses, &references).unwrap();
        let bleu = bleu::bleu(&corpus);
        let bleu_1_to_4 =
            [0.8749999999453126, 0.8604560507552892, 0.8398127380023935, 0.8065008589354788];
        assert_close(&bleu.corpus, &bleu_1_to_4, 2e-13);
        let bleu_4: Vec<f64> = bleu.images.iter().map(|scores| scores[3]).collect();
        assert_close(&bleu_4, &[0.999999999479, 8.40896414984e-05, 0.999999999596], 1e-11);
        let of_resample =
            |counts: &[u32]| bleu::BleuStatistics::of_resample(&bleu.statistics, counts).scores();
        assert_eq!(of_resample(&[1, 1, 1]), bleu.corpus);
        assert_eq!(of_resample(&[0, 1, 0]), bleu.images[1]);

        let rouge_l = rouge_l::rouge_l(&corpus);
        assert_close(&rouge_l, &[0.8714285714285713, 0.5366568914956013, 1.0], 2e-15);
        assert_close(&[mean(&rouge_l)], &[0.8026951543080575], 2e-15);
        let (cider_d, _) = cider::cider_d_and_cider(&corpus, None);
        assert_close(&cider_d, &[3.7905395709024643, 1.2953060131319978, 10.0], 1e-13);
        assert_close(&[mean(&cider_d)], &[5.028615194678154], 1e-13);
        assert_eq!(cider::of_subset(&corpus, &[2, 9]), (vec![0.0], vec![0.0]));
    }

    #[test]
    fn missing_references_and_unequal_lengths_are_refused() {
        let no_texts: [&str; 0] = [];
        let error = CaptionCorpus::new(&["a", "b"], &[&["a"][..], &no_texts[..]]).unwrap_err();
        assert!(matches!(error, MetricError::NoReference { image: 1 }), "{error}");
        let error = CaptionCorpus::new(&["a"], &[["a"], ["b"]]).unwrap_err();
        assert!(matches!(error, MetricError::LengthMismatch { first: 1, second: 2, .. }));
    }
}
