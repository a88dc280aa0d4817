//! Image ids. COCO and NoCaps have integers; other data sets may have strings.

use std::fmt;

use engram_textfile::shortened;
use serde::de::{Error, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

/// An image id: an integer or a string. The string "5" equals the integer 5, because the data sets
/// use both forms.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(untagged)]
pub enum ImageId {
    /// An integer.
    Number(i64),
    /// A string that is not the usual form of an integer, such as `img_5` or `05`.
    Text(String),
}

/// Writes the id as JSON does: strings in quotes.
impl fmt::Display for ImageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => number.fmt(f),
            Self::Text(text) => write!(f, "\"{text}\""),
        }
    }
}

impl ImageId {
    /// The id for a message: on one line, shortened to 60 characters.
    pub(super) fn for_message(&self) -> String {
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
        f.write_str("an image id (an integer or a string)")
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<ImageId, E> {
        Ok(ImageId::Number(number))
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<ImageId, E> {
        let too_large = |_| E::invalid_value(Unexpected::Unsigned(number), &self);
        i64::try_from(number).map(ImageId::Number).map_err(too_large)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<ImageId, E> {
        // "05" and "+5" are not the integer 5.
        let number = text.parse().ok().filter(|number: &i64| number.to_string() == text);
        Ok(number.map_or_else(|| ImageId::Text(text.to_owned()), ImageId::Number))
    }
}
