//! Sets of characters, and patterns. Patterns are combined with `+` (one after the other), `|`
//! (either) and repetition.

use std::ops::{Add, BitOr};

/// A set of UTF-16 code units, as sorted ranges that do not touch or overlap.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct CharacterSet(Vec<(u16, u16)>);

impl CharacterSet {
    /// The union of `ranges`. Both ends of a range are included.
    pub(super) fn of_ranges(ranges: &[(u16, u16)]) -> Self {
        let mut sorted = ranges.to_vec();
        sorted.sort_unstable();
        let mut merged: Vec<(u16, u16)> = Vec::with_capacity(sorted.len());
        for (low, high) in sorted {
            match merged.last_mut() {
                Some(last) if u32::from(low) <= u32::from(last.1) + 1 => last.1 = last.1.max(high),
                _ => merged.push((low, high)),
            }
        }
        Self(merged)
    }

    /// The set of the characters in `characters`. `a-z` is a range; a leading hyphen is a hyphen.
    ///
    /// Characters outside the Basic Multilingual Plane are not supported; no rule needs them.
    pub(super) fn of(characters: &str) -> Self {
        let units: Vec<u16> = characters.encode_utf16().collect();
        let mut ranges = Vec::new();
        let mut remaining = units.as_slice();
        while let Some((&low, after)) = remaining.split_first() {
            if let [hyphen, high, after_range @ ..] = after
                && *hyphen == u16::from(b'-')
            {
                ranges.push((low, *high));
                remaining = after_range;
            } else {
                ranges.push((low, low));
                remaining = after;
            }
        }
        Self::of_ranges(&ranges)
    }

    /// All units outside the set.
    pub(super) fn complement(&self) -> Self {
        let mut ranges = Vec::with_capacity(self.0.len() + 1);
        let mut next = 0_u32;
        for &(low, high) in &self.0 {
            if u32::from(low) > next {
                ranges.push((next as u16, low - 1));
            }
            next = u32::from(high) + 1;
        }
        if next <= u32::from(u16::MAX) {
            ranges.push((next as u16, u16::MAX));
        }
        Self(ranges)
    }

    pub(super) fn union(&self, other: &Self) -> Self {
        Self::of_ranges(&[self.0.as_slice(), other.0.as_slice()].concat())
    }

    pub(super) fn ranges(&self) -> &[(u16, u16)] {
        &self.0
    }
}

/// A regular expression as a tree.
#[derive(Debug, Clone)]
pub(super) enum Pattern {
    /// One unit of the set.
    One(CharacterSet),
    /// All parts in order; without parts, the empty text.
    Sequence(Vec<Pattern>),
    /// One of the parts.
    Choice(Vec<Pattern>),
    /// The part, zero or more times.
    Repeated(Box<Pattern>),
}

impl Pattern {
    /// The pattern, zero times or once.
    pub(super) fn optional(self) -> Self {
        Self::Choice(vec![self, Self::Sequence(Vec::new())])
    }

    /// The pattern, zero or more times.
    pub(super) fn any_number(self) -> Self {
        Self::Repeated(Box::new(self))
    }

    /// The pattern, one or more times.
    pub(super) fn at_least_once(self) -> Self {
        Self::Sequence(vec![self.clone(), self.any_number()])
    }

    /// At least `min` times and at most `max` times.
    pub(super) fn times(self, min: usize, max: usize) -> Self {
        let mut parts = vec![self.clone(); min];
        parts.extend((min..max).map(|_| self.clone().optional()));
        Self::Sequence(parts)
    }

    /// Number of units in a match if all matches have the same number; otherwise `None`.
    pub(super) fn fixed_length(&self) -> Option<usize> {
        match self {
            Self::One(_) => Some(1),
            Self::Sequence(parts) => parts.iter().map(Self::fixed_length).sum(),
            Self::Choice(parts) => {
                let first = parts.first().and_then(Self::fixed_length)?;
                parts.iter().all(|part| part.fixed_length() == Some(first)).then_some(first)
            }
            Self::Repeated(_) => None,
        }
    }

