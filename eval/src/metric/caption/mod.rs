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
///
/// ```
/// use engram_eval::metric::caption::{CaptionCorpus, bleu::bleu, cider::cider_d, rouge_l::rouge_l};
///
/// let hypotheses = ["a man riding a wave", "a dog in the grass", "a red bus on the street"];
/// let references = [
///     vec!["a man riding a wave on top of a surfboard", "a man rides a wave"],
///     vec!["two dogs play in the grass", "dogs playing on grass", "two brown dogs"],
///     vec!["a red bus on the street"],
/// ];
/// let corpus = CaptionCorpus::new(&hypotheses, &references)?;
/// assert!((bleu(&corpus).corpus[3] - 0.8065008589354788).abs() < 1e-12);
/// assert!((rouge_l(&corpus)[0] - 0.8714285714285713).abs() < 1e-12);
/// assert!((cider_d(&corpus, None)[0] - 3.7905395709024643).abs() < 1e-12);
/// # Ok::<(), engram_eval::metric::MetricError>(())
/// ```
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
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there are no images.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
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
mod tests_data {
    use super::CaptionCorpus;

    /// Three images, scored with pycocoevalcap 1.2.
    pub(super) fn scored_images() -> CaptionCorpus {
        let hypotheses = ["a man riding a wave", "a dog in the grass", "a red bus on the street"];
        let references = [
            vec!["a man riding a wave on top of a surfboard", "a man rides a wave"],
            vec!["two dogs play in the grass", "dogs playing on grass", "two brown dogs"],
            vec!["a red bus on the street"],
        ];
        CaptionCorpus::new(&hypotheses, &references).expect("references for every image")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_references_and_unequal_lengths_are_refused() {
        let no_texts: [&str; 0] = [];
        let error = CaptionCorpus::new(&["a", "b"], &[&["a"][..], &no_texts[..]]).unwrap_err();
        assert!(matches!(error, MetricError::NoReference { image: 1 }), "{error}");
        let error = CaptionCorpus::new(&["a"], &[["a"], ["b"]]).unwrap_err();
        assert!(matches!(error, MetricError::LengthMismatch { first: 1, second: 2, .. }));
    }
}
