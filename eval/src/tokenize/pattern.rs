//! Patterns, combined with `+` (one after the other), `|` (either) and repetition.

use std::ops::{Add, BitOr};

use regex_syntax::hir::{Class, ClassUnicode, ClassUnicodeRange, Hir, Repetition};

/// A regular expression.
#[derive(Debug, Clone)]
pub(super) struct Pattern(pub(super) Hir);

/// A range of characters, both ends included.
pub(super) type Range = (char, char);

impl Pattern {
    /// One character of the ranges.
    pub(super) fn one_of(ranges: impl IntoIterator<Item = Range>) -> Self {
        Self::of_class(class(ranges))
    }

    fn of_class(class: ClassUnicode) -> Self {
        Self(Hir::class(Class::Unicode(class)))
    }

    /// The pattern, zero times or once.
    pub(super) fn optional(self) -> Self {
        self.repeated(0, Some(1))
    }

    /// The pattern, zero or more times.
    pub(super) fn any_number(self) -> Self {
        self.repeated(0, None)
    }

    /// The pattern, one or more times.
    pub(super) fn at_least_once(self) -> Self {
        self.repeated(1, None)
    }

    /// At least `min` times and at most `max` times.
    pub(super) fn times(self, min: u32, max: u32) -> Self {
        self.repeated(min, Some(max))
    }

    fn repeated(self, min: u32, max: Option<u32>) -> Self {
        let sub = Box::new(self.0);
        Self(Hir::repetition(Repetition { min, max, greedy: true, sub }))
    }
}

impl Add for Pattern {
    type Output = Self;

    fn add(self, next: Self) -> Self {
        Self(Hir::concat(vec![self.0, next.0]))
    }
}

impl BitOr for Pattern {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(Hir::alternation(vec![self.0, other.0]))
    }
}

fn class(ranges: impl IntoIterator<Item = Range>) -> ClassUnicode {
    let ranges = ranges.into_iter().map(|(low, high)| ClassUnicodeRange::new(low, high));
    ClassUnicode::new(ranges)
}

/// The ranges of `characters`. `a-z` is a range; a leading hyphen is a hyphen.
pub(super) fn ranges(characters: &str) -> Vec<Range> {
    let (mut ranges, mut remaining) = (Vec::new(), characters.chars());
    while let Some(low) = remaining.next() {
        let mut ahead = remaining.clone();
        match (ahead.next(), ahead.next()) {
            (Some('-'), Some(high)) => {
                ranges.push((low, high));
                remaining = ahead;
            }
            _ => ranges.push((low, low)),
        }
    }
    ranges
}

/// One of `characters`, case-sensitive; `a-z` is a range.
pub(super) fn any_of(characters: &str) -> Pattern {
    Pattern::one_of(ranges(characters))
}

/// One character that is not in `characters`.
pub(super) fn none_of(characters: &str) -> Pattern {
    let mut class = class(ranges(characters));
    class.negate();
    Pattern::of_class(class)
}

/// `text`, ignoring case.
pub(super) fn text(text: &str) -> Pattern {
    Pattern(Hir::concat(text.chars().map(|character| either_case(character).0).collect()))
}

/// `word`, ignoring case except for the first letter.
fn capitalised(word: &str) -> Pattern {
    let (first, after_first) = word.split_at(word.chars().next().map_or(0, char::len_utf8));
    any_of(first) + text(after_first)
}

/// One of the words in `words`, separated by spaces; ignores case.
pub(super) fn words(words: &str) -> Pattern {
    Pattern(Hir::alternation(words.split_whitespace().map(|word| text(word).0).collect()))
}

/// One of the words in `words`, separated by spaces; ignores case except for the first letters.
pub(super) fn capitalised_words(words: &str) -> Pattern {
    Pattern(Hir::alternation(words.split_whitespace().map(|word| capitalised(word).0).collect()))
}

/// The character in upper and lower case, and other characters that Unicode folds to it.
fn either_case(character: char) -> Pattern {
    let folded = match character.to_ascii_lowercase() {
        'i' => "\u{130}\u{131}",
        'k' => "\u{212A}",
        's' => "\u{17F}",
        _ => "",
    };
    let cases = [character.to_ascii_lowercase(), character.to_ascii_uppercase()];
    Pattern::one_of(cases.into_iter().chain(folded.chars()).map(|case| (case, case)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_leading_hyphen_is_no_range() {
        assert_eq!(ranges("-a-cx-"), [('-', '-'), ('a', 'c'), ('x', 'x'), ('-', '-')]);
    }
}
