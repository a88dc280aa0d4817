//! Reads rows for a memory from files: keys, values and entries.

mod lines;
mod table;

use std::path::Path;

use engram_entry::Entry;

use crate::error::MemoryError;
use crate::segment::Batch;
use crate::vectors::VectorFile;

pub use lines::{EntryFile, EntryFormat, EntryLines};
pub use table::EntryColumn;

/// The maximum number of key and value components that are read at a time.
const BATCH_NUMBERS: usize = 1 << 20;

/// The files of the rows.
#[derive(Debug, Clone, Copy)]
pub struct RowFiles<'a> {
    /// Keys, `[rows, width]`.
    pub keys: &'a Path,
    /// Values, `[rows, tokens, width]`, or `[rows, width]` for one token; `None` for a memory
    /// without values.
    pub values: Option<&'a Path>,
    /// Entries. With `None`, entries have an id and the default source, and no other fields.
    pub entries: Option<&'a EntryFile>,
    /// The id of the first entry without an id. Later entries without an id count on from it.
    pub first_id: i64,
}

/// Reads rows in batches.
pub struct RowReader {
    keys: VectorFile,
    values: Option<VectorFile>,
    entries: Option<EntryLines>,
    next_id: i64,
    count: usize,
    left: usize,
    failed: bool,
}

impl RowReader {
    /// Opens the files.
    ///
    /// # Errors
    /// [`MemoryError::Read`], [`MemoryError::Malformed`], also if the number of values
    /// and keys differs
    pub fn open(files: RowFiles<'_>) -> Result<Self, MemoryError> {
        let keys = VectorFile::open(files.keys, "keys")?;
        let values = files.values.map(|path| VectorFile::open(path, "values")).transpose()?;
        let rows = keys.shape()[0];
        if let Some(values) = &values {
            let found = values.shape()[0];
            if found != rows {
                let file = files.values.unwrap_or(files.keys).to_owned();
                let reason = format!("has {found} rows, but {} has {rows}", files.keys.display());
                let remedy = "give one value per key";
                return Err(MemoryError::Malformed { file, line: None, reason, remedy });
            }
        }
        let open = |file| EntryLines::open(file, files.first_id);
        let entries = files.entries.map(open).transpose()?;
        Ok(Self {
            keys,
            values,
            entries,
            next_id: files.first_id,
            count: rows,
            left: rows,
            failed: false,
        })
    }

    /// The number of rows still to be read.
    pub fn rows(&self) -> usize {
        self.left
    }

    /// Width of a key.
    pub fn width(&self) -> usize {
        self.keys.row_len()
    }

    /// Returns the tokens of a value and the width of a token; `None` without values.
    pub fn value_shape(&self) -> Option<(usize, usize)> {
        let shape = self.values.as_ref()?.shape();
        let width = shape[shape.len() - 1];
        Some((shape[1..shape.len() - 1].iter().product(), width))
    }

    fn read(&mut self) -> Result<Batch, MemoryError> {
        let size = self.width() + self.values.as_ref().map_or(0, VectorFile::row_len);
        let rows = (BATCH_NUMBERS / size.max(1)).clamp(1, self.left);
        let mut batch = Batch { keys: self.keys.read_rows(rows)?, ..Batch::default() };
        if let Some(values) = &mut self.values {
            batch.values = values.read_rows(rows)?;
        }
        for _ in 0..rows {
            let next = match &mut self.entries {
                Some(entries) => entries.next().unwrap_or_else(|| Err(entries.too_few(self.count))),
                None => {
                    let id = self.next_id;
                    self.next_id = id.checked_add(1).ok_or_else(|| MemoryError::InvalidOption {
                        option: "an id",
                        found: id.to_string(),
                        expected: "less than 2^63 - 1; number entries from 0",
                    })?;
                    Ok(Entry::bare(id))
                }
            };
            batch.entries.push(next?);
        }
        self.left -= rows;
        if let (0, Some(entries)) = (self.left, &mut self.entries) {
            entries.end_after(self.count)?;
        }
        Ok(batch)
    }
}

impl Iterator for RowReader {
    type Item = Result<Batch, MemoryError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.left == 0 || self.failed {
            return None;
        }
        let batch = self.read();
        self.failed = batch.is_err();
        Some(batch)
    }
}

