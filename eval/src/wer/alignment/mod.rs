//! Aligns a hypothesis to its reference with the minimum number of edits, bit-parallel.
//!
//! Ties between optimal alignments are broken as in RapidFuzz, so hits, substitutions, deletions
//! and insertions equal jiwer's counts. The rows of the edit matrix are hypothesis tokens, its
//! columns reference tokens. A row stores the differences between neighbouring columns as two bits,
//! 64 columns per bit word (a `u64`).
//!
//! A matrix of 1 MiB or more is halved by Hirschberg's method, at the same columns as in RapidFuzz
//! 3: other columns would give other alignments. In a halved matrix, only the band of optimal
//! alignments is computed. The halves are processed in parallel.
//!
//! # Source   G. Myers, JACM 46 (1999), in the form of H. Hyyrö, arXiv cs/0302004

mod matrix;
mod patterns;

use matrix::{Band, Matrix};
use patterns::Patterns;

/// One step of an alignment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Edit {
    /// The tokens are equal.
    Hit,
    /// A reference token is replaced by another token.
    Substitution,
    /// A reference token is missing in the hypothesis.
    Deletion,
    /// A hypothesis token is not in the reference.
    Insertion,
}

/// A matrix is halved if it has at least this number of bytes, of columns and of rows.
const HALVED_BYTES: usize = 1 << 20;
const HALVED_COLUMNS: usize = 65;
const HALVED_ROWS: usize = 10;
/// Number of hypothesis tokens per piece in the estimate of a distance.
const PIECE_TOKENS: usize = 1024;

/// Aligns token sequences; reuses its buffers from pair to pair.
#[derive(Debug, Default)]
pub struct Aligner {
    patterns: Patterns,
    matrix: Matrix,
    edits: Vec<Edit>,
}

impl Aligner {
    /// Returns the edits that turn `reference` into `hypothesis`, in text order.
    ///
    /// Tokens are integers below `vocabulary`. Time is `O(d n / 64)` for `n` tokens and about `d`
    /// edits; memory is `O(n + vocabulary)` plus 1 MiB per thread.
    pub fn align(&mut self, reference: &[u32], hypothesis: &[u32], vocabulary: usize) -> &[Edit] {
        self.edits.clear();
        self.patterns.reserve(vocabulary);
        self.align_part(reference, hypothesis, None);
        &self.edits
    }

    /// Estimates the number of cells of an alignment: the number of rows times the width of the
    /// band. Similar texts need few cells, even if they are long.
    pub(crate) fn estimate_cells(
        &mut self,
        reference: &[u32],
        hypothesis: &[u32],
        vocabulary: usize,
    ) -> u64 {
        self.patterns.reserve(vocabulary);
        let edits = self.upper_bound(reference, hypothesis);
        hypothesis.len() as u64 * reference.len().min(2 * edits + 1) as u64
    }

    /// Appends the edits of a part of the texts. `distance` is the edit distance; `None` if
    /// unknown.
    fn align_part(&mut self, reference: &[u32], hypothesis: &[u32], distance: Option<usize>) {
        let equal = |(a, b): &(&u32, &u32)| a == b;
        let prefix = reference.iter().zip(hypothesis).take_while(equal).count();
        let (reference, hypothesis) = (&reference[prefix..], &hypothesis[prefix..]);
        let suffix = reference.iter().rev().zip(hypothesis.iter().rev()).take_while(equal).count();
        let reference = &reference[..reference.len() - suffix];
        let hypothesis = &hypothesis[..hypothesis.len() - suffix];
        self.push(Edit::Hit, prefix);

        let (columns, rows) = (reference.len(), hypothesis.len());
        let max_edits = distance.unwrap_or(columns.max(rows));
        // The row width in RapidFuzz, in bits: it determines which matrices are halved.
        let width = columns.min(2 * max_edits + 1);
        if columns == 0 || rows == 0 {
            self.push(Edit::Deletion, columns);
            self.push(Edit::Insertion, rows);
        } else if 2 * width * rows / 8 < HALVED_BYTES
            || columns < HALVED_COLUMNS
            || rows < HALVED_ROWS
        {
            let band = Band::new(columns, rows, max_edits);
            self.patterns.set(reference);
            self.matrix.record(columns, hypothesis, band, &mut self.patterns);
            self.patterns.clear(reference);
            self.matrix.trace_back(reference, hypothesis, &mut self.edits);
        } else {
            let max_edits = distance.unwrap_or_else(|| self.upper_bound(reference, hypothesis));
            self.align_halves(reference, hypothesis, max_edits);
        }
        self.push(Edit::Hit, suffix);
    }

