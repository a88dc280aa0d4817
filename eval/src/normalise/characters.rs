//! Python's character classes: `str.lower`, and `\s`, `\w`, `\d` of the `re` module.
//!
//! The reference tools run on Python 3.11, which has the tables of Unicode 14. The tables of Rust
//! and of the crates are newer. So a code point assigned after Unicode 14 counts as unassigned
//! here: it has no lower case and no decomposition, and is neither a word character nor a symbol
//! nor white space. Two older code points changed after Unicode 14: U+0295 and U+1171E. Next to a
//! capital sigma, they have their newer class, which can change the lower-case form of the sigma.

use std::borrow::Cow;

use unicode_general_category::{GeneralCategory, get_general_category};
use unicode_normalization::{IsNormalized, UnicodeNormalization, is_nfkc_quick};

/// First and last of each range of code points that Unicode 14 leaves unassigned and a later
/// version assigns.
#[rustfmt::skip]
const ASSIGNED_LATER: [(u32, u32); 65] = [
    (0x558, 0x558), (0x58B, 0x58C), (0x88F, 0x88F), (0x897, 0x897), (0xC5C, 0xC5C), (0xCDC, 0xCDC),
    (0xCF3, 0xCF3), (0xECE, 0xECE), (0x1ACF, 0x1AEB), (0x1B4E, 0x1B4F), (0x1B7F, 0x1B7F),
    (0x1C89, 0x1C8A), (0x209D, 0x209F), (0x2427, 0x2429), (0x2FFC, 0x2FFF), (0x31E4, 0x31EF),
    (0xA7CB, 0xA7CF), (0xA7D2, 0xA7D2), (0xA7D4, 0xA7D4), (0xA7DA, 0xA7F1), (0x105C0, 0x105F3),
    (0x107BB, 0x107BF), (0x10940, 0x10959), (0x10D40, 0x10D8F), (0x10EC2, 0x10EFF),
    (0x1123F, 0x11241), (0x11380, 0x113E2), (0x116D0, 0x116E3), (0x11B00, 0x11BF9),
    (0x11DB0, 0x11DE9), (0x11F00, 0x11F5A), (0x1342F, 0x1342F), (0x13439, 0x143FA),
    (0x16100, 0x16139), (0x16D40, 0x16D79), (0x16EA0, 0x16ED3), (0x16FF2, 0x16FF6),
    (0x187F8, 0x187FF), (0x18CFF, 0x18CFF), (0x18D09, 0x18DF2), (0x1B123, 0x1B132),
    (0x1B155, 0x1B155), (0x1CC00, 0x1CEB3), (0x1D2C0, 0x1D2D3), (0x1D6A6, 0x1D6A6),
    (0x1DF25, 0x1DFFF), (0x1E030, 0x1E08F), (0x1E4D0, 0x1E6FF), (0x1F6DC, 0x1F6DC),
    (0x1F774, 0x1F77F), (0x1F7D9, 0x1F7D9), (0x1F8B2, 0x1F8C1), (0x1FA75, 0x1FA77),
    (0x1FA87, 0x1FA8F), (0x1FAAD, 0x1FAAF), (0x1FABB, 0x1FABF), (0x1FAC6, 0x1FACF),
    (0x1FADA, 0x1FADF), (0x1FAE8, 0x1FAE9), (0x1FAF7, 0x1FAF8), (0x1FBCB, 0x1FBEF),
    (0x2B739, 0x2B73F), (0x2CEA2, 0x2CEAD), (0x2EBF0, 0x2EE5D), (0x31350, 0x33479),
];

/// The zeros of the decimal digits (category Nd) of Unicode 14 outside ASCII; the digits 1 to 9
/// follow each zero.
#[rustfmt::skip]
const ZEROS: [u32; 65] = [
    0x660, 0x6F0, 0x7C0, 0x966, 0x9E6, 0xA66, 0xAE6, 0xB66, 0xBE6, 0xC66, 0xCE6, 0xD66, 0xDE6,
    0xE50, 0xED0, 0xF20, 0x1040, 0x1090, 0x17E0, 0x1810, 0x1946, 0x19D0, 0x1A80, 0x1A90, 0x1B50,
    0x1BB0, 0x1C40, 0x1C50, 0xA620, 0xA8D0, 0xA900, 0xA9D0, 0xA9F0, 0xAA50, 0xABF0, 0xFF10, 0x104A0,
    0x10D30, 0x11066, 0x110F0, 0x11136, 0x111D0, 0x112F0, 0x11450, 0x114D0, 0x11650, 0x116C0,
    0x11730, 0x118E0, 0x11950, 0x11C50, 0x11D50, 0x11DA0, 0x16A60, 0x16AC0, 0x16B50, 0x1D7CE,
    0x1D7D8, 0x1D7E2, 0x1D7EC, 0x1D7F6, 0x1E140, 0x1E2F0, 0x1E950, 0x1FBF0,
];

