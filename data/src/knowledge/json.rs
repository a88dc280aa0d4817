//! Reads JSON files of lists item by item. Only one item of a file of several hundred megabytes is
//! in memory.

use std::cell::Cell;
use std::fmt;
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use serde::Deserialize;
use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess,
    Visitor,
};
use serde_json::error::Category;
use serde_json::value::RawValue;

use super::input::{Input, read_error};
use super::lines::LONGEST;
use crate::DataError;

/// Limits on decompressed data, as a multiple of the compressed bytes and as a minimum in bytes.
/// Readers keep some of the content, and gzip can expand data a thousandfold.
const MAX_COMPRESSION_RATIO: u64 = 100;
const MAX_DECOMPRESSED_BYTES: u64 = 256 << 20;

/// The maximum length of a quotation from a file in a message, in characters.
const QUOTED: usize = 200;

/// The list name if the whole file is one list.
pub(super) const WHOLE: &str = "";

/// An item of a list.
pub(crate) struct Item<'a> {
    /// The name of the list; [`WHOLE`] for the list that is the whole file.
    pub(super) list: &'static str,
    /// The index in the list, from 0.
    pub(super) index: usize,
    /// The key of the item, if the whole file is an object.
    pub(crate) key: Option<&'a str>,
    path: &'a Path,
    text: &'a str,
    remedy: &'static str,
}

impl<'a> Item<'a> {
    /// Whether the item's text begins with this character, which distinguishes an object, a list
    /// and a string.
    pub(super) fn begins_with(&self, character: char) -> bool {
        self.text.starts_with(character)
    }

    /// Parses the item as `T`.
    pub(super) fn parse<T: Deserialize<'a>>(&self) -> Result<T, DataError> {
        serde_json::from_str(self.text).map_err(|error| self.error(message(&error)))
    }

    /// Parses the item as `T` if it is an object. (Serde would also accept a list of the fields.)
    pub(crate) fn parse_object<T: Deserialize<'a>>(&self) -> Result<T, DataError> {
        if self.begins_with('{') {
            self.parse()
        } else {
            Err(self.error(format!("expected an object, found {}", shortened(self.text, 40))))
        }
    }

    /// Creates an error for this item.
    pub(crate) fn error(&self, reason: impl Into<String>) -> DataError {
        let place = match (self.key, self.list) {
            (Some(key), _) => format!("entry `{}`", shortened(key, 60)),
            (None, WHOLE) => format!("item {}", self.index + 1),
            (None, list) => format!("item {} of `{list}`", self.index + 1),
        };
        let (path, reason, remedy) = (self.path.to_owned(), reason.into(), self.remedy);
        DataError::Malformed { path, place: Some(place), reason, remedy }
    }
}

/// The expected structure of a file.
pub(super) struct Lists {
    /// The names of the expected lists in the file's object; [`WHOLE`] if the file is a list.
    pub(super) wanted: &'static [&'static str],
    /// Advice to the user if the file has another structure.
    pub(super) remedy: &'static str,
}

type Each<'e> = &'e mut dyn FnMut(&Item<'_>) -> Result<(), DataError>;

/// Passes each item of the expected lists to `each`, in file order. Returns the names of the lists
/// present.
///
/// # Errors   `Io`, `Gzip`; `Malformed` with line and column, and for an item of more than 16 MiB;
/// the errors of `each`
pub(super) fn read_lists(
    input: Input<'_>,
    lists: &Lists,
    each: Each<'_>,
) -> Result<Vec<&'static str>, DataError> {
    read(input, lists, false, each)
}

/// Passes each value of the file's object to `each`, with its key.
///
/// # Errors   as [`read_lists`]
pub(crate) fn read_members(
    input: Input<'_>,
    remedy: &'static str,
    each: Each<'_>,
) -> Result<(), DataError> {
    read(input, &Lists { wanted: &[], remedy }, true, each).map(drop)
}

