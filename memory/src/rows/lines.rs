//! Reads entries one by one: from JSON Lines, a text file with an entry on each line, a CSV, or a
//! folder of text files.

use std::io::Read;
use std::path::{Path, PathBuf};

use engram_entry::{DEFAULT_SOURCE, Entry, EntryLine};
use engram_textfile::{Input, Lines, MAX_LINE_BYTES, TextError, decode, message_in_line};

use super::table::{EntryColumn, EntryTable};
use crate::error::{MemoryError, one_line};

/// A file of entries, or a folder of text files.
#[derive(Debug, Clone)]
pub struct EntryFile {
    /// The path of the file or folder.
    pub path: PathBuf,
    /// The format.
    pub format: EntryFormat,
}

/// The format of an entry file.
#[derive(Debug, Clone)]
pub enum EntryFormat {
    /// JSON Lines.
    Json,
    /// A text on each line. The id is the line number (for other ids, see [`EntryLines::open`]),
    /// and the source is the file name.
    Texts,
    /// A CSV with a header. Only the given columns are read; if the list is empty, all columns with
    /// the name of an entry's field.
    Csv(Vec<EntryColumn>),
    /// These text files in the folder, one entry each. The id is the number in the list, from 1,
    /// the source is the folder's name, and the document is the file's path in the folder.
    TextFiles(Vec<PathBuf>),
}

impl EntryFile {
    /// Creates an entry file of JSON Lines.
    pub fn json(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), format: EntryFormat::Json }
    }
}

/// Reads the entries of a file. Blank lines are skipped. After an error, the iterator ends.
pub struct EntryLines {
    path: PathBuf,
    reader: Reader,
    /// The source of entries without a source, in files other than JSON Lines.
    source: String,
    /// The id of the next entry without an id; `None` if such an entry is refused, and after the
    /// largest possible id.
    next_id: Option<i64>,
    /// The number of entries read.
    entries: u64,
    /// The number of entries whose `file_name` is their image.
    file_names: u64,
    failed: bool,
}