/// Adds the file, and the line if there is one, to an error about rows. `entries` has the file of
/// entries and the id of its first entry without an id.
pub fn with_location(
    error: MemoryError,
    keys: Option<&Path>,
    values: Option<&Path>,
    entries: Option<(&EntryFile, i64)>,
) -> MemoryError {
    let entries_path = entries.map(|(file, _)| file.path.as_path());
    let (file, id, reason, remedy) = match &error {
        MemoryError::BadVector { what, row, reason } => {
            let file = if what.contains("value") { values } else { keys };
            (file, None, format!("row {row} {reason}"), "correct or remove that row")
        }
        MemoryError::DuplicateId { id } => {
            let remedy = "give each entry its own id (`engram memory update` replaces entries)";
            (entries_path, Some(*id), format!("the id {id} exists already"), remedy)
        }
        MemoryError::UnknownId { id, .. } => {
            let remedy = "add new entries with `engram memory add`";
            (entries_path, Some(*id), format!("no entry has the id {id}"), remedy)
        }
        _ => return error,
    };
    let Some(file) = file.map(Path::to_owned) else { return error };
    // If an id occurs twice, the last line is wrong.
    let found = id.zip(entries).and_then(|(id, (entries, first_id))| {
        let mut lines = EntryLines::open(entries, first_id).ok()?;
        let mut found = None;
        while let Some(Ok(entry)) = lines.next() {
            if entry.id == id {
                let (file, line) = lines.location();
                found = Some((file.to_owned(), line));
            }
        }
        found
    });
    let (file, line) = found.unwrap_or((file, None));
    MemoryError::Malformed { file, line, reason, remedy }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use engram_entry::DEFAULT_SOURCE;

    use super::*;
    use crate::vectors::npy_bytes;

    fn read(entries: Option<&str>, first_id: i64) -> Result<Vec<Entry>, String> {
        let folder = tempfile::tempdir().unwrap();
        let (keys, lines) = (folder.path().join("k.npy"), folder.path().join("e.jsonl"));
        std::fs::write(&keys, npy_bytes(&[1f32; 6], 2).unwrap()).unwrap();
        std::fs::write(&lines, entries.unwrap_or_default()).unwrap();
        let lines = EntryFile::json(lines);
        let entries = entries.map(|_| &lines);
        let files = RowFiles { keys: &keys, values: None, entries, first_id };
        let rows = RowReader::open(files).unwrap();
        assert_eq!((rows.rows(), rows.width(), rows.value_shape()), (3, 2, None));
        let batches: Result<Vec<Batch>, MemoryError> = rows.collect();
        let message =
            |error: MemoryError| error.to_string().replace(&*folder.path().to_string_lossy(), "");
        Ok(batches.map_err(message)?.into_iter().flat_map(|batch| batch.entries).collect())
    }

    #[test]
    fn missing_fields_of_an_entry_get_defaults() {
        let bare = read(None, 7).unwrap();
        assert_eq!(bare.iter().map(|entry| entry.id).collect::<Vec<_>>(), [7, 8, 9]);
        assert!(bare.iter().all(|entry| entry.source == DEFAULT_SOURCE));
        let text = "{\"text\": \"a\", \"document\": 4}\n\n{\"id\": 70}\n{\"source\": \"kg\", \"document\": null}";
        let entries = read(Some(text), 0).unwrap();
        assert_eq!(entries.iter().map(|entry| entry.id).collect::<Vec<_>>(), [0, 70, 71]);
        assert_eq!(entries[0].document.as_deref(), Some("4"));
        assert_eq!((entries[0].text(), entries[2].source.as_str()), ("a".to_owned(), "kg"));
    }

    #[test]
    fn errors_name_the_bad_entry() {
        assert!(read(None, i64::MAX - 1).unwrap_err().contains("9223372036854775807"));
        for (text, expected) in [
            ("{}\n{}\n", "/e.jsonl: ends after line 2, but there are 3 keys"),
            ("{}\n{}\n{}\n\n{}\n", "/e.jsonl:5: has more entries than the 3 keys"),
            ("{}\n[1]\n{}\n", "/e.jsonl:2: is not an entry: invalid type: sequence"),
            ("{}\n{\"id\": \"x\"}\n{}\n", "/e.jsonl:2: is not an entry: invalid type: string"),
            (
                "{}\n{}\n{\"document\": [1]}\n",
                "/e.jsonl:3: is not an entry: the document [1] is neither",
            ),
            (
                "{\"id\": 9223372036854775807}\n{}\n{}\n",
                "/e.jsonl:2: has no id, and the largest id is taken",
            ),
            ("{\"source\": \"\"}\n{}\n{}\n", "/e.jsonl:1: has an empty source"),
            ("{}\n{\"id\"\n{}\n", "/e.jsonl:2: is not an entry: EOF"),
        ] {
            let error = read(Some(text), 0).unwrap_err();
            assert!(error.starts_with(expected), "{error}");
        }
    }

    fn read_format(text: &str, format: EntryFormat, first_id: i64) -> Result<String, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notes");
        std::fs::write(&path, text).unwrap();
        let message =
            |error: MemoryError| error.to_string().replace(&*folder.path().to_string_lossy(), "");
        let mut lines = EntryLines::open(&EntryFile { path, format }, first_id).map_err(message)?;
        let mut found = Vec::new();
        for entry in lines.by_ref() {
            let Entry { id, source, payload, .. } = entry.map_err(message)?;
            found.push(format!("{id} {source} {}", serde_json::Value::Object(payload)));
        }
        Ok(format!("{} ({} blank)", found.join("; "), lines.blank_texts()))
    }

    #[test]
    fn lines_of_text_are_entries() {
        let text = "a b\r\n\n \n c\n\n";
        let expected = |ids: [u8; 2]| {
            let [a, b] = ids;
            format!(r#"{a} notes {{"text":"a b"}}; {b} notes {{"text":"c"}} (3 blank)"#)
        };
        assert_eq!(read_format(text, EntryFormat::Texts, 0), Ok(expected([1, 4])));
        assert_eq!(read_format(text, EntryFormat::Texts, 5), Ok(expected([5, 8])));
        let error = read_format("\n\n", EntryFormat::Texts, 0).unwrap_err();
        assert!(error.starts_with("/notes: the file is empty"), "{error}");
    }

    #[test]
    fn text_files_are_entries() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("notes");
        std::fs::create_dir_all(path.join("inner")).unwrap();
        let write = |name: &str, bytes: &[u8]| std::fs::write(path.join(name), bytes).unwrap();
        write("a.md", b"\xef\xbb\xbf# A\nline\n");
        write("b.txt", b" \n");
        write("inner/c.txt", b"c");
        let files: Vec<PathBuf> =
            ["a.md", "b.txt", "inner/c.txt"].map(|name| path.join(name)).into();
        let file = EntryFile { path: path.clone(), format: EntryFormat::TextFiles(files) };
        let read = |first_id: i64| {
            let mut lines = EntryLines::open(&file, first_id).unwrap();
            let entries: Result<Vec<Entry>, MemoryError> = lines.by_ref().collect();
            (entries.map_err(|error| error.to_string()), lines.blank_texts())
        };
        let (entries, blank) = read(0);
        let entries = entries.unwrap();
        let ids: Vec<i64> = entries.iter().map(|entry| entry.id).collect();
        assert_eq!((ids, blank), (vec![1, 3], 1));
        assert_eq!((entries[0].text(), entries[0].source.as_str()), ("# A\nline".into(), "notes"));
        assert_eq!(entries[1].document.as_deref(), Some("inner/c.txt"));
        assert_eq!(read(7).0.unwrap()[0].id, 7);
        write("inner/c.txt", b"fine\n\xff");
        let error = read(0).0.unwrap_err();
        assert!(error.contains("inner/c.txt:2: is not UTF-8"), "{error}");
        write("inner/c.txt", &vec![b'x'; 1 + engram_textfile::LONGEST_LINE as usize]);
        let error = read(0).0.unwrap_err();
        assert!(error.contains("inner/c.txt: has more than 16 MiB"), "{error}");
    }

    #[test]
    fn columns_of_a_table_are_fields() {
        let read = |text: &str, columns: &[&str]| {
            let columns = columns.iter().map(|text| EntryColumn::parse(text).unwrap()).collect();
            read_format(text, EntryFormat::Csv(columns), 3)
        };
        let text = "ID,Text,Year\n7,\"a, b\",1999\n9,,2000\n";
        let found = r#"7 notes {"text":"a, b"}; 9 notes {} (0 blank)"#;
        assert_eq!(read(text, &[]), Ok(found.to_owned()));
        let found = r#"3 1999 {"text":"a, b"}; 4 2000 {} (0 blank)"#;
        assert_eq!(read(text, &["text", "source=Year"]), Ok(found.to_owned()));
        for (text, columns, expected) in [
            ("id,text\nx,a\n", &[][..], "/notes:2: has the id `x`; number the entries, or"),
            ("id,text\n-1,a\n", &[], "/notes:2: has the id -1; number entries from 0"),
            ("nr,body\n1,a\n", &[], "/notes:1: no column of texts; the header has: nr, body; name"),
            ("nr,body\n1,a\n", &["text"], "/notes:1: column `text` is missing"),
            ("a,b\n1,2\n", &["text=a", "text=b"], "/notes:1: the field `text` has two columns"),
            ("text\na,b\n", &[], "/notes:2: 2 fields where the header has 1"),
            ("text\n", &[], "/notes: a header but no rows"),
        ] {
            let error = read(text, columns).unwrap_err();
            assert!(error.starts_with(expected), "{error}");
        }
        assert!(EntryColumn::parse("=a").is_err() && EntryColumn::parse("a=").is_err());
    }
}
