//! `--where`: conditions on the fields of entries.

use std::cmp::Ordering;
use std::collections::BTreeSet;

use clap::Args;
use engram_memory::{Entry, Row, Snapshot};
use engram_textfile::shortened;
use serde_json::Value;

use crate::cli::output;

/// Number of entries that are read at once.
pub(super) const ENTRIES_AT_ONCE: usize = 1024;
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
    is_quoted: bool,
    is_number: bool,
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
        let (field, rest) = list.split_at(list.find(['!', '<', '>', '='])?);
        let comparison = *COMPARISONS.iter().find(|comparison| rest.starts_with(**comparison))?;
        let rest = rest[comparison.len()..].trim_start();
        let is_quoted = rest.starts_with('"');
        let mut texts = serde_json::Deserializer::from_str(rest).into_iter::<String>();
        let (value, end) = if is_quoted {
            (texts.next()?.ok()?, texts.byte_offset())
        } else {
            let value = rest.split(',').next()?;
            (value.trim_end().to_owned(), value.len())
        };
        let (field, after) = (field.trim().to_owned(), rest[end..].trim_start());
        let is_valid =
            !field.is_empty() && !field.contains(',') && (is_quoted || !value.is_empty());
        let is_number = !is_quoted && real(&value).is_some();
        let condition = Self { field, comparison, value, is_quoted, is_number };
        let is_over = after.is_empty() || after.starts_with(',');
        (is_valid && is_over).then(|| (condition, list.len() - after.len()))
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

    /// Whether a value is a number, but is compared with a text that no user would put into an order
    /// with numbers, as in year>=abc.
    fn misses_number(&self, value: Option<&Value>) -> bool {
        let is_ordered = self.comparison.starts_with(['<', '>']);
        let is_number = |value: &Value| match value {
            Value::String(text) => real(text).is_some(),
            value => value.is_number(),
        };
        is_ordered && !self.is_quoted && !self.is_number && value.is_some_and(is_number)
    }

    fn any(&self, value: &Value, expected: fn(Ordering) -> bool) -> bool {
        let order = |text: &str| match (text.parse::<i128>(), self.value.parse()) {
            _ if !self.is_number => Some(text.cmp(&self.value)),
            // Large integers are not rounded.
            (Ok(integer), Ok(other)) => Some(integer.cmp(&other)),
            _ => real(text)?.partial_cmp(&real(&self.value)?),
        };
        match value {
            Value::Array(items) => items.iter().any(|item| self.any(item, expected)),
            Value::String(text) => order(text).is_some_and(expected),
            value => order(&value.to_string()).is_some_and(expected),
        }
    }
}

/// The finite number that a text is.
fn real(text: &str) -> Option<f64> {
    text.parse().ok().filter(|number: &f64| number.is_finite())
}

impl WhereOptions {
    /// The rows and ids of the entries that meet all conditions; `None` without conditions. A field
    /// that no entry has is an error.
    pub(super) fn rows(&self, snapshot: &dyn Snapshot) -> anyhow::Result<Option<Vec<(Row, i64)>>> {
        let conditions: Vec<&Condition> = self.conditions.iter().flat_map(|list| &list.0).collect();
        if conditions.is_empty() {
            return Ok(None);
        }
        let (mut wanted, mut is_known) = (Vec::new(), vec![false; conditions.len()]);
        let mut fields: BTreeSet<String> = ["document", "id", "source"].map(str::to_owned).into();
        for rows in snapshot.rows()?.chunks(ENTRIES_AT_ONCE) {
            for (row, entry) in rows.iter().zip(snapshot.entries(rows)?) {
                let mut is_wanted = true;
                for (condition, is_known) in conditions.iter().zip(&mut is_known) {
                    let value = value_of(&entry, &condition.field);
                    *is_known |= value.is_some();
                    if condition.misses_number(value.as_ref()) {
                        let Condition { field, comparison, value: text, .. } = condition;
                        anyhow::bail!(
                            "{}: {text:?} in {field}{comparison}{text} is no number, but {field:?} \
                             of the entry {} is; give a number, or the text in double quotes",
                            snapshot.description().location,
                            entry.id
                        );
                    }
                    is_wanted &= condition.is_met(value.as_ref());
                }
                wanted.extend(is_wanted.then_some((*row, entry.id)));
                let new = entry.payload.into_iter().map(|(name, _)| name);
                fields.extend(new.filter(|name| !fields.contains(name)).collect::<Vec<_>>());
            }
        }
        let memory = snapshot.description();
        let unknown = conditions.iter().zip(&is_known).find(|(_, is_known)| !**is_known);
        if let Some((Condition { field, .. }, _)) = unknown.filter(|_| memory.entries > 0) {
            anyhow::bail!(
                "{}: no entry has a text, a number, true or false as {field:?}; the fields are {}",
                memory.location,
                shortened(&Vec::from_iter(fields).join(", "), SHOWN_CHARACTERS)
            );
        }
        if wanted.is_empty() {
            output::warn(&format!("{}: no entry meets --where", memory.location));
        }
        Ok(Some(wanted))
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
        let met = r#"year<2000,year >= 1999.0; year=01999; height==2.5; height>-1e3; open=true;
            id=9007199254740993; id!=9007199254740992; source=wit,source<wiu,source!=WIT; source!=5;
            title="Up, up",tags=b; year="1999"; none!=1,other!=""; tags!=c"#;
        let unmet = r#"year<1999; year="01999"; id=9007199254740992; source>5; source<=5; none=null;
            other=""; tags!=a; year=nan; height="2.50"; source=wit,year>1999"#;
        for (list, expected) in [(met, true), (unmet, false)] {
            for conditions in list.split(';') {
                assert_eq!(meets(conditions), expected, "{conditions}");
            }
        }
        for (text, expected) in [
            ("year>=abc", true),
            ("height<x", true),
            ("year>=\"abc\"", false),
            ("year=abc", false),
            ("source<wiu", false),
            ("other>x", false),
            ("year>=1", false),
        ] {
            let Conditions(list) = Conditions::parse(text).expect("conditions");
            let value = value_of(&entry, &list[0].field);
            assert_eq!(list[0].misses_number(value.as_ref()), expected, "{text}");
        }
        for invalid in ["", "year", "year=", "=5", "year!5", "a=b,c", "a=b,", "a=\"b", "a=\"b\"c"] {
            assert!(Conditions::parse(invalid).is_err(), "{invalid}");
        }
    }
}
