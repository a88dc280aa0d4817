//! Reads rows for a memory from files: keys, values and entries.

mod lines;
mod table;

use std::path::Path;

use engram_entry::Entry;

use crate::error::MemoryError;
use crate::segment::Batch;
use crate::vectors::VectorFile;

pub use lines::{EntryFile, EntryFormat, EntryLines};
pub use table::{DEFAULT_FIELDS, EntryColumn};

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
    /// The smallest id for entries without an id; see [`EntryLines::open`].
    pub first_id: i64,
}

/// Reads rows in batches.
pub struct RowReader {
    keys: VectorFile,
    values: Option<VectorFile>,
    entries: Option<EntryLines>,
    /// The id of the next entry, without a file of entries.
    next_id: i64,
    /// The number of rows in the files.
    total_rows: usize,
    /// The number of rows still to be read.
    remaining_rows: usize,
    /// Whether a batch could not be read.
    failed: bool,
}

impl RowReader {
    /// Opens the files.
    ///
    /// # Errors
    /// [`MemoryError::Read`], [`MemoryError::Malformed`], also if the numbers of values and keys
    /// differ
    pub fn open(files: RowFiles<'_>) -> Result<Self, MemoryError> {
        let keys = VectorFile::open(files.keys, "keys")?;
        let values = files.values.map(|path| VectorFile::open(path, "values")).transpose()?;
        let rows = keys.shape()[0];
        if let Some(values) = &values {
            let value_rows = values.shape()[0];
            if value_rows != rows {
                let file = files.values.unwrap_or(files.keys).to_owned();
                let keys_path = files.keys.display();
                let reason = format!("has {value_rows} rows, but {keys_path} has {rows}");
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
            total_rows: rows,
            remaining_rows: rows,
            failed: false,
        })
    }

    /// The number of rows still to be read.
    pub fn rows(&self) -> usize {
        self.remaining_rows
    }

    /// The width of a key.
    pub fn width(&self) -> usize {
        self.keys.row_len()
    }

    /// Returns the number of tokens of a value and the width of a token; `None` without values.
    pub fn value_shape(&self) -> Option<(usize, usize)> {
        let shape = self.values.as_ref()?.shape();
        let width = shape[shape.len() - 1];
        Some((shape[1..shape.len() - 1].iter().product(), width))
    }

    /// Reads the next batch.
    fn read_batch(&mut self) -> Result<Batch, MemoryError> {
        let row_size = self.width() + self.values.as_ref().map_or(0, VectorFile::row_len);
        let rows = (BATCH_NUMBERS / row_size.max(1)).clamp(1, self.remaining_rows);
        let mut batch = Batch { keys: self.keys.read_rows(rows)?, ..Batch::default() };
        if let Some(values) = &mut self.values {
            batch.values = values.read_rows(rows)?;
        }
        for _ in 0..rows {
            let entry = match &mut self.entries {
                Some(entries) => {
                    entries.next().unwrap_or_else(|| Err(entries.too_few(self.total_rows)))
                }
                None => {
                    let id = self.next_id;
                    self.next_id = id.checked_add(1).ok_or_else(|| {
                        MemoryError::invalid(
                            "an id",
                            id,
                            "less than 2^63 - 1; give an entry file with smaller ids",
                        )
                    })?;
                    Ok(Entry::bare(id))
                }
            };
            batch.entries.push(entry?);
        }
        self.remaining_rows -= rows;
        if let (0, Some(entries)) = (self.remaining_rows, &mut self.entries) {
            entries.check_end(self.total_rows)?;
        }
        Ok(batch)
    }
}

impl Iterator for RowReader {
    type Item = Result<Batch, MemoryError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.remaining_rows == 0 || self.failed {
            return None;
        }
        let batch = self.read_batch();
        self.failed = batch.is_err();
        Some(batch)
    }
}

