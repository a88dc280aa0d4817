//! Errors of text inputs. Each message names the file, the line if it is known, the problem and the
//! remedy.

use std::fmt;
use std::io;
use std::path::Path;

/// A file and, if known, a line in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Location {
    /// The path as given by the user, or the name of another input, such as `standard input`.
    pub file: String,
    /// The line number, from 1; `None` for the whole input.
    pub line: Option<u64>,
}

impl Location {
    /// Creates the location of a line. With `None` for `line`, the location is the whole file.
    pub fn new(file: impl AsRef<Path>, line: impl Into<Option<u64>>) -> Self {
        Self { file: file.as_ref().display().to_string(), line: line.into() }
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(f, "{}:{line}", self.file),
            None => f.write_str(&self.file),
        }
    }
}

/// An error in a text input.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)] // The message of a variant explains its fields.
pub enum TextError {
    /// The file cannot be opened or read.
    #[error("{file}: cannot be read: {source}; check the path and its permissions")]
    Read { file: String, source: io::Error },

    /// The file has no content.
    #[error("{file}: the file is empty; was the download or export interrupted?")]
    Empty { file: String },

    /// The table has a header but no rows.
    #[error("{file}: a header but no rows; was the download or export interrupted?")]
    NoRows { file: String },

    /// The bytes are not UTF-8.
    #[error("{location}: is not UTF-8; convert the file to UTF-8")]
    NotUtf8 { location: Location },

    /// The content of the file has the wrong format.
    #[error("{location}: {reason}; {remedy}")]
    Malformed { location: Location, reason: String, remedy: &'static str },

    /// A required column is missing from the header.
    #[error(
        "{location}: column `{column}` is missing; the header has: {found}; rename or add the column"
    )]
    MissingColumn { location: Location, column: String, found: String },

    /// The header has a column twice.
    #[error("{location}: column `{column}` occurs twice; remove or rename one of them")]
    DuplicateColumn { location: Location, column: String },

    /// A quoted field is never closed.
    #[error(
        "{location}: a quote opened here is never closed; close it, and write a quote inside a field as \"\""
    )]
    UnclosedQuote { location: Location },

    /// A closing quote is followed by text instead of a separator.
    #[error("{location}: text after a closing quote; write a quote inside a field as \"\"")]
    TextAfterQuote { location: Location },

    /// A row has more or fewer fields than the header.
    #[error("{location}: {found} fields where the header has {expected}; {remedy}")]
    FieldCount { location: Location, expected: usize, found: usize, remedy: &'static str },

    /// A required field is blank.
    #[error("{location}: {column} is empty; fill it in or remove the row")]
    EmptyField { location: Location, column: String },

    /// Two rows of a file have the same id.
    #[error("{location}: id `{id}` was already given at {first}; keep one of the two rows")]
    DuplicateId { location: Location, first: Location, id: String },
}

impl TextError {
    /// Creates an error for a line. With `None` for the line, the error is for the whole file.
    pub fn malformed(
        file: impl AsRef<Path>,
        line: impl Into<Option<u64>>,
        reason: impl Into<String>,
        remedy: &'static str,
    ) -> Self {
        Self::Malformed { location: Location::new(file, line), reason: reason.into(), remedy }
    }

    /// Whether reading can continue with the next line or row after
    /// [`Lines::advance`](crate::Lines::advance) or [`Table::advance`](crate::Table::advance)
    /// returned this error.
    pub fn can_continue(&self) -> bool {
        matches!(self, Self::NotUtf8 { .. } | Self::TextAfterQuote { .. } | Self::FieldCount { .. })
    }
}

/// Shortens a text to at most `width` characters on one line. Control characters become spaces; a
/// truncated text ends with an ellipsis.
pub fn shortened(text: &str, width: usize) -> String {
    let replace_control = |c: char| if c.is_control() { ' ' } else { c };
    let mut characters = text.chars().map(replace_control);
    let mut short: String = characters.by_ref().take(width).collect();
    if characters.next().is_some() {
        short.pop();
        short.push('…');
    }
    short
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_text_is_truncated() {
        assert_eq!(shortened("abcdef", 4), "abc…");
        assert_eq!(shortened("abcd", 4), "abcd");
        assert_eq!(shortened("ab\ncd", 8), "ab cd");
    }
}
