//! A hash table of fixed words, looked up once per word of a text.

/// A map from words to values; immutable after construction.
pub(super) struct WordTable<V> {
    entries: Vec<(&'static str, V)>,
    /// Index of an entry plus one, or 0 for an empty slot. The length is a power of two, and at
    /// most half of the slots are used.
    slots: Vec<u16>,
}

impl<V: Copy> WordTable<V> {
    /// Builds a table of at most 32,767 words; the first entry of a duplicate word counts.
    pub(super) fn new(entries: Vec<(&'static str, V)>) -> Self {
        let mut slots = vec![0; (entries.len() * 2).next_power_of_two()];
        for (number, (word, _)) in (1..=u16::MAX / 2).zip(&entries) {
            let mut slot = first_slot(word, slots.len());
            while slots[slot] != 0 {
                slot = (slot + 1) % slots.len();
            }
            slots[slot] = number;
        }
        Self { entries, slots }
    }

    /// The value of a word; `None` if it is not in the table.
    pub(super) fn get(&self, word: &str) -> Option<V> {
        let mut slot = first_slot(word, self.slots.len());
        loop {
            let number = usize::from(*self.slots.get(slot)?);
            let (entry_word, value) = *self.entries.get(number.checked_sub(1)?)?;
            if entry_word == word {
                return Some(value);
            }
            slot = (slot + 1) % self.slots.len();
        }
    }
}

/// The first slot to probe: a hash of the length and both ends of the word. Different words with
/// the same hash are in the slots that follow.
fn first_slot(word: &str, slots: usize) -> usize {
    let bytes = word.as_bytes();
    let (first, last) = match (bytes.first_chunk::<8>(), bytes.last_chunk::<8>()) {
        (Some(&first), Some(&last)) => (u64::from_le_bytes(first), u64::from_le_bytes(last)),
        _ => match (bytes.first_chunk::<4>(), bytes.last_chunk::<4>()) {
            (Some(&first), Some(&last)) => {
                (u32::from_le_bytes(first).into(), u32::from_le_bytes(last).into())
            }
            _ => (bytes.iter().fold(0, |key, &byte| key << 8 | u64::from(byte)), 0),
        },
    };
    let mixed =
        (first ^ last.rotate_left(29) ^ bytes.len() as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    // The high half of the product depends on all bits.
    (mixed >> 32) as usize & (slots - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_is_found_and_no_other() {
        let words = ["", "a", "at", "the", "four", "seven", "nineteen", "quintillionths"];
        let table = WordTable::new(words.into_iter().zip(0..).collect());
        for (word, value) in words.into_iter().zip(0..) {
            assert_eq!(table.get(word), Some(value), "{word}");
        }
        assert_eq!(table.get("b"), None);
        assert_eq!(table.get("quintillionthss"), None);
        assert_eq!(WordTable::<u8>::new(Vec::new()).get("a"), None);
    }
}
