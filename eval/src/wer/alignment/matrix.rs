//! The bit-parallel edit matrix and its traceback. `D[i][j]` is the edit distance between the first
//! `i` hypothesis tokens and the first `j` reference tokens. A row stores differences between
//! neighbouring columns, and only within a band.

use std::ops::Range;

use super::Edit;
use super::patterns::Patterns;

/// Columns per bit word.
pub(super) const WORD: usize = 64;

/// The differences `D[i][j] - D[i][j - 1]` of 64 columns, as bits: 1 in `plus`, -1 in `minus`.
#[derive(Debug, Clone, Copy)]
struct Differences {
    plus: u64,
    minus: u64,
}

impl Differences {
    /// The differences before the first row: distances rise by 1 per column.
    const RISING: Self = Self { plus: !0, minus: 0 };

    /// Returns the differences of the next row. `matches` marks the columns that match the token
    /// of that row. The carries hold the difference `D[i][j] - D[i - 1][j]`: on entry of the column
    /// before this word, on return of the last column of this word.
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

/// Advances by one row.
fn advance_one(row: &mut [Differences], matches: &[u64]) {
    let (mut plus, mut minus) = (1, 0);
    for (word, matches) in row.iter_mut().zip(matches) {
        *word = word.advance(*matches, &mut plus, &mut minus);
    }
}

/// Advances by two rows. Within one row, each word needs the carry of the previous word. So the
/// lower row is computed one word behind the upper row, and the processor works on both at once.
fn advance_two(row: &mut [Differences], above: &[u64], below: &[u64]) {
    let (end, above) = (row.len() - 1, &above[..row.len()]);
    let (mut plus, mut minus) = ([1, 1], [0, 0]);
    let mut upper = row[0].advance(above[0], &mut plus[0], &mut minus[0]);
    for (word, below) in below[..end].iter().enumerate() {
        let next = row[word + 1].advance(above[word + 1], &mut plus[0], &mut minus[0]);
        row[word] = upper.advance(*below, &mut plus[1], &mut minus[1]);
        upper = next;
    }
    row[end] = upper.advance(below[end], &mut plus[1], &mut minus[1]);
}

/// The band of cells that an alignment can pass, as distances from the main diagonal.
#[derive(Debug, Clone, Copy)]
pub(super) struct Band {
    below: usize,
    above: usize,
}

impl Band {
    /// The band of alignments with at most `max` edits; `max` must not be below the distance.
    ///
    /// An alignment with `i` insertions and `d` deletions has `i - d = rows - columns` and
    /// `i + d <= max`. These limit `i`, the cells below the diagonal, and `d`, the cells above.
    pub(super) fn new(columns: usize, rows: usize, max: usize) -> Self {
        Self {
            below: max.saturating_add(rows).saturating_sub(columns) / 2,
            above: max.saturating_add(columns).saturating_sub(rows) / 2,
        }
    }

    /// Upper bound of the number of bit words that the band covers in a row.
    fn words(self) -> usize {
        self.below.saturating_add(self.above) / WORD + 2
    }
}

/// The position of a row in the recorded differences.
#[derive(Debug, Clone, Copy, Default)]
struct RecordedRow {
    /// The first word of the band in this row.
    first: usize,
    /// Start of the differences of this row in `recorded`.
    start: usize,
}

/// The current row of differences, and the recorded rows.
#[derive(Debug, Default)]
pub(super) struct Matrix {
    /// The current row, all words.
    row: Vec<Differences>,
    /// The recorded differences: for each row, the words of its band.
    recorded: Vec<Differences>,
    rows: Vec<RecordedRow>,
    /// The first and the last word of the band in the current row, and the distance before the
    /// first column of the band.
    first: usize,
    last: usize,
    before: usize,
}

impl Matrix {
    /// Computes and records the rows of `hypothesis`. Cells outside the band get values that are
    /// too large; alignments inside the band do not change.
    pub(super) fn record(
        &mut self,
        columns: usize,
        hypothesis: &[u32],
        band: Band,
        patterns: &mut Patterns,
    ) {
        self.start(columns);
        self.rows.clear();
        self.recorded.clear();
        self.recorded.reserve(hypothesis.len() * band.words().min(self.row.len()));
        for (row, token) in hypothesis.iter().enumerate() {
            self.move_to(row..row + 1, band);
            let (mut carry_plus, mut carry_minus) = (1, 0);
            let matches = patterns.of(*token, self.first..self.last + 1);
            self.rows.push(RecordedRow { first: self.first, start: self.recorded.len() });
            let words = self.row[self.first..=self.last].iter_mut().zip(matches);
            self.recorded.extend(words.map(|(word, matches)| {
                *word = word.advance(*matches, &mut carry_plus, &mut carry_minus);
                *word
            }));
        }
    }

