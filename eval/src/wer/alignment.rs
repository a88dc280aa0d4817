//! The alignment of a hypothesis to its reference with the fewest edits, in bits.
//!
//! Of all alignments with the fewest edits RapidFuzz's is taken, so that hits, substitutions, deletions and insertions
//! are those of jiwer. Rows of the edit matrix are hypothesis tokens; a row holds the differences of neighbouring
//! columns (reference tokens) as two bits (Myers 1999 in Hyyrö's form, arXiv cs/0302004), 64 columns in a word. A
//! matrix beyond 1 MiB is halved as Hirschberg does, at the places where RapidFuzz 3 halves it: other places would
//! choose other alignments.

/// One step of an alignment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Edit {
    /// The same token on both sides.
    Hit,
    /// A reference token that became another one.
    Substitution,
    /// A reference token that the hypothesis does not have.
    Deletion,
    /// A hypothesis token that the reference does not have.
    Insertion,
}

/// Columns in a word of bits.
const WORD: usize = 64;
/// From this many bytes of bits on, and with at least so many rows and columns, a matrix is halved.
const HALVED_BYTES: usize = 1 << 20;
const HALVED_COLUMNS: usize = 65;
const HALVED_ROWS: usize = 10;

/// Aligns token sequences; keeps its buffers from one pair to the next.
#[derive(Debug, Default)]
pub struct Aligner {
    patterns: Patterns,
    matrix: Matrix,
    edits: Vec<Edit>,
}

impl Aligner {
    /// The edits that turn `reference` into `hypothesis`, in the order of the text.
    ///
    /// Tokens are numbers below `vocabulary`, equal where the tokens are. Time is `O(n m / 64)`; memory is
    /// `O(n + m + vocabulary)` and 1 MiB.
    pub fn align(&mut self, reference: &[u32], hypothesis: &[u32], vocabulary: usize) -> &[Edit] {
        self.edits.clear();
        self.patterns.reserve(vocabulary);
        let longest = reference.len().max(hypothesis.len());
        self.part(reference, hypothesis, longest);
        &self.edits
    }

    /// Appends the edits of a part whose distance is at most `max`.
    fn part(&mut self, reference: &[u32], hypothesis: &[u32], max: usize) {
        let equal = |(a, b): &(&u32, &u32)| a == b;
        let prefix = reference.iter().zip(hypothesis).take_while(equal).count();
        let (reference, hypothesis) = (&reference[prefix..], &hypothesis[prefix..]);
        let suffix = reference.iter().rev().zip(hypothesis.iter().rev()).take_while(equal).count();
        let reference = &reference[..reference.len() - suffix];
        let hypothesis = &hypothesis[..hypothesis.len() - suffix];
        self.push(Edit::Hit, prefix);

        let (columns, rows) = (reference.len(), hypothesis.len());
        let max = max.min(columns.max(rows));
        let band = columns.min(2 * max + 1);
        if columns == 0 || rows == 0 {
            self.push(Edit::Deletion, columns);
            self.push(Edit::Insertion, rows);
        } else if 2 * band * rows / 8 < HALVED_BYTES
            || columns < HALVED_COLUMNS
            || rows < HALVED_ROWS
        {
            self.patterns.set(reference);
            self.matrix.fill(columns, hypothesis, max, &mut self.patterns, true);
            self.patterns.clear(reference);
            self.matrix.trace_back(reference, hypothesis, &mut self.edits);
        } else {
            let halves = self.halve(reference, hypothesis, max);
            let (left, right) = reference.split_at(halves.column);
            let (above, below) = hypothesis.split_at(rows / 2);
            self.part(left, above, halves.left_distance);
            self.part(right, below, halves.right_distance);
        }
        self.push(Edit::Hit, suffix);
    }

    fn push(&mut self, edit: Edit, count: usize) {
        self.edits.extend(std::iter::repeat_n(edit, count));
    }