/// Whether an ASCII character is white space in Python. Unlike Rust, it counts U+001C to U+001F.
pub(super) fn is_ascii_space(byte: u8) -> bool {
    matches!(byte, b'\t'..=b'\r' | 0x1C..=0x1F | b' ')
}

fn is_ascii_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

/// Whether each block of 256 code points contains a code point of [`ASSIGNED_LATER`], up to the
/// last such block.
static BLOCKS: [bool; (ASSIGNED_LATER[ASSIGNED_LATER.len() - 1].1 >> 8) as usize + 1] = {
    let mut blocks = [false; _];
    let mut index = 0;
    while index < ASSIGNED_LATER.len() {
        let (first, last) = ASSIGNED_LATER[index];
        let mut block = first >> 8;
        while block <= last >> 8 {
            blocks[block as usize] = true;
            block += 1;
        }
        index += 1;
    }
    blocks
};

/// Whether a character was assigned after Unicode 14.
pub(super) fn is_assigned_later(character: char) -> bool {
    let code = u32::from(character);
    if !BLOCKS.get((code >> 8) as usize).is_some_and(|&has_any| has_any) {
        return false;
    }
    let index = ASSIGNED_LATER.partition_point(|&(_, last)| last < code);
    ASSIGNED_LATER.get(index).is_some_and(|&(first, _)| first <= code)
}

/// The general category in Unicode 14, like `unicodedata.category`.
pub(super) fn category(character: char) -> GeneralCategory {
    match character {
        // A spacing mark since Unicode 15.
        '\u{1171E}' => GeneralCategory::NonspacingMark,
        _ if is_assigned_later(character) => GeneralCategory::Unassigned,
        _ => get_general_category(character),
    }
}

/// Whether a character matches `\s`, like `str.isspace`.
pub(crate) fn is_space(character: char) -> bool {
    match u8::try_from(character) {
        Ok(byte) if byte.is_ascii() => is_ascii_space(byte),
        _ => character.is_whitespace(),
    }
}

/// Whether a character matches `\w`: letters, all kinds of numbers and `_`, but no marks.
pub(crate) fn is_word(character: char) -> bool {
    match u8::try_from(character) {
        Ok(byte) if byte.is_ascii() => is_ascii_word(byte),
        // The first letter of a category is its class: letters and numbers.
        _ => category(character).abbreviation().starts_with(['L', 'N']),
    }
}

/// The value of a decimal digit of any script, like `\d` and `int`; `None` for other characters.
pub(crate) fn decimal_digit(character: char) -> Option<u8> {
    if character.is_ascii() {
        return character.is_ascii_digit().then(|| character as u8 - b'0');
    }
    let code = u32::from(character);
    let zero = ZEROS[..ZEROS.partition_point(|&zero| zero <= code)].last()?;
    u8::try_from(code - zero).ok().filter(|&value| value < 10)
}

/// The character that starts at byte `at`; `None` at the end.
pub(crate) fn character_at(text: &str, at: usize) -> Option<char> {
    text.get(at..)?.chars().next()
}

/// Whether a `\w` starts at byte `at`; false at the end.
pub(super) fn is_word_at(text: &str, at: usize) -> bool {
    match text.as_bytes().get(at) {
        None => false,
        Some(&byte) if byte.is_ascii() => is_ascii_word(byte),
        Some(_) => character_at(text, at).is_some_and(is_word),
    }
}

/// The end of the run of `\w`, or of other characters if `of_words` is false, that starts at byte
/// `start`; `start` itself if there is none.
pub(crate) fn run_end(text: &str, start: usize, of_words: bool) -> usize {
    let mut at = start;
    while let Some(&byte) = text.as_bytes().get(at)
        && is_word_at(text, at) == of_words
    {
        at += if byte.is_ascii() { 1 } else { character_at(text, at).map_or(1, char::len_utf8) };
    }
    at
}

