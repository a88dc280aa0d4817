//! `--where`: conditions on the fields of entries.

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use clap::Args;
use engram_memory::{Entry, MemoryError, Row, Snapshot};
use engram_textfile::shortened;
use rayon::prelude::*;
use serde_json::Value;

use crate::cli::output;

/// Number of entries that are read at once.
pub(in crate::cli) const ENTRIES_AT_ONCE: usize = 1024;
/// Maximum number of characters of a list of fields in an error.
const SHOWN_CHARACTERS: usize = 400;
/// A comparison stands before its own beginning.
const COMPARISONS: [&str; 7] = ["!=", "<=", ">=", "==", "=", "<", ">"];

/// Conditions on the fields of entries.
#[derive(Debug, Args)]
pub(super) struct WhereOptions {
    /// Only entries whose fields meet all conditions: FIELD=VALUE, or with !=, <, <=, > or >=,
    /// separated by commas. Two numbers compare as numbers. A value in double quotes is a text, also
    /// with commas: 'year>=2000,title!="Up, up"'
    #[arg(long = "where", value_name = "CONDITIONS", value_parser = Conditions::parse)]
    conditions: Vec<Conditions>,
}

#[derive(Debug, Clone)]
struct Conditions(Vec<Condition>);

/// A comparison of an entry's field with a value.
#[derive(Debug, Clone)]
struct Condition {
    field: String,
    comparison: &'static str,
    value: String,
    /// The value as a number; `None` for a text.
    number: Option<Number>,
}

/// Integers compare exactly.
#[derive(Debug, Clone, Copy)]
enum Number {
    Integer(i128),
    Real(f64),
}

impl Number {
    fn parse(text: &str) -> Option<Self> {
        let real = || text.parse().ok().filter(|number: &f64| number.is_finite());
        text.parse().map(Self::Integer).ok().or_else(|| real().map(Self::Real))
    }

    fn compare(self, other: Self) -> Option<Ordering> {
        let real = |number| match number {
            Self::Integer(number) => number as f64,
            Self::Real(number) => number,
        };
        match (self, other) {
            (Self::Integer(a), Self::Integer(b)) => Some(a.cmp(&b)),
            _ => real(self).partial_cmp(&real(other)),
        }
    }
}

impl Conditions {
    fn parse(text: &str) -> Result<Self, String> {
        let (mut conditions, mut rest) = (Vec::new(), Some(text));
        while let Some(text) = rest {
            let (condition, length) = Condition::parse(text).ok_or_else(|| {
                format!(
                    "{text:?} does not begin with a condition such as year>=2000; a value with a \
                     comma, and an empty one, need double quotes"
                )
            })?;
            conditions.push(condition);
            rest = text.get(length + 1..);
        }
        Ok(Self(conditions))
    }
}

impl Condition {
    /// Parses the first condition of a list. Returns its length, too.
    fn parse(list: &str) -> Option<(Self, usize)> {
        let start = list.find(['!', '<', '>', '='])?;
        let (field, rest) = (list[..start].trim(), &list[start..]);
        let comparison = *COMPARISONS.iter().find(|comparison| rest.starts_with(**comparison))?;
        let rest = rest[comparison.len()..].trim_start();
        let mut quoted = serde_json::Deserializer::from_str(rest).into_iter::<String>();
        let (value, end) = match rest.starts_with('"') {
            true => (quoted.next()?.ok()?, quoted.byte_offset()),
            false => {
                let end = rest.find(',').unwrap_or(rest.len());
                (rest[..end].trim_end().to_owned(), end)
            }
        };
        let is_text = rest.starts_with('"');
        let after = rest[end..].trim_start();
        let is_complete =
            (after.is_empty() || after.starts_with(',')) && (is_text || !value.is_empty());
        if field.is_empty() || field.contains(',') || !is_complete {
            return None;
        }
        let number = Number::parse(&value).filter(|_| !is_text);
        let condition = Self { field: field.to_owned(), comparison, value, number };
        Some((condition, list.len() - after.len()))
    }

    /// Whether a value, or an item of a list, meets the condition. `!=` holds wherever `=` does not,
    /// and so for an entry without the field, too.
    fn is_met(&self, value: Option<&Value>) -> bool {
        let any = |expected: fn(Ordering) -> bool| value.is_some_and(|v| self.any(v, expected));
        match self.comparison {
            "!=" => !any(Ordering::is_eq),
            "<" => any(Ordering::is_lt),
            "<=" => any(Ordering::is_le),
            ">" => any(Ordering::is_gt),
            ">=" => any(Ordering::is_ge),
            _ => any(Ordering::is_eq),
        }
    }

