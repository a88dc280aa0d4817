//! CSV readers for gold scores and predictions. Windows line ends and a UTF-8 byte order mark are
//! accepted.

use std::path::Path;

use csv::{ErrorKind, StringRecord};

use super::join::{Row, checked_index};
use super::{GoldRow, Prediction};
use crate::error::{EvalError, Location};
use crate::source::read_bytes;
use crate::table::shortened;

/// Reads gold rows: columns `id`, `anchor`, `target`, `context`, `score`, and `rating` if present;
/// other columns are ignored.
///
/// # Errors   [`EvalError::Read`]; as [`parse_gold`]
pub fn read_gold(path: impl AsRef<Path>) -> Result<Vec<GoldRow>, EvalError> {
    read(path.as_ref(), parse_gold)
}

/// Reads predictions: columns `id` and `score`; other columns are ignored.
///
/// # Errors   [`EvalError::Read`]; as [`parse_predictions`]
pub fn read_predictions(path: impl AsRef<Path>) -> Result<Vec<Prediction>, EvalError> {
    read(path.as_ref(), parse_predictions)
}

/// Like [`read_gold`], but from bytes; `file` is the name for error messages.
///
/// # Errors   [`EvalError::Empty`]; [`EvalError::Malformed`]; [`EvalError::MissingColumn`];
/// [`EvalError::DuplicateColumn`]; [`EvalError::EmptyId`]; [`EvalError::DuplicateId`]; [`EvalError::InvalidScore`]
pub fn parse_gold(file: &str, bytes: &[u8]) -> Result<Vec<GoldRow>, EvalError> {
    let mut csv = CsvRows::new(file, bytes)?;
    let [id, anchor, target, context, score] =
        csv.columns(["id", "anchor", "target", "context", "score"])?;
    let rating = csv.optional_column("rating")?;
    csv.collect(|record, location| {
        let id = record[id].trim().to_owned();
        Ok(GoldRow {
            score: parse_score(&record[score], &id, location)?,
            id,
            anchor: record[anchor].to_owned(),
            target: record[target].to_owned(),
            context: record[context].trim().to_owned(),
            rating: rating.map(|column| record[column].trim().to_owned()).filter(|r| !r.is_empty()),
            line: location.line,
        })
    })
}

/// Like [`read_predictions`], but from bytes; `file` is the name for error messages.
///
/// # Errors   as [`parse_gold`]
pub fn parse_predictions(file: &str, bytes: &[u8]) -> Result<Vec<Prediction>, EvalError> {
    let mut csv = CsvRows::new(file, bytes)?;
    let [id, score] = csv.columns(["id", "score"])?;
    csv.collect(|record, location| {
        let id = record[id].trim().to_owned();
        Ok(Prediction {
            score: parse_score(&record[score], &id, location)?,
            id,
            line: location.line,
        })
    })
}

fn read<T>(
    path: &Path,
    parse: impl Fn(&str, &[u8]) -> Result<Vec<T>, EvalError>,
) -> Result<Vec<T>, EvalError> {
    parse(&path.display().to_string(), &read_bytes(path)?)
}

/// Parses a finite number with a decimal point.
fn parse_score(text: &str, id: &str, location: &Location) -> Result<f64, EvalError> {
    let parsed = text.trim().parse().ok().filter(|score: &f64| score.is_finite());
    parsed.ok_or_else(|| EvalError::InvalidScore {
        location: location.clone(),
        id: shortened(id, 60),
        found: shortened(text, 60),
    })
}

/// A CSV file in memory: its header, and its rows with their first line numbers.
struct CsvRows<'a> {
    file: &'a str,
    bytes: &'a [u8],
    header: StringRecord,
    header_line: u64,
    reader: csv::Reader<&'a [u8]>,
}

impl<'a> CsvRows<'a> {
    fn new(file: &'a str, bytes: &'a [u8]) -> Result<Self, EvalError> {
        let bytes = text_bytes(file, bytes)?;
        if bytes.iter().all(u8::is_ascii_whitespace) {
            return Err(EvalError::Empty { file: file.to_owned() });
        }
        let mut reader = csv::ReaderBuilder::new().trim(csv::Trim::Headers).from_reader(bytes);
        let header_line = LineCounter::new(bytes).line_of(0);
        let header = reader.headers().map_err(|e| malformed(file, header_line, &e))?.clone();
        Ok(Self { file, bytes, header, header_line, reader })
    }

