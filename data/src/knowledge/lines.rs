//! Reads lines of text, or tab-separated rows, one at a time: files may be larger than the main
//! memory.

use std::io::{BufRead, Read};
use std::ops::Range;

use super::Collector;
use super::input::Input;
use super::json::shortened;
use crate::DataError;

/// The maximum size of a line, a row or a list item, in bytes.
pub(super) const LONGEST: u64 = 16 << 20;

/// Advice to the user about a line without end.
const TOO_LONG: &str = "check that the file has this format and is complete";

/// The lines that are not blank.
pub(crate) struct Lines<'r> {
    input: Input<'r>,
    line: usize,
    text: String,
}

impl<'r> Lines<'r> {
    pub(crate) fn new(input: Input<'r>) -> Self {
        Self { input, line: 0, text: String::new() }
    }

    /// Moves to the next line; returns `false` at the end.
    ///
    /// # Errors   `Io`, `Gzip`, `NotUtf8`; `Malformed` for a line of more than 16 MiB
    pub(crate) fn advance(&mut self, to: &mut Collector<'_>) -> Result<bool, DataError> {
        loop {
            let mut bytes = std::mem::take(&mut self.text).into_bytes();
            if !read_line(&mut self.input, &mut self.line, &mut bytes)? {
                return Ok(false);
            }
            if bytes.trim_ascii().is_empty() {
                continue;
            }
            to.row();
            let text = String::from_utf8(bytes).map_err(|_| self.not_utf8());
            if let Some(text) = to.accept(text)? {
                self.text = text;
                return Ok(true);
            }
        }
    }

    /// Returns the line without its line end.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// Returns the line number, from 1.
    pub(crate) fn number(&self) -> usize {
        self.line
    }

    /// Creates an error for this line.
    pub(crate) fn error(&self, reason: String, remedy: &'static str) -> DataError {
        let (path, place) = (self.input.path.clone(), Some(format!("line {}", self.line)));
        DataError::Malformed { path, place, reason, remedy }
    }

    fn not_utf8(&self) -> DataError {
        DataError::NotUtf8 { path: self.input.path.clone(), line: self.line }
    }
}

/// Reads a line without its line end and counts it; returns `false` at the end of the file.
fn read_line(
    input: &mut Input<'_>,
    line: &mut usize,
    bytes: &mut Vec<u8>,
) -> Result<bool, DataError> {
    bytes.clear();
    let read = input.reader.by_ref().take(LONGEST + 1).read_until(b'\n', bytes);
    if read.map_err(|error| input.error(error))? == 0 {
        return Ok(false);
    }
    *line += 1;
    if bytes.len() as u64 > LONGEST {
        return Err(DataError::Malformed {
            path: input.path.clone(),
            place: Some(format!("line {line}")),
            reason: format!("a line of more than {} MiB", LONGEST >> 20),
            remedy: TOO_LONG,
        });
    }
    if bytes.last() == Some(&b'\n') {
        bytes.pop();
        if bytes.last() == Some(&b'\r') {
            bytes.pop();
        }
    }
    Ok(true)
}

/// Tab-separated rows below a header, quoted as by Python's `csv`. A field that begins with a quote
/// may contain tabs, line ends and doubled quotes.
pub(super) struct Table<'r> {
    input: Input<'r>,
    /// The number of lines read.
    line: usize,
    /// The line on which the row begins.
    first_line: usize,
    bytes: Vec<u8>,
    columns: usize,
    row: Row,
}

/// The fields of a row in one string, without their quotes.
#[derive(Default)]
pub(super) struct Row {
    text: String,
    ends: Vec<usize>,
}

impl Row {
    pub(super) fn field(&self, column: usize) -> &str {
        let start = if column == 0 { 0 } else { self.ends[column - 1] };
        &self.text[Range { start, end: self.ends[column] }]
    }

    pub(super) fn fields(&self) -> impl Iterator<Item = &str> {
        (0..self.ends.len()).map(|column| self.field(column))
    }
}

impl<'r> Table<'r> {
    /// Reads the header.
    ///
    /// # Errors   as [`Table::advance`]; `EmptyFile` if all lines are blank
    pub(super) fn new(input: Input<'r>) -> Result<Self, DataError> {
        let mut table = Self {
            input,
            line: 0,
            first_line: 0,
            bytes: Vec::new(),
            columns: 0,
            row: Row::default(),
        };
        if !table.read_row()? {
            return Err(DataError::EmptyFile { path: table.input.path });
        }
        table.columns = table.row.ends.len();
        Ok(table)
    }