    /// Computes the last row for `hypothesis`: `columns + 1` distances, `usize::MAX` outside the
    /// band.
    pub(super) fn last_row(
        &mut self,
        columns: usize,
        hypothesis: &[u32],
        band: Band,
        patterns: &mut Patterns,
    ) -> Vec<usize> {
        self.start(columns);
        let mut row = 0;
        for tokens in hypothesis.chunks(2) {
            self.move_to(row..row + tokens.len(), band);
            row += tokens.len();
            let words = self.first..self.last + 1;
            match tokens {
                [upper, lower] => {
                    let [above, below] = patterns.of_two([*upper, *lower], words.clone());
                    advance_two(&mut self.row[words], above, below);
                }
                single => single.iter().for_each(|token| {
                    advance_one(&mut self.row[words.clone()], patterns.of(*token, words.clone()));
                }),
            }
        }
        self.distances(columns)
    }

    fn start(&mut self, columns: usize) {
        self.row.clear();
        self.row.resize(columns.div_ceil(WORD), Differences::RISING);
        (self.first, self.last, self.before) = (0, 0, 0);
    }

    /// Moves to the words that the band covers in `rows`, the next rows. `before` becomes the
    /// distance before these words in the last of `rows`.
    fn move_to(&mut self, rows: Range<usize>, band: Band) {
        let end = self.row.len() - 1;
        let first = (rows.start.saturating_sub(band.below) / WORD).min(end);
        self.last = ((rows.end - 1).saturating_add(band.above) / WORD).min(end);
        for Differences { plus, minus } in &self.row[self.first..first] {
            self.before = self.before + plus.count_ones() as usize - minus.count_ones() as usize;
        }
        self.first = first;
        self.before += rows.len();
    }

    /// The distances of the current row.
    fn distances(&self, columns: usize) -> Vec<usize> {
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

    /// Whether the recorded difference of a column (from 0) in a row is 1, and whether it is -1.
    fn difference_signs(&self, row: usize, column: usize) -> (bool, bool) {
        let RecordedRow { first, start } = self.rows[row];
        let end = self.rows.get(row + 1).map_or(self.recorded.len(), |next| next.start);
        // A cell outside the band is larger than the previous cell of the traceback.
        let word = (column / WORD).checked_sub(first).filter(|word| start + word < end);
        let Some(word) = word else { return (false, false) };
        let Differences { plus, minus } = self.recorded[start + word];
        let bit = column % WORD;
        (plus >> bit & 1 == 1, minus >> bit & 1 == 1)
    }

    /// Appends the edits of the recorded matrix, traced from the last cell. The order of preference
    /// is: a deletion; an insertion, if the cell above is less than its left neighbour; a hit or a
    /// substitution.
    pub(super) fn trace_back(&self, reference: &[u32], hypothesis: &[u32], edits: &mut Vec<Edit>) {
        let start = edits.len();
        let (mut row, mut column) = (hypothesis.len(), reference.len());
        while row > 0 && column > 0 {
            if self.difference_signs(row - 1, column - 1).0 {
                column -= 1;
                edits.push(Edit::Deletion);
                continue;
            }
            row -= 1;
            if row > 0 && self.difference_signs(row - 1, column - 1).1 {
                edits.push(Edit::Insertion);
                continue;
            }
            column -= 1;
            let is_hit = reference[column] == hypothesis[row];
            edits.push(if is_hit { Edit::Hit } else { Edit::Substitution });
        }
        edits.extend(std::iter::repeat_n(Edit::Deletion, column));
        edits.extend(std::iter::repeat_n(Edit::Insertion, row));
        edits[start..].reverse();
    }
}
