//! Ids of images, which are whole numbers in COCO and NoCaps and may be names elsewhere.

use std::fmt;

use serde::de::{Error, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use crate::table::shortened;

/// The id of an image: a whole number or a text. The text "5" is the number 5, as ids are in all formats.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(untagged)]
pub enum ImageId {
    /// A whole number.
    Number(i64),
    /// Any text.
    Text(String),
}

/// As in JSON: texts in quotes.
impl fmt::Display for ImageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => number.fmt(f),
            Self::Text(text) => write!(f, "\"{text}\""),
        }
    }
}

impl ImageId {
    /// As in a message: on one line, and not too long.
    pub(super) fn brief(&self) -> String {
        shortened(&self.to_string(), 60)
    }
}

impl<'de> Deserialize<'de> for ImageId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ImageIdVisitor)
    }
}

struct ImageIdVisitor;

impl Visitor<'_> for ImageIdVisitor {
    type Value = ImageId;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an image id, a whole number or a text")
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<ImageId, E> {
        Ok(ImageId::Number(number))
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<ImageId, E> {
        let too_large = |_| E::invalid_value(Unexpected::Unsigned(number), &self);
        i64::try_from(number).map(ImageId::Number).map_err(too_large)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<ImageId, E> {
        // Not "05" and "+5", which are other ids than 5.
        let number = text.parse().ok().filter(|number: &i64| number.to_string() == text);
        Ok(number.map_or_else(|| ImageId::Text(text.to_owned()), ImageId::Number))
    }
}