enum Reader {
    Json(Lines<'static>),
    /// The lines, and the offset from a line number to the id.
    Texts(Lines<'static>, i64),
    Csv(EntryTable),
    /// The files, and the offset from a file's number to the id.
    Files(TextFiles, i64),
}

/// Text files, and the content of the file that was read last.
struct TextFiles {
    files: Vec<PathBuf>,
    /// The number of files read.
    read_count: usize,
    text: String,
}

impl TextFiles {
    /// Reads the next file that is not blank; returns `false` at the end.
    fn advance(&mut self) -> Result<bool, TextError> {
        while let Some(file) = self.files.get(self.read_count) {
            self.read_count += 1;
            let (mut input, mut bytes) = (Input::open(file)?, Vec::new());
            let result = input.by_ref().take(MAX_LINE_BYTES + 1).read_to_end(&mut bytes);
            result.map_err(|error| input.error(error))?;
            if bytes.len() as u64 > MAX_LINE_BYTES {
                let reason =
                    format!("has more than {} MiB, but is one entry", MAX_LINE_BYTES >> 20);
                let remedy = "split the file, or write a text on each line of one file";
                return Err(TextError::malformed(file, None, reason, remedy));
            }
            self.text = decode(input.file(), bytes)?;
            if !self.text.trim().is_empty() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The path of the last file read; `None` before the first file.
    fn last(&self) -> Option<&Path> {
        self.files.get(self.read_count.checked_sub(1)?).map(PathBuf::as_path)
    }
}

impl EntryLines {
    /// Opens a file. In JSON Lines and CSV, an entry without an id gets the larger of `first_id`
    /// and the number after the largest id so far; if `first_id` is negative, it is refused. In the
    /// other formats, lines or files are numbered from `first_id`, but at least from 1.
    ///
    /// # Errors
    /// [`MemoryError::Text`], also for a CSV without the named columns; [`MemoryError::Columns`]
    /// for a CSV without a column of texts.
    pub fn open(file: &EntryFile, first_id: i64) -> Result<Self, MemoryError> {
        let input = || Input::open(&file.path);
        let id_offset = first_id.max(1) - 1;
        let reader = match &file.format {
            EntryFormat::Json => Reader::Json(Lines::new(input()?)),
            EntryFormat::Texts => Reader::Texts(Lines::new(input()?), id_offset),
            EntryFormat::Csv(columns) => Reader::Csv(EntryTable::new(input()?, columns)?),
            EntryFormat::TextFiles(files) => {
                let files = TextFiles { files: files.clone(), read_count: 0, text: String::new() };
                Reader::Files(files, id_offset)
            }
        };
        let path = file.path.clone();
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
        let source = name.unwrap_or_else(|| DEFAULT_SOURCE.to_owned());
        let next_id = Some(first_id).filter(|id| *id >= 0);
        Ok(Self { path, reader, source, next_id, entries: 0, file_names: 0, failed: false })
    }

    /// The file of the last entry read, and its line; `None` for a file that is one entry.
    pub fn location(&self) -> (&Path, Option<u64>) {
        match &self.reader {
            Reader::Files(files, _) => (files.last().unwrap_or(&self.path), None),
            Reader::Json(_) | Reader::Texts(..) | Reader::Csv(_) => (&self.path, Some(self.line())),
        }
    }

    /// The number of the last line read, or of the last file, from 1.
    pub fn line(&self) -> u64 {
        match &self.reader {
            Reader::Json(lines) | Reader::Texts(lines, _) => lines.number(),
            Reader::Csv(table) => table.line(),
            Reader::Files(files, _) => files.read_count as u64,
        }
    }

    /// The number of blank texts so far: blank lines of a text file, or blank text files; 0 for
    /// JSON Lines and CSV.
    pub fn blank_texts(&self) -> u64 {
        match &self.reader {
            Reader::Texts(lines, _) => lines.number() - self.entries,
            Reader::Files(files, _) => files.read_count as u64 - self.entries,
            Reader::Json(_) | Reader::Csv(_) => 0,
        }
    }

    /// The number of entries so far with a `file_name`, as in metadata of Hugging Face, and no
    /// `image`. It is read as the image.
    pub fn file_names(&self) -> u64 {
        self.file_names
    }

    /// Returns an error about the last entry read.
    pub fn error(&self, reason: impl Into<String>, remedy: &'static str) -> MemoryError {
        let (file, line) = self.location();
        malformed(file, line, reason.into(), remedy)
    }

    /// Reads the next line, row or file; returns `false` at the end.
    fn advance(&mut self) -> Result<bool, MemoryError> {
        let advanced = match &mut self.reader {
            Reader::Json(lines) => match lines.advance() {
                Err(TextError::Empty { .. }) => Ok(false),
                advanced => advanced,
            },
            Reader::Texts(lines, _) => lines.advance(),
            Reader::Csv(table) => table.advance(),
            Reader::Files(files, _) => files.advance(),
        };
        Ok(advanced?)
    }

    /// Reads the next entry; `None` at the end.
    fn read_entry(&mut self) -> Result<Option<Entry>, MemoryError> {
        if !self.advance()? {
            return Ok(None);
        }
        self.entries += 1;
        let mut line: EntryLine = match &self.reader {
            Reader::Json(lines) => serde_json::from_str(lines.text()).map_err(|error| {
                self.error(
                    format!("is not an entry: {}", message_in_line(&error)),
                    "write one JSON object per line, with an integer `id` and the strings \
                     `source` and `document`",
                )
            })?,
            Reader::Texts(lines, id_offset) => EntryLine {
                id: i64::try_from(lines.number())
                    .ok()
                    .and_then(|line| line.checked_add(*id_offset)),
                ..EntryLine::passage(&self.source, lines.text().trim())
            },
            Reader::Files(files, id_offset) => {
                let name = files.last().map(|file| file.strip_prefix(&self.path).unwrap_or(file));
                let name = name.and_then(Path::to_str);
                let Some(name) = name.filter(|name| !name.contains(char::is_control)) else {
                    let reason = "has a name that is not UTF-8, or has a control character";
                    return Err(self.error(reason, "rename the file"));
                };
                EntryLine {
                    id: i64::try_from(files.read_count)
                        .ok()
                        .and_then(|number| number.checked_add(*id_offset)),
                    document: Some(name.to_owned()),
                    ..EntryLine::passage(&self.source, files.text.trim())
                }
            }
            Reader::Csv(table) => table.entry(&self.source).map_err(|id| {
                let reason = one_line(&format!("has the id `{id}`"));
                let remedy = "number the entries, or read the column as another field, for example \
                              `document=id`";
                let (file, line) = self.location();
                MemoryError::Columns(TextError::malformed(file, line, reason, remedy))
            })?,
        };
        if !line.payload.contains_key("image")
            && let Some(file) = line.payload.remove("file_name")
        {
            line.payload.insert("image".to_owned(), file);
            self.file_names += 1;
        }
        self.entry_of(line).map(Some)
    }

    /// Returns the entry of a line. An entry without an id gets the next id.
    fn entry_of(&mut self, line: EntryLine) -> Result<Entry, MemoryError> {
        if line.source.is_empty() {
            return Err(self.error("has an empty source", "give it a name, or omit `source`"));
        }
        let id = match line.id {
            Some(id @ ..0) => {
                return Err(self.error(format!("has the id {id}"), "number entries from 0"));
            }
            Some(id) => id,
            None => self.next_id.ok_or_else(|| {
                self.error("has no id, and gets none here", "give each entry its id, from 0")
            })?,
        };
        self.next_id = self.next_id.zip(id.checked_add(1)).map(|(next, after)| next.max(after));
        Ok(line.with_id(id))
    }

    /// Returns the error for a file with fewer entries than the `rows` keys.
    pub(super) fn too_few(&self, rows: usize) -> MemoryError {
        match self.location() {
            (file, Some(line)) => {
                let reason = format!("ends after line {line}, but there are {rows} keys");
                malformed(file, None, reason, "give one line per key; blank lines are skipped")
            }
            (_, None) => {
                let reason = format!("has {} texts, but there are {rows} keys", self.entries);
                malformed(&self.path, None, reason, "give one file per key")
            }
        }
    }

    /// Returns an error if the file has more entries than the `rows` keys.
    pub(super) fn check_end(&mut self, rows: usize) -> Result<(), MemoryError> {
        if self.advance()? {
            let reason = format!("has more entries than the {rows} keys");
            Err(self.error(reason, "give one line per key"))
        } else {
            Ok(())
        }
    }
}

fn malformed(file: &Path, line: Option<u64>, reason: String, remedy: &'static str) -> MemoryError {
    let reason = one_line(&reason);
    MemoryError::Malformed { file: file.to_owned(), line, reason, remedy }
}

impl Iterator for EntryLines {
    type Item = Result<Entry, MemoryError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        let entry = self.read_entry();
        self.failed = entry.is_err();
        entry.transpose()
    }
}
