//! Delimited tables with a header, read row by row: a table may be larger than the main memory.

use std::borrow::Cow;
use std::ops::Range;

use serde::de::IgnoredAny;

use crate::fields::{Fields, named_separator, separator};
use crate::lines::{LineReader, MAX_LINE_BYTES, check_line_ends, without_end};
use crate::{Input, Location, TextError, shortened};

/// The remedy for a file that is no table.
const TABLE: &str = "give a table with a header, such as CSV";

/// A reader of a table with its current row.
///
/// A field that begins with a quote may contain separators, line ends and doubled quotes, as in
/// Python's `csv`. A quote in the middle of an unquoted field is an ordinary character. An unclosed
/// quote, text after a closing quote, and a row with more or fewer fields than the header are
/// errors. Blank lines and rows of nothing but separators are skipped.
///
/// Spreadsheets write other separators into files with the same extension. So a first line `sep=;`
/// names the separator. Otherwise, a header without the expected separator is divided at `;`, tabs,
/// commas or `|`, whichever it has first in this order.
pub struct Table<'r> {
    reader: LineReader<'r>,
    delimiter: u8,
    has_quotes: bool,
    /// Whether `0,5` is a number: in files of spreadsheets that do not separate fields by commas.
    has_decimal_commas: bool,
    /// The line on which the row begins.
    first_line: u64,
    /// The line that was read last.
    bytes: Vec<u8>,
    header: Vec<String>,
    header_line: u64,
    /// The fields of the row in one string, without quotes, and the end of each field.
    text: String,
    ends: Vec<usize>,
    /// Whether no row after the header has been read.
    is_empty: bool,
}

impl<'r> Table<'r> {
    /// Reads the header of comma-separated values.
    ///
    /// # Errors
    /// as [`Table::advance`]; [`TextError::Empty`]
    pub fn csv(input: Input<'r>) -> Result<Self, TextError> {
        Self::new(input, b',', true)
    }

    /// Reads the header of tab-separated values; without `has_quotes`, quotes are ordinary
    /// characters, except around a field with doubled quotes, as spreadsheets write it, and in a
    /// file with quoted names of columns.
    ///
    /// # Errors
    /// as [`Table::advance`]; [`TextError::Empty`]
    pub fn tsv(input: Input<'r>, has_quotes: bool) -> Result<Self, TextError> {
        Self::new(input, b'\t', has_quotes)
    }

    fn new(input: Input<'r>, delimiter: u8, has_quotes: bool) -> Result<Self, TextError> {
        let mut table = Self {
            reader: LineReader::new(input),
            delimiter,
            has_quotes,
            has_decimal_commas: false,
            first_line: 0,
            bytes: Vec::new(),
            header: Vec::new(),
            header_line: 0,
            text: String::new(),
            ends: Vec::new(),
            is_empty: true,
        };
        let mut has_header = table.reader.read_not_blank(&mut table.bytes)?;
        table.delimiter = if let Some(named) = named_separator(&table.bytes) {
            has_header = table.reader.read_not_blank(&mut table.bytes)?;
            named
        } else {
            separator(&table.bytes, delimiter, has_quotes)
        };
        if !has_header {
            return Err(TextError::Empty { file: table.file().to_owned() });
        }
        let first = table.bytes.trim_ascii();
        if first.starts_with(b"{") && serde_json::from_slice::<IgnoredAny>(first).is_ok()
            || first.starts_with(b"[") && !first.contains(&table.delimiter)
            || first == b"{"
        {
            let location = table.reader.location();
            let (reason, remedy) = ("is JSON, not a table".to_owned(), TABLE);
            return Err(TextError::Malformed { location, reason, remedy });
        }
        let is_other = table.delimiter != delimiter;
        let names = without_end(&table.bytes).split(|byte| *byte == table.delimiter);
        let is_quoted = |name: &[u8]| name.len() > 1 && name[0] == b'"' && name.ends_with(b"\"");
        table.has_quotes |= is_other || names.clone().count() > 1 && names.clone().all(is_quoted);
        table.has_decimal_commas = is_other && table.delimiter != b',';
        table.parse_row()?;
        check_line_ends(table.file(), &table.text)?;
        table.header_line = table.first_line;
        table.header = table.fields().map(|name| name.trim().to_owned()).collect();
        Ok(table)
    }

    /// Returns the name of the file in error messages.
    pub fn file(&self) -> &str {
        self.reader.input.file()
    }

    /// Returns the index of a column. Letter case is ignored.
    ///
    /// # Errors
    /// [`TextError::MissingColumn`]; [`TextError::DuplicateColumn`]
    pub fn column(&self, name: &str) -> Result<usize, TextError> {
        self.optional_column(name)?.ok_or_else(|| TextError::MissingColumn {
            location: Location::new(self.file(), self.header_line),
            column: shortened(name, 60),
            found: shortened(&self.header.join(", "), 200),
        })
    }

