//! Whisper's normaliser for languages other than English: `BasicTextNormalizer`.

use unicode_segmentation::UnicodeSegmentation;

use super::Buffers;
use super::brackets::{delete_brackets, delete_parentheses};
use super::characters::{collapse_space_into, is_ascii_space, lowercase_into};
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
    buffers.set_lowercase(text);
    delete_brackets(buffers);
    delete_parentheses(buffers);
    if buffers.current.is_ascii() {
        write_ascii(&buffers.current, options.split_letters, out);
        return;
    }
    let may_have_capitals = buffers.apply(|text, out| {
        if options.remove_diacritics {
            remove_symbols_and_diacritics(text, out);
            true
        } else {
            remove_symbols(text, out)
        }
    });
    // NFKC and NFKD can produce capitals, which are lower-cased here.
    if may_have_capitals {
        buffers.apply(lowercase_into);
    }
    if options.split_letters {
        buffers.apply(|text, out| write_spaced(text.graphemes(true), out));
    }
    collapse_space_into(&buffers.current, out);
}

/// The last steps for ASCII text: replaces each run of symbols and white space by one space.
fn write_ascii(text: &str, split_letters: bool, out: &mut String) {
    let bytes = text.as_bytes();
    let is_gap = |byte: u8| is_ascii_space(byte) || byte.is_ascii_punctuation();
    let mut at = 0;
    while at < bytes.len() {
        let start = at;
        at += bytes[at..].iter().take_while(|&&byte| !is_gap(byte)).count();
        if split_letters {
            write_spaced(text[start..at].split("").filter(|letter| !letter.is_empty()), out);
        } else {
            out.push_str(&text[start..at]);
        }
        if at < bytes.len() {
            out.push(' ');
            at += bytes[at..].iter().take_while(|&&byte| is_gap(byte)).count();
        }
    }
}

/// Writes letters (grapheme clusters) with a space between them.
///
/// The clusters follow Unicode 17. Versions of Python's `regex` module with the tables of Unicode
/// 18 also join its new marks.
fn write_spaced<'t>(letters: impl Iterator<Item = &'t str>, out: &mut String) {
    for (position, letter) in letters.enumerate() {
        if position > 0 {
            out.push(' ');
        }
        out.push_str(letter);
    }
}
