//! Whisper's normaliser for languages other than English: `BasicTextNormalizer`.

use unicode_segmentation::UnicodeSegmentation;

use super::Buffers;
use super::brackets::{delete_brackets, delete_parentheses};
use super::characters::{collapse_space_into, is_ascii_space, is_ascii_symbol, lowercase_into};
use super::symbols::{remove_symbols, remove_symbols_and_diacritics};

/// Options of the basic normaliser. Without options, it lower-cases and removes bracketed text and
/// symbols.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct BasicOptions {
    /// Removes diacritics: "é" becomes "e", "ø" becomes "o".
    pub remove_diacritics: bool,
    /// Inserts a space between letters (grapheme clusters), for languages without spaces between
    /// words.
    pub split_letters: bool,
}

/// Lower-cases, deletes text in brackets and parentheses, replaces symbols by spaces, collapses
/// white space; byte-identical to openai-whisper 20250625.
///
/// As in Whisper, the result may begin or end with a space.
pub(super) fn normalise(
    text: &str,
    options: BasicOptions,
    buffers: &mut Buffers,
    out: &mut String,
) {
    let Buffers { current, spare, .. } = buffers;
    current.clear();
    lowercase_into(text, current);
    if current.bytes().any(|byte| matches!(byte, b'<' | b'[' | b'(')) {
        spare.clear();
        if delete_brackets(current, spare) {
            std::mem::swap(current, spare);
        }
        spare.clear();
        if delete_parentheses(current, spare) {
            std::mem::swap(current, spare);
        }
    }
    if current.is_ascii() {
        write_ascii(current, options.split_letters, out);
        return;
    }
    spare.clear();
    let may_have_capitals = if options.remove_diacritics {
        remove_symbols_and_diacritics(current, spare);
        true
    } else {
        remove_symbols(current, spare)
    };
    std::mem::swap(current, spare);
    // NFKC and NFKD can produce capitals, which are lower-cased here.
    if may_have_capitals {
        spare.clear();
        lowercase_into(current, spare);
        std::mem::swap(current, spare);
    }
    if options.split_letters {
        spare.clear();
        split_letters(current, spare);
        std::mem::swap(current, spare);
    }
    collapse_space_into(current, out);
}

/// The last steps for ASCII text: replaces each run of symbols and white space by one space.
fn write_ascii(text: &str, split_letters: bool, out: &mut String) {
    let bytes = text.as_bytes();
    let is_gap = |byte: u8| is_ascii_space(byte) || is_ascii_symbol(byte);
    let mut at = 0;
    while at < bytes.len() {
        let start = at;
        at += bytes[at..].iter().take_while(|&&byte| !is_gap(byte)).count();
        if split_letters {
            for (position, letter) in text[start..at].chars().enumerate() {
                if position > 0 {
                    out.push(' ');
                }
                out.push(letter);
            }
        } else {
            out.push_str(&text[start..at]);
        }
        if at < bytes.len() {
            out.push(' ');
            at += bytes[at..].iter().take_while(|&&byte| is_gap(byte)).count();
        }
    }
}

/// Inserts a space between grapheme clusters.
///
/// The clusters follow Unicode 17. Versions of Python's `regex` module with the tables of Unicode
/// 18 also join its new marks.
fn split_letters(text: &str, out: &mut String) {
    for (position, letter) in text.graphemes(true).enumerate() {
        if position > 0 {
            out.push(' ');
        }
        out.push_str(letter);
    }
}
