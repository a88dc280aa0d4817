//! Reads large JSON files item by item, so that only one item of a list is in main memory.

use std::cell::Cell;
use std::fmt;
use std::io::{self, BufReader, Read};
use std::rc::Rc;

use engram_textfile::{Input, MAX_LINE_BYTES, TextError, message_in_line, shortened};
use serde::Deserialize;
use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess,
    Visitor,
};
use serde_json::error::Category;
use serde_json::value::RawValue;

use crate::DataError;

/// The list name if the whole file is one list.
pub(super) const WHOLE: &str = "";

/// An item of a list.
pub(crate) struct Item<'a> {
    /// The name of the list; [`WHOLE`] for the list that is the whole file.
    pub(super) list: &'static str,
    /// The index in the list, from 0.
    pub(super) index: usize,
    /// The key of the item if it is a member of the file's object; `None` for an item of a list.
    pub(crate) key: Option<&'a str>,
    file: &'a str,
    /// The item as JSON.
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
        serde_json::from_str(self.text).map_err(|error| self.error(message_in_line(&error)))
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
        let (path, reason, remedy) = (self.file.into(), reason.into(), self.remedy);
        DataError::Malformed { path, place: Some(place), reason, remedy }
    }
}

/// The expected structure of a file.
pub(super) struct Lists {
    /// The names of the expected lists in the file's object; [`WHOLE`] if the file is a list.
    pub(super) names: &'static [&'static str],
    /// Advice to the user if the file has another structure.
    pub(super) remedy: &'static str,
}

type Each<'e> = &'e mut dyn FnMut(&Item<'_>) -> Result<(), DataError>;

/// Passes each item of the expected lists to `each`, in file order. Returns the names of the lists
/// present.
///
/// # Errors
/// `Text` with the line, and for an item of more than 16 MiB; the errors of `each`
pub(super) fn read_lists(
    input: Input<'_>,
    lists: &Lists,
    each: Each<'_>,
) -> Result<Vec<&'static str>, DataError> {
    read(input, lists, false, each)
}

/// Passes each value of the file's object to `each`, with its key.
///
/// # Errors
/// as [`read_lists`]
pub(crate) fn read_members(
    input: Input<'_>,
    remedy: &'static str,
    each: Each<'_>,
) -> Result<(), DataError> {
    read(input, &Lists { names: &[], remedy }, true, each).map(drop)
}

/// Parses the file's object as `T`. Fields that `T` does not have are skipped, whatever their size.
///
/// # Errors
/// `Text` with the line
pub(crate) fn read_object<T: DeserializeOwned>(
    mut input: Input<'_>,
    remedy: &'static str,
) -> Result<T, DataError> {
    input.first_byte()?;
    let mut deserializer = serde_json::Deserializer::from_reader(BufReader::new(&mut input));
    let result = T::deserialize(&mut deserializer);
    let result = result.and_then(|value| deserializer.end().map(|()| value));
    result.map_err(|error| file_error(&input, remedy, error))
}

fn read(
    mut input: Input<'_>,
    lists: &Lists,
    reads_members: bool,
    each: Each<'_>,
) -> Result<Vec<&'static str>, DataError> {
    input.first_byte()?;
    let file = input.file().to_owned();
    let remaining = Rc::new(Cell::new(MAX_LINE_BYTES));
    let limited =
        LimitedReader { reader: BufReader::new(&mut input), remaining: remaining.clone() };
    let mut walk = Walk {
        file: &file,
        lists,
        reads_members,
        remaining,
        each,
        found_lists: Vec::new(),
        failure: None,
    };
    let mut deserializer = serde_json::Deserializer::from_reader(limited);
    let result = (&mut deserializer).deserialize_any(&mut walk).and_then(|()| deserializer.end());
    let (found_lists, failure, remaining) = (walk.found_lists, walk.failure, walk.remaining.get());
    match (failure, result) {
        (Some(error), _) => Err(error),
        (None, Ok(())) => Ok(found_lists),
        (None, Err(error)) if remaining == 0 && error.is_io() => {
            let reason = format!("an item of more than {} MiB", MAX_LINE_BYTES >> 20);
            let remedy = "check that the file is of this format";
            Err(TextError::malformed(&file, None, reason, remedy).into())
        }
        (None, Err(error)) => Err(file_error(&input, lists.remedy, error)),
    }
}