    /// The first column at which an alignment with the fewest edits can pass the middle row.
    fn halve(&mut self, reference: &[u32], hypothesis: &[u32], max: usize) -> Halves {
        let middle = hypothesis.len() / 2;
        let left = self.row(reference, &hypothesis[..middle], max);
        let reversed = |tokens: &[u32]| -> Vec<u32> { tokens.iter().rev().copied().collect() };
        let right = self.row(&reversed(reference), &reversed(&hypothesis[middle..]), max);
        let through = |column: usize| left[column].saturating_add(right[reference.len() - column]);
        let columns = 0..=reference.len();
        let column = columns.min_by_key(|column| through(*column)).unwrap_or(0);
        Halves {
            column,
            left_distance: left[column],
            right_distance: right[reference.len() - column],
        }
    }

    /// The last row of the edit matrix, `reference.len() + 1` distances; those beyond the band are `usize::MAX`.
    fn row(&mut self, reference: &[u32], hypothesis: &[u32], max: usize) -> Vec<usize> {
        self.patterns.set(reference);
        self.matrix.fill(reference.len(), hypothesis, max, &mut self.patterns, false);
        self.patterns.clear(reference);
        self.matrix.last_row(reference.len())
    }
}

/// Where a matrix is halved, and the distances of the halves.
struct Halves {
    column: usize,
    left_distance: usize,
    right_distance: usize,
}

/// The differences `D[i][j] - D[i][j - 1]` of a word of columns: where they are 1 and where they are -1.
#[derive(Debug, Clone, Copy)]
struct Differences {
    plus: u64,
    minus: u64,
}

impl Differences {
    /// What no row has touched yet: distances rise by 1 from column to column.
    const RISING: Self = Self { plus: !0, minus: 0 };

    /// The next row's differences, from the columns that match its token and the differences
    /// `D[i][j] - D[i - 1][j]` of the column before this word; the latter are replaced by those of its last column.
    #[inline(always)]
    fn advance(self, matches: u64, carry_plus: &mut u64, carry_minus: &mut u64) -> Self {
        let Self { plus, minus } = self;
        let x = matches | *carry_minus;
        let diagonal = ((x & plus).wrapping_add(plus) ^ plus) | x | minus;
        let down_plus = minus | !(diagonal | plus);
        let down_minus = diagonal & plus;
        let shifted_plus = (down_plus << 1) | *carry_plus;
        let shifted_minus = (down_minus << 1) | *carry_minus;
        *carry_plus = down_plus >> (WORD - 1);
        *carry_minus = down_minus >> (WORD - 1);
        Self { plus: shifted_minus | !(diagonal | shifted_plus), minus: shifted_plus & diagonal }
    }
}

/// The words of a row that are computed: those that hold cells at most `max` from the diagonal.
#[derive(Debug, Clone, Copy, Default)]
struct Band {
    /// The first word.
    first: usize,
    /// Where its differences lie among the recorded ones.
    at: usize,
}

/// Rows of differences, all or only the last one.
#[derive(Debug, Default)]
struct Matrix {
    /// The row being computed, all words.
    row: Vec<Differences>,
    /// The rows so far, where they are recorded: the words of their bands one after the other.
    recorded: Vec<Differences>,
    bands: Vec<Band>,
    /// The first and last word of the last row, and the distance before its first column.
    first: usize,
    last: usize,
    before: usize,
}