/// Parses the file's object as `T`. Fields that `T` does not have are skipped, whatever their size.
///
/// # Errors   `Io`, `Gzip`; `Malformed` with line and column
pub(crate) fn read_object<T: DeserializeOwned>(
    input: Input<'_>,
    remedy: &'static str,
) -> Result<T, DataError> {
    let Input { path, reader, taken, is_gzip } = input;
    let metered = Metered { reader, left: Rc::new(Cell::new(u64::MAX)), given: 0, taken };
    let mut deserializer = serde_json::Deserializer::from_reader(metered);
    let read = T::deserialize(&mut deserializer);
    read.and_then(|value| deserializer.end().map(|()| value))
        .map_err(|error| file_error(&path, is_gzip, remedy, error))
}

fn read(
    input: Input<'_>,
    lists: &Lists,
    members: bool,
    each: Each<'_>,
) -> Result<Vec<&'static str>, DataError> {
    let Input { path, reader, taken, is_gzip } = input;
    let left = Rc::new(Cell::new(LONGEST));
    let metered = Metered { reader, left: left.clone(), given: 0, taken };
    let mut walk =
        Walk { path: &path, lists, members, left, each, found: Vec::new(), failed: None };
    let mut deserializer = serde_json::Deserializer::from_reader(metered);
    let read = (&mut deserializer).deserialize_any(&mut walk).and_then(|()| deserializer.end());
    let (found, failed) = (walk.found, walk.failed);
    match (failed, read) {
        (Some(error), _) => Err(error),
        (None, Ok(())) => Ok(found),
        (None, Err(error)) => Err(file_error(&path, is_gzip, lists.remedy, error)),
    }
}

/// Creates an error for the whole file.
fn file_error(
    path: &Path,
    is_gzip: bool,
    remedy: &'static str,
    error: serde_json::Error,
) -> DataError {
    let malformed = |place, reason, remedy| {
        let path = path.to_owned();
        DataError::Malformed { path, place, reason, remedy }
    };
    let place = Some(format!("line {}, column {}", error.line(), error.column()));
    match error.classify() {
        Category::Io => {
            let error = io::Error::from(error);
            match error.kind() {
                io::ErrorKind::FileTooLarge => {
                    malformed(None, error.to_string(), "check that the file is of this format")
                }
                _ => read_error(path, is_gzip, error),
            }
        }
        Category::Eof => {
            let remedy = "download it again: the download or export was interrupted";
            malformed(place, "the file ends in the middle".to_owned(), remedy)
        }
        Category::Syntax | Category::Data => malformed(place, message(&error), remedy),
    }
}

/// Returns the JSON parser's message on one line, without the position, and with a shortened
/// quotation.
fn message(error: &serde_json::Error) -> String {
    let message = error.to_string();
    let end = if error.line() > 0 { message.rfind(" at line ") } else { None };
    shortened(&message[..end.unwrap_or(message.len())], QUOTED)
}

/// Returns at most `width` characters of a text, with control characters replaced by spaces.
pub(super) fn shortened(text: &str, width: usize) -> String {
    let clean = |c: char| if c.is_control() { ' ' } else { c };
    let mut characters = text.chars().map(clean);
    let mut short: String = characters.by_ref().take(width).collect();
    if characters.next().is_some() {
        short.pop();
        short.push('…');
    }
    short
}

/// A reader that stops when an item, or the whole file, becomes too large.
struct Metered<'r> {
    reader: BufReader<Box<dyn Read + 'r>>,
    left: Rc<Cell<u64>>,
    given: u64,
    taken: Rc<Cell<u64>>,
}

impl Read for Metered<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let too_large = |what: String| Err(io::Error::new(io::ErrorKind::FileTooLarge, what));
        if self.left.get() == 0 {
            return too_large(format!("an item of more than {} MiB", LONGEST >> 20));
        }
        if self.given > MAX_DECOMPRESSED_BYTES
            && self.given / MAX_COMPRESSION_RATIO > self.taken.get()
        {
            return too_large(format!(
                "decompresses to more than {MAX_COMPRESSION_RATIO} times its size"
            ));
        }
        let count = self.reader.read(buffer)?;
        self.left.set(self.left.get().saturating_sub(count as u64));
        self.given += count as u64;
        Ok(count)
    }
}

