//! Splits text into the words of the number normaliser.

use super::super::characters::{is_ascii_space, is_space, is_word, is_word_at, space_end};
use super::Span;
use super::words::can_have_a_half;

/// Replaces "and a half" by "point five" after a number word. Deletes an "and a half" that no word
/// precedes, and blank text after the last "and a half".
pub(in super::super) fn replace_halves(text: &str, out: &mut String) {
    let mut pieces = 0;
    let mut write = |piece: &str| {
        if pieces > 0 {
            out.push(' ');
        }
        pieces += 1;
        out.push_str(piece);
    };
    let mut segment_start = 0;
    let mut at = 0;
    while let Some(offset) = text[at..].find("and") {
        let start = at + offset;
        at = start + "and".len();
        let Some(end) = half_end(text, start) else { continue };
        let segment = &text[segment_start..start];
        segment_start = end;
        at = end;
        if let Some(last) = segment.split(is_space).rfind(|w| !w.is_empty()) {
            write(segment);
            write(if can_have_a_half(last) { "point five" } else { "and a half" });
        }
    }
    let segment = &text[segment_start..];
    if space_end(segment, 0) < segment.len() {
        write(segment);
    }
}

/// The end of `\band\s+a\s+half\b` if it matches at byte `start`, where "and" stands.
fn half_end(text: &str, start: usize) -> Option<usize> {
    let before = text[..start].chars().next_back();
    if before.is_some_and(is_word) {
        return None;
    }
    let mut at = start + "and".len();
    for word in ["a", "half"] {
        let gap = space_end(text, at);
        if gap == at || !text[gap..].starts_with(word) {
            return None;
        }
        at = gap + word.len();
    }
    (!is_word_at(text, at)).then_some(at)
}

/// Writes the words to `out` and their byte ranges in `out` to `words`.
///
/// Words end at white space and between a Latin letter and a digit. An ordinal or plural ending,
/// even a detached one, belongs to the digit before it: "5th", "5 th" and "1960s" are one word,
/// "2x" is two.
pub(in super::super) fn split_words(text: &str, out: &mut String, words: &mut Vec<Span>) {
    let mut at = 0;
    loop {
        at = skip_space(text, at);
        let start = at;
        let end = token_end(text, start);
        if start == end {
            return;
        }
        let token = &text[start..end];
        at = end;
        let first = out.len();
        out.push_str(token);
        match words.last_mut() {
            Some(last)
                if out.as_bytes()[first - 1].is_ascii_digit()
                    && has_ordinal_or_plural_ending(token) =>
            {
                last.end = out.len();
            }
            _ => words.push(first..out.len()),
        }
    }
}

fn skip_space(text: &str, mut at: usize) -> usize {
    let bytes = text.as_bytes();
    while bytes.get(at).is_some_and(|&byte| is_ascii_space(byte)) {
        at += 1;
    }
    if bytes.get(at).is_some_and(|byte| !byte.is_ascii()) { space_end(text, at) } else { at }
}

/// The end of the token that starts at byte `start`: before white space, or between a letter and a
/// digit.
fn token_end(text: &str, start: usize) -> usize {
    let bytes = text.as_bytes();
    let mut at = start;
    let mut previous = b' ';
    while let Some(&byte) = bytes.get(at) {
        let is_border = previous.is_ascii_lowercase() && byte.is_ascii_digit()
            || previous.is_ascii_digit() && byte.is_ascii_lowercase();
        if is_border || is_ascii_space(byte) || is_space_start(text, at, byte) {
            break;
        }
        previous = byte;
        at += 1;
    }
    at
}

/// Whether non-ASCII white space starts at byte `at`, whose value is `byte`.
fn is_space_start(text: &str, at: usize, byte: u8) -> bool {
    // First bytes of U+0085, U+00A0, U+1680, U+2000 to U+205F and U+3000.
    matches!(byte, 0xC2 | 0xE1 | 0xE2 | 0xE3) && space_end(text, at) > at
}

/// Whether a token matches `^(st|nd|rd|th|s)\b`.
fn has_ordinal_or_plural_ending(token: &str) -> bool {
    ["st", "nd", "rd", "th", "s"]
        .iter()
        .any(|ending| token.starts_with(ending) && !is_word_at(token, ending.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        let (mut out, mut words) = (String::new(), Vec::new());
        split_words(text, &mut out, &mut words);
        words.into_iter().map(|span| out[span].to_owned()).collect()
    }

    #[test]
    fn endings_join_the_digit_before_them() {
        assert_eq!(
            words("1st 2 nd 3th4 5s.6 s 7 stx"),
            ["1st", "2nd", "3th", "4", "5s.6s", "7", "stx"]
        );
        assert_eq!(words(" a1b2\u{3000}é3x $5m "), ["a", "1", "b", "2", "é3", "x", "$5", "m"]);
        assert_eq!(words("th 1 \u{1f} th"), ["th", "1th"]);
    }

    #[test]
    fn a_half_after_a_number_is_point_five() {
        let halves = |text: &str| {
            let mut out = String::new();
            replace_halves(text, &mut out);
            out
        };
        assert_eq!(halves("two and a half"), "two  point five");
        assert_eq!(halves("and a half"), "");
        assert_eq!(halves("x and a  half and a half y"), "x  and a half  y");
        assert_eq!(halves("band a half and a halfs"), "band a half and a halfs");
        assert_eq!(halves("  "), "");
    }
}
