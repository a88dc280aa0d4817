//! Labels of utterances from a table, such as speaker or subset.

use std::collections::HashMap;
use std::io::Cursor;
use std::path::Path;

use engram_textfile::{Input, Table, UniqueIds, non_blank_lines, read_text, shortened};

use crate::error::{EvalError, Location, malformed};

/// A tab-separated table with a header and one row per utterance, or a file of Kaldi, `utt2spk`.
pub struct LabelTable {
    table: Table<'static>,
    rows: HashMap<String, Vec<String>>,
}

impl LabelTable {
    /// Reads a table; the header must contain `id`. The files `utt2…` and `spk2…` of a Kaldi folder
    /// have no header. Their columns are named after them, such as `speaker` for `utt2spk`. For
    /// `spk2gender`, the speakers are taken from `utt2spk` in the same folder.
    ///
    /// # Errors
    /// [`EvalError::Text`]
    pub fn read(path: &Path) -> Result<Self, EvalError> {
        let (file, name) = (path.display().to_string(), path.file_name().unwrap_or_default());
        let parts = name.to_str().and_then(|name| name.split_once('2'));
        let Some((kind @ ("utt" | "spk"), column)) = parts.filter(|(_, name)| !name.contains('.'))
        else {
            return Self::parse(&file, &read_text(path)?);
        };
        let (mut values, mut header) = (kaldi_lines(path)?, format!("id\t{column}\n"));
        if column == "spk" {
            header = "id\tspeaker\n".to_owned();
        } else if kind == "spk" {
            header = format!("id\tspeaker\t{column}\n");
            let speakers = kaldi_lines(&path.with_file_name("utt2spk"))?.into_iter();
            let with_value = |(id, mut fields): (String, Vec<String>)| {
                let value = values.get(&fields[1]).ok_or_else(|| {
                    let speaker = shortened(&fields[1], 60);
                    let reason = format!("has no line for the speaker `{speaker}`");
                    malformed(&file, None, reason, "add one line per speaker")
                })?;
                fields.extend(value.get(1).cloned());
                Ok((id, fields))
            };
            values = speakers.map(with_value).collect::<Result<_, EvalError>>()?;
        }
        let table = Table::tsv(Input::new(&file, Cursor::new(header))?, false)?;
        Ok(Self { table, rows: values })
    }

    /// Parses a table; the header must contain `id`.
    ///
    /// # Errors
    /// [`EvalError::Text`]
    pub fn parse(file: &str, text: &str) -> Result<Self, EvalError> {
        let mut table = Table::tsv(Input::new(file, Cursor::new(text.to_owned()))?, false)?;
        let id_column = table.column("id")?;
        let (mut rows, mut ids) = (HashMap::new(), UniqueIds::with_capacity(0));
        while table.advance()? {
            let id = table.required_field(id_column)?.to_owned();
            ids.add(id.clone(), table.location())?;
            rows.insert(id, table.fields().map(str::to_owned).collect());
        }
        Ok(Self { table, rows })
    }

    /// Returns the value of a column for each id, in the order of `ids`.
    ///
    /// # Errors
    /// [`EvalError::Text`] for a missing column, and for an id that is not in the table
    pub fn column<S: AsRef<str>>(&self, name: &str, ids: &[S]) -> Result<Vec<String>, EvalError> {
        let column = self.table.column(name)?;
        let value = |id: &S| match self.rows.get(id.as_ref().trim()) {
            Some(fields) => Ok(fields[column].clone()),
            None => {
                let reason = format!("has no line for the id `{}`", shortened(id.as_ref(), 60));
                let remedy = "add one line per utterance to the table";
                Err(malformed(self.table.file(), None, reason, remedy))
            }
        };
        ids.iter().map(value).collect()
    }
}

/// The two fields of each line `id value`, by id.
fn kaldi_lines(path: &Path) -> Result<HashMap<String, Vec<String>>, EvalError> {
    let (text, mut ids) = (read_text(path)?, UniqueIds::with_capacity(0));
    let fields = |(line, row): (u64, &str)| {
        let (id, value) = row.trim().split_once(char::is_whitespace).unwrap_or((row.trim(), ""));
        ids.add(id.to_owned(), Location::new(path, line))?;
        Ok((id.to_owned(), vec![id.to_owned(), value.trim().to_owned()]))
    };
    non_blank_lines(&text).map(fields).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_found_by_id_and_column() {
        let table = LabelTable::parse("t", "id\tspeaker\tset\nu2\tb\ty\nu1\ta\tx\n").unwrap();
        assert_eq!(table.column("speaker", &["u1", "u2"]).unwrap(), ["a", "b"]);
        let error = |column: &str, id: &str| table.column(column, &[id]).unwrap_err().to_string();
        assert!(error("speker", "u1").contains("column `speker` is missing; the header has"));
        assert!(error("set", "u3").starts_with("t: has no line for the id `u3`"));
        let error_message = |text: &str| LabelTable::parse("t", text).err().unwrap().to_string();
        let duplicate = error_message("id\ta\n1\tx\n1\ty\n");
        assert!(duplicate.starts_with("t:3: id `1` was already given at t:2"), "{duplicate}");
        assert!(error_message("id\ta\n \tx\n").starts_with("t:2: id is empty"));
        let after_blank_lines = LabelTable::parse("t", "\n\nid\ta\n u1 \tx\n").unwrap();
        assert_eq!(after_blank_lines.column("a", &["u1"]).unwrap(), ["x"]);
    }
}
