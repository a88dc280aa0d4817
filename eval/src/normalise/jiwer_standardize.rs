//! jiwer's transform `wer_standardize`.

use super::Buffers;
use super::brackets::delete_brackets;
use super::characters::{is_space, strip};

/// Lower-cases, expands English contractions, deletes `[…]` and `<…>`, collapses white space, like
/// `wer_standardize` of jiwer 4.0.
///
/// jiwer returns a list of words, split at U+0020 only; here, the words are joined by U+0020. A
/// single non-ASCII white-space character, such as U+00A0, stays inside its word.
pub(super) fn standardize(text: &str, buffers: &mut Buffers, out: &mut String) {
    buffers.set_lowercase(text);
    if buffers.current.contains('\'') {
        buffers.apply(expand_contractions);
    }
    delete_brackets(buffers);
    squeeze_space(strip(&buffers.current), out);
}

/// The contractions: the text before the apostrophe, the text after it, and the expansion. The
/// first that fits applies.
const CONTRACTIONS: [(&str, &str, &str); 11] = [
    ("won", "t", "will not"),
    ("can", "t", "can not"),
    ("n", "t", " not"),
    ("", "t", " not"),
    ("let", "s", "let us"),
    ("", "re", " are"),
    ("", "s", " is"),
    ("", "d", " would"),
    ("", "ll", " will"),
    ("", "ve", " have"),
    ("", "m", " am"),
];

/// Expands contractions anywhere in the text, also within a word.
fn expand_contractions(text: &str, out: &mut String) {
    let mut remaining = text;
    while let Some((before, after)) = remaining.split_once('\'') {
        out.push_str(before);
        // The reference applies the patterns one after the other. The letters that a pattern needs
        // before an apostrophe never come from another replacement, so one pass gives the same
        // result.
        let fits =
            |(start, end, _): &&(&str, &str, &str)| after.starts_with(end) && out.ends_with(start);
        let (start, end, expansion) = *CONTRACTIONS.iter().find(fits).unwrap_or(&("", "", "'"));
        out.truncate(out.len() - start.len());
        out.push_str(expansion);
        remaining = &after[end.len()..];
    }
    out.push_str(remaining);
}

/// Replaces by one space: each ASCII white-space character, and each run of two or more white-space
/// characters of any kind.
fn squeeze_space(text: &str, out: &mut String) {
    let mut characters = text.char_indices().peekable();
    let mut copied = 0;
    while let Some((start, character)) = characters.next() {
        if !is_space(character) {
            continue;
        }
        let mut end = start + character.len_utf8();
        let first_end = end;
        while let Some((at, next)) = characters.next_if(|&(_, next)| is_space(next)) {
            end = at + next.len_utf8();
        }
        if end > first_end || matches!(character, '\t'..='\r') {
            out.push_str(&text[copied..start]);
            out.push(' ');
            copied = end;
        }
    }
    out.push_str(&text[copied..]);
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
    fn contractions_are_expanded_within_words() {
        assert_eq!(standardized("She'll make sure you CAN'T"), "she will make sure you can not");
        assert_eq!(
            standardized("let's 'llet's won't't isn'tn't"),
            "let us willet us will not not is not not"
        );
        assert_eq!(standardized("rock'n'roll o'clock 'tis"), "rock'n'roll o'clock notis");
    }

    #[test]
    fn white_space_is_collapsed_and_bracketed_text_deleted() {
        assert_eq!(standardized(" you <unk> like\t[laugh] a\nb "), "you like a b");
        assert_eq!(standardized("a\u{a0}b \u{a0}c\u{85}d\u{85}"), "a\u{a0}b c\u{85}d");
        assert_eq!(standardized("\u{1c} \u{3000}"), "");
    }
}