/// Adds the file to an error about a row of `keys`, `values` or `entries`, and the line if the
/// error is about an entry. The number with `entries` is the `first_id` of [`EntryLines::open`].
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
    // If an id occurs twice, the error names the last of the lines.
    let location = id.zip(entries).and_then(|(id, (entries, first_id))| {
        let mut lines = EntryLines::open(entries, first_id).ok()?;
        let mut location = None;
        while let Some(Ok(entry)) = lines.next() {
            if entry.id == id {
                let (file, line) = lines.location();
                location = Some((file.to_owned(), line));
            }
        }
        location
    });
    let (file, line) = location.unwrap_or((file, None));
    MemoryError::Malformed { file, line, reason, remedy }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use engram_entry::DEFAULT_SOURCE;

    use super::*;
    use crate::vectors::npy_bytes;

    /// Reads the entries for a file of three keys. `entries` is the text of the file of entries.
    fn read_rows(entries: Option<&str>, first_id: i64) -> Result<Vec<Entry>, String> {
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
        let entries = read_rows(None, 7).unwrap();
        assert_eq!(entries.iter().map(|entry| entry.id).collect::<Vec<_>>(), [7, 8, 9]);
        assert!(entries.iter().all(|entry| entry.source == DEFAULT_SOURCE));
        let text = "{\"text\": \"a\", \"document\": 4}\n\n{\"id\": 70}\n{\"source\": \"kg\", \"document\": null}";
        let entries = read_rows(Some(text), 0).unwrap();
        assert_eq!(entries.iter().map(|entry| entry.id).collect::<Vec<_>>(), [0, 70, 71]);
        assert_eq!(entries[0].document.as_deref(), Some("4"));
        assert_eq!((entries[0].text(), entries[2].source.as_str()), ("a".to_owned(), "kg"));
    }

    #[test]
    fn errors_name_the_line_of_an_invalid_entry() {
        assert!(read_rows(None, i64::MAX - 1).unwrap_err().contains("9223372036854775807"));
        for (text, expected) in [
            ("{}\n{}\n", "/e.jsonl: ends after line 2, but there are 3 keys"),
            ("{}\n{}\n{}\n\n{}\n", "/e.jsonl:5: has more entries than the 3 keys"),
            ("{}\n[1]\n{}\n", "/e.jsonl:2: is not an entry: invalid type: sequence"),
            ("{}\n{\"id\": \"x\"}\n{}\n", "/e.jsonl:2: is not an entry: invalid type: string"),
            ("{}\n{}\n{\"document\": [1]}\n", "/e.jsonl:3: is not an entry: the document [1] is"),
            ("{\"id\": 9223372036854775807}\n{}\n{}\n", "/e.jsonl:2: has no id, and gets none"),
            ("{\"source\": \"\"}\n{}\n{}\n", "/e.jsonl:1: has an empty source"),
            ("{}\n{\"id\"\n{}\n", "/e.jsonl:2: is not an entry: EOF"),
        ] {
            let error = read_rows(Some(text), 0).unwrap_err();
            assert!(error.starts_with(expected), "{error}");
        }
        let error = read_rows(Some("{\"id\": 3}\n{}\n{}\n"), -1).unwrap_err();
        assert!(error.starts_with("/e.jsonl:2: has no id, and gets none here"), "{error}");
    }

    /// The entries of a file, and the number of blank texts, as one text.
    fn read_format(text: &str, format: EntryFormat, first_id: i64) -> Result<String, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notes");
        std::fs::write(&path, text).unwrap();
        let message =
            |error: MemoryError| error.to_string().replace(&*folder.path().to_string_lossy(), "");
        let mut lines = EntryLines::open(&EntryFile { path, format }, first_id).map_err(message)?;
        let mut entries = Vec::new();
        for entry in lines.by_ref() {
            let Entry { id, source, payload, .. } = entry.map_err(message)?;
            entries.push(format!("{id} {source} {}", serde_json::Value::Object(payload)));
        }
        Ok(format!("{} ({} blank)", entries.join("; "), lines.blank_texts()))
    }

    #[test]
    fn each_line_of_a_text_file_is_an_entry() {
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
    fn each_text_file_of_a_folder_is_an_entry() {
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
        write("inner/c.txt", &vec![b'x'; 1 + engram_textfile::MAX_LINE_BYTES as usize]);
        let error = read(0).0.unwrap_err();
        assert!(error.contains("inner/c.txt: has more than 16 MiB"), "{error}");
    }

    #[test]
    fn columns_of_a_csv_are_fields_of_entries() {
        let read = |text: &str, columns: &[&str]| {
            let columns = columns.iter().map(|text| EntryColumn::parse(text).unwrap()).collect();
            read_format(text, EntryFormat::Csv(columns), 3)
        };
        let text = "ID,Text,Year\n7,\"a, b\",1999\n9,,2000\n";
        let expected = r#"7 notes {"text":"a, b"}; 9 notes {} (0 blank)"#;
        assert_eq!(read(text, &[]), Ok(expected.to_owned()));
        let expected = r#"3 1999 {"text":"a, b"}; 4 2000 {} (0 blank)"#;
        assert_eq!(read(text, &["text", "source=Year"]), Ok(expected.to_owned()));
        let text = "id;text;file_name;price\n1;2,5;a.png;2,5\n;;;\n";
        for part in [r#""image":"a.png""#, r#""price":"2.5""#, r#""text":"2,5""#] {
            let entry = read(text, &["id", "text", "file_name", "price"]).unwrap();
            assert!(entry.contains(part), "{entry}");
        }
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
