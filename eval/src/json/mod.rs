//! Strict JSON reading: no lists in place of objects, no duplicate keys, and error messages of
//! bounded length.

use std::borrow::Cow;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, Error, MapAccess, Visitor};

use crate::table::shortened;

pub(crate) mod cursor;

/// Maximum length of a quotation from a file in a message, in characters.
const QUOTED: usize = 200;

/// A value that must be a JSON object. A derived `Deserialize` alone would also accept a list of
/// the fields in declaration order.
pub(crate) struct Object<T>(pub(crate) T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ObjectVisitor<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for ObjectVisitor<T> {
            type Value = Object<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Object<T>, A::Error> {
                T::deserialize(MapAccessDeserializer::new(map)).map(Object)
            }
        }
        deserializer.deserialize_map(ObjectVisitor(PhantomData))
    }
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

/// An object with arbitrary keys, each at most once: of two values for one key, one would be lost.
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

/// The message of the JSON reader on one line, with quotations from the file shortened.
pub(crate) fn message(error: &serde_json::Error) -> String {
    let (description, position) = split_position(error);
    description + &position
}

/// Like [`message`] with the column only, for files in which each line is parsed separately.
pub(crate) fn message_in_line(error: &serde_json::Error) -> String {
    match split_position(error) {
        (description, position) if position.is_empty() => description,
        (description, _) => format!("{description} (column {})", error.column()),
    }
}

/// Splits a message into the description and the position.
fn split_position(error: &serde_json::Error) -> (String, String) {
    let message = error.to_string();
    let at = if error.line() > 0 { message.rfind(" at line ") } else { None };
    let (description, position) = message.split_at(at.unwrap_or(message.len()));
    (shortened(description, QUOTED), position.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Deserialize)]
    struct Row {
        a: u8,
        b: u8,
    }

    fn refused<'a, T: Deserialize<'a>>(text: &'a str) -> String {
        message(&serde_json::from_str::<T>(text).err().unwrap())
    }

    #[test]
    fn a_list_of_fields_is_no_object() {
        let Object::<Row>(row) = serde_json::from_str(r#"{"b": 2, "a": 1}"#).unwrap();
        assert_eq!(row, Row { a: 1, b: 2 });
        let error = refused::<Object<Row>>("[1, 2]");
        assert!(
            error.starts_with("invalid type: sequence, expected an object at line 1"),
            "{error}"
        );
    }

    #[test]
    fn a_key_stands_once() {
        let DistinctKeys::<u8>(keys) = serde_json::from_str(r#"{"a": 1, "b": 1}"#).unwrap();
        assert_eq!((keys.len(), keys["a"]), (2, 1));
        let error = refused::<DistinctKeys<u8>>("{\"a\": 1,\n\"a\": 2}");
        assert!(error.starts_with("`a` appears twice at line 2"), "{error}");
    }

    #[test]
    fn a_message_is_short_and_on_one_line() {
        let text = format!("\"{}\\n\\u001b[31m{}\"", "x".repeat(50), "y".repeat(1_000_000));
        let error = refused::<Object<Row>>(&text);
        assert!(error.chars().count() < 300 && !error.contains(char::is_control), "{error}");
        assert!(error.contains(" at line 1 column "), "{error}");
        let error = serde_json::from_str::<u8>("x").unwrap_err();
        assert_eq!(message_in_line(&error), "expected value (column 1)");
    }
}
