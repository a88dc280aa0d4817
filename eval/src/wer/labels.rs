//! Labels of utterances from a table, such as speaker or subset.

use std::collections::HashMap;

use engram_textfile::{Input, Table, UniqueIds, shortened};

use crate::error::{EvalError, malformed};

/// A tab-separated table with a header and one row per utterance.
pub struct LabelTable<'a> {
    table: Table<'a>,
    rows: HashMap<String, Vec<String>>,
}

impl<'a> LabelTable<'a> {
    /// Parses a table; the header must contain `id`.
    ///
    /// # Errors
    /// [`EvalError::Text`]
    pub fn parse(file: &str, text: &'a str) -> Result<Self, EvalError> {
        let mut table = Table::tsv(Input::new(file, text.as_bytes())?, false)?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_found_by_id_and_column() {
        let table = LabelTable::parse("t", "id\tspeaker\tset\nu2\tb\ty\nu1\ta\tx\n").unwrap();
        assert_eq!(table.column("speaker", &["u1", "u2"]).unwrap(), ["a", "b"]);
        let error = |column: &str, id: &str| table.column(column, &[id]).unwrap_err().to_string();
        assert!(
            error("speker", "u1")
                .contains("column `speker` is missing; the header has: id, speaker, set")
        );
        assert!(error("set", "u3").starts_with("t: has no line for the id `u3`"));
        let error_message = |text: &str| LabelTable::parse("t", text).err().unwrap().to_string();
        let duplicate = error_message("id\ta\n1\tx\n1\ty\n");
        assert!(duplicate.starts_with("t:3: id `1` was already given at t:2"), "{duplicate}");
        assert!(error_message("id\ta\n \tx\n").starts_with("t:2: id is empty"));
        let after_blank_lines = LabelTable::parse("t", "\n\nid\ta\n u1 \tx\n").unwrap();
        assert_eq!(after_blank_lines.column("a", &["u1"]).unwrap(), ["x"]);
    }
}