    /// Returns the index of a column, or `None` if the header lacks it. Letter case is ignored.
    ///
    /// # Errors
    /// [`TextError::DuplicateColumn`]
    pub fn optional_column(&self, name: &str) -> Result<Option<usize>, TextError> {
        let mut matches =
            (0..self.header.len()).filter(|column| self.header[*column].eq_ignore_ascii_case(name));
        let first = matches.next();
        match matches.next() {
            None => Ok(first),
            Some(_) => Err(TextError::DuplicateColumn {
                location: Location::new(self.file(), self.header_line),
                column: shortened(name, 60),
            }),
        }
    }

    /// Returns the indices of several columns.
    ///
    /// # Errors
    /// as [`Table::column`]
    pub fn columns<const N: usize>(&self, names: [&str; N]) -> Result<[usize; N], TextError> {
        let mut columns = [0; N];
        for (column, name) in columns.iter_mut().zip(names) {
            *column = self.column(name)?;
        }
        Ok(columns)
    }

    /// Returns the names of all columns, trimmed.
    pub fn header(&self) -> &[String] {
        &self.header
    }

    /// Moves to the next row; returns `false` at the end.
    ///
    /// # Errors
    /// - Reading can continue with the next row after [`TextError::NotUtf8`],
    ///   [`TextError::FieldCount`] and [`TextError::TextAfterQuote`].
    /// - Reading ends with [`TextError::Read`], [`TextError::NoRows`],
    ///   [`TextError::UnclosedQuote`] (also if a row of more than 16 MiB does not end on its line),
    ///   and [`TextError::Malformed`] for damaged gzip data and for a line of more than 16 MiB.
    pub fn advance(&mut self) -> Result<bool, TextError> {
        if !self.read_row()? {
            let file = self.file().to_owned();
            return if self.is_empty { Err(TextError::NoRows { file }) } else { Ok(false) };
        }
        let (expected, found) = (self.header.len(), self.ends.len());
        if expected == found {
            Ok(true)
        } else {
            let remedy = if self.has_quotes {
                "quote a field that contains the separator"
            } else {
                "write a tab or a line break inside a text as a space"
            };
            Err(TextError::FieldCount { location: self.location(), expected, found, remedy })
        }
    }

    /// Returns a field of the row, unchanged.
    pub fn field(&self, column: usize) -> &str {
        let start = if column == 0 { 0 } else { self.ends[column - 1] };
        &self.text[Range { start, end: self.ends[column] }]
    }

    /// Returns a field of the row, trimmed; it must not be blank.
    ///
    /// # Errors
    /// [`TextError::EmptyField`]
    pub fn required_field(&self, column: usize) -> Result<&str, TextError> {
        match self.field(column).trim() {
            "" => {
                let column = shortened(&self.header[column], 60);
                Err(TextError::EmptyField { location: self.location(), column })
            }
            text => Ok(text),
        }
    }

    /// Parses a field of the row as a finite number. The decimal separator is a point; in a file of
    /// a spreadsheet with another separator than expected, it may also be a comma.
    ///
    /// # Errors
    /// [`TextError::EmptyField`]; [`TextError::Malformed`]
    pub fn number(&self, column: usize) -> Result<f64, TextError> {
        let text = self.required_field(column)?;
        let parsed = self.with_point(column).parse().ok();
        parsed.filter(|number: &f64| number.is_finite()).ok_or_else(|| {
            let (name, found) = (shortened(&self.header[column], 60), shortened(text, 60));
            let reason = format!("{name} `{found}` is not a finite number");
            self.error(reason, "write it as 0.25, with a point")
        })
    }

