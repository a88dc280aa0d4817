//! Strict reading of JSON files: lists in place of objects and duplicate keys are errors, and every
//! error names the file and the line.

use std::borrow::Cow;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::marker::PhantomData;

use engram_textfile::{Object, message, shortened};
use serde::Deserialize;
use serde::de::{Deserializer, Error, MapAccess, Visitor};

use crate::error::{EvalError, malformed};

/// Parses the text of a file; `file` and `remedy` are for error messages.
pub(crate) fn parse<'a, T: Deserialize<'a>>(
    file: &str,
    text: &'a str,
    remedy: &'static str,
) -> Result<T, EvalError> {
    serde_json::from_str(text).map_err(|error| {
        let line = (error.line() > 0).then_some(error.line() as u64);
        malformed(file, line, format!("is not as expected: {}", message(&error)), remedy)
    })
}

/// Like [`parse`], for a list of objects.
pub(crate) fn parse_list<'a, T: Deserialize<'a>>(
    file: &str,
    text: &'a str,
    remedy: &'static str,
) -> Result<Vec<T>, EvalError> {
    let list: Vec<Object<T>> = parse(file, text, remedy)?;
    Ok(list.into_iter().map(|object| object.0).collect())
}

/// Reads a list of objects; for `deserialize_with`.
pub(crate) fn objects<'de, D, T>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    let objects = Vec::<Object<T>>::deserialize(deserializer)?;
    Ok(objects.into_iter().map(|object| object.0).collect())
}

/// A string that is borrowed where possible; `Option<Cow<str>>` always copies.
#[derive(Debug, PartialEq, Eq, Hash, Deserialize)]
pub(crate) struct Text<'a>(#[serde(borrow)] pub(crate) Cow<'a, str>);

/// An object with arbitrary keys. A duplicate key is an error: one of its values would be lost.
pub(crate) struct DistinctKeys<T>(pub(crate) HashMap<String, T>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for DistinctKeys<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct KeysVisitor<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for KeysVisitor<T> {
            type Value = DistinctKeys<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<DistinctKeys<T>, A::Error> {
                let mut values = HashMap::new();
                while let Some((key, value)) = map.next_entry::<String, T>()? {
                    match values.entry(key) {
                        Entry::Vacant(entry) => entry.insert(value),
                        Entry::Occupied(entry) => return Err(duplicate_key_error(entry.key())),
                    };
                }
                Ok(DistinctKeys(values))
            }
        }
        deserializer.deserialize_map(KeysVisitor(PhantomData))
    }
}

/// The error for a key or id that appears twice.
pub(crate) fn duplicate_key_error<E: Error>(key: &str) -> E {
    E::custom(format!("`{}` appears twice", shortened(key, 60)))
}