    fn push(&mut self, edit: Edit, count: usize) {
        self.edits.extend(std::iter::repeat_n(edit, count));
    }

    /// Appends the edits above the middle row, then the edits below it. The reference is divided at
    /// the first column where an optimal alignment (with at most `max_edits` edits) passes the
    /// middle row.
    fn align_halves(&mut self, reference: &[u32], hypothesis: &[u32], max_edits: usize) {
        let (above, below) = hypothesis.split_at(hypothesis.len() / 2);
        let band = Band::new(reference.len(), hypothesis.len(), max_edits);
        let mut second = Self::default();
        second.patterns.reserve(self.patterns.vocabulary());
        let reversed = |tokens: &[u32]| -> Vec<u32> { tokens.iter().rev().copied().collect() };
        let (costs_above, costs_below) = rayon::join(
            || self.last_row(reference, above, band),
            || second.last_row(&reversed(reference), &reversed(below), band),
        );
        let distance_through = |column: &usize| {
            costs_above[*column].saturating_add(costs_below[reference.len() - column])
        };
        let column = (0..=reference.len()).min_by_key(distance_through).unwrap_or(0);
        let (left, right) = reference.split_at(column);
        rayon::join(
            || self.align_part(left, above, Some(costs_above[column])),
            || second.align_part(right, below, Some(costs_below[reference.len() - column])),
        );
        self.edits.append(&mut second.edits);
    }

    /// An upper bound of the distance. Aligns pieces of the hypothesis one after the other: each
    /// starts at the reference column where the previous piece ended, and ends at the column with
    /// the lowest cost.
    fn upper_bound(&mut self, reference: &[u32], hypothesis: &[u32]) -> usize {
        let (mut remaining, mut edits) = (reference, 0);
        for piece in hypothesis.chunks(PIECE_TOKENS) {
            let window = &remaining[..remaining.len().min(2 * PIECE_TOKENS)];
            let full_band = Band::new(window.len(), piece.len(), usize::MAX);
            let row = if window.is_empty() {
                vec![piece.len()]
            } else {
                self.last_row(window, piece, full_band)
            };
            let Some((column, distance)) = row.iter().enumerate().min_by_key(|(_, d)| **d) else {
                break;
            };
            remaining = &remaining[column..];
            edits += distance;
        }
        (edits + remaining.len()).min(reference.len().max(hypothesis.len()))
    }

