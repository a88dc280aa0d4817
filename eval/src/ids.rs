//! Ids of utterances, images, questions and queries. All formats allow strings and integers.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;

use engram_textfile::shortened;
use serde::Deserialize;
use serde::de::{Deserializer, Visitor};

use crate::error::{EvalError, Location};

/// The ids of a file, each with its line.
pub(crate) struct FileIds<'a> {
    /// The file name, for error messages.
    pub(crate) file: &'a str,
    /// The ids in the order of the file, or sorted if the order is unknown. The line is `None` if
    /// it is unknown.
    pub(crate) rows: Vec<(&'a str, Option<u64>)>,
}

impl<'a> FileIds<'a> {
    /// Ids without lines.
    pub(crate) fn without_lines(file: &'a str, ids: impl Iterator<Item = &'a str>) -> Self {
        Self { file, rows: ids.map(|id| (id, None)).collect() }
    }
}

/// Returns the index of the prediction for each gold row. `None` is a gold row without a
/// prediction, which is an error unless `allow_missing` is true.
pub(crate) fn join(
    gold: &FileIds<'_>,
    predictions: &FileIds<'_>,
    allow_missing: bool,
) -> Result<Vec<Option<usize>>, EvalError> {
    let mut indices: HashMap<&str, usize> = HashMap::with_capacity(predictions.rows.len());
    indices.extend(predictions.rows.iter().enumerate().map(|(index, (id, _))| (*id, index)));
    let joined: Vec<_> = gold.rows.iter().map(|(id, _)| indices.remove(id)).collect();
    let mut missing = gold.rows.iter().zip(&joined).filter(|(_, index)| index.is_none());
    if !allow_missing && let Some(((id, line), _)) = missing.next() {
        return Err(EvalError::MissingPrediction {
            predictions: predictions.file.to_owned(),
            gold: Location::new(gold.file, *line),
            id: shortened(id, 60),
            missing: 1 + missing.count(),
            rows: gold.rows.len(),
        });
    }
    if let Some(first) = indices.values().min() {
        let (id, line) = predictions.rows[*first];
        return Err(EvalError::ExtraPrediction {
            location: Location::new(predictions.file, line),
            gold: gold.file.to_owned(),
            id: shortened(id, 60),
            extra: indices.len(),
            rows: predictions.rows.len(),
        });
    }
    Ok(joined)
}

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