impl Matrix {
    /// Computes the rows of `hypothesis`. Cells further than `max` from the diagonal are taken as larger than they
    /// are, which no alignment of at most `max` edits notices.
    fn fill(
        &mut self,
        columns: usize,
        hypothesis: &[u32],
        max: usize,
        patterns: &mut Patterns,
        record: bool,
    ) {
        let words = columns.div_ceil(WORD);
        self.row.clear();
        self.row.resize(words, Differences::RISING);
        self.recorded.clear();
        self.bands.clear();
        (self.first, self.before) = (0, 0);
        for (row, token) in hypothesis.iter().enumerate() {
            // Columns `row + 1 - max ..= row + 1 + max`, counted from 1.
            let first = ((row + 1).saturating_sub(max.saturating_add(1)) / WORD).min(words - 1);
            self.last = (row.saturating_add(max) / WORD).min(words - 1);
            for word in self.first..first {
                let Differences { plus, minus } = self.row[word];
                self.before =
                    self.before + plus.count_ones() as usize - minus.count_ones() as usize;
            }
            self.first = first;
            self.before += 1;
            let (mut carry_plus, mut carry_minus) = (1, 0);
            let matches = patterns.of(*token, words);
            let band = &mut self.row[first..=self.last];
            for (differences, matches) in band.iter_mut().zip(&matches[first..=self.last]) {
                *differences = differences.advance(*matches, &mut carry_plus, &mut carry_minus);
            }
            if record {
                self.bands.push(Band { first, at: self.recorded.len() });
                self.recorded.extend_from_slice(band);
            }
        }
    }

    /// The distances of the last row; beyond the band they are `usize::MAX`.
    fn last_row(&self, columns: usize) -> Vec<usize> {
        let mut distances = vec![usize::MAX; columns + 1];
        let mut distance = self.before;
        distances[self.first * WORD] = distance;
        for column in self.first * WORD..columns.min((self.last + 1) * WORD) {
            let Differences { plus, minus } = self.row[column / WORD];
            let bit = column % WORD;
            distance = distance + (plus >> bit & 1) as usize - (minus >> bit & 1) as usize;
            distances[column + 1] = distance;
        }
        distances
    }

    /// The recorded bits of a column (counted from 0) in a row: whether the difference is 1, whether it is -1.
    fn bits(&self, row: usize, column: usize) -> (bool, bool) {
        let Band { first, at } = self.bands[row];
        let end = self.bands.get(row + 1).map_or(self.recorded.len(), |next| next.at);
        // A cell beyond the band is larger than what the path came from.
        let word = (column / WORD).checked_sub(first).filter(|word| at + word < end);
        let Some(word) = word else { return (false, false) };
        let Differences { plus, minus } = self.recorded[at + word];
        let bit = column % WORD;
        (plus >> bit & 1 == 1, minus >> bit & 1 == 1)
    }

    /// Appends the edits of the recorded matrix: from its end a deletion where one is among the best steps, else an
    /// insertion where the row above says so, else a hit or a substitution.
    fn trace_back(&self, reference: &[u32], hypothesis: &[u32], edits: &mut Vec<Edit>) {
        let start = edits.len();
        let (mut row, mut column) = (hypothesis.len(), reference.len());
        while row > 0 && column > 0 {
            if self.bits(row - 1, column - 1).0 {
                column -= 1;
                edits.push(Edit::Deletion);
                continue;
            }
            row -= 1;
            if row > 0 && self.bits(row - 1, column - 1).1 {
                edits.push(Edit::Insertion);
                continue;
            }
            column -= 1;
            let same = reference[column] == hypothesis[row];
            edits.push(if same { Edit::Hit } else { Edit::Substitution });
        }
        edits.extend(std::iter::repeat_n(Edit::Deletion, column));
        edits.extend(std::iter::repeat_n(Edit::Insertion, row));
        edits[start..].reverse();
    }
}

/// For each token the reference columns that hold it, as bits.
///
/// A token that stands in more than one column of 64 has its bits ready (there are at most 64 such tokens); those of
/// the others are set when they are asked for, so that memory stays linear.
#[derive(Debug, Default)]
struct Patterns {
    /// Of each token: the end of its run in `columns`, or 0 where it does not occur.
    ends: Vec<u32>,
    /// Of each token: how often it occurs.
    counts: Vec<u32>,
    /// The columns, sorted by token.
    columns: Vec<u32>,
    /// Of each token: where its bits lie in `dense`, plus 1; 0 where they are not ready.
    places: Vec<u32>,
    dense: Vec<u64>,
    /// The bits of the token asked for last, and that token.
    sparse: Vec<u64>,
    asked: Option<u32>,
}

