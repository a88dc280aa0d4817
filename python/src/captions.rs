//! Metrics of image captions, and their tokenizer.

use engram::eval::metric::caption::bleu::{BleuStatistics, bleu};
use engram::eval::metric::caption::cider::cider_d_and_cider;
use engram::eval::metric::caption::rouge_l::rouge_l;
use engram::eval::metric::caption::{CaptionCorpus, MAX_NGRAM_ORDER};
use engram::eval::tokenize::ptb;
use numpy::PyArray1;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedStr;

use crate::errors::raised;
use crate::process::detached;

type Scores = [f64; MAX_NGRAM_ORDER];
/// Lengths of hypotheses and references, numbers of n-grams, and of matched n-grams.
type Counts = (u64, u64, [u64; MAX_NGRAM_ORDER], [u64; MAX_NGRAM_ORDER]);

/// Tokenizes captions as Stanford's PTBTokenizer, without punctuation.
#[pyfunction]
pub(crate) fn tokenize_captions(py: Python<'_>, captions: Vec<PyBackedStr>) -> Vec<String> {
    detached(py, || ptb::tokenize(&captions))
}

/// One tokenized hypothesis and the tokenized references of each image.
#[pyclass(frozen, module = "engram._engram")]
pub(crate) struct Captions {
    corpus: CaptionCorpus,
}

#[pymethods]
impl Captions {
    #[new]
    fn new(
        py: Python<'_>,
        hypotheses: Vec<PyBackedStr>,
        references: Vec<Vec<PyBackedStr>>,
    ) -> PyResult<Self> {
        let corpus =
            detached(py, || CaptionCorpus::new(&hypotheses, &references)).map_err(raised)?;
        Ok(Self { corpus })
    }

    /// BLEU-1 to BLEU-4 of the corpus and of each image, and the counts of the corpus.
    fn bleu(&self, py: Python<'_>) -> (Scores, [Vec<f64>; MAX_NGRAM_ORDER], Counts) {
        detached(py, || {
            let scores = bleu(&self.corpus);
            let order = |order: usize| scores.images.iter().map(|image| image[order]).collect();
            let total: BleuStatistics = scores.statistics.iter().copied().sum();
            let lengths = (total.hypothesis_length, total.reference_length);
            let counts = (lengths.0, lengths.1, total.ngrams, total.matched);
            (scores.corpus, std::array::from_fn(order), counts)
        })
    }

    /// ROUGE-L of each image.
    fn rouge_l<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<f64>> {
        PyArray1::from_vec(py, detached(py, || rouge_l(&self.corpus)))
    }

    /// CIDEr-D of each image.
    fn cider_d<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<f64>> {
        PyArray1::from_vec(py, detached(py, || cider_d_and_cider(&self.corpus, None).0))
    }
}