    /// The positions of required columns.
    fn columns<const N: usize>(&self, names: [&'static str; N]) -> Result<[usize; N], EvalError> {
        let mut positions = [0; N];
        for (position, name) in positions.iter_mut().zip(names) {
            *position = self.optional_column(name)?.ok_or_else(|| EvalError::MissingColumn {
                location: Location::new(self.file, self.header_line),
                column: name.to_owned(),
                found: shortened(&self.header.iter().collect::<Vec<_>>().join(", "), 200),
            })?;
        }
        Ok(positions)
    }

    /// The position of an optional column.
    fn optional_column(&self, name: &'static str) -> Result<Option<usize>, EvalError> {
        let mut found = self.header.iter().enumerate().filter(|(_, heading)| *heading == name);
        let first = found.next().map(|(position, _)| position);
        if found.next().is_some() {
            let location = Location::new(self.file, self.header_line);
            return Err(EvalError::DuplicateColumn { location, column: name.to_owned() });
        }
        Ok(first)
    }

    /// Collects all rows; ids must be present and unique.
    fn collect<T: Row>(
        &mut self,
        row: impl Fn(&StringRecord, &Location) -> Result<T, EvalError>,
    ) -> Result<Vec<T>, EvalError> {
        let mut lines = LineCounter::new(self.bytes);
        let mut rows = Vec::new();
        for record in self.reader.records() {
            let record = record.map_err(|error| {
                let byte = error.position().map_or(0, csv::Position::byte);
                malformed(self.file, lines.line_of(byte), &error)
            })?;
            let byte = record.position().map_or(0, csv::Position::byte);
            rows.push(row(&record, &Location::new(self.file, lines.line_of(byte)))?);
        }
        checked_index(&rows, self.file)?;
        Ok(rows)
    }
}

/// Removes a UTF-8 byte order mark; refuses other encodings by name.
fn text_bytes<'a>(file: &str, bytes: &'a [u8]) -> Result<&'a [u8], EvalError> {
    let refuse = |reason: &str, remedy| {
        let reason = reason.to_owned();
        Err(EvalError::Malformed { location: Location::new(file, None), reason, remedy })
    };
    match bytes {
        [0x1F, 0x8B, ..] => refuse("is gzip-compressed", "unpack it with gunzip first"),
        [0xFF, 0xFE, ..] | [0xFE, 0xFF, ..] => refuse("is UTF-16 text", "save it as UTF-8"),
        [0xEF, 0xBB, 0xBF, text @ ..] => Ok(text),
        text => Ok(text),
    }
}

fn malformed(file: &str, line: u64, error: &csv::Error) -> EvalError {
    let (reason, remedy) = match error.kind() {
        ErrorKind::UnequalLengths { expected_len, len, .. } => (
            format!("the row has {len} fields, the header {expected_len}"),
            "quote fields that contain a comma, a quote or a line end",
        ),
        ErrorKind::Utf8 { .. } => {
            ("the row is not UTF-8 text".to_owned(), "save the file as UTF-8")
        }
        _ => (error.to_string(), "write the file as comma-separated values with a header"),
    };
    EvalError::Malformed { location: Location::new(file, line), reason, remedy }
}

/// Converts increasing byte offsets to line numbers, including the empty lines that the CSV reader
/// skips.
struct LineCounter<'a> {
    bytes: &'a [u8],
    byte: usize,
    line: u64,
}

impl<'a> LineCounter<'a> {
    fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, byte: 0, line: 1 }
    }

    fn line_of(&mut self, byte: u64) -> u64 {
        let byte = usize::try_from(byte).unwrap_or(usize::MAX);
        while let Some(&current) = self.bytes.get(self.byte)
            && (self.byte < byte || matches!(current, b'\r' | b'\n'))
        {
            // The CSV reader also ends a row at a lone `\r`.
            let ends_line = current == b'\r' && self.bytes.get(self.byte + 1) != Some(&b'\n');
            self.line += u64::from(current == b'\n' || ends_line);
            self.byte += 1;
        }
        self.line
    }
}
