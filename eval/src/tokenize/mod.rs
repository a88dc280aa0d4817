//! The tokenizer of captions, equal to the reference tool of the caption metrics.

mod abbreviations;
mod automaton;
mod characters;
mod grammar;
mod lexer;
mod pattern;
pub mod ptb;
mod rewrite;

/// Whether a character is white space in Python's `str.isspace`.
pub(crate) fn is_white_space(character: char) -> bool {
    character.is_whitespace() || matches!(character, '\u{1C}'..='\u{1F}')
}
