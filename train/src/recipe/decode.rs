//! Reads a TOML value as a struct. An error has the path of its value. An error for an unknown key
//! also has the known keys.

use std::fmt;

use serde::de::value::{MapDeserializer, SeqDeserializer};
use serde::de::{DeserializeOwned, Deserializer, IntoDeserializer, Visitor};
use serde::forward_to_deserialize_any;
use toml::Value;

/// Why a value cannot be read.
#[derive(Debug)]
pub(super) enum Fault {
    /// A table has a key that its struct does not have.
    UnknownKey {
        key: String,
        /// The keys of the struct.
        known: &'static [&'static str],
    },
    /// Any other reason, in words.
    Other(String),
}

/// Reads a value. The error has the dotted path of the faulty value, relative to `value`; for an
/// unknown key it is the path of the key.
pub(super) fn decode<T: DeserializeOwned>(value: &Value) -> Result<T, (String, Fault)> {
    serde_path_to_error::deserialize(Node(value)).map_err(|error| {
        let path = error.path().iter().map(|segment| match segment {
            serde_path_to_error::Segment::Seq { index } => index.to_string(),
            segment => segment.to_string(),
        });
        (path.collect::<Vec<_>>().join("."), error.into_inner())
    })
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownKey { key, .. } => write!(f, "unknown key `{key}`"),
            Self::Other(reason) => f.write_str(reason),
        }
    }
}

impl std::error::Error for Fault {}

impl serde::de::Error for Fault {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self::Other(message.to_string())
    }

    fn unknown_field(key: &str, known: &'static [&'static str]) -> Self {
        Self::UnknownKey { key: key.to_owned(), known }
    }
}

/// A TOML value as a serde deserializer.
#[derive(Clone, Copy)]
struct Node<'a>(&'a Value);

impl IntoDeserializer<'_, Fault> for Node<'_> {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}

impl<'de> Deserializer<'de> for Node<'_> {
    type Error = Fault;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        match self.0 {
            Value::String(text) => visitor.visit_str(text),
            Value::Integer(number) => visitor.visit_i64(*number),
            Value::Float(number) => visitor.visit_f64(*number),
            Value::Boolean(value) => visitor.visit_bool(*value),
            Value::Datetime(date) => visitor.visit_string(date.to_string()),
            Value::Array(list) => visitor.visit_seq(SeqDeserializer::new(list.iter().map(Node))),
            Value::Table(table) => {
                // `kind` comes first: the other keys of a table may depend on it.
                let (kind, others): (Vec<_>, Vec<_>) =
                    table.iter().partition(|(key, _)| *key == "kind");
                let entries = kind.into_iter().chain(others);
                let entries = entries.map(|(key, value)| (key.as_str(), Node(value)));
                visitor.visit_map(MapDeserializer::new(entries))
            }
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Fault> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Fault> {
        match self.0 {
            Value::String(name) => visitor.visit_enum(name.as_str().into_deserializer()),
            other => Err(Fault::Other(format!("is {other}; write one of the choices as a string"))),
        }
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit
        unit_struct seq tuple tuple_struct map struct identifier ignored_any
    }
}
