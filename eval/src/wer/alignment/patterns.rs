//! The positions of each token in the reference, as bits.

use std::ops::Range;

use super::matrix::WORD;

/// For each token, the reference columns that contain it, as bits.
///
/// The bits of frequent tokens, which occur at least once per 64 columns on average, are
/// precomputed; there are at most 64 such tokens. The bits of other tokens are computed on demand,
/// so memory is linear in the length of the reference.
#[derive(Debug, Default)]
pub(super) struct Patterns {
    /// For each token: the end of its run in `columns`, or 0 if it does not occur.
    ends: Vec<u32>,
    /// For each token: its number of occurrences.
    counts: Vec<u32>,
    /// The columns, sorted by token.
    columns: Vec<u32>,
    /// For each token: the start of its bits in `dense`, plus 1; 0 if they are not precomputed.
    dense_starts: Vec<u32>,
    dense: Vec<u64>,
    /// Bits computed on demand, for two rows at a time.
    sparse: [Sparse; 2],
}

/// The bits of the token that was last requested for a row.
#[derive(Debug, Default)]
struct Sparse {
    bits: Vec<u64>,
    token: Option<u32>,
    /// The requested range of words.
    words: Range<usize>,
    /// The range of [`Patterns::columns`] whose bits are set.
    set_columns: Range<usize>,
}

impl Patterns {
    /// Number of different tokens that fit.
    pub(super) fn vocabulary(&self) -> usize {
        self.counts.len()
    }

    /// Allocates memory for tokens below `vocabulary`.
    pub(super) fn reserve(&mut self, vocabulary: usize) {
        if self.counts.len() < vocabulary {
            self.counts.resize(vocabulary, 0);
            self.ends.resize(vocabulary, 0);
            self.dense_starts.resize(vocabulary, 0);
        }
    }

    /// Sets a reference. The previous reference must have been removed by [`Patterns::clear`].
    pub(super) fn set(&mut self, reference: &[u32]) {
        let words = reference.len().div_ceil(WORD);
        self.dense.clear();
        for sparse in &mut self.sparse {
            sparse.bits.clear();
            sparse.bits.resize(words, 0);
            (sparse.token, sparse.set_columns) = (None, 0..0);
        }
        for token in reference {
            self.counts[*token as usize] += 1;
        }
        self.columns.clear();
        self.columns.resize(reference.len(), 0);
        let mut end = 0;
        for (column, token) in reference.iter().enumerate() {
            let token = *token as usize;
            if self.ends[token] == 0 {
                // First occurrence: reserve space for all columns of the token, filled from the
                // front.
                self.ends[token] = end + 1;
                end += self.counts[token];
                if self.counts[token] as usize >= words {
                    self.dense_starts[token] = self.dense.len() as u32 + 1;
                    self.dense.resize(self.dense.len() + words, 0);
                }
            }
            match self.dense_starts[token] {
                0 => {
                    self.columns[self.ends[token] as usize - 1] = column as u32;
                    self.ends[token] += 1;
                }
                dense_start => {
                    self.dense[dense_start as usize - 1 + column / WORD] |= 1 << (column % WORD);
                }
            }
        }
    }

    /// Removes the reference.
    pub(super) fn clear(&mut self, reference: &[u32]) {
        for token in reference {
            let token = *token as usize;
            (self.counts[token], self.ends[token], self.dense_starts[token]) = (0, 0, 0);
        }
    }

    /// The bit words of two tokens in the range `words`.
    pub(super) fn of_two(&mut self, tokens: [u32; 2], words: Range<usize>) -> [&[u64]; 2] {
        self.compute_sparse_bits(tokens[0], &words, 0);
        self.compute_sparse_bits(tokens[1], &words, 1);
        [self.bits(tokens[0], words.clone(), 0), self.bits(tokens[1], words, 1)]
    }

    /// The bit words of a token in the range `words`.
    pub(super) fn of(&mut self, token: u32, words: Range<usize>) -> &[u64] {
        self.compute_sparse_bits(token, &words, 0);
        self.bits(token, words, 0)
    }

    /// The bits that [`Patterns::compute_sparse_bits`] prepared.
    fn bits(&self, token: u32, words: Range<usize>, slot: usize) -> &[u64] {
        match self.dense_starts[token as usize] as usize {
            0 => &self.sparse[slot].bits[words],
            dense_start => &self.dense[dense_start - 1 + words.start..dense_start - 1 + words.end],
        }
    }

    /// Computes the bits of a token without precomputed bits.
    fn compute_sparse_bits(&mut self, token: u32, words: &Range<usize>, slot: usize) {
        let Sparse { bits, token: last_token, words: last_words, set_columns } =
            &mut self.sparse[slot];
        if self.dense_starts[token as usize] > 0
            || (*last_token == Some(token) && last_words == words)
        {
            return;
        }
        for column in &self.columns[set_columns.clone()] {
            bits[*column as usize / WORD] = 0;
        }
        let (end, count) = (self.ends[token as usize] as usize, self.counts[token as usize]);
        let run = end.saturating_sub(1 + count as usize)..end.saturating_sub(1);
        let columns = &self.columns[run.clone()];
        let columns_before = |word: usize| columns.partition_point(|c| (*c as usize) < word * WORD);
        *set_columns =
            run.start + columns_before(words.start)..run.start + columns_before(words.end);
        for column in &self.columns[set_columns.clone()] {
            bits[*column as usize / WORD] |= 1 << (*column as usize % WORD);
        }
        (*last_token, *last_words) = (Some(token), words.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_mark_the_columns_of_the_requested_words() {
        // Tokens 0 and 1 alternate, then a few of token 2; token 3 does not occur.
        let reference: Vec<u32> =
            (0..300u32).map(|c| if c % 97 == 5 { 2 } else { c % 2 }).collect();
        let mut patterns = Patterns::default();
        patterns.reserve(4);
        patterns.set(&reference);
        for token in [0, 2, 2, 1, 3, 2] {
            for words in [0..5, 1..3, 4..5, 0..1] {
                let mut expected = [0u64; 5];
                for (column, _) in reference.iter().enumerate().filter(|(_, t)| **t == token) {
                    expected[column / WORD] |= 1 << (column % WORD);
                }
                assert_eq!(patterns.of(token, words.clone()), &expected[words.clone()], "{token}");
                let both = patterns.of_two([3 - token, token], words.clone());
                assert_eq!(both[1], &expected[words], "{token}");
            }
        }
        patterns.clear(&reference);
        patterns.set(&[3]);
        assert_eq!(patterns.of(3, 0..1), [1]);
        assert_eq!(patterns.of(0, 0..1), [0]);
        assert_eq!(patterns.vocabulary(), 4);
    }
}
