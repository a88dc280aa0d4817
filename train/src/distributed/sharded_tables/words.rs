//! Messages of 32-bit words: numbers of rows, and the bits of values.

/// The words as bytes.
pub(super) fn to_bytes(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// The words in the bytes of [`to_bytes`]; `None` if the last one is not whole.
pub(super) fn from_bytes(bytes: &[u8]) -> Option<Vec<u32>> {
    let (words, rest) = bytes.as_chunks::<4>();
    rest.is_empty().then(|| words.iter().map(|word| u32::from_le_bytes(*word)).collect())
}

/// The words of a message that are not yet read.
pub(super) struct Reader<'a>(pub(super) &'a [u32]);

impl<'a> Reader<'a> {
    /// The next word as a number.
    pub(super) fn number(&mut self) -> Option<usize> {
        Some(*self.0.split_off_first()? as usize)
    }

    /// The next `count` words.
    pub(super) fn take(&mut self, count: usize) -> Option<&'a [u32]> {
        self.0.split_off(..count)
    }

    /// The next `rows` rows of `width` words.
    pub(super) fn rows(&mut self, rows: usize, width: usize) -> Option<&'a [u32]> {
        self.take(rows.checked_mul(width)?)
    }
}
