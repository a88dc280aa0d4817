//! chrF and chrF++ of texts.

use engram::eval::metric::chrf;
use numpy::{PyArray1, PyArray2, PyArrayMethods, PyReadonlyArray2};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedStr;
use rayon::prelude::*;

use crate::process::detached;

/// The characters that Python calls white space.
const SPACES: &str = "\t\n\u{b}\u{c}\r\u{1c}\u{1d}\u{1e}\u{1f} \u{85}\u{a0}\u{1680}\u{2000}\u{2001}\
    \u{2002}\u{2003}\u{2004}\u{2005}\u{2006}\u{2007}\u{2008}\u{2009}\u{200a}\u{2028}\u{2029}\u{202f}\
    \u{205f}\u{3000}";
/// The first of 32 code points that are reserved for use inside of programs.
const FIRST_NONCHARACTER: u32 = 0xFDD0;
/// The highest order of character n-grams.
const CHAR_ORDER: usize = 6;
/// The F-score of an order without n-grams.
const EPSILON: f64 = 1e-16;

/// How chrF is computed.
#[derive(FromPyObject, Clone, Copy)]
#[pyo3(from_item_all)]
pub(crate) struct Settings {
    /// Highest order of n-grams, up to 6 and 2.
    char_order: usize,
    word_order: usize,
    beta: f64,
    /// Whether character n-grams contain white space.
    whitespace: bool,
    eps_smoothing: bool,
}

/// For each text, `[texts, 3 * orders]`: the n-grams of the hypothesis, of its best reference, and
/// their matches.
#[pyfunction]
pub(crate) fn chrf_sums<'py>(
    py: Python<'py>,
    hypotheses: Vec<PyBackedStr>,
    references: Vec<Vec<PyBackedStr>>,
    settings: Settings,
) -> PyResult<Bound<'py, PyArray2<f64>>> {
    let width = 3 * (settings.char_order + settings.word_order);
    let rows: Vec<Vec<f64>> = detached(py, || {
        let texts = hypotheses.par_iter().zip(&references).with_min_len(16);
        texts.map(|(hypothesis, references)| settings.best_sums(hypothesis, references)).collect()
    });
    PyArray1::from_vec(py, rows.concat()).reshape([rows.len(), width])
}

/// The score of each row of sums, from 0 to 100.
#[pyfunction]
pub(crate) fn chrf_scores(sums: PyReadonlyArray2<'_, f64>, settings: Settings) -> Vec<f64> {
    let rows = sums.as_array();
    rows.rows().into_iter().map(|row| settings.score(&row.to_vec())).collect()
}

impl Settings {
    fn best_sums(self, hypothesis: &str, references: &[PyBackedStr]) -> Vec<f64> {
        let mut best = (-1.0, vec![0.0; 3 * (self.char_order + self.word_order)]);
        for reference in references {
            let sums = self.sums(hypothesis, reference);
            let score = self.score(&sums);
            if score > best.0 {
                best = (score, sums);
            }
        }
        best.1
    }

    fn sums(self, hypothesis: &str, reference: &str) -> Vec<f64> {
        let mut sums = if self.whitespace {
            chrf::chrf_sums(&visible(hypothesis), &[&visible(reference)])
        } else {
            chrf::chrf_sums(hypothesis, &[reference])
        };
        sums.truncate(3 * self.char_order);
        if self.word_order > 0 {
            let words = chrf::chrf_plus_plus_sums(hypothesis, &[reference]);
            sums.extend(&words[3 * CHAR_ORDER..][..3 * self.word_order]);
        }
        sums
    }

    /// The F-score of the precision and recall averaged over orders; with smoothing, the mean of
    /// the F-scores of the orders.
    fn score(self, sums: &[f64]) -> f64 {
        let weight = self.beta * self.beta;
        let f_score = |precision: f64, recall: f64| {
            let denominator = weight * precision + recall;
            (denominator > 0.0).then(|| (1.0 + weight) * precision * recall / denominator)
        };
        let (mut precisions, mut recalls, mut orders, mut smoothed) = (0.0, 0.0, 0.0, 0.0);
        for order in sums.chunks_exact(3) {
            let share = |count: f64| if count > 0.0 { order[2] / count } else { EPSILON };
            let (precision, recall) = (share(order[0]), share(order[1]));
            smoothed += f_score(precision, recall).unwrap_or(EPSILON);
            if order[0] > 0.0 && order[1] > 0.0 {
                precisions += precision;
                recalls += recall;
                orders += 1.0;
            }
        }
        if self.eps_smoothing {
            return 100.0 * smoothed / (sums.len() / 3) as f64;
        }
        if orders == 0.0 {
            return 0.0;
        }
        100.0 * f_score(precisions / orders, recalls / orders).unwrap_or(0.0)
    }
}

/// Replaces white space by noncharacters, which n-grams do not skip.
fn visible(text: &str) -> String {
    let replaced = |character| match SPACES.chars().position(|space| space == character) {
        Some(index) => char::from_u32(FIRST_NONCHARACTER + index as u32).unwrap_or(character),
        None => character,
    };
    text.chars().map(replaced).collect()
}