impl Patterns {
    fn reserve(&mut self, vocabulary: usize) {
        if self.counts.len() < vocabulary {
            self.counts.resize(vocabulary, 0);
            self.ends.resize(vocabulary, 0);
            self.places.resize(vocabulary, 0);
        }
    }

    fn set(&mut self, reference: &[u32]) {
        let words = reference.len().div_ceil(WORD);
        self.dense.clear();
        self.sparse.clear();
        self.sparse.resize(words, 0);
        self.asked = None;
        for token in reference {
            self.counts[*token as usize] += 1;
        }
        self.columns.clear();
        self.columns.resize(reference.len(), 0);
        let mut end = 0;
        for (column, token) in reference.iter().enumerate() {
            let token = *token as usize;
            if self.ends[token] == 0 {
                // The first time: room for all its columns, filled from the front.
                self.ends[token] = end + 1;
                end += self.counts[token];
                if self.counts[token] as usize >= words {
                    self.places[token] = self.dense.len() as u32 + 1;
                    self.dense.resize(self.dense.len() + words, 0);
                }
            }
            match self.places[token] {
                0 => {
                    self.columns[self.ends[token] as usize - 1] = column as u32;
                    self.ends[token] += 1;
                }
                place => {
                    self.dense[place as usize - 1 + column / WORD] |= 1 << (column % WORD);
                }
            }
        }
    }

    fn clear(&mut self, reference: &[u32]) {
        for token in reference {
            let token = *token as usize;
            (self.counts[token], self.ends[token], self.places[token]) = (0, 0, 0);
        }
    }

    /// The bits of a token, `words` words.
    fn of(&mut self, token: u32, words: usize) -> &[u64] {
        let place = self.places[token as usize];
        if place > 0 {
            return &self.dense[place as usize - 1..place as usize - 1 + words];
        }
        if self.asked != Some(token) {
            if let Some(asked) = self.asked.replace(token) {
                for column in run(&self.columns, &self.ends, &self.counts, asked) {
                    self.sparse[*column as usize / WORD] = 0;
                }
            }
            for column in run(&self.columns, &self.ends, &self.counts, token) {
                self.sparse[*column as usize / WORD] |= 1 << (column % WORD as u32);
            }
        }
        &self.sparse
    }
}