    /// The pattern that matches the reversed text.
    pub(super) fn reversed(&self) -> Self {
        match self {
            Self::One(set) => Self::One(set.clone()),
            Self::Sequence(parts) => {
                Self::Sequence(parts.iter().rev().map(Self::reversed).collect())
            }
            Self::Choice(parts) => Self::Choice(parts.iter().map(Self::reversed).collect()),
            Self::Repeated(part) => Self::Repeated(Box::new(part.reversed())),
        }
    }
}

impl Add for Pattern {
    type Output = Self;

    fn add(self, next: Self) -> Self {
        Self::Sequence(vec![self, next])
    }
}

impl BitOr for Pattern {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self::Choice(vec![self, other])
    }
}

/// One of `characters`, case-sensitive; `a-z` is a range.
pub(super) fn any_of(characters: &str) -> Pattern {
    Pattern::One(CharacterSet::of(characters))
}

/// One character that is not in `characters`.
pub(super) fn none_of(characters: &str) -> Pattern {
    Pattern::One(CharacterSet::of(characters).complement())
}

/// `text`, ignoring case.
pub(super) fn text(text: &str) -> Pattern {
    Pattern::Sequence(text.chars().map(|c| Pattern::One(either_case(c))).collect())
}

/// `word`, ignoring case except for the first letter.
pub(super) fn capitalised(word: &str) -> Pattern {
    let split = word.chars().next().map_or(0, char::len_utf8);
    let (first, after_first) = word.split_at(split);
    any_of(first) + text(after_first)
}

/// One of the words in `words`, separated by spaces; ignores case.
pub(super) fn words(words: &str) -> Pattern {
    Pattern::Choice(words.split_whitespace().map(text).collect())
}

/// One of the words in `words`, separated by spaces; ignores case except for the first letters.
pub(super) fn capitalised_words(words: &str) -> Pattern {
    Pattern::Choice(words.split_whitespace().map(capitalised).collect())
}

/// The character in upper and lower case, and other characters that Unicode folds to it.
fn either_case(character: char) -> CharacterSet {
    let folded = match character.to_ascii_lowercase() {
        'i' => "\u{130}\u{131}",
        'k' => "\u{212A}",
        's' => "\u{17F}",
        _ => "",
    };
    // A set of single characters: a hyphen is not a range.
    let units = [character.to_ascii_lowercase(), character.to_ascii_uppercase()];
    let ranges: Vec<(u16, u16)> = units
        .into_iter()
        .chain(folded.chars())
        .map(|character| (character as u32 as u16, character as u32 as u16))
        .collect();
    CharacterSet::of_ranges(&ranges)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_merge_their_ranges_and_have_complements() {
        let set = CharacterSet::of("-a-cx");
        let units = |text: &str| text.encode_utf16().collect::<Vec<_>>();
        let (hyphen, a, c, x) = (units("-")[0], units("a")[0], units("c")[0], units("x")[0]);
        assert_eq!(set.ranges(), [(hyphen, hyphen), (a, c), (x, x)]);
        assert_eq!(set.complement().complement(), set);
        assert_eq!(CharacterSet::of("\0-\u{FFFF}").complement().ranges(), []);
        assert_eq!(CharacterSet::of("a-c").union(&CharacterSet::of("d")).ranges().len(), 1);
    }

    #[test]
    fn a_length_is_fixed_if_all_matches_have_it() {
        assert_eq!((text("ab") | (any_of("x") + any_of("y"))).fixed_length(), Some(2));
        assert_eq!((text("ab") | any_of("x")).fixed_length(), None);
        assert_eq!(text("a").times(1, 2).fixed_length(), None);
        assert_eq!(text("a").times(3, 3).fixed_length(), Some(3));
    }
}