/// The visitor that walks through the file.
struct Walk<'w, 'e> {
    path: &'w Path,
    lists: &'w Lists,
    /// Whether to read each member of the object, instead of lists.
    members: bool,
    left: Rc<Cell<u64>>,
    each: Each<'e>,
    found: Vec<&'static str>,
    /// The error that ended the walk, unless it was a syntax error.
    failed: Option<DataError>,
}

impl Walk<'_, '_> {
    fn hand_over<E: Error>(
        &mut self,
        list: &'static str,
        index: usize,
        key: Option<&str>,
        value: &RawValue,
    ) -> Result<(), E> {
        let (path, remedy) = (self.path, self.lists.remedy);
        let item = Item { list, index, key, path, text: value.get(), remedy };
        self.left.set(LONGEST);
        (self.each)(&item).map_err(|error| {
            self.failed = Some(error);
            E::custom("refused")
        })
    }

    fn read_items<'de, A: SeqAccess<'de>>(
        &mut self,
        list: &'static str,
        mut items: A,
    ) -> Result<(), A::Error> {
        let mut index = 0;
        while let Some(value) = items.next_element::<Box<RawValue>>()? {
            self.hand_over(list, index, None, &value)?;
            index += 1;
        }
        Ok(())
    }
}

impl<'de> Visitor<'de> for &mut Walk<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let wants_list = self.lists.wanted.contains(&WHOLE);
        let wants_object = self.members || self.lists.wanted.iter().any(|list| *list != WHOLE);
        f.write_str(match (wants_list, wants_object) {
            (true, true) => "a list or an object",
            (true, false) => "a list",
            _ => "an object",
        })
    }

    fn visit_seq<A: SeqAccess<'de>>(self, items: A) -> Result<(), A::Error> {
        if !self.lists.wanted.contains(&WHOLE) {
            return Err(A::Error::invalid_type(serde::de::Unexpected::Seq, &self));
        }
        self.found.push(WHOLE);
        self.read_items(WHOLE, items)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        if !self.members && self.lists.wanted == [WHOLE] {
            return Err(A::Error::invalid_type(serde::de::Unexpected::Map, &self));
        }
        let mut index = 0;
        while let Some(key) = map.next_key::<String>()? {
            self.left.set(LONGEST);
            let wanted = self.lists.wanted.iter().find(|list| key == **list);
            match wanted {
                _ if self.members => {
                    let value = map.next_value::<Box<RawValue>>()?;
                    self.hand_over(WHOLE, index, Some(&key), &value)?;
                }
                Some(list) if self.found.contains(list) => {
                    return Err(A::Error::custom(format!("`{list}` appears twice")));
                }
                Some(list) => {
                    self.found.push(list);
                    map.next_value_seed(List { walk: self, list })?;
                }
                None => {
                    self.left.set(u64::MAX);
                    map.next_value::<IgnoredAny>()?;
                    self.left.set(LONGEST);
                }
            }
            index += 1;
        }
        Ok(())
    }
}

/// An expected list inside the object.
struct List<'l, 'w, 'e> {
    walk: &'l mut Walk<'w, 'e>,
    list: &'static str,
}

impl<'de> DeserializeSeed<'de> for List<'_, '_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for List<'_, '_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a list of `{}`", self.list)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, items: A) -> Result<(), A::Error> {
        self.walk.read_items(self.list, items)
    }
}

/// An id: a string, or an integer as a string.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Id(pub(super) String);

impl<'de> Deserialize<'de> for Id {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct IdVisitor;

        impl Visitor<'_> for IdVisitor {
            type Value = Id;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an id (a string or an integer)")
            }

            fn visit_u64<E>(self, id: u64) -> Result<Id, E> {
                Ok(Id(id.to_string()))
            }

            fn visit_i64<E>(self, id: i64) -> Result<Id, E> {
                Ok(Id(id.to_string()))
            }

            fn visit_str<E>(self, id: &str) -> Result<Id, E> {
                Ok(Id(id.to_owned()))
            }
        }
        deserializer.deserialize_any(IdVisitor)
    }
}

/// Creates the error for a file without a required list.
pub(super) fn missing_list(path: PathBuf, list: &str, remedy: &'static str) -> DataError {
    DataError::Malformed { path, place: None, reason: format!("has no list `{list}`"), remedy }
}
