//! The tokenizer of captions, equal to the reference tool of the caption metrics.

mod abbreviations;
mod automaton;
mod characters;
mod grammar;
mod lexer;
mod pattern;
pub mod ptb;
mod rewrite;
