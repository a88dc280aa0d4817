//! Splits texts into words or characters, as jiwer's default transforms do, and maps them to
//! integers.

use std::collections::HashMap;

use foldhash::fast::RandomState;

use crate::normalise::characters::{is_space, strip};

/// The kind of token.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum TokenUnit {
    /// Words, separated by U+0020 or by two or more white-space characters of any kind. As in
    /// jiwer, a single tab or no-break space does not separate words.
    #[default]
    Word,
    /// Code points, including white space inside the text.
    Char,
}

impl TokenUnit {
    /// The unit in the plural.
    pub(crate) fn plural(self) -> &'static str {
        match self {
            Self::Word => "words",
            Self::Char => "characters",
        }
    }

    /// The name of the error rate.
    pub(crate) fn error_rate(self) -> &'static str {
        match self {
            Self::Word => "Word error rate",
            Self::Char => "Character error rate",
        }
    }
}

/// The words of a text.
pub fn words(text: &str) -> impl Iterator<Item = &str> {
    let mut remaining = strip(text);
    std::iter::from_fn(move || {
        if remaining.is_empty() {
            return None;
        }
        let (end, next) = first_gap(remaining);
        let word = &remaining[..end];
        remaining = &remaining[next..];
        Some(word)
    })
}

/// The start and the end of the first gap between words. `text` must not end in white space.
fn first_gap(text: &str) -> (usize, usize) {
    let bytes = text.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        // Most texts contain only letters and U+0020.
        if bytes[at] > b' ' && bytes[at] < 0x80 {
            at += 1;
            continue;
        }
        if bytes[at] == b' ' && bytes.get(at + 1).is_some_and(|next| (b'!'..0x7f).contains(next)) {
            return (at, at + 1);
        }
        let run = &text[at..];
        let mut end = 0;
        let mut count = 0;
        for character in run.chars().take_while(|character| is_space(*character)) {
            end += character.len_utf8();
            count += 1;
        }
        if count > 1 || bytes[at] == b' ' {
            return (at, at + end);
        }
        at += run.chars().next().map_or(1, char::len_utf8);
    }
    (text.len(), text.len())
}

/// The words or characters of a text.
pub(super) fn tokens(text: &str, unit: TokenUnit) -> Vec<&str> {
    match unit {
        TokenUnit::Word => words(text).collect(),
        TokenUnit::Char => {
            let text = strip(text);
            text.char_indices().map(|(at, c)| &text[at..at + c.len_utf8()]).collect()
        }
    }
}

/// Maps words and characters to integers; equal tokens get equal integers until
/// [`Vocabulary::clear`].
#[derive(Debug, Default)]
pub struct Vocabulary<'a> {
    words: HashMap<&'a str, u32, RandomState>,
    chars: HashMap<char, u32, RandomState>,
}

/// Integers below this number stand for ASCII characters, with the same code.
const ASCII_COUNT: u32 = 128;

/// A table with more capacity is not reused, because the time to clear it grows with its capacity.
const MAX_REUSED_CAPACITY: usize = 1024;

impl<'a> Vocabulary<'a> {
    /// Removes all mappings.
    pub fn clear(&mut self) {
        if self.words.capacity() > MAX_REUSED_CAPACITY {
            self.words = HashMap::default();
        }
        if self.chars.capacity() > MAX_REUSED_CAPACITY {
            self.chars = HashMap::default();
        }
        self.words.clear();
        self.chars.clear();
    }

    /// Writes the integers of the tokens of a text to `integers`.
    pub fn encode(&mut self, text: &'a str, unit: TokenUnit, integers: &mut Vec<u32>) {
        integers.clear();
        match unit {
            TokenUnit::Word => integers.extend(words(text).map(|word| {
                let next = self.words.len() as u32;
                *self.words.entry(word).or_insert(next)
            })),
            TokenUnit::Char => integers.extend(strip(text).chars().map(|c| {
                if c.is_ascii() {
                    return c as u32;
                }
                let next = ASCII_COUNT + self.chars.len() as u32;
                *self.chars.entry(c).or_insert(next)
            })),
        }
    }

    /// Upper bound (exclusive) of all assigned integers.
    pub fn size(&self, unit: TokenUnit) -> usize {
        match unit {
            TokenUnit::Word => self.words.len(),
            TokenUnit::Char => ASCII_COUNT as usize + self.chars.len(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_split_as_by_jiwer() {
        for (text, expected) in [
            ("", vec![]),
            (" \t\n ", vec![]),
            ("a b", vec!["a", "b"]),
            ("a\tb", vec!["a\tb"]),
            ("a \tb\u{1c}\u{1d}c", vec!["a", "b", "c"]),
            ("\u{a0}a\u{a0}b\u{a0}\u{2003}c\u{85}", vec!["a\u{a0}b", "c"]),
            ("é ü\u{3000}ß x", vec!["é", "ü\u{3000}ß", "x"]),
            ("a\u{200b}b \u{7f} c", vec!["a\u{200b}b", "\u{7f}", "c"]),
        ] {
            assert_eq!(words(text).collect::<Vec<_>>(), expected, "{text:?}");
        }
    }

    #[test]
    fn equal_tokens_have_equal_integers() {
        let mut vocabulary = Vocabulary::default();
        let mut integers = Vec::new();
        vocabulary.encode("to be or not to be", TokenUnit::Word, &mut integers);
        assert_eq!(integers, [0, 1, 2, 3, 0, 1]);
        assert_eq!(vocabulary.size(TokenUnit::Word), 4);
        vocabulary.encode(" aé éa ", TokenUnit::Char, &mut integers);
        assert_eq!(integers, [97, 128, 32, 128, 97]);
        assert_eq!(vocabulary.size(TokenUnit::Char), 129);
        vocabulary.clear();
        vocabulary.encode("be", TokenUnit::Word, &mut integers);
        assert_eq!(integers, [0]);
    }
}
