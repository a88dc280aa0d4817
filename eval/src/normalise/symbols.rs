//! Removes symbols and diacritics, like `remove_symbols` and `remove_symbols_and_diacritics` of the
//! reference.

use std::borrow::Cow;

use unicode_general_category::GeneralCategory;
use unicode_normalization::char::decompose_compatible;

use super::characters::{
    category, character_at, compose_compatible, decimal_digit, is_assigned_later,
};

/// Applies NFKC, then replaces marks, symbols and punctuation by spaces. A diacritic stays if NFKC
/// joins it with its letter.
///
/// Returns true if NFKC changed the text.
pub(super) fn remove_symbols(text: &str, out: &mut String) -> bool {
    let composed = compose_compatible(text);
    let mut copied = 0;
    for (at, symbol) in composed.match_indices(is_symbol_or_mark) {
        out.push_str(&composed[copied..at]);
        out.push(' ');
        copied = at + symbol.len();
    }
    out.push_str(&composed[copied..]);
    matches!(composed, Cow::Owned(_))
}

/// Replaces symbols and punctuation by spaces and removes diacritics.
pub(super) fn remove_symbols_and_diacritics(text: &str, out: &mut String) {
    for character in text.chars() {
        write_decomposed(character, |_| false, out);
    }
}

/// Whether the English normaliser keeps this symbol for numbers.
pub(super) fn is_number_symbol(character: char) -> bool {
    matches!(character, '.' | '%' | '$' | '¢' | '€' | '£')
}

/// Runs three steps of the English normaliser: deletes commas between digits, replaces each period
/// without a digit after it by a space, and removes diacritics and all symbols other than
/// [`is_number_symbol`].
pub(super) fn keep_number_symbols(text: &str, out: &mut String) {
    let bytes = text.as_bytes();
    let mut at = 0;
    // The end of a digit that may precede a comma. A match consumes the digit after the comma, so
    // that digit cannot precede the next comma: "1,2,3" becomes "12 3".
    let mut digit_end = None;
    let mut consumed_digit = None;
    while let Some(&byte) = bytes.get(at) {
        match byte {
            b'0'..=b'9' => {
                if consumed_digit != Some(at) {
                    digit_end = Some(at + 1);
                }
                out.push(char::from(byte));
                at += 1;
            }
            b',' => {
                let next = character_at(text, at + 1).and_then(decimal_digit);
                if digit_end == Some(at) && next.is_some() {
                    consumed_digit = Some(at + 1);
                } else {
                    out.push(' ');
                }
                at += 1;
            }
            b'.' => match bytes.get(at + 1) {
                Some(b'0'..=b'9') => {
                    out.push('.');
                    at += 1;
                }
                // The pattern also consumes the next character, so the second of two periods stays.
                Some(b'.') => {
                    out.push_str(" .");
                    at += 2;
                }
                _ => {
                    out.push(' ');
                    at += 1;
                }
            },
            b'$' | b'%' => {
                out.push(char::from(byte));
                at += 1;
            }
            _ if byte.is_ascii() => {
                out.push(if byte.is_ascii_punctuation() { ' ' } else { char::from(byte) });
                at += 1;
            }
            _ => {
                let Some(character) = character_at(text, at) else { return };
                let end = at + character.len_utf8();
                if consumed_digit != Some(at) && decimal_digit(character).is_some() {
                    digit_end = Some(end);
                }
                write_decomposed(character, is_number_symbol, out);
                at = end;
            }
        }
    }
}

/// Decomposes a character and writes its parts: nothing for a diacritic, and a space for a symbol
/// for which `keep` is false.
///
/// Canonical reordering is skipped: it moves only marks, which are deleted or replaced by
/// spaces.
fn write_decomposed(character: char, keep: impl Fn(char) -> bool, out: &mut String) {
    if is_assigned_later(character) {
        out.push(character);
        return;
    }
    decompose_compatible(character, |part| {
        if keep(part) {
            out.push(part);
        } else if let Some(letters) = plain_letters(part) {
            out.push_str(letters);
        } else if category(part) != GeneralCategory::NonspacingMark {
            out.push(if is_symbol_or_mark(part) { ' ' } else { part });
        }
    });
}

/// The replacement of a letter with a stroke or of a ligature, which do not decompose; `None` for
/// other characters.
fn plain_letters(character: char) -> Option<&'static str> {
    Some(match character {
        'œ' => "oe",
        'Œ' => "OE",
        'ø' => "o",
        'Ø' => "O",
        'æ' => "ae",
        'Æ' => "AE",
        'ß' => "ss",
        'ẞ' => "SS",
        'đ' | 'ð' => "d",
        'Đ' | 'Ð' => "D",
        // The reference replaces the capital thorn by lower-case letters too.
        'þ' | 'Þ' => "th",
        'ł' => "l",
        'Ł' => "L",
        _ => return None,
    })
}

/// Whether the general category is M, S or P.
fn is_symbol_or_mark(character: char) -> bool {
    match u8::try_from(character) {
        Ok(byte) if byte.is_ascii() => byte.is_ascii_punctuation(),
        _ => category(character).abbreviation().starts_with(['M', 'S', 'P']),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_number_symbols(text: &str) -> String {
        let mut out = String::new();
        keep_number_symbols(text, &mut out);
        out
    }

    #[test]
    fn each_digit_joins_at_one_comma_only() {
        assert_eq!(with_number_symbols("1,000,000 1,2,3,4 a,b 1, 2"), "1000000 12 34 a b 1  2");
        assert_eq!(with_number_symbols("٣,5,6"), "٣5 6");
    }

    #[test]
    fn a_period_stays_before_a_digit_or_as_the_second_of_two() {
        assert_eq!(with_number_symbols("1.5 a.b .. ... .٣ 5."), "1.5 a b  .  .   ٣ 5 ");
    }

    #[test]
    fn letters_lose_their_diacritics() {
        assert_eq!(
            with_number_symbols("café ǿ æœ ﬁ Å ½ 5％ €3 \u{a3}"),
            "cafe o aeoe fi A 1 2 5% €3 £"
        );
        assert_eq!(with_number_symbols("が \u{93f} a\u{20dd}b \u{1C89}"), "か   a b \u{1C89}");
    }

    #[test]
    fn composed_letters_keep_their_diacritics_in_remove_symbols() {
        let mut out = String::new();
        remove_symbols("cafe\u{301} n\u{332} 10%", &mut out);
        assert_eq!(out, "café n  10 ");
    }
}
