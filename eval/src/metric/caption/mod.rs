//! The metrics of image captions, equal to pycocoevalcap: BLEU, ROUGE-L, CIDEr-D and CIDEr.
//!
//! All take a [`CaptionCorpus`]: one hypothesis and one or more references an image, already tokenised
//! ([`ptb::tokenise`](crate::tokenise::ptb::tokenise)). METEOR and SPICE are whole Java programs, and not here.

pub mod bleu;
pub mod cider;
mod ngram;
pub mod rouge_l;

use std::collections::HashMap;

use super::MetricError;
use crate::tokenise::is_white_space;
use ngram::NgramIndex;

/// Longest n-grams that the metrics count.
pub const LONGEST_NGRAM: usize = 4;

/// How often each n-gram of one length is in a sentence: (id, count), by rising id.
type NgramCounts = Box<[(u32, u32)]>;

/// A tokenised caption, its words and n-grams as numbers.
#[derive(Debug, Clone)]
struct Sentence {
    /// Words between single spaces, as ROUGE splits; an empty caption is one empty word.
    words: Box<[u32]>,
    /// Number of words between white space of any kind, as BLEU and CIDEr split.
    length: u32,
    ngrams: [NgramCounts; LONGEST_NGRAM],
}

/// One image: what was said of it, and what should have been.
#[derive(Debug, Clone)]
struct ImageCaptions {
    hypothesis: Sentence,
    references: Vec<Sentence>,
}

/// The tokenised captions of a set of images, prepared once for all metrics.
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
    images: Vec<ImageCaptions>,
    words: HashMap<Box<str>, u32>,
    ngrams: NgramIndex,
}

impl CaptionCorpus {
    /// Captions with one space between tokens: the hypothesis of each image, and its references.
    ///
    /// # Errors   [`MetricError::LengthMismatch`]; [`MetricError::NoReference`]
    pub fn new<S: AsRef<str>, R: AsRef<[T]>, T: AsRef<str>>(
        hypotheses: &[S],
        references: &[R],
    ) -> Result<Self, MetricError> {
        if hypotheses.len() != references.len() {
            let (first, second) = (hypotheses.len(), references.len());
            return Err(MetricError::LengthMismatch { metric: "captions", first, second });
        }
        if let Some(image) = references.iter().position(|references| references.as_ref().is_empty())
        {
            return Err(MetricError::NoReference { image });
        }
        let mut corpus = Self {
            images: Vec::with_capacity(hypotheses.len()),
            words: HashMap::new(),
            ngrams: NgramIndex::default(),
        };
        for (hypothesis, references) in hypotheses.iter().zip(references) {
            let references = references.as_ref().iter();
            let references = references.map(|text| corpus.sentence(text.as_ref())).collect();
            let hypothesis = corpus.sentence(hypothesis.as_ref());
            corpus.images.push(ImageCaptions { hypothesis, references });
        }
        Ok(corpus)
    }

    /// Number of images.
    pub fn len(&self) -> usize {
        self.images.len()
    }

    /// Whether there are no images.
    pub fn is_empty(&self) -> bool {
        self.images.is_empty()
    }

    fn sentence(&mut self, text: &str) -> Sentence {
        let words: Box<[u32]> = text.split(' ').map(|word| self.word(word)).collect();
        let is_other_space = |c| c != ' ' && is_white_space(c);
        let as_split = text.is_empty()
            || text.starts_with(' ')
            || text.ends_with(' ')
            || text.contains("  ")
            || text.contains(is_other_space);
        if as_split {
            let pieces = text.split(is_white_space).filter(|word| !word.is_empty());
            let pieces: Vec<u32> = pieces.map(|word| self.word(word)).collect();
            let ngrams = self.ngrams.counts(&pieces);
            return Sentence { words, length: pieces.len() as u32, ngrams };
        }
        let ngrams = self.ngrams.counts(&words);
        Sentence { length: words.len() as u32, words, ngrams }
    }

    fn word(&mut self, word: &str) -> u32 {
        if let Some(&id) = self.words.get(word) {
            return id;
        }
        let id = self.words.len() as u32;
        self.words.insert(word.into(), id);
        id
    }
}

/// How often the n-gram `id` occurs; 0 if it does not.
fn count_of(ngrams: &NgramCounts, id: u32) -> u32 {
    ngrams.binary_search_by_key(&id, |&(id, _)| id).map_or(0, |index| ngrams[index].1)
}

#[cfg(test)]
mod tests_data {
    use super::CaptionCorpus;

    /// Three images, scored with pycocoevalcap 1.2.
    pub(super) fn golden() -> CaptionCorpus {
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
    fn images_without_references_are_refused() {
        let none: [&str; 0] = [];
        let error = CaptionCorpus::new(&["a", "b"], &[&["a"][..], &none[..]]).unwrap_err();
        assert!(matches!(error, MetricError::NoReference { image: 1 }), "{error}");
        let error = CaptionCorpus::new(&["a"], &[["a"], ["b"]]).unwrap_err();
        assert!(matches!(error, MetricError::LengthMismatch { first: 1, second: 2, .. }));
    }

    #[test]
    fn no_break_spaces_split_words_for_all_but_rouge() {
        let corpus = CaptionCorpus::new(&["3\u{A0}1/2 x"], &[["", " ", "a  b"]]).unwrap();
        let image = &corpus.images[0];
        assert_eq!((image.hypothesis.words.len(), image.hypothesis.length), (2, 3));
        assert_eq!(image.hypothesis.ngrams[2].len(), 1);
        let lengths: Vec<_> = image.references.iter().map(|r| (r.words.len(), r.length)).collect();
        assert_eq!(lengths, [(1, 0), (2, 0), (3, 2)]);
    }
}
