//! The character classes in the rules of the Penn Treebank tokenizer for captions.

use super::pattern::{Pattern, Range, any_of, ranges, text, words};

/// The letters of the Basic Multilingual Plane (general category L), as a character class. The set
/// is from Unicode 6.1, as in the reference tokenizer. Newer letters count as non-letters.
const LETTERS: &str = include_str!("letters.txt");

/// Non-letters that may stand inside words: combining accents, vowel signs and similar marks, and
/// the soft hyphen.
const LETTER_MARKS: &str = include_str!("letter_marks.txt");

/// The digit zero of every set of decimal digits in the Basic Multilingual Plane (Unicode 6.1).
const ZEROS: &str = "0\u{660}\u{6F0}\u{7C0}\u{966}\u{9E6}\u{A66}\u{AE6}\u{B66}\u{BE6}\u{C66}\u{CE6}\
    \u{D66}\u{E50}\u{ED0}\u{F20}\u{1040}\u{1090}\u{17E0}\u{1810}\u{1946}\u{19D0}\u{1A80}\u{1A90}\
    \u{1B50}\u{1BB0}\u{1C40}\u{1C50}\u{A620}\u{A8D0}\u{A900}\u{A9D0}\u{AA50}\u{ABF0}\u{FF10}";

/// Capital Roman numerals and circled capitals: not letters, but upper case.
const CAPITAL_SYMBOLS: &str = "\u{2160}-\u{216F}\u{24B6}-\u{24CF}";

/// Spaces, as a character class: `a-z` is a range.
pub(super) const SPACES: &str = " \t\u{A0}\u{2000}-\u{200A}\u{3000}";
/// Characters that end a line, as a character class.
pub(super) const NEWLINES: &str = "\r\n\u{2028}\u{2029}\u{B}\u{C}\u{85}";

/// The ranges of a file with one range in hexadecimal digits per line: `0041-005A`.
fn ranges_of(lines: &str) -> Vec<Range> {
    let code = |hex: &str| u32::from_str_radix(hex, 16).ok().and_then(char::from_u32);
    let range = |line: &str| line.split_once('-').and_then(|(low, high)| code(low).zip(code(high)));
    lines.lines().filter_map(range).collect()
}

fn digit_ranges() -> Vec<Range> {
    let nine = |zero: char| char::from_u32(u32::from(zero) + 9).unwrap_or(zero);
    ZEROS.chars().map(|zero| (zero, nine(zero))).collect()
}

/// A letter of any script.
pub(super) fn letter() -> Pattern {
    Pattern::one_of(ranges_of(LETTERS))
}

/// A decimal digit of any script.
pub(super) fn digit() -> Pattern {
    Pattern::one_of(digit_ranges())
}

/// A letter or a digit.
pub(super) fn alphanumeric() -> Pattern {
    letter() | digit()
}

/// A character of a word: letters, their marks, soft hyphens, and vowels written as `&eacute;`.
pub(super) fn word_letter() -> Pattern {
    let vowel = text("&") + any_of("aeiouAEIOU") + words("acute grave uml") + text(";");
    letter() | Pattern::one_of(ranges_of(LETTER_MARKS)) | vowel
}

/// A capital letter or a capital symbol.
pub(super) fn upper_case() -> Pattern {
    // In Unicode 6.1, Cherokee letters have no case.
    let is_capital =
        |letter: &char| letter.is_uppercase() && !('\u{13A0}'..='\u{13F5}').contains(letter);
    let letters = ranges_of(LETTERS).into_iter().flat_map(|(low, high)| low..=high);
    let capitals = letters.filter(is_capital).map(|letter| (letter, letter));
    Pattern::one_of(capitals.chain(ranges(CAPITAL_SYMBOLS)))
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
