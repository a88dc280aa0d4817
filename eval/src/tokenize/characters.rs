//! The character classes in the rules of the Penn Treebank tokenizer for captions.

use super::letters::{LETTER_MARKS, LETTERS};
use super::pattern::{CharacterSet, Pattern, any_of, text, words};

/// The digit zero of every set of decimal digits in the Basic Multilingual Plane (Unicode 6.1),
/// except ASCII.
const ZEROS: [u16; 34] = [
    0x0660, 0x06F0, 0x07C0, 0x0966, 0x09E6, 0x0A66, 0x0AE6, 0x0B66, 0x0BE6, 0x0C66, 0x0CE6, 0x0D66,
    0x0E50, 0x0ED0, 0x0F20, 0x1040, 0x1090, 0x17E0, 0x1810, 0x1946, 0x19D0, 0x1A80, 0x1A90, 0x1B50,
    0x1BB0, 0x1C40, 0x1C50, 0xA620, 0xA8D0, 0xA900, 0xA9D0, 0xAA50, 0xABF0, 0xFF10,
];

/// Capital Roman numerals and circled capitals: not letters, but upper case.
const CAPITAL_SYMBOLS: [(u16, u16); 2] = [(0x2160, 0x216F), (0x24B6, 0x24CF)];

/// Spaces, as a character class: `a-z` is a range.
pub(super) const SPACES: &str = " \t\u{A0}\u{2000}-\u{200A}\u{3000}";
/// Characters that end a line, as a character class.
pub(super) const NEWLINES: &str = "\r\n\u{2028}\u{2029}\u{B}\u{C}\u{85}";

fn letter_set() -> CharacterSet {
    CharacterSet::of_ranges(&LETTERS)
}

fn digit_set() -> CharacterSet {
    let mut ranges: Vec<(u16, u16)> = ZEROS.iter().map(|&zero| (zero, zero + 9)).collect();
    ranges.push((0x30, 0x39));
    CharacterSet::of_ranges(&ranges)
}

/// A letter of any script.
pub(super) fn letter() -> Pattern {
    Pattern::One(letter_set())
}

/// A decimal digit of any script.
pub(super) fn digit() -> Pattern {
    Pattern::One(digit_set())
}

/// A letter or a digit.
pub(super) fn alphanumeric() -> Pattern {
    Pattern::One(letter_set().union(&digit_set()))
}

/// A character of a word: letters, their marks, soft hyphens, and vowels written as `&eacute;`.
pub(super) fn word_letter() -> Pattern {
    let marks = CharacterSet::of_ranges(&LETTER_MARKS).union(&CharacterSet::of("\u{AD}"));
    let vowel = text("&") + any_of("aeiouAEIOU") + words("acute grave uml") + text(";");
    Pattern::One(letter_set().union(&marks)) | vowel
}

/// A capital letter or a capital symbol.
pub(super) fn upper_case() -> Pattern {
    // In Unicode 6.1, Cherokee letters have no case.
    let has_case = |unit: u16| !(0x13A0..=0x13F5).contains(&unit);
    let capital = |unit: &u16| {
        has_case(*unit) && char::from_u32(u32::from(*unit)).is_some_and(char::is_uppercase)
    };
    let capitals = LETTERS.iter().flat_map(|&(low, high)| (low..=high).filter(capital));
    let mut ranges: Vec<(u16, u16)> = capitals.map(|unit| (unit, unit)).collect();
    ranges.extend(CAPITAL_SYMBOLS);
    Pattern::One(CharacterSet::of_ranges(&ranges))
}

/// A space, but not a line end.
pub(super) fn space() -> Pattern {
    any_of(SPACES)
}

/// A line end; `\r\n` is one line end.
pub(super) fn newline() -> Pattern {
    any_of(NEWLINES) | text("\r\n")
}

/// A space or a line end.
pub(super) fn space_or_newline() -> Pattern {
    space() | newline()
}

/// The typewriter apostrophe, the typographic apostrophe, and the entity.
pub(super) fn apostrophe() -> Pattern {
    any_of("'\u{92}\u{2019}") | text("&apos;")
}

/// An apostrophe or a similar quote inside a word.
pub(super) fn inner_apostrophe() -> Pattern {
    apostrophe() | any_of("`\u{91}\u{2018}\u{201B}")
}
