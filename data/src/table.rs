//! A strict reader of delimited tables with a header. Each row knows its line. An unclosed quote or
//! text after a closing quote is an error here; the `csv` crate accepts both.

use std::fs;
use std::path::{Path, PathBuf};

use crate::DataError;

/// A table in memory. Fields are trimmed.
pub(crate) struct Table {
    path: PathBuf,
    columns: Vec<String>,
    pub(crate) rows: Vec<Row>,
}

/// A row and the line on which it starts.
pub(crate) struct Row {
    pub(crate) line: usize,
    fields: csv::StringRecord,
}

impl Row {
    pub(crate) fn field(&self, column: usize) -> &str {
        self.fields.get(column).unwrap_or_default()
    }
}

impl Table {
    /// Parses `text` (the content of `path`). Quotes have no meaning if the delimiter is a tab.
    pub(crate) fn parse(path: &Path, text: &str, delimiter: u8) -> Result<Self, DataError> {
        let quoting = delimiter != b'\t';
        if quoting {
            check_quotes(path, text.as_bytes(), delimiter)?;
        }
        let mut records = csv::ReaderBuilder::new()
            .delimiter(delimiter)
            .quoting(quoting)
            .flexible(true)
            .has_headers(false)
            .trim(csv::Trim::All)
            .from_reader(text.as_bytes())
            .into_records();
        let columns: Vec<String> = match next_record(path, &mut records)? {
            Some(header) => header.iter().map(str::to_lowercase).collect(),
            None => return Err(DataError::EmptyFile { path: path.into() }),
        };
        let mut rows = Vec::new();
        let mut lines = LineCounter::new(text.as_bytes());
        while let Some(fields) = next_record(path, &mut records)? {
            let start = fields.position().map_or(0, csv::Position::byte) as usize;
            let line = lines.line_of_record(start);
            if fields.len() != columns.len() {
                return Err(DataError::FieldCount {
                    path: path.into(),
                    line,
                    expected: columns.len(),
                    found: fields.len(),
                });
            }
            rows.push(Row { line, fields });
        }
        if rows.is_empty() {
            return Err(DataError::NoRows { path: path.into() });
        }
        Ok(Self { path: path.into(), columns, rows })
    }

    /// Returns the index of a column, or `None` if the header lacks it. Letter case is ignored.
    pub(crate) fn column(&self, name: &str) -> Result<Option<usize>, DataError> {
        let mut found = (0..self.columns.len()).filter(|&i| self.columns[i] == name);
        let first = found.next();
        match found.next() {
            None => Ok(first),
            Some(_) => {
                Err(DataError::DuplicateColumn { path: self.path.clone(), column: name.into() })
            }
        }
    }

    /// Returns the index of a required column.
    pub(crate) fn required_column(&self, name: &str) -> Result<usize, DataError> {
        self.column(name)?.ok_or_else(|| DataError::MissingColumn {
            path: self.path.clone(),
            column: name.into(),
            found: self.columns.clone(),
        })
    }
}

/// Reads a UTF-8 file, with or without BOM.
///
/// # Errors
/// [`DataError::Io`], [`DataError::NotUtf8`] with the line, [`DataError::EmptyFile`].
pub fn read_text(path: &Path) -> Result<String, DataError> {
    let bytes = fs::read(path).map_err(|source| DataError::Io { path: path.into(), source })?;
    let mut text = String::from_utf8(bytes).map_err(|error| {
        let valid = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        DataError::NotUtf8 { path: path.into(), line: 1 + count_newlines(valid) }
    })?;
    if text.starts_with('\u{feff}') {
        text.drain(..'\u{feff}'.len_utf8());
    }
    if text.trim().is_empty() {
        return Err(DataError::EmptyFile { path: path.into() });
    }
    Ok(text)
}

fn next_record(
    path: &Path,
    records: &mut csv::StringRecordsIntoIter<&[u8]>,
) -> Result<Option<csv::StringRecord>, DataError> {
    records
        .next()
        .transpose()
        .map_err(|error| DataError::Io { path: path.into(), source: error.into() })
}

/// Computes line numbers for increasing byte positions. The position from `csv` lies before line
/// ends that are still to be skipped (blank lines, the `
/// ` of a `\r
/// `).
struct LineCounter<'a> {
    bytes: &'a [u8],
    position: usize,
    line: usize,
}

impl<'a> LineCounter<'a> {
    fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, position: 0, line: 1 }
    }

    fn line_of_record(&mut self, start: usize) -> usize {
        let skipped =
            self.bytes[start..].iter().take_while(|byte| matches!(byte, b'\r' | b'\n')).count();
        self.line += count_newlines(&self.bytes[self.position..start + skipped]);
        self.position = start + skipped;
        self.line
    }
}

fn count_newlines(bytes: &[u8]) -> usize {
    bytes.iter().filter(|&&byte| byte == b'\n').count()
}

/// Checks that each quoted field ends, and ends at a separator. A quote in the middle of an
/// unquoted field is an ordinary character, as in pandas.
fn check_quotes(path: &Path, bytes: &[u8], delimiter: u8) -> Result<(), DataError> {
    let mut line = 1;
    let mut position = 0;
    let mut at_field_start = true;
    while let Some(&byte) = bytes.get(position) {
        if at_field_start && byte == b'"' {
            let opened = line;
            position += 1;
            loop {
                match (bytes.get(position), bytes.get(position + 1)) {
                    (None, _) => {
                        return Err(DataError::UnclosedQuote { path: path.into(), line: opened });
                    }
                    (Some(b'"'), Some(b'"')) => position += 2,
                    (Some(b'"'), next) => {
                        let ends = next.is_none_or(|&n| n == delimiter || n == b'\r' || n == b'\n');
                        if !ends {
                            return Err(DataError::TextAfterQuote { path: path.into(), line });
                        }
                        break;
                    }
                    (Some(b'\n'), _) => {
                        line += 1;
                        position += 1;
                    }
                    _ => position += 1,
                }
            }
            at_field_start = false;
        } else {
            at_field_start = byte == delimiter || byte == b'\r' || byte == b'\n';
            line += usize::from(byte == b'\n');
        }
        position += 1;
    }
    Ok(())
}