    /// Returns the index of a column; call it after the header was read.
    ///
    /// # Errors   `MissingColumn`, `DuplicateColumn`
    pub(super) fn column(&self, name: &str) -> Result<usize, DataError> {
        let (path, column) = (self.input.path.clone(), name.to_owned());
        let mut places = self.row.fields().enumerate().filter(|(_, field)| field.trim() == name);
        match (places.next(), places.next()) {
            (Some((place, _)), None) => Ok(place),
            (Some(_), Some(_)) => Err(DataError::DuplicateColumn { path, column }),
            (None, _) => {
                let found = self.row.fields().take(20).map(|field| shortened(field, 20)).collect();
                Err(DataError::MissingColumn { path, column, found })
            }
        }
    }

    /// Returns the last row read; at first, this is the header.
    pub(super) fn row(&self) -> &Row {
        &self.row
    }

    /// Moves to the next row; returns `false` at the end.
    ///
    /// # Errors   `Io`, `Gzip`; `NotUtf8`, `FieldCount`, `TextAfterQuote`. `UnclosedQuote`, and
    /// `Malformed` for a line of more than 16 MiB: the collector cannot skip these, because the
    /// start of the next row is unknown.
    pub(super) fn advance(&mut self, to: &mut Collector<'_>) -> Result<bool, DataError> {
        loop {
            let read = match self.read_row() {
                Ok(false) => return Ok(false),
                Ok(true) => self.check_width(),
                Err(error) if is_of_row(&error) => Err(error),
                Err(error) => return Err(error),
            };
            to.row();
            if to.accept(read)?.is_some() {
                return Ok(true);
            }
        }
    }

    fn check_width(&self) -> Result<(), DataError> {
        let (expected, found) = (self.columns, self.row.ends.len());
        if expected == found {
            return Ok(());
        }
        let path = self.input.path.clone();
        Err(DataError::FieldCount { path, line: self.first_line, expected, found })
    }

    fn read_row(&mut self) -> Result<bool, DataError> {
        loop {
            if !read_line(&mut self.input, &mut self.line, &mut self.bytes)? {
                return Ok(false);
            }
            if !self.bytes.trim_ascii().is_empty() {
                break;
            }
        }
        self.first_line = self.line;
        let Row { text, ends } = std::mem::take(&mut self.row);
        let mut fields = Fields { text: text.into_bytes(), ends, in_quotes: false };
        fields.text.clear();
        fields.ends.clear();
        loop {
            let (path, line) = (&self.input.path, self.line);
            fields
                .read(&self.bytes)
                .map_err(|_| DataError::TextAfterQuote { path: path.clone(), line })?;
            if !fields.in_quotes {
                break;
            }
            let is_short = fields.text.len() as u64 <= LONGEST;
            if !is_short || !read_line(&mut self.input, &mut self.line, &mut self.bytes)? {
                let (path, line) = (self.input.path.clone(), self.first_line);
                return Err(DataError::UnclosedQuote { path, line });
            }
        }
        // The concatenated fields can be valid UTF-8 although a character is split between two of
        // them.
        let text = String::from_utf8(fields.text).ok();
        let text = text.filter(|text| fields.ends.iter().all(|end| text.is_char_boundary(*end)));
        let (path, line) = (&self.input.path, self.first_line);
        let text = text.ok_or_else(|| DataError::NotUtf8 { path: path.clone(), line })?;
        self.row = Row { text, ends: fields.ends };
        Ok(true)
    }
}

/// Whether the error concerns this row only, so that the next row can be read.
fn is_of_row(error: &DataError) -> bool {
    matches!(error, DataError::NotUtf8 { .. } | DataError::TextAfterQuote { .. })
}

/// The fields of a row while its lines are read.
struct Fields {
    text: Vec<u8>,
    ends: Vec<usize>,
    in_quotes: bool,
}

/// A closing quote is followed by text instead of a tab.
struct TextAfterQuote;