    /// The last row of the edit matrix: `reference.len() + 1` distances, `usize::MAX` outside the
    /// band.
    fn last_row(&mut self, reference: &[u32], hypothesis: &[u32], band: Band) -> Vec<usize> {
        self.patterns.set(reference);
        let row = self.matrix.last_row(reference.len(), hypothesis, band, &mut self.patterns);
        self.patterns.clear(reference);
        row
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::SplitMix64;

    /// Aligns with the full matrix and the same traceback.
    fn by_full_matrix(reference: &[u32], hypothesis: &[u32]) -> Vec<Edit> {
        let equal = |(a, b): &(&u32, &u32)| a == b;
        let prefix = reference.iter().zip(hypothesis).take_while(equal).count();
        let (reference, hypothesis) = (&reference[prefix..], &hypothesis[prefix..]);
        let suffix = reference.iter().rev().zip(hypothesis.iter().rev()).take_while(equal).count();
        let (reference, hypothesis) =
            (&reference[..reference.len() - suffix], &hypothesis[..hypothesis.len() - suffix]);
        let mut distances = vec![vec![0usize; reference.len() + 1]; hypothesis.len() + 1];
        for i in 0..=hypothesis.len() {
            for j in 0..=reference.len() {
                distances[i][j] = match (i, j) {
                    (0, j) => j,
                    (i, 0) => i,
                    _ => (distances[i - 1][j - 1]
                        + usize::from(hypothesis[i - 1] != reference[j - 1]))
                    .min(distances[i - 1][j] + 1)
                    .min(distances[i][j - 1] + 1),
                };
            }
        }
        let mut edits = vec![Edit::Hit; suffix];
        let (mut i, mut j) = (hypothesis.len(), reference.len());
        while i > 0 && j > 0 {
            if distances[i][j] == distances[i][j - 1] + 1 {
                j -= 1;
                edits.push(Edit::Deletion);
                continue;
            }
            i -= 1;
            if i > 0 && distances[i][j] + 1 == distances[i][j - 1] {
                edits.push(Edit::Insertion);
                continue;
            }
            j -= 1;
            edits.push(if reference[j] == hypothesis[i] { Edit::Hit } else { Edit::Substitution });
        }
        edits.extend(vec![Edit::Deletion; j]);
        edits.extend(vec![Edit::Insertion; i]);
        edits.extend(vec![Edit::Hit; prefix]);
        edits.reverse();
        edits
    }

    /// A reference and a hypothesis with `errors` percent errors.
    fn pair(seed: u64, length: usize, vocabulary: usize, errors: usize) -> (Vec<u32>, Vec<u32>) {
        let mut random = SplitMix64::stream(seed, 0);
        let reference: Vec<u32> = (0..length).map(|_| random.below(vocabulary) as u32).collect();
        let mut hypothesis = Vec::new();
        for token in &reference {
            match random.below(100) {
                roll if roll >= errors => hypothesis.push(*token),
                roll if roll % 3 == 0 => {}
                roll if roll % 3 == 1 => hypothesis.push(random.below(vocabulary) as u32),
                _ => hypothesis.extend([*token, random.below(vocabulary) as u32]),
            }
        }
        (reference, hypothesis)
    }

    #[test]
    fn every_alignment_equals_the_full_matrix_alignment() {
        let mut aligner = Aligner::default();
        for seed in 0..4000 {
            let mut random = SplitMix64::stream(seed, 1);
            let (length, vocabulary, errors) =
                (random.below(180), 2 + random.below(60), random.below(101));
            let (reference, mut hypothesis) = pair(seed, length, vocabulary, errors);
            if seed % 7 == 0 {
                hypothesis = pair(seed + 9999, random.below(150), vocabulary, errors).1;
            }
            let edits = aligner.align(&reference, &hypothesis, vocabulary).to_vec();
            assert_eq!(edits, by_full_matrix(&reference, &hypothesis), "seed {seed}");
        }
    }

    /// A band that is narrower than the matrix and several 64-bit words wide, and the full matrix.
    #[test]
    fn a_band_gives_the_full_matrix_alignment() {
        for seed in 0..60 {
            let (reference, hypothesis) = pair(seed, 700, 40, 1 + seed as usize % 12);
            let mut aligner = Aligner::default();
            aligner.patterns.reserve(40);
            let expected = by_full_matrix(&reference, &hypothesis);
            let distance = expected.iter().filter(|edit| **edit != Edit::Hit).count();
            for max_edits in [None, Some(distance)] {
                aligner.edits.clear();
                aligner.align_part(&reference, &hypothesis, max_edits);
                assert_eq!(aligner.edits, expected, "seed {seed}, {max_edits:?}");
            }
        }
    }

    /// A halved matrix gives the minimum number of edits, and the edits turn one text into the
    /// other.
    #[test]
    fn a_halved_matrix_gives_the_fewest_edits() {
        for (seed, errors) in [(1, 5), (2, 40), (3, 100)] {
            let (reference, hypothesis) = pair(seed, 2600, 300, errors);
            let mut aligner = Aligner::default();
            let edits = aligner.align(&reference, &hypothesis, 300).to_vec();
            let count = |expected: Edit| edits.iter().filter(|edit| **edit == expected).count();
            let expected_edits = by_full_matrix(&reference, &hypothesis);
            let distance = expected_edits.iter().filter(|edit| **edit != Edit::Hit).count();
            assert_eq!(edits.len() - count(Edit::Hit), distance);
            assert_eq!(edits.len() - count(Edit::Insertion), reference.len());
            assert_eq!(edits.len() - count(Edit::Deletion), hypothesis.len());
            let (mut i, mut j) = (0, 0);
            for edit in &edits {
                match edit {
                    Edit::Hit => assert_eq!(reference[i], hypothesis[j]),
                    Edit::Substitution => assert_ne!(reference[i], hypothesis[j]),
                    Edit::Deletion | Edit::Insertion => {}
                }
                i += usize::from(*edit != Edit::Insertion);
                j += usize::from(*edit != Edit::Deletion);
            }
        }
    }

    #[test]
    fn ties_are_broken_as_rapidfuzz_does() {
        use Edit::{Deletion, Hit, Insertion, Substitution};
        let mut aligner = Aligner::default();
        // Two substitutions would also be two edits.
        assert_eq!(aligner.align(&[0, 1], &[2, 0], 3), [Insertion, Hit, Deletion]);
        assert_eq!(aligner.align(&[0, 1], &[2, 2], 3), [Substitution, Substitution]);
        assert_eq!(aligner.align(&[0, 1, 2], &[1, 2, 0], 3), [Deletion, Hit, Hit, Insertion]);
        assert_eq!(aligner.align(&[], &[1, 2], 3), [Insertion, Insertion]);
        assert_eq!(aligner.align(&[1], &[], 3), [Deletion]);
        assert_eq!(aligner.align(&[], &[], 0), []);
    }
}
