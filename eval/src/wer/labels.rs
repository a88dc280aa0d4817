//! Labels of utterances from a table: speaker, subset, noise.

use std::collections::HashMap;

use crate::error::{EvalError, Place};
use crate::table::shortened;

/// A tab-separated table with a header and one line for each utterance.
#[derive(Debug)]
pub struct Table<'a> {
    file: String,
    header: Vec<&'a str>,
    rows: HashMap<&'a str, (u64, Vec<&'a str>)>,
}

impl<'a> Table<'a> {
    /// Reads a table, whose header has `id` among its columns.
    ///
    /// # Errors   [`EvalError::Empty`]; [`EvalError::MissingColumn`]; [`EvalError::Malformed`] for a line of another
    /// number of fields; [`EvalError::DoubledId`]
    pub fn parse(file: &str, text: &'a str) -> Result<Self, EvalError> {
        let mut lines = (1u64..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty());
        let Some((header_line, header)) = lines.next() else {
            return Err(EvalError::Empty { file: file.to_owned() });
        };
        let header: Vec<&str> = header.split('\t').map(str::trim).collect();
        let id = header
            .iter()
            .position(|name| *name == "id")
            .ok_or_else(|| missing(file, header_line, "id", &header))?;
        let mut rows: HashMap<&str, (u64, Vec<&str>)> = HashMap::new();
        for (line, row) in lines {
            let fields: Vec<&str> = row.split('\t').collect();
            if fields.len() != header.len() {
                return Err(EvalError::Malformed {
                    place: Place::new(file, line),
                    reason: format!("has {} fields, the header {}", fields.len(), header.len()),
                    remedy: "separate fields by tabs, and keep tabs out of them",
                });
            }
            if let Some((first, _)) = rows.insert(fields[id], (line, fields.clone())) {
                return Err(EvalError::DoubledId {
                    place: Place::new(file, line),
                    first: Place::new(file, first),
                    id: shortened(fields[id], 60),
                });
            }
        }
        Ok(Self { file: file.to_owned(), header, rows })
    }

    /// The column's value for each id.
    ///
    /// # Errors   [`EvalError::MissingColumn`]; [`EvalError::Malformed`] for an id that the table does not have
    pub fn column<S: AsRef<str>>(&self, name: &str, ids: &[S]) -> Result<Vec<String>, EvalError> {
        let column = self.header.iter().position(|column| *column == name);
        let column = column.ok_or_else(|| missing(&self.file, 1, name, &self.header))?;
        let value = |id: &S| match self.rows.get(id.as_ref()) {
            Some((_, fields)) => Ok(fields[column].to_owned()),
            None => Err(EvalError::Malformed {
                place: Place::new(&self.file, None),
                reason: format!("has no line for the id `{}`", shortened(id.as_ref(), 60)),
                remedy: "give the table a line for each utterance",
            }),
        };
        ids.iter().map(value).collect()
    }
}

fn missing(file: &str, line: u64, column: &str, header: &[&str]) -> EvalError {
    EvalError::MissingColumn {
        place: Place::new(file, line),
        column: column.to_owned(),
        found: shortened(&header.join(", "), 200),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_found_by_id_and_column() {
        let table = Table::parse("t", "id\tspeaker\tset\nu2\tb\ty\nu1\ta\tx\n").unwrap();
        assert_eq!(table.column("speaker", &["u1", "u2"]).unwrap(), ["a", "b"]);
        let error = |column: &str, id: &str| table.column(column, &[id]).unwrap_err().to_string();
        assert!(
            error("speker", "u1")
                .contains("column `speker` is missing; the header has: id, speaker, set")
        );
        assert!(error("set", "u3").starts_with("t: has no line for the id `u3`"));
        let refused = |text: &str| Table::parse("t", text).unwrap_err().to_string();
        assert!(refused("id\ta\n1\n").starts_with("t:2: has 1 fields, the header 2"));
        assert!(refused("id\ta\n1\tx\n1\ty\n").starts_with("t:3: id `1` was already given at t:2"));
        assert!(refused("a\tb\n").contains("column `id` is missing"));
    }
}
