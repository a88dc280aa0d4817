//! Ids of utterances, images, questions and queries. All formats allow strings and integers.

use std::borrow::Cow;
use std::fmt;

use engram_textfile::shortened;
use serde::Deserialize;
use serde::de::{Deserializer, Visitor};

/// Small integers as text, so that ids such as the answer numbers 1 to 10 need no allocation.
const SMALL_INTEGERS: [&str; 11] = ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10"];

/// An id. A string and an integer with the same digits are the same id.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Id<'a>(pub Cow<'a, str>);

impl Id<'_> {
    /// The id with its own text.
    pub fn into_owned(self) -> Id<'static> {
        Id(self.0.into_owned().into())
    }

    /// The id for a message: on one line, shortened to 60 characters.
    pub(crate) fn for_message(&self) -> String {
        shortened(&self.0, 60)
    }
}

impl fmt::Display for Id<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Id<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct IdVisitor;
        impl<'de> Visitor<'de> for IdVisitor {
            type Value = Id<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an id, a string or an integer")
            }

            fn visit_borrowed_str<E>(self, id: &'de str) -> Result<Id<'de>, E> {
                Ok(Id(id.into()))
            }

            fn visit_str<E>(self, id: &str) -> Result<Id<'de>, E> {
                Ok(Id(id.to_owned().into()))
            }

            fn visit_u64<E>(self, id: u64) -> Result<Id<'de>, E> {
                let small = usize::try_from(id).ok().and_then(|id| SMALL_INTEGERS.get(id));
                Ok(Id(small.map_or_else(|| id.to_string().into(), |id| Cow::Borrowed(*id))))
            }

            fn visit_i64<E>(self, id: i64) -> Result<Id<'de>, E> {
                Ok(Id(id.to_string().into()))
            }

            fn visit_f64<E: serde::de::Error>(self, id: f64) -> Result<Id<'de>, E> {
                Err(E::custom(format!("the id {id} is not an integer")))
            }
        }
        deserializer.deserialize_any(IdVisitor)
    }
}
