//! Alignments of words and characters.

use std::ops::Range;

use engram::eval::wer::alignment::{Aligner, Edit};
use engram::eval::wer::tokens::{TokenUnit, Vocabulary};
use numpy::{PyArray1, PyArray2, PyArrayMethods};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedStr;
use rayon::prelude::*;

use crate::process::detached;

/// Number of pairs that a thread aligns at once.
const PAIRS: usize = 512;

/// Counts of hits, substitutions, deletions and insertions; chunks `[5, chunks]` of equal steps:
/// kind, and start and end in reference and hypothesis; and the end of each pair's chunks.
type Alignments<'py> = ([i64; 4], Bound<'py, PyArray2<i32>>, Bound<'py, PyArray1<i64>>);

/// The alignments of some pairs.
#[derive(Default)]
struct Part {
    counts: [i64; 4],
    chunks: Vec<[i32; 5]>,
    /// Number of chunks of each pair.
    lengths: Vec<usize>,
}

/// Aligns the words or characters of each hypothesis to the reference with the same index, with the
/// fewest edits. Texts are split as by jiwer's default transforms.
#[pyfunction]
pub(crate) fn align_texts<'py>(
    py: Python<'py>,
    references: Vec<PyBackedStr>,
    hypotheses: Vec<PyBackedStr>,
    characters: bool,
) -> PyResult<Alignments<'py>> {
    let unit = if characters { TokenUnit::Char } else { TokenUnit::Word };
    align(py, [references.len(), hypotheses.len()], |pairs| {
        let (mut part, mut aligner) = (Part::default(), Aligner::default());
        let mut vocabulary = Vocabulary::default();
        let (mut reference, mut hypothesis) = (Vec::new(), Vec::new());
        for pair in pairs {
            vocabulary.clear();
            vocabulary.encode(&references[pair], unit, &mut reference);
            vocabulary.encode(&hypotheses[pair], unit, &mut hypothesis);
            part.add(aligner.align(&reference, &hypothesis, vocabulary.size(unit)));
        }
        part
    })
}

/// Aligns lists of tokens, which are integers from 0 on without gaps.
#[pyfunction]
pub(crate) fn align_tokens<'py>(
    py: Python<'py>,
    references: Vec<Vec<u32>>,
    hypotheses: Vec<Vec<u32>>,
) -> PyResult<Alignments<'py>> {
    let tokens = references.iter().chain(&hypotheses).flatten();
    let vocabulary = tokens.max().map_or(0, |token| *token as usize + 1);
    align(py, [references.len(), hypotheses.len()], |pairs| {
        let (mut part, mut aligner) = (Part::default(), Aligner::default());
        for pair in pairs {
            part.add(aligner.align(&references[pair], &hypotheses[pair], vocabulary));
        }
        part
    })
}

fn align<'py>(
    py: Python<'py>,
    [references, hypotheses]: [usize; 2],
    align_pairs: impl Fn(Range<usize>) -> Part + Send + Sync,
) -> PyResult<Alignments<'py>> {
    if references != hypotheses {
        let text = format!("{references} references, but {hypotheses} hypotheses");
        return Err(PyValueError::new_err(text));
    }
    let starts = (0..references.div_ceil(PAIRS)).into_par_iter().map(|part| part * PAIRS);
    let parts: Vec<Part> = detached(py, || {
        starts.map(|start| align_pairs(start..references.min(start + PAIRS))).collect()
    });
    let mut counts = [0; 4];
    let mut ends = Vec::with_capacity(references);
    let mut end = 0;
    for part in &parts {
        counts.iter_mut().zip(part.counts).for_each(|(count, of_part)| *count += of_part);
        ends.extend(part.lengths.iter().map(|length| {
            end += *length as i64;
            end
        }));
    }
    let field = |field: usize| parts.iter().flat_map(|p| &p.chunks).map(move |chunk| chunk[field]);
    let fields: Vec<i32> = (0..5).flat_map(field).collect();
    let chunks = PyArray1::from_vec(py, fields).reshape([5, end as usize])?;
    Ok((counts, chunks, PyArray1::from_vec(py, ends)))
}

impl Part {
    /// Adds a pair; joins equal steps to chunks.
    fn add(&mut self, edits: &[Edit]) {
        let start = self.chunks.len();
        let (mut reference, mut hypothesis) = (0, 0);
        for edit in edits {
            let (kind, in_reference, in_hypothesis) = match edit {
                Edit::Hit => (0, 1, 1),
                Edit::Substitution => (1, 1, 1),
                Edit::Deletion => (2, 1, 0),
                Edit::Insertion => (3, 0, 1),
            };
            self.counts[kind as usize] += 1;
            if self.chunks[start..].last().is_none_or(|chunk| chunk[0] != kind) {
                self.chunks.push([kind, reference, reference, hypothesis, hypothesis]);
            }
            reference += in_reference;
            hypothesis += in_hypothesis;
            if let Some(chunk) = self.chunks.last_mut() {
                (chunk[2], chunk[4]) = (reference, hypothesis);
            }
        }
        self.lengths.push(self.chunks.len() - start);
    }
}
