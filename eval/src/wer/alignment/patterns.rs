//! Where each token stands in the reference, as bits.

use std::ops::Range;

use super::matrix::WORD;

/// For each token the reference columns that hold it, as bits.
///
/// A token that stands in more than one column of 64 has its bits ready (there are at most 64 such tokens); those of
/// the others are set when they are asked for, so that memory stays linear.
#[derive(Debug, Default)]
pub(super) struct Patterns {
    /// Of each token: the end of its run in `columns`, or 0 where it does not occur.
    ends: Vec<u32>,
    /// Of each token: how often it occurs.
    counts: Vec<u32>,
    /// The columns, sorted by token.
    columns: Vec<u32>,
    /// Of each token: where its bits lie in `dense`, plus 1; 0 where they are not ready.
    places: Vec<u32>,
    dense: Vec<u64>,
    /// Of two rows at a time.
    sparse: [Sparse; 2],
}

/// The bits of the token that a row asked for last.
#[derive(Debug, Default)]
struct Sparse {
    bits: Vec<u64>,
    token: Option<u32>,
    /// The words of bits that it was asked for.
    words: Range<usize>,
    /// Which of the sorted columns are set.
    set: Range<usize>,
}

impl Patterns {
    /// How many different tokens there may be.
    pub(super) fn vocabulary(&self) -> usize {
        self.counts.len()
    }

    /// Makes room for tokens below `vocabulary`.
    pub(super) fn reserve(&mut self, vocabulary: usize) {
        if self.counts.len() < vocabulary {
            self.counts.resize(vocabulary, 0);
            self.ends.resize(vocabulary, 0);
            self.places.resize(vocabulary, 0);
        }
    }

    /// Takes a reference; the one before has been taken out by [`Patterns::clear`].
    pub(super) fn set(&mut self, reference: &[u32]) {
        let words = reference.len().div_ceil(WORD);
        self.dense.clear();
        for sparse in &mut self.sparse {
            sparse.bits.clear();
            sparse.bits.resize(words, 0);
            (sparse.token, sparse.set) = (None, 0..0);
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

    /// Takes the reference out again.
    pub(super) fn clear(&mut self, reference: &[u32]) {
        for token in reference {
            let token = *token as usize;
            (self.counts[token], self.ends[token], self.places[token]) = (0, 0, 0);
        }
    }

    /// Some words of the bits of two tokens.
    pub(super) fn of_two(&mut self, tokens: [u32; 2], words: Range<usize>) -> [&[u64]; 2] {
        self.look_up(tokens[0], &words, 0);
        self.look_up(tokens[1], &words, 1);
        [self.bits(tokens[0], words.clone(), 0), self.bits(tokens[1], words, 1)]
    }

    /// Some words of a token's bits.
    pub(super) fn of(&mut self, token: u32, words: Range<usize>) -> &[u64] {
        self.look_up(token, &words, 0);
        self.bits(token, words, 0)
    }

    /// What [`Patterns::look_up`] made ready.
    fn bits(&self, token: u32, words: Range<usize>, slot: usize) -> &[u64] {
        match self.places[token as usize] as usize {
            0 => &self.sparse[slot].bits[words],
            place => &self.dense[place - 1 + words.start..place - 1 + words.end],
        }
    }

    /// Sets the bits of a token that has none ready.
    fn look_up(&mut self, token: u32, words: &Range<usize>, slot: usize) {
        let Sparse { bits, token: last, words: last_words, set } = &mut self.sparse[slot];
        if self.places[token as usize] > 0 || (*last == Some(token) && last_words == words) {
            return;
        }
        for column in &self.columns[set.clone()] {
            bits[*column as usize / WORD] = 0;
        }
        let (end, count) = (self.ends[token as usize] as usize, self.counts[token as usize]);
        let run = end.saturating_sub(1 + count as usize)..end.saturating_sub(1);
        let columns = &self.columns[run.clone()];
        let before = |word: usize| columns.partition_point(|c| (*c as usize) < word * WORD);
        *set = run.start + before(words.start)..run.start + before(words.end);
        for column in &self.columns[set.clone()] {
            bits[*column as usize / WORD] |= 1 << (*column as usize % WORD);
        }
        (*last, *last_words) = (Some(token), words.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_those_of_the_columns_in_the_words_asked_for() {
        // Tokens 0 and 1 in turns, then a few of 2; 3 does not occur.
        let reference: Vec<u32> =
            (0..300u32).map(|c| if c % 97 == 5 { 2 } else { c % 2 }).collect();
        let mut patterns = Patterns::default();
        patterns.reserve(4);
        patterns.set(&reference);
        for token in [0, 2, 2, 1, 3, 2] {
            for words in [0..5, 1..3, 4..5, 0..1] {
                let mut wanted = [0u64; 5];
                for (column, _) in reference.iter().enumerate().filter(|(_, t)| **t == token) {
                    wanted[column / WORD] |= 1 << (column % WORD);
                }
                assert_eq!(patterns.of(token, words.clone()), &wanted[words.clone()], "{token}");
                let two = patterns.of_two([3 - token, token], words.clone());
                assert_eq!(two[1], &wanted[words], "{token}");
            }
        }
        patterns.clear(&reference);
        patterns.set(&[3]);
        assert_eq!(patterns.of(3, 0..1), [1]);
        assert_eq!(patterns.of(0, 0..1), [0]);
        assert_eq!(patterns.vocabulary(), 4);
    }
}
