//! Speech: clips of sound files, and texts as tokens.

pub mod manifest;
pub mod tokens;