    fn any(&self, value: &Value, expected: fn(Ordering) -> bool) -> bool {
        let order = |text: &str| match self.number {
            Some(number) => Number::parse(text)?.compare(number),
            None => Some(text.cmp(&self.value)),
        };
        match value {
            Value::Array(items) => items.iter().any(|item| self.any(item, expected)),
            Value::String(text) => order(text).is_some_and(expected),
            value => order(&value.to_string()).is_some_and(expected),
        }
    }
}

impl WhereOptions {
    /// The rows and ids of the entries that meet all conditions; `None` without conditions. A field
    /// that no entry has is an error.
    pub(super) fn rows(&self, snapshot: &dyn Snapshot) -> anyhow::Result<Option<Vec<(Row, i64)>>> {
        let conditions: Vec<&Condition> = self.conditions.iter().flat_map(|list| &list.0).collect();
        if conditions.is_empty() {
            return Ok(None);
        }
        let known: Vec<AtomicBool> = conditions.iter().map(|_| AtomicBool::new(false)).collect();
        let rows = rows_with(snapshot, |entry| {
            conditions.iter().zip(&known).fold(true, |are_met, (condition, known)| {
                let value = value_of(entry, &condition.field);
                known.fetch_or(value.is_some(), Relaxed);
                are_met & condition.is_met(value.as_ref())
            })
        })?;
        let memory = snapshot.description();
        let unknown = conditions.iter().zip(&known).find(|(_, known)| !known.load(Relaxed));
        if let Some((Condition { field, .. }, _)) = unknown.filter(|_| memory.entries > 0) {
            let mut fields: BTreeSet<String> =
                ["document", "id", "source"].map(str::to_owned).into();
            for rows in snapshot.rows()?.chunks(ENTRIES_AT_ONCE) {
                let entries = snapshot.entries(rows)?.into_iter();
                fields.extend(
                    entries.flat_map(|entry| entry.payload.into_iter().map(|(name, _)| name)),
                );
            }
            let fields = Vec::from_iter(fields).join(", ");
            anyhow::bail!(
                "{}: no entry has a text, a number, true or false as {field:?}; the fields are {}",
                memory.location,
                shortened(&fields, SHOWN_CHARACTERS)
            );
        }
        if rows.is_empty() {
            output::warn(&format!("{}: no entry meets --where", memory.location));
        }
        Ok(Some(rows))
    }
}

/// The value of an entry's field; `None` without one, and for null or an object.
fn value_of(entry: &Entry, field: &str) -> Option<Value> {
    let value = match field {
        "id" => entry.id.into(),
        "source" => entry.source.as_str().into(),
        "document" => entry.document.as_deref()?.into(),
        field => entry.payload.get(field)?.clone(),
    };
    Some(value).filter(|value| !value.is_null() && !value.is_object())
}

/// The rows and ids of the entries for which `is_wanted` returns true. Uses all threads.
pub(in crate::cli) fn rows_with(
    snapshot: &dyn Snapshot,
    is_wanted: impl Fn(&Entry) -> bool + Sync,
) -> Result<Vec<(Row, i64)>, MemoryError> {
    let mut wanted = Vec::new();
    for rows in snapshot.rows()?.chunks(ENTRIES_AT_ONCE) {
        let entries = rows.par_iter().zip(snapshot.entries(rows)?);
        let found =
            entries.filter_map(|(row, entry)| is_wanted(&entry).then_some((*row, entry.id)));
        wanted.extend(found.collect::<Vec<_>>());
    }
    Ok(wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_compare_numbers_and_texts() {
        let line = r#"{"id": 9007199254740993, "source": "wit", "year": "1999", "height": 2.50,
            "title": "Up, up", "tags": ["a", "b"], "open": true, "none": null}"#;
        let entry: Entry = serde_json::from_str(line).expect("an entry");
        let meets = |text: &str| {
            let Conditions(list) = Conditions::parse(text).expect("conditions");
            list.iter().all(|c| c.is_met(value_of(&entry, &c.field).as_ref()))
        };
        for met in [
            "year<2000,year >= 1999.0",
            "year=01999",
            "height==2.5",
            "height>-1e3",
            "open=true",
            "id=9007199254740993",
            "id!=9007199254740992",
            "source=wit,source<wiu,source!=WIT",
            "title=\"Up, up\",tags=b",
            "year=\"1999\"",
            "none!=1,other!=\"\"",
            "tags!=c",
            "source!=5",
        ] {
            assert!(meets(met), "{met}");
        }
        for unmet in [
            "year<1999",
            "year=\"01999\"",
            "id=9007199254740992",
            "source>5",
            "source<=5",
            "none=null",
            "other=\"\"",
            "tags!=a",
            "year=nan",
            "height=\"2.50\"",
            "source=wit,year>1999",
        ] {
            assert!(!meets(unmet), "{unmet}");
        }
        for invalid in ["", "year", "year=", "=5", "year!5", "a=b,c", "a=b,", "a=\"b", "a=\"b\"c"] {
            assert!(Conditions::parse(invalid).is_err(), "{invalid}");
        }
    }
}