impl Fields {
    /// Reads a line: the first line of the row, or the next line of a quoted field.
    fn read(&mut self, line: &[u8]) -> Result<(), TextAfterQuote> {
        let mut rest = line;
        if self.in_quotes {
            self.text.push(b'\n');
        }
        loop {
            if !self.in_quotes && rest.first() == Some(&b'"') {
                self.in_quotes = true;
                rest = &rest[1..];
            }
            if self.in_quotes {
                match self.read_quoted(rest) {
                    None => return Ok(()),
                    Some(behind) => rest = behind,
                }
                if !matches!(rest.first(), None | Some(b'\t')) {
                    return Err(TextAfterQuote);
                }
            }
            let end = rest.iter().position(|byte| *byte == b'\t');
            self.text.extend_from_slice(&rest[..end.unwrap_or(rest.len())]);
            self.ends.push(self.text.len());
            match end {
                Some(end) => rest = &rest[end + 1..],
                None => return Ok(()),
            }
        }
    }

    /// Reads a quoted field up to its end and returns the rest; returns `None` if the line ends
    /// first.
    fn read_quoted<'l>(&mut self, mut rest: &'l [u8]) -> Option<&'l [u8]> {
        while let Some(quote) = rest.iter().position(|byte| *byte == b'"') {
            self.text.extend_from_slice(&rest[..quote]);
            rest = &rest[quote + 1..];
            if rest.first() != Some(&b'"') {
                self.in_quotes = false;
                return Some(rest);
            }
            self.text.push(b'"');
            rest = &rest[1..];
        }
        self.text.extend_from_slice(rest);
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(text: &str) -> Result<Vec<Vec<String>>, String> {
        let input = Input::new("t.tsv", text.as_bytes()).map_err(|e| e.to_string())?;
        let mut table = Table::new(input).map_err(|e| e.to_string())?;
        let mut to = Collector::new(|_| Ok(()));
        let mut rows = Vec::new();
        loop {
            rows.push(table.row().fields().map(str::to_owned).collect());
            if !table.advance(&mut to).map_err(|e| e.to_string())? {
                return Ok(rows);
            }
        }
    }

    #[test]
    fn fields_are_quoted_as_python_does_it() {
        // csv.reader(file, delimiter="\t") of Python 3.11 gives the same rows.
        for (text, wanted) in [
            ("a\tb\n1\t2\n", vec![["a", "b"], ["1", "2"]]),
            ("a\tb\r\n\r\n\"1\n\tx\"\t2", vec![["a", "b"], ["1\n\tx", "2"]]),
            ("\"a\"\t\"\"\n\"\"\"q\"\"\"\tsay \"x\"\n", vec![["a", ""], ["\"q\"", "say \"x\""]]),
            ("a\tb\n\t\"\n\n\"\n", vec![["a", "b"], ["", "\n\n"]]),
        ] {
            assert_eq!(rows(text).unwrap(), wanted, "{text:?}");
        }
    }

    #[test]
    fn faults_are_told_with_their_line() {
        for (text, wanted) in [
            ("a\tb\n1\n", "t.tsv, line 2: 1 fields where the header has 2"),
            ("a\tb\n\"1\n\"\t2\t3\n", "t.tsv, line 2: 3 fields where the header has 2"),
            ("a\tb\n\"1\n\" x\t2\n", "t.tsv, line 3: text after a closing quote"),
            ("a\tb\n1\t\"2\n3\t4\n", "t.tsv, line 2: a quote opened here is never closed"),
        ] {
            let error = rows(text).unwrap_err();
            assert!(error.starts_with(wanted), "{error}");
        }
    }

    #[test]
    fn a_character_torn_between_fields_is_no_utf8() {
        let input = Input::new("t.tsv", &b"a\tb\nx\xef\t\xbb\xbf\n"[..]).unwrap();
        let mut table = Table::new(input).unwrap();
        let error = table.advance(&mut Collector::new(|_| Ok(()))).unwrap_err().to_string();
        assert!(error.starts_with("t.tsv, line 2: not UTF-8"), "{error}");
    }

    #[test]
    fn a_line_without_an_end_is_refused() {
        let endless = std::io::repeat(b'a').take(LONGEST + 5);
        let mut lines = Lines::new(Input::new("l.tsv", endless).unwrap());
        let mut to = Collector::new(|_| Ok(())).skipping_bad_rows(true);
        let error = lines.advance(&mut to).unwrap_err().to_string();
        assert!(error.starts_with("l.tsv, line 1: a line of more than 16 MiB; "), "{error}");
        let quoted = "a\n\"".as_bytes().chain(std::io::repeat(b'\n').take(LONGEST + 5));
        let mut table = Table::new(Input::new("t.tsv", quoted).unwrap()).unwrap();
        let error = table.advance(&mut to).unwrap_err().to_string();
        assert!(error.starts_with("t.tsv, line 2: a quote opened here is never closed"), "{error}");
    }
}