    /// Returns a field of the row, trimmed, with a point for the comma of a decimal number in a file
    /// of a spreadsheet that separates fields otherwise.
    pub fn with_point(&self, column: usize) -> Cow<'_, str> {
        let text = self.field(column).trim();
        let with_point = || Some(text.replacen(',', ".", 1)).filter(|t| t.parse::<f64>().is_ok());
        let is_number = self.has_decimal_commas && text.contains(',');
        is_number.then(with_point).flatten().map_or(Cow::Borrowed(text), Cow::Owned)
    }

    /// Returns the first line of the row, from 1.
    pub fn line(&self) -> u64 {
        self.first_line
    }

    /// Returns the location of the row: its first line.
    pub fn location(&self) -> Location {
        Location::new(self.file(), self.line())
    }

    /// Creates an error for this row.
    pub fn error(&self, reason: impl Into<String>, remedy: &'static str) -> TextError {
        TextError::Malformed { location: self.location(), reason: reason.into(), remedy }
    }

    /// Iterates over the fields of the row, unchanged.
    pub fn fields(&self) -> impl Iterator<Item = &str> {
        (0..self.ends.len()).map(|column| self.field(column))
    }

    /// Reads a row of any number of fields; returns `false` at the end.
    fn read_row(&mut self) -> Result<bool, TextError> {
        while self.reader.read_not_blank(&mut self.bytes)? {
            // Spreadsheets write rows without content, which once had some, as separators alone.
            let is_empty = |byte: &u8| *byte == self.delimiter || byte.is_ascii_whitespace();
            if !self.bytes.iter().all(is_empty) {
                self.parse_row()?;
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Parses the row that begins with the line in `bytes`; reads further lines of quoted fields.
    fn parse_row(&mut self) -> Result<(), TextError> {
        self.is_empty &= self.header.is_empty();
        self.first_line = self.reader.line;
        let mut fields = Fields {
            text: std::mem::take(&mut self.text).into_bytes(),
            ends: std::mem::take(&mut self.ends),
            delimiter: self.delimiter,
            has_quotes: self.has_quotes,
            in_quotes: false,
        };
        fields.text.clear();
        fields.ends.clear();
        loop {
            if !fields.read(&self.bytes) {
                return Err(TextError::TextAfterQuote { location: self.reader.location() });
            }
            if !fields.in_quotes {
                break;
            }
            let is_within_limit = fields.text.len() as u64 <= MAX_LINE_BYTES;
            if !is_within_limit || !self.reader.read(&mut self.bytes)? {
                return Err(TextError::UnclosedQuote { location: self.location() });
            }
        }
        // The concatenated fields can be valid UTF-8 although a character is split between two of
        // them.
        let text = String::from_utf8(fields.text).ok();
        let text = text.filter(|text| fields.ends.iter().all(|end| text.is_char_boundary(*end)));
        self.text = text.ok_or_else(|| TextError::NotUtf8 { location: self.location() })?;
        self.ends = fields.ends;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    fn tsv(text: &[u8]) -> Result<Table<'_>, TextError> {
        Table::tsv(Input::new("t.tsv", text)?, true)
    }

    fn rows(text: &str) -> Result<Vec<Vec<String>>, String> {
        let mut table = tsv(text.as_bytes()).map_err(|error| error.to_string())?;
        let mut rows = vec![table.header().to_vec()];
        while table.advance().map_err(|error| error.to_string())? {
            rows.push(table.fields().map(str::to_owned).collect());
        }
        Ok(rows)
    }

    #[test]
    fn fields_are_quoted_as_in_python() {
        // csv.reader(file, delimiter="\t") of Python 3.11 gives the same rows.
        for (text, expected) in [
            ("a\tb\n1\t2\n", vec![["a", "b"], ["1", "2"]]),
            ("a\tb\r\n\r\n\"1\n\tx\"\t2", vec![["a", "b"], ["1\n\tx", "2"]]),
            ("a\tb\n\"\"\"q\"\"\"\tsay \"x\"\n", vec![["a", "b"], ["\"q\"", "say \"x\""]]),
            ("a\tb\n\t\"\r\n\n\"\n", vec![["a", "b"], ["", "\r\n\n"]]),
        ] {
            assert_eq!(rows(text).unwrap(), expected, "{text:?}");
        }
        let unquoted = Input::new("t.tsv", &b"a\tb\n\"1\t2\"\n"[..]).unwrap();
        let mut table = Table::tsv(unquoted, false).unwrap();
        assert!(table.advance().unwrap());
        assert_eq!((table.field(0), table.field(1)), ("\"1", "2\""));
        for (text, expected) in [
            ("a\tb\n\"say \"\"x\"\"\"\t\"x\"\n", ["say \"x\"", "\"x\""]),
            ("\"a\"\t\"b\"\n\"x\"\t\"1\n\t2\"\n", ["x", "1\n\t2"]),
        ] {
            let input = Input::new("t.tsv", text.as_bytes()).unwrap();
            let mut table = Table::tsv(input, false).unwrap();
            assert!(table.advance().unwrap());
            assert_eq!([table.field(0), table.field(1)], expected, "{text:?}");
        }
    }

    #[test]
    fn errors_name_their_line() {
        for (text, expected) in [
            ("", "t.tsv: the file is empty; "),
            ("\n\na\tb\n\n", "t.tsv: a header but no rows; "),
            ("a\tb\r1\t2\r", "t.tsv:1: ends its lines with a carriage return only; "),
            ("a\tb\n1\n", "t.tsv:2: 1 fields where the header has 2; "),
            ("a\tb\n\"1\n\"\t2\t3\n", "t.tsv:2: 3 fields where the header has 2; "),
            ("a\tb\n\"1\n\" x\t2\n", "t.tsv:3: text after a closing quote; "),
            ("a\tb\n1\t\"2\n3\t4\n", "t.tsv:2: a quote opened here is never closed; "),
        ] {
            let error = rows(text).unwrap_err();
            assert!(error.starts_with(expected), "{error}");
        }
        let unclosed = "a\n\"".as_bytes().chain(std::io::repeat(b'\n').take(MAX_LINE_BYTES + 5));
        let mut table = Table::tsv(Input::new("t.tsv", unclosed).unwrap(), true).unwrap();
        let error = table.advance().unwrap_err().to_string();
        assert!(error.starts_with("t.tsv:2: a quote opened here is never closed"), "{error}");
    }

    #[test]
    fn reading_continues_after_a_malformed_row() {
        let mut table = tsv(b"a\tb\nx\xef\t\xbb\xbf\n\"x\"y\t\n1\n1\t2\n").unwrap();
        for _ in 0..3 {
            assert!(table.advance().unwrap_err().can_continue());
        }
        assert!(table.advance().unwrap());
        assert_eq!((table.field(1), table.location().line), ("2", Some(5)));
        assert!(!table.advance().unwrap());
    }

    #[test]
    fn files_of_spreadsheets_name_or_show_their_separator() {
        for (text, header) in [
            ("\u{feff}\"a\";\"b, c\"\r\n\"x;y\";0,5\r\n", ["a", "b, c"]),
            ("\u{feff}SEP=;\r\na;b, c\r\nx;0,5\r\n", ["a", "b, c"]),
            ("a\tb\n1\t0.5\n", ["a", "b"]),
            ("\"sep=\t\"\na\tb\n1\t0,5\n", ["a", "b"]),
            ("sep=,\na,b\n1,0.5\n", ["a", "b"]),
            ("sep=;;;\na;b\n;\n1;0,5\n", ["a", "b"]),
            ("\"sep = ;\";\na;b\n1;0,5\n", ["a", "b"]),
            ("a|b\n1|0,5\n", ["a", "b"]),
            ("a;b,c\n1;2,0.5\n", ["a;b", "c"]),
        ] {
            let mut table = Table::csv(Input::new("t.csv", text.as_bytes()).unwrap()).unwrap();
            assert!(table.header() == header && table.advance().unwrap(), "{text:?}");
            assert_eq!(table.number(1).unwrap(), 0.5, "{text:?}");
        }
        assert_eq!(rows("a,b\n,\n1,2\n , , \n").unwrap().len(), 2);
        let table = |text: &str| {
            let mut table = Table::csv(Input::new("t.csv", text.as_bytes()).unwrap()).unwrap();
            assert!(table.advance().unwrap());
            [0, 1].map(|column| table.with_point(column).into_owned())
        };
        assert_eq!(table("a;b\n 2,5 ;1,2,3\n"), ["2.5", "1,2,3"]);
        assert_eq!(table("a,b\n\"2,5\",x\n"), ["2,5", "x"]);
        for json in ["{\"a\": 1, \"b\": 2}\n", "[\n1]\n", "{\n\"a\": 1}\n"] {
            let error = rows(json).unwrap_err();
            assert!(error.starts_with("t.tsv:1: is JSON, not a table; "), "{error}");
        }
        // In a file with commas, a comma in a number may also group digits.
        assert_eq!(rows("a,b\n\"1,5\",2\n").unwrap(), [["a", "b"], ["1,5", "2"]]);
        let mut table = Table::csv(Input::new("t", &b"a,b\n\"1,5\",2\n"[..]).unwrap()).unwrap();
        assert!(table.advance().unwrap() && table.number(0).is_err());
        assert!(rows("sep=;\n").unwrap_err().starts_with("t.tsv: the file is empty"));
    }

    #[test]
    fn columns_are_found_by_name() {
        let mut table = tsv(b"\n ID \tb\tb\tn\n x \t \t\t1,5\n").unwrap();
        assert_eq!(table.columns(["id", "n"]).unwrap(), [0, 3]);
        assert_eq!(table.optional_column("c").unwrap(), None);
        let error = table.column("c").unwrap_err().to_string();
        assert!(error.starts_with("t.tsv:2: column `c` is missing; the header has: ID, b, b, n; "));
        let error = table.column("b").unwrap_err().to_string();
        assert!(error.starts_with("t.tsv:2: column `b` occurs twice; "), "{error}");
        assert!(table.advance().unwrap());
        assert_eq!((table.field(0), table.required_field(0).unwrap()), (" x ", "x"));
        let error = table.required_field(1).unwrap_err().to_string();
        assert!(error.starts_with("t.tsv:3: b is empty; "), "{error}");
        let error = table.number(3).unwrap_err().to_string();
        assert!(error.starts_with("t.tsv:3: n `1,5` is not a finite number; "), "{error}");
    }
}
