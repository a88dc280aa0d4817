//! Labels of utterances from a table: speaker, subset, noise.

use std::collections::{HashMap, HashSet};

use crate::error::{EvalError, Location};
use crate::source::{check_line_ends, not_blank};
use crate::table::shortened;

/// A tab-separated table with a header and one line per utterance.
#[derive(Debug)]
pub struct LabelTable<'a> {
    file: String,
    header: Vec<&'a str>,
    header_line: u64,
    rows: HashMap<&'a str, (u64, Vec<&'a str>)>,
}

impl<'a> LabelTable<'a> {
    /// Parses a table; the header must contain `id`.
    ///
    /// # Errors   [`EvalError::Empty`]; [`EvalError::MissingColumn`]; [`EvalError::DuplicateColumn`];
    /// [`EvalError::Malformed`] for a line with a different number of fields;
    /// [`EvalError::EmptyId`]; [`EvalError::DuplicateId`]
    pub fn parse(file: &str, text: &'a str) -> Result<Self, EvalError> {
        check_line_ends(file, text)?;
        let mut lines = not_blank(text);
        let Some((header_line, header)) = lines.next() else {
            return Err(EvalError::Empty { file: file.to_owned() });
        };
        let header: Vec<&str> = header.split('\t').map(str::trim).collect();
        let id = header
            .iter()
            .position(|name| *name == "id")
            .ok_or_else(|| missing(file, header_line, "id", &header))?;
        let mut names = HashSet::new();
        if let Some(name) = header.iter().find(|name| !name.is_empty() && !names.insert(**name)) {
            let location = Location::new(file, header_line);
            return Err(EvalError::DuplicateColumn { location, column: shortened(name, 60) });
        }
        let mut rows: HashMap<&str, (u64, Vec<&str>)> = HashMap::new();
        for (line, row) in lines {
            let fields: Vec<&str> = row.split('\t').collect();
            if fields.len() != header.len() {
                return Err(EvalError::Malformed {
                    location: Location::new(file, line),
                    reason: format!("has {} fields, the header has {}", fields.len(), header.len()),
                    remedy: "separate fields by tabs, and keep tabs out of them",
                });
            }
            let (location, id) = (Location::new(file, line), fields[id].trim());
            if id.is_empty() {
                return Err(EvalError::EmptyId { location });
            }
            if let Some((first, _)) = rows.insert(id, (line, fields)) {
                let (first, id) = (Location::new(file, first), shortened(id, 60));
                return Err(EvalError::DuplicateId { location, first, id });
            }
        }
        if rows.is_empty() {
            return Err(EvalError::Empty { file: file.to_owned() });
        }
        Ok(Self { file: file.to_owned(), header, header_line, rows })
    }

    /// Returns the value of a column for each id.
    ///
    /// # Errors   [`EvalError::MissingColumn`]; [`EvalError::Malformed`] for an id that is not in
    /// the table
    pub fn column<S: AsRef<str>>(&self, name: &str, ids: &[S]) -> Result<Vec<String>, EvalError> {
        let column = self.header.iter().position(|column| *column == name);
        let column =
            column.ok_or_else(|| missing(&self.file, self.header_line, name, &self.header))?;
        let value = |id: &S| match self.rows.get(id.as_ref().trim()) {
            Some((_, fields)) => Ok(fields[column].to_owned()),
            None => Err(EvalError::Malformed {
                location: Location::new(&self.file, None),
                reason: format!("has no line for the id `{}`", shortened(id.as_ref(), 60)),
                remedy: "add one line per utterance to the table",
            }),
        };
        ids.iter().map(value).collect()
    }
}

fn missing(file: &str, line: u64, column: &str, header: &[&str]) -> EvalError {
    EvalError::MissingColumn {
        location: Location::new(file, line),
        column: column.to_owned(),
        found: shortened(&header.join(", "), 200),
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
        let refused = |text: &str| LabelTable::parse("t", text).unwrap_err().to_string();
        assert!(refused("id\ta\n1\n").starts_with("t:2: has 1 fields, the header has 2"));
        assert!(refused("id\ta\n1\tx\n1\ty\n").starts_with("t:3: id `1` was already given at t:2"));
        assert!(refused("a\tb\n").contains("column `id` is missing"));
        assert!(refused("id\ta\n").starts_with("t: has no rows"));
        assert!(refused("id\ta\n \tx\n").starts_with("t:2: the id is empty"));
        assert!(refused("\nid\ta\ta\n").starts_with("t:2: column `a` occurs twice"));
        let late = LabelTable::parse("t", "\n\nid\ta\n u1 \tx\n").unwrap();
        assert_eq!(late.column("a", &["u1"]).unwrap(), ["x"]);
        assert!(late.column("b", &["u1"]).unwrap_err().to_string().starts_with("t:3: column `b`"));
    }
}
