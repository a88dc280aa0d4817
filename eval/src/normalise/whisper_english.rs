//! Whisper's English normaliser: `EnglishTextNormalizer`.

use super::Buffers;
use super::brackets::{delete_brackets, delete_parentheses};
use super::contractions::{delete_fillers, expand_contractions};
use super::numbers::{postprocess, replace_halves, split_words, write_numbers};
use super::spelling::american_spelling;
use super::symbols::{is_number_symbol, keep_number_symbols};

/// Normalises English text as for Whisper's word error rates, byte-identical to openai-whisper
/// 20250625.
///
/// The steps are: lower case; delete text in brackets and parentheses, and fillers; expand
/// contractions and titles; remove symbols and diacritics; convert numbers to digits; convert to
/// American spelling; collapse spaces.
///
/// Oddities of the reference are reproduced: the result can begin or end with a space, "1.5"
/// becomes "one.5", and an "and a half" that no word precedes is deleted. At a number of more than
/// 4,300 digits, the reference raises an error; here, the digits stay.
pub(super) fn normalise(text: &str, buffers: &mut Buffers, out: &mut String) {
    buffers.set_lowercase(text);
    delete_brackets(buffers);
    delete_parentheses(buffers);
    buffers.apply(delete_fillers);
    buffers.apply(expand_contractions);
    buffers.apply(keep_number_symbols);
    if buffers.current.contains("half") {
        buffers.apply(replace_halves);
    }
    let mut words = std::mem::take(&mut buffers.words);
    words.clear();
    buffers.apply(|text, out| split_words(text, out, &mut words));
    buffers.apply(|text, out| write_numbers(text, &words, out));
    buffers.words = words;
    postprocess(buffers);

    if buffers.current.contains(is_number_symbol) {
        buffers.apply(write_american);
        buffers.apply(drop_loose_symbols);
        drop_loose_percent(&buffers.current, out);
    } else {
        write_american(&buffers.current, out);
    }
}

/// Writes the words in American spelling, separated by single spaces.
fn write_american(text: &str, out: &mut String) {
    let mut is_first = true;
    for word in text.split(' ').filter(|word| !word.is_empty()) {
        if !is_first {
            out.push(' ');
        }
        is_first = false;
        out.push_str(american_spelling(word));
    }
}

/// Replaces number symbols that no digit follows by spaces:
/// `re.sub(r"[.$¢€£]([^0-9])", r" \1", text)`.
fn drop_loose_symbols(text: &str, out: &mut String) {
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        if !is_number_symbol(character) || character == '%' {
            out.push(character);
            continue;
        }
        match characters.clone().next() {
            // The pattern consumes the character after the symbol too, so the second of two symbols
            // stays.
            Some(next) if !next.is_ascii_digit() => {
                out.push(' ');
                out.push(next);
                characters.next();
            }
            _ => out.push(character),
        }
    }
}

/// Replaces `%` that no digit precedes by a space, `re.sub(r"([^0-9])%", r"\1 ", text)`, then
/// collapses runs of spaces.
fn drop_loose_percent(text: &str, out: &mut String) {
    let mut ends_in_space = false;
    let mut write = |character: char| {
        if !(character == ' ' && ends_in_space) {
            out.push(character);
        }
        ends_in_space = character == ' ';
    };
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        write(character);
        if !character.is_ascii_digit() && characters.as_str().starts_with('%') {
            write(' ');
            characters.next();
        }
    }
}