/// Creates an error for the whole file.
fn file_error(input: &Input<'_>, remedy: &'static str, error: serde_json::Error) -> DataError {
    let (line, reason, remedy) = match error.classify() {
        Category::Io => return input.error(error.into()).into(),
        Category::Eof => {
            let remedy = "download it again: the download or export was interrupted";
            (error.line(), "the file ends in the middle".to_owned(), remedy)
        }
        Category::Syntax | Category::Data => (error.line(), message_in_line(&error), remedy),
    };
    TextError::malformed(input.file(), line as u64, reason, remedy).into()
}

/// A reader that fails if an item is too large.
struct LimitedReader<R> {
    reader: BufReader<R>,
    /// The number of bytes that the current item may still have.
    remaining: Rc<Cell<u64>>,
}

impl<R: Read> Read for LimitedReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.remaining.get() == 0 {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let count = self.reader.read(buffer)?;
        self.remaining.set(self.remaining.get().saturating_sub(count as u64));
        Ok(count)
    }
}

/// The visitor that walks through the file.
struct Walk<'w, 'e> {
    file: &'w str,
    lists: &'w Lists,
    /// Whether to read each member of the object, instead of lists.
    reads_members: bool,
    remaining: Rc<Cell<u64>>,
    each: Each<'e>,
    found_lists: Vec<&'static str>,
    /// The error that ended the walk, unless it was a syntax error.
    failure: Option<DataError>,
}

impl Walk<'_, '_> {
    fn pass_item<E: Error>(
        &mut self,
        list: &'static str,
        index: usize,
        key: Option<&str>,
        value: &RawValue,
    ) -> Result<(), E> {
        let (file, remedy) = (self.file, self.lists.remedy);
        let item = Item { list, index, key, file, text: value.get(), remedy };
        self.remaining.set(MAX_LINE_BYTES);
        (self.each)(&item).map_err(|error| {
            self.failure = Some(error);
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
            self.pass_item(list, index, None, &value)?;
            index += 1;
        }
        Ok(())
    }
}

impl<'de> Visitor<'de> for &mut Walk<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let allows_list = self.lists.names.contains(&WHOLE);
        let allows_object =
            self.reads_members || self.lists.names.iter().any(|list| *list != WHOLE);
        f.write_str(match (allows_list, allows_object) {
            (true, true) => "a list or an object",
            (true, false) => "a list",
            _ => "an object",
        })
    }

    fn visit_seq<A: SeqAccess<'de>>(self, items: A) -> Result<(), A::Error> {
        if !self.lists.names.contains(&WHOLE) {
            return Err(A::Error::invalid_type(serde::de::Unexpected::Seq, &self));
        }
        self.found_lists.push(WHOLE);
        self.read_items(WHOLE, items)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        if !self.reads_members && self.lists.names == [WHOLE] {
            return Err(A::Error::invalid_type(serde::de::Unexpected::Map, &self));
        }
        let mut index = 0;
        while let Some(key) = map.next_key::<String>()? {
            self.remaining.set(MAX_LINE_BYTES);
            let list = self.lists.names.iter().find(|list| key == **list);
            match list {
                _ if self.reads_members => {
                    let value = map.next_value::<Box<RawValue>>()?;
                    self.pass_item(WHOLE, index, Some(&key), &value)?;
                }
                Some(list) if self.found_lists.contains(list) => {
                    return Err(A::Error::custom(format!("`{list}` appears twice")));
                }
                Some(list) => {
                    self.found_lists.push(list);
                    map.next_value_seed(ListSeed { walk: self, list })?;
                }
                None => {
                    self.remaining.set(u64::MAX);
                    map.next_value::<IgnoredAny>()?;
                    self.remaining.set(MAX_LINE_BYTES);
                }
            }
            index += 1;
        }
        Ok(())
    }
}

/// An expected list inside the object.
struct ListSeed<'l, 'w, 'e> {
    walk: &'l mut Walk<'w, 'e>,
    list: &'static str,
}

impl<'de> DeserializeSeed<'de> for ListSeed<'_, '_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for ListSeed<'_, '_, '_> {
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
pub(super) fn missing_list(file: &str, list: &str, remedy: &'static str) -> DataError {
    TextError::malformed(file, None, format!("has no list `{list}`"), remedy).into()
}
