//! JSON lines, and error messages of the JSON parser on one line of bounded length.

use std::fmt;
use std::marker::PhantomData;

use rayon::prelude::*;
use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, MapAccess, Visitor};

use crate::lines::non_blank_lines;
use crate::{Location, TextError, shortened};

/// Maximum length of a quotation from a file in a message, in characters.
const MAX_QUOTED_CHARACTERS: usize = 200;

/// The remedy for a JSON lines file with other content.
pub const ONE_OBJECT: &str = "write one JSON object per line, with texts as strings";

/// Added to the error of an escape that JSON does not have, as in a path of Windows.
const BACKSLASH: &str =
    ", because a backslash begins an escape: write a path with `/`, or with `\\\\`";

/// Minimum size in bytes of the block that a thread reads at a time.
const MIN_BLOCK_BYTES: usize = 1 << 16;

/// A value that must be a JSON object. A derived `Deserialize` alone would also accept a list of
/// the fields in declaration order.
pub struct Object<T>(pub T);

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

/// Parses JSON lines on all threads; blank lines are skipped. `make` turns the line number and the
/// parsed record into a result. Returns the results in the order of the lines, in one list per
/// block of lines. `file` and `remedy` are for error messages. If several lines are invalid, the
/// error names the first of them, for any number of threads.
///
/// # Errors
/// as [`parse_json_line`]
pub fn json_lines<'a, T, R>(
    file: &str,
    text: &'a str,
    remedy: &'static str,
    make: impl Fn(u64, T) -> R + Sync,
) -> Result<Vec<Vec<R>>, TextError>
where
    T: Deserialize<'a>,
    R: Send,
{
    let parse = |(number, line): (u64, &'a str)| {
        parse_json_line(file, number, line, remedy).map(|record| make(number, record))
    };
    let results: Vec<Result<Vec<R>, TextError>> = blocks(text)
        .into_par_iter()
        .map(|(lines_before, block)| {
            non_blank_lines(block)
                .map(|(number, line)| parse((lines_before + number, line)))
                .collect()
        })
        .collect();
    results.into_iter().collect()
}

/// Parses a line, which must be a JSON object. `file`, `line` and `remedy` are for error messages.
///
/// # Errors
/// [`TextError::Malformed`]
pub fn parse_json_line<'a, T: Deserialize<'a>>(
    file: &str,
    line: u64,
    text: &'a str,
    remedy: &'static str,
) -> Result<T, TextError> {
    let parsed = serde_json::from_str(text).map(|Object(parsed)| parsed);
    parsed.map_err(|error| {
        let reason = match text.trim_start().chars().next() {
            Some('{' | '[') => format!("is not as expected: {}", message_in_line(&error)),
            _ => format!("is no JSON object; it begins with `{}`", shortened(text.trim(), 40)),
        };
        TextError::Malformed { location: Location::new(file, line), reason, remedy }
    })
}

/// Returns the message of the JSON parser on one line, with its position. The message has at most
/// 200 characters before the position, because it may quote the file.
pub fn message(error: &serde_json::Error) -> String {
    let (description, position) = split_position(error);
    description + &position
}

/// Like [`message`], but the position is the column alone: for files in which each line is parsed
/// separately.
pub fn message_in_line(error: &serde_json::Error) -> String {
    match split_position(error) {
        (description, position) if position.is_empty() => description,
        (description, _) => {
            let hint = if description == "invalid escape" { BACKSLASH } else { "" };
            format!("{description} (column {}){hint}", error.column())
        }
    }
}

/// Splits a message into the description and the position.
fn split_position(error: &serde_json::Error) -> (String, String) {
    let message = error.to_string();
    let start = if error.line() > 0 { message.rfind(" at line ") } else { None };
    let (description, position) = message.split_at(start.unwrap_or(message.len()));
    (shortened(description, MAX_QUOTED_CHARACTERS), position.to_owned())
}

/// Splits text into blocks of whole lines of at least [`MIN_BLOCK_BYTES`] bytes (the last may be
/// shorter). Each block comes with the number of lines before it.
fn blocks(text: &str) -> Vec<(u64, &str)> {
    let mut blocks = Vec::with_capacity(text.len() / MIN_BLOCK_BYTES + 1);
    let (mut remaining, mut lines_before) = (text, 0);
    while !remaining.is_empty() {
        let end = remaining.as_bytes().iter().skip(MIN_BLOCK_BYTES).position(|byte| *byte == b'\n');
        let (block, next) =
            remaining.split_at(end.map_or(remaining.len(), |end| MIN_BLOCK_BYTES + end + 1));
        blocks.push((lines_before, block));
        lines_before += block.bytes().filter(|byte| *byte == b'\n').count() as u64;
        remaining = next;
    }
    blocks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Deserialize)]
    struct Row {
        id: u64,
    }

    #[test]
    fn json_lines_come_in_order_with_their_numbers() {
        let mut text = String::new();
        for id in 0..30_000 {
            text += &format!("{{\"id\": {id}}}\n{}", ["", "\r\n", "  \n"][id % 3]);
        }
        assert!(text.len() > 4 * MIN_BLOCK_BYTES);
        let rows = json_lines("f", &text, "", |line, row: Row| (line, row.id)).unwrap();
        let expected: Vec<(u64, &str)> = non_blank_lines(&text).collect();
        for ((line, id), (expected_line, row)) in rows.into_iter().flatten().zip(&expected) {
            assert_eq!((line, format!("{{\"id\": {id}}}").as_str()), (*expected_line, *row));
        }
        let broken = text.replace("1}", "}");
        for _ in 0..20 {
            let error = json_lines("f", &broken, "", |_, row: Row| row.id).err().unwrap();
            assert!(error.to_string().starts_with("f:2: is not as expected"), "{error}");
        }
        assert_eq!(json_lines("f", "", "", |_, row: Row| row.id).unwrap().len(), 0);
    }

    #[test]
    fn a_list_of_fields_is_not_an_object() {
        let error = parse_json_line::<Row>("f", 3, "[1]", "write objects").unwrap_err();
        let expected = "f:3: is not as expected: invalid type: sequence, expected an object";
        assert!(error.to_string().starts_with(expected), "{error}");
        let error = parse_json_line::<Row>("f", 3, " id\ttext", "write objects").unwrap_err();
        let expected = "f:3: is no JSON object; it begins with `id text`; write objects";
        assert_eq!(error.to_string(), expected);
        let path = r#"{"id": "C:\data\a.wav"}"#;
        let error = parse_json_line::<Row>("f", 3, path, "write objects").unwrap_err().to_string();
        let expected = r"f:3: is not as expected: invalid escape (column 12), because";
        assert!(error.starts_with(expected) && error.contains(r"with `\\`; write"), "{error}");
    }

    #[test]
    fn a_message_is_short_and_on_one_line() {
        let text = format!("\"{}\\n\\u001b[31m{}\"", "x".repeat(50), "y".repeat(1_000_000));
        let error = message(&serde_json::from_str::<Object<Row>>(&text).err().unwrap());
        assert!(error.chars().count() < 300 && !error.contains(char::is_control), "{error}");
        assert!(error.contains(" at line 1 column "), "{error}");
        let error = serde_json::from_str::<u8>("x").unwrap_err();
        assert_eq!(message_in_line(&error), "expected value (column 1)");
    }
}
