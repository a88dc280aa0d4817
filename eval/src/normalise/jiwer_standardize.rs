//! The transform `wer_standardize` of jiwer.

use super::Buffers;
use super::brackets::delete_brackets;
use super::characters::{is_space, lowercase_into, strip};

/// Lower case, English contractions in full, no `[…]` and `<…>`, single spaces, as `wer_standardize` of jiwer 4.0.
///
/// The reference ends with a list of words, split at U+0020 alone; they are joined by it here.  A single white-space
/// character other than ASCII's (U+00A0, say) stays, as part of a word.
pub(super) fn standardize(text: &str, buffers: &mut Buffers, out: &mut String) {
    let Buffers { current, spare, .. } = buffers;
    current.clear();
    lowercase_into(text, current);
    if current.contains('\'') {
        spare.clear();
        expand_contractions(current, spare);
        std::mem::swap(current, spare);
    }
    if current.bytes().any(|byte| matches!(byte, b'<' | b'[')) {
        spare.clear();
        if delete_brackets(current, spare) {
            std::mem::swap(current, spare);
        }
    }
    squeeze_space(strip(current), out);
}

/// Contractions in full, wherever the letters stand, also within a word.
fn expand_contractions(text: &str, out: &mut String) {
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('\'') {
        out.push_str(before);
        // The patterns run one after the other over there; the letters before an apostrophe that they ask for
        // are never those of another's replacement, so one walk gives the same.
        let (before_length, full, after_length) = if after.starts_with('t') {
            if out.ends_with("won") {
                (3, "will not", 1)
            } else if out.ends_with("can") {
                (3, "can not", 1)
            } else if out.ends_with('n') {
                (1, " not", 1)
            } else {
                (0, " not", 1)
            }
        } else if after.starts_with('s') && out.ends_with("let") {
            (3, "let us", 1)
        } else if after.starts_with("re") {
            (0, " are", 2)
        } else if after.starts_with('s') {
            (0, " is", 1)
        } else if after.starts_with('d') {
            (0, " would", 1)
        } else if after.starts_with("ll") {
            (0, " will", 2)
        } else if after.starts_with("ve") {
            (0, " have", 2)
        } else if after.starts_with('m') {
            (0, " am", 1)
        } else {
            (0, "'", 0)
        };
        out.truncate(out.len() - before_length);
        out.push_str(full);
        rest = &after[after_length..];
    }
    out.push_str(rest);
}

/// White space of ASCII becomes a space, and so does each run of two or more white-space characters of any kind.
fn squeeze_space(text: &str, out: &mut String) {
    let mut characters = text.char_indices().peekable();
    let mut kept = 0;
    while let Some((start, character)) = characters.next() {
        if !is_space(character) {
            continue;
        }
        let mut end = start + character.len_utf8();
        let single = end;
        while let Some((at, next)) = characters.next_if(|&(_, next)| is_space(next)) {
            end = at + next.len_utf8();
        }
        if end > single || matches!(character, '\t'..='\r') {
            out.push_str(&text[kept..start]);
            out.push(' ');
            kept = end;
        }
    }
    out.push_str(&text[kept..]);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn standardized(text: &str) -> String {
        let mut out = String::new();
        standardize(text, &mut Buffers::default(), &mut out);
        out
    }

    #[test]
    fn contractions_have_no_word_borders() {
        assert_eq!(standardized("She'll make sure you CAN'T"), "she will make sure you can not");
        assert_eq!(
            standardized("let's 'llet's won't't isn'tn't"),
            "let us willet us will not not is notn't".replace("notn't", "not not")
        );
        assert_eq!(standardized("rock'n'roll o'clock 'tis"), "rock'n'roll o'clock notis");
    }

    #[test]
    fn white_space_and_brackets() {
        assert_eq!(standardized(" you <unk> like\t[laugh] a\nb "), "you like a b");
        assert_eq!(standardized("a\u{a0}b \u{a0}c\u{85}d\u{85}"), "a\u{a0}b c\u{85}d");
        assert_eq!(standardized("\u{1c} \u{3000}"), "");
    }
}
