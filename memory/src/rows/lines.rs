//! Reads entries one by one from a file of JSON lines.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::entry::{DEFAULT_SOURCE, Entry};
use crate::error::{MemoryError, one_line};

/// The maximum length of a line in bytes. A longer line most likely means lost line breaks.
const MAX_LINE_LENGTH: u64 = 16 << 20;
/// The byte order mark that some editors write at the start of a file.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// A line of an entry file: an [`Entry`] with optional fields.
#[derive(Debug, Deserialize)]
struct EntryLine {
    id: Option<i64>,
    source: Option<String>,
    document: Option<Value>,
    #[serde(flatten)]
    payload: Map<String, Value>,
}

/// Reads the entries of a file. Blank lines are skipped. After an error, the iterator ends.
pub struct EntryLines {
    path: PathBuf,
    file: BufReader<File>,
    line: u64,
    /// The id of the next entry without an id; `None` if no larger id exists.
    next_id: Option<i64>,
    failed: bool,
    text: Vec<u8>,
}

impl EntryLines {
    /// Opens a file. An entry without an id gets `first_id`, or the number after the largest id so
    /// far.
    ///
    /// # Errors   [`MemoryError::Read`]
    pub fn open(path: &Path, first_id: i64) -> Result<Self, MemoryError> {
        let file = BufReader::new(File::open(path).map_err(MemoryError::read(path))?);
        let (path, text) = (path.to_owned(), Vec::new());
        Ok(Self { path, file, line: 0, next_id: Some(first_id), failed: false, text })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The last line read, from 1.
    pub fn line(&self) -> u64 {
        self.line
    }

    /// Returns an error about the last line read.
    pub fn error(&self, reason: impl Into<String>, remedy: &'static str) -> MemoryError {
        self.malformed(Some(self.line), reason.into(), remedy)
    }

    /// Reads the next line that is not blank. Returns false at the end.
    fn next_line(&mut self) -> Result<bool, MemoryError> {
        loop {
            self.text.clear();
            let mut line = self.file.by_ref().take(MAX_LINE_LENGTH + 1);
            let read = line.read_until(b'\n', &mut self.text);
            let read = read.map_err(MemoryError::read(&self.path))?;
            if read == 0 {
                return Ok(false);
            }
            self.line += 1;
            if read as u64 > MAX_LINE_LENGTH {
                let reason = format!("is longer than {MAX_LINE_LENGTH} bytes");
                return Err(self.error(reason, "write one JSON object per line"));
            }
            if self.line == 1 && self.text.starts_with(BYTE_ORDER_MARK) {
                self.text.drain(..BYTE_ORDER_MARK.len());
            }
            if !self.text.trim_ascii().is_empty() {
                return Ok(true);
            }
        }
    }

    fn read(&mut self) -> Result<Option<Entry>, MemoryError> {
        if !self.next_line()? {
            return Ok(None);
        }
        let entry: EntryLine = serde_json::from_slice(&self.text).map_err(|error| {
            self.error(
                format!("is not an entry: {error}"),
                "write one JSON object per line, with an integer `id` and the strings `source` and \
                 `document`",
            )
        })?;
        if entry.source.as_deref() == Some("") {
            return Err(self.error("has an empty source", "give it a name, or omit `source`"));
        }
        let document = match entry.document {
            None | Some(Value::Null) => None,
            Some(Value::String(text)) => Some(text),
            Some(Value::Number(number)) if number.is_i64() || number.is_u64() => {
                Some(number.to_string())
            }
            Some(other) => {
                let reason = format!("has the document {other}");
                return Err(self.error(reason, "write the document as a string or an integer"));
            }
        };
        let id = match entry.id {
            Some(id @ ..0) => {
                return Err(self.error(format!("has the id {id}"), "number entries from 0"));
            }
            Some(id) => id,
            None => self.next_id.ok_or_else(|| {
                self.error("has no id, and the largest id is taken", "number entries from 0")
            })?,
        };
        self.next_id = self.next_id.zip(id.checked_add(1)).map(|(next, after)| next.max(after));
        let source = entry.source.unwrap_or_else(|| DEFAULT_SOURCE.to_owned());
        Ok(Some(Entry { id, source, document, payload: entry.payload }))
    }

    /// Returns the error for a file with fewer entries than the `rows` keys.
    pub(super) fn too_few(&self, rows: usize) -> MemoryError {
        let reason = format!("ends after line {}, but there are {rows} keys", self.line);
        self.malformed(None, reason, "give one line per key")
    }

    /// Fails if the file has more entries than the `rows` keys.
    pub(super) fn end_after(&mut self, rows: usize) -> Result<(), MemoryError> {
        match self.next_line()? {
            false => Ok(()),
            true => {
                let reason = format!("has more entries than the {rows} keys");
                Err(self.error(reason, "give one line per key"))
            }
        }
    }

    fn malformed(&self, line: Option<u64>, reason: String, remedy: &'static str) -> MemoryError {
        let reason = one_line(&reason);
        MemoryError::Malformed { file: self.path.clone(), line, reason, remedy }
    }
}

impl Iterator for EntryLines {
    type Item = Result<Entry, MemoryError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        let entry = self.read();
        self.failed = entry.is_err();
        entry.transpose()
    }
}
