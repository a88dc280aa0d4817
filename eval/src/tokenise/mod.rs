//! Text to tokens, as the reference tools of the metrics do it.

mod abbreviations;
mod automaton;
mod characters;
mod grammar;
mod letters;
mod lexer;
mod pattern;
pub mod ptb;
mod rewrite;

/// White space as Python's `str.isspace` has it.
pub(crate) fn is_white_space(c: char) -> bool {
    c.is_whitespace() || matches!(c, '\u{1C}'..='\u{1F}')
}