/// The columns of a token whose bits are not ready.
fn run<'a>(columns: &'a [u32], ends: &[u32], counts: &[u32], token: u32) -> &'a [u32] {
    let (end, count) = (ends[token as usize] as usize, counts[token as usize] as usize);
    if count == 0 { &[] } else { &columns[end - 1 - count..end - 1] }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The full matrix, and the same steps back through it.
    fn by_full_matrix(reference: &[u32], hypothesis: &[u32]) -> Vec<Edit> {
        let equal = |(a, b): &(&u32, &u32)| a == b;
        let prefix = reference.iter().zip(hypothesis).take_while(equal).count();
        let (r, h) = (&reference[prefix..], &hypothesis[prefix..]);
        let suffix = r.iter().rev().zip(h.iter().rev()).take_while(equal).count();
        let (r, h) = (&r[..r.len() - suffix], &h[..h.len() - suffix]);
        let mut d = vec![vec![0usize; r.len() + 1]; h.len() + 1];
        for i in 0..=h.len() {
            for j in 0..=r.len() {
                d[i][j] = match (i, j) {
                    (0, j) => j,
                    (i, 0) => i,
                    _ => (d[i - 1][j - 1] + usize::from(h[i - 1] != r[j - 1]))
                        .min(d[i - 1][j] + 1)
                        .min(d[i][j - 1] + 1),
                };
            }
        }
        let mut edits = vec![Edit::Hit; suffix];
        let (mut i, mut j) = (h.len(), r.len());
        while i > 0 && j > 0 {
            if d[i][j] == d[i][j - 1] + 1 {
                j -= 1;
                edits.push(Edit::Deletion);
                continue;
            }
            i -= 1;
            if i > 0 && d[i][j] + 1 == d[i][j - 1] {
                edits.push(Edit::Insertion);
                continue;
            }
            j -= 1;
            edits.push(if r[j] == h[i] { Edit::Hit } else { Edit::Substitution });
        }
        edits.extend(vec![Edit::Deletion; j]);
        edits.extend(vec![Edit::Insertion; i]);
        edits.extend(vec![Edit::Hit; prefix]);
        edits.reverse();
        edits
    }

    /// Numbers that look random, the same every time.
    fn numbers(seed: u64) -> impl FnMut(u64) -> u64 {
        let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        move |below| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        }
    }

    /// A reference, and a hypothesis that errs in it `errors` times of 100.
    fn pair(seed: u64, length: u64, vocabulary: u64, errors: u64) -> (Vec<u32>, Vec<u32>) {
        let mut next = numbers(seed);
        let reference: Vec<u32> = (0..length).map(|_| next(vocabulary) as u32).collect();
        let mut hypothesis = Vec::new();
        for token in &reference {
            match next(100) {
                roll if roll >= errors => hypothesis.push(*token),
                roll if roll % 3 == 0 => {}
                roll if roll % 3 == 1 => hypothesis.push(next(vocabulary) as u32),
                _ => hypothesis.extend([*token, next(vocabulary) as u32]),
            }
        }
        (reference, hypothesis)
    }

    #[test]
    fn every_alignment_is_that_of_the_full_matrix() {
        let mut aligner = Aligner::default();
        for seed in 0..4000 {
            let mut next = numbers(seed + 1);
            let (length, vocabulary, errors) = (next(180), 2 + next(60), next(101));
            let (reference, mut hypothesis) = pair(seed, length, vocabulary, errors);
            if seed % 7 == 0 {
                hypothesis = pair(seed + 9999, next(150), vocabulary, errors).1;
            }
            let found = aligner.align(&reference, &hypothesis, vocabulary as usize).to_vec();
            assert_eq!(found, by_full_matrix(&reference, &hypothesis), "seed {seed}");
        }
    }

    /// Bands narrower than the matrix, over several words.
    #[test]
    fn a_band_gives_what_the_whole_matrix_gives() {
        for seed in 0..60 {
            let (reference, hypothesis) = pair(seed, 700, 40, 1 + seed % 12);
            let mut aligner = Aligner::default();
            aligner.patterns.reserve(40);
            let wanted = by_full_matrix(&reference, &hypothesis);
            let distance = wanted.iter().filter(|edit| **edit != Edit::Hit).count();
            for max in [distance, distance + 7] {
                aligner.edits.clear();
                aligner.part(&reference, &hypothesis, max);
                assert_eq!(aligner.edits, wanted, "seed {seed}, max {max}");
            }
        }
    }

    /// A halved matrix gives as few edits as the whole one, and they lead from one text to the other.
    #[test]
    fn a_halved_matrix_gives_the_fewest_edits() {
        for (seed, errors) in [(1, 5), (2, 40), (3, 100)] {
            let (reference, hypothesis) = pair(seed, 2600, 300, errors);
            let mut aligner = Aligner::default();
            let edits = aligner.align(&reference, &hypothesis, 300).to_vec();
            let count = |wanted: Edit| edits.iter().filter(|edit| **edit == wanted).count();
            let whole = by_full_matrix(&reference, &hypothesis);
            let distance = whole.iter().filter(|edit| **edit != Edit::Hit).count();
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
        // Two substitutions would be as few edits.
        assert_eq!(aligner.align(&[0, 1], &[2, 0], 3), [Insertion, Hit, Deletion]);
        assert_eq!(aligner.align(&[0, 1], &[2, 2], 3), [Substitution, Substitution]);
        assert_eq!(aligner.align(&[0, 1, 2], &[1, 2, 0], 3), [Deletion, Hit, Hit, Insertion]);
        assert_eq!(aligner.align(&[], &[1, 2], 3), [Insertion, Insertion]);
        assert_eq!(aligner.align(&[1], &[], 3), [Deletion]);
        assert_eq!(aligner.align(&[], &[], 0), []);
    }
}
