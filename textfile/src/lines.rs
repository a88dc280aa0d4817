//! Lines with their numbers, from a text in memory or from a stream.

use std::io::{BufRead, Read};

use crate::{Input, Location, TextError};

/// The maximum size of a line in bytes. A table row may have several lines; once it exceeds this
/// size, it must end on its current line.
pub const MAX_LINE_BYTES: u64 = 16 << 20;

/// Iterates over lines with their numbers, from 1, without their line ends. After the line end of
/// the last line, no further (empty) line follows.
pub fn lines(text: &str) -> impl Iterator<Item = (u64, &str)> {
    let text = (!text.is_empty()).then(|| text.strip_suffix('\n').unwrap_or(text));
    let lines = text.into_iter().flat_map(|text| text.split('\n'));
    (1..).zip(lines.map(|line| line.strip_suffix('\r').unwrap_or(line)))
}

/// Iterates over the lines that are not blank, with their numbers, as in [`lines`].
pub fn non_blank_lines(text: &str) -> impl Iterator<Item = (u64, &str)> {
    lines(text).filter(|(_, line)| !line.trim().is_empty())
}

/// Returns an error for a text whose lines end in `\r` only (classic Mac OS), because it would be
/// read as one line.
///
/// # Errors
/// [`TextError::Malformed`]
pub fn check_line_ends(file: &str, text: &str) -> Result<(), TextError> {
    if text.contains('\n') || !text.trim_end_matches('\r').contains('\r') {
        return Ok(());
    }
    let reason = "ends its lines with a carriage return only";
    let remedy = "end each line with a line feed, or with carriage return and line feed";
    Err(TextError::malformed(file, 1, reason, remedy))
}

/// Reads the lines of an input that are not blank, one at a time. The input may be larger than the
/// main memory.
pub struct Lines<'r> {
    reader: LineReader<'r>,
    text: String,
    is_empty: bool,
}

impl<'r> Lines<'r> {
    /// Creates a reader. Call [`advance`](Self::advance) before the first line is used.
    pub fn new(input: Input<'r>) -> Self {
        Self { reader: LineReader::new(input), text: String::new(), is_empty: true }
    }

    /// Moves to the next line that is not blank; returns `false` at the end.
    ///
    /// # Errors
    /// [`TextError::Read`]; [`TextError::NotUtf8`]; [`TextError::Empty`] if all lines
    /// are blank; [`TextError::Malformed`] for damaged gzip data and for a line of more than 16 MiB
    pub fn advance(&mut self) -> Result<bool, TextError> {
        let mut bytes = std::mem::take(&mut self.text).into_bytes();
        if !self.reader.read_not_blank(&mut bytes)? {
            let file = self.reader.input.file().to_owned();
            return if self.is_empty { Err(TextError::Empty { file }) } else { Ok(false) };
        }
        self.is_empty = false;
        bytes.truncate(without_end(&bytes).len());
        let text = String::from_utf8(bytes);
        self.text = text.map_err(|_| TextError::NotUtf8 { location: self.location() })?;
        Ok(true)
    }

    /// Returns the line without its line end.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns the line number, from 1.
    pub fn number(&self) -> u64 {
        self.reader.line
    }

    /// Returns the location of this line.
    pub fn location(&self) -> Location {
        self.reader.location()
    }

    /// Creates an error for this line.
    pub fn error(&self, reason: impl Into<String>, remedy: &'static str) -> TextError {
        TextError::Malformed { location: self.location(), reason: reason.into(), remedy }
    }
}

/// An input, and the number of lines read from it.
pub(crate) struct LineReader<'r> {
    pub(crate) input: Input<'r>,
    pub(crate) line: u64,
}

impl<'r> LineReader<'r> {
    pub(crate) fn new(input: Input<'r>) -> Self {
        Self { input, line: 0 }
    }

    /// Reads a line with its line end; returns `false` at the end of the input.
    pub(crate) fn read(&mut self, bytes: &mut Vec<u8>) -> Result<bool, TextError> {
        bytes.clear();
        let result = self.input.by_ref().take(MAX_LINE_BYTES + 1).read_until(b'\n', bytes);
        if result.map_err(|error| self.input.error(error))? == 0 {
            return Ok(false);
        }
        self.line += 1;
        if bytes.len() as u64 > MAX_LINE_BYTES {
            let reason = format!("a line of more than {} MiB", MAX_LINE_BYTES >> 20);
            let remedy = "check that the file has this format and is complete";
            return Err(TextError::Malformed { location: self.location(), reason, remedy });
        }
        Ok(true)
    }

    /// Skips blank lines and reads the next other line; returns `false` at the end of the input.
    pub(crate) fn read_not_blank(&mut self, bytes: &mut Vec<u8>) -> Result<bool, TextError> {
        while self.read(bytes)? {
            if !bytes.trim_ascii().is_empty() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    pub(crate) fn location(&self) -> Location {
        Location::new(self.input.file(), self.line)
    }
}

/// Returns a line without its line end.
pub(crate) fn without_end(line: &[u8]) -> &[u8] {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    line.strip_suffix(b"\r").unwrap_or(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_line_is_a_line() {
        let collect = |text| lines(text).collect::<Vec<_>>();
        assert_eq!(collect(""), []);
        assert_eq!(collect("\n"), [(1, "")]);
        assert_eq!(collect("\r\n\n"), [(1, ""), (2, "")]);
        assert_eq!(collect("a\r\nb"), [(1, "a"), (2, "b")]);
    }

    #[test]
    fn line_ends_of_carriage_returns_alone_are_refused() {
        for valid in ["", "a", "a\r", "a\r\nb\rc\r\n", "a\n"] {
            assert!(check_line_ends("f", valid).is_ok(), "{valid:?}");
        }
        let error = check_line_ends("f", "a\rb\r").unwrap_err().to_string();
        assert!(error.starts_with("f:1: ends its lines with a carriage return"), "{error}");
    }

    #[test]
    fn streamed_lines_have_their_numbers() {
        let text = b"\xef\xbb\xbfa\r\n\n  \n\xff\nb";
        let mut lines = Lines::new(Input::new("f", &text[..]).unwrap());
        assert!(lines.advance().unwrap());
        assert_eq!((lines.number(), lines.text()), (1, "a"));
        let error = lines.advance().unwrap_err();
        assert!(error.can_continue());
        assert_eq!(error.to_string(), "f:4: is not UTF-8; convert the file to UTF-8");
        assert!(lines.advance().unwrap());
        assert_eq!((lines.number(), lines.text()), (5, "b"));
        assert!(!lines.advance().unwrap());
        let mut blank = Lines::new(Input::new("f", &b"\n\n"[..]).unwrap());
        assert!(blank.advance().unwrap_err().to_string().starts_with("f: the file is empty"));
    }

    #[test]
    fn a_line_of_more_than_16_mib_is_refused() {
        let endless = std::io::repeat(b'a').take(MAX_LINE_BYTES + 5);
        let mut lines = Lines::new(Input::new("f", endless).unwrap());
        let error = lines.advance().unwrap_err();
        assert!(!error.can_continue());
        assert!(error.to_string().starts_with("f:1: a line of more than 16 MiB; "), "{error}");
    }
}