/// The end of the white space that starts at byte `start`; `start` itself if there is none.
pub(super) fn space_end(text: &str, start: usize) -> usize {
    let mut at = start;
    while let Some(character) = character_at(text, at).filter(|&character| is_space(character)) {
        at += character.len_utf8();
    }
    at
}

/// Appends the text in lower case, like `str.lower`, with the full mappings and the final sigma.
pub(crate) fn lowercase_into(text: &str, out: &mut String) {
    let start = out.len();
    if text.is_ascii() {
        out.push_str(text);
        out[start..].make_ascii_lowercase();
        return;
    }
    // For the rule of the final sigma, an unassigned character ends the word like the end of the
    // text.
    convert_assigned(text, out, |part, out| out.push_str(&part.to_lowercase()));
}

/// Appends the text with its parts after `convert`. Characters assigned after Unicode 14 stay
/// unchanged; the parts are the text between them.
fn convert_assigned(text: &str, out: &mut String, convert: impl Fn(&str, &mut String)) {
    let mut copied = 0;
    for (at, character) in text.match_indices(is_assigned_later) {
        convert(&text[copied..at], out);
        out.push_str(character);
        copied = at + character.len();
    }
    convert(&text[copied..], out);
}

/// Replaces each run of white space by one space: `re.sub(r"\s+", " ", text)`.
pub(super) fn collapse_space_into(text: &str, out: &mut String) {
    let mut in_space = false;
    let mut copied = 0;
    for (at, character) in text.char_indices() {
        if is_space(character) {
            if !in_space {
                out.push_str(&text[copied..at]);
                out.push(' ');
                in_space = true;
            }
            copied = at + character.len_utf8();
        } else {
            in_space = false;
        }
    }
    out.push_str(&text[copied..]);
}

/// Removes white space at both ends, like `str.strip` without arguments.
pub(crate) fn strip(text: &str) -> &str {
    text.trim_matches(is_space)
}

/// The text in NFKC of Unicode 14; borrowed if it is already in that form.
pub(super) fn compose_compatible(text: &str) -> Cow<'_, str> {
    if is_nfkc_quick(text.chars()) == IsNormalized::Yes {
        return Cow::Borrowed(text);
    }
    // An unassigned character neither decomposes nor composes, and no character moves across it.
    let mut out = String::with_capacity(text.len());
    convert_assigned(text, &mut out, |part, out| out.extend(part.nfkc()));
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lowercase(text: &str) -> String {
        let mut out = String::new();
        lowercase_into(text, &mut out);
        out
    }

    #[test]
    fn white_space_is_as_in_python() {
        for space in ['\t', '\u{B}', '\u{1C}', '\u{1F}', '\u{85}', '\u{A0}', '\u{3000}'] {
            assert!(is_space(space), "{space:?}");
        }
        for other in ['\u{200B}', '\u{FEFF}', '\u{180E}', '\u{1B}'] {
            assert!(!is_space(other), "{other:?}");
        }
    }

    #[test]
    fn word_characters_include_numbers_but_no_marks() {
        for word in ['a', '_', 'é', '½', '²', 'Ⅷ', '٣', '漢'] {
            assert!(is_word(word), "{word:?}");
        }
        for other in ['\u{301}', '-', '€', '\u{200D}', '\u{1C89}'] {
            assert!(!is_word(other), "{other:?}");
        }
    }

    #[test]
    fn digits_of_every_script_have_a_value() {
        assert_eq!(decimal_digit('7'), Some(7));
        assert_eq!(decimal_digit('٣'), Some(3));
        assert_eq!(decimal_digit('9'), Some(9));
        assert_eq!(decimal_digit('\u{1D7FF}'), Some(9), "mathematical digits follow each other");
        assert_eq!(decimal_digit('²'), None);
        assert_eq!(decimal_digit('a'), None);
    }

    #[test]
    fn lower_case_has_the_final_sigma() {
        assert_eq!(lowercase("ΟΔΥΣΣΕΥΣ ΣΑΣ."), "οδυσσευς σας.");
        assert_eq!(lowercase("İSTANBUL"), "i̇stanbul");
        assert_eq!(lowercase("\u{A7CB}AΣ\u{1C89}"), "\u{A7CB}aς\u{1C89}");
    }
}
