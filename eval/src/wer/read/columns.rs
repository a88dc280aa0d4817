//! Columns of ids and texts: the columns of a table with a header, or the keys of JSON Lines.
//!
//! A file may have the references, the hypotheses, or both. For example, a NeMo manifest has
//! `audio_filepath` (the id), `text` and `pred_text`. Columns are found by their usual names, or
//! are named by the user.

use std::borrow::Cow;
use std::fmt;

use engram_textfile::{
    Input, ONE_OBJECT, Table, json_lines, non_blank_lines, parse_json_line, shortened,
};
use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::TextFormat;
use super::formats::has_header;
use crate::error::{EvalError, Location, malformed};
use crate::ids::Id;
use crate::json::{Text, duplicate_key_error};

/// The side of a comparison that a text belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The correct text.
    Reference,
    /// The text of the system.
    Hypothesis,
}

/// The names of columns, or of keys of JSON objects. `None` stands for the first usual name that
/// exists.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Columns {
    /// The column of ids.
    pub id: Option<String>,
    /// The column of references.
    pub reference: Option<String>,
    /// The column of hypotheses.
    pub hypothesis: Option<String>,
}

/// Usual names of id columns, the most specific first.
const ID_NAMES: &str = "id utterance_id utt_id utterance utt segment_id audio_filepath path file \
    file_name filename audio";
/// Usual names of columns with references, and of columns with hypotheses.
const REFERENCE_NAMES: &str = "reference ref";
const HYPOTHESIS_NAMES: &str = "hypothesis hyp pred_text prediction";
/// Usual names of columns that hold references in one file and hypotheses in another.
const TEXT_NAMES: &str = "text transcript transcription sentence raw_text normalized_text words";

/// The columns of the file and of the start of a recording's part: in a NeMo manifest, and in a
/// table of clips.
const STARTS: [(&str, &str); 2] = [("audio_filepath", "offset"), ("audio", "start")];

impl Side {
    /// The usual names of the columns with texts of this side. In a file with both sides, a column
    /// named in [`TEXT_NAMES`] holds references.
    fn names(self, has_both: bool) -> String {
        match self {
            Self::Reference => format!("{REFERENCE_NAMES} {TEXT_NAMES}"),
            Self::Hypothesis if has_both => HYPOTHESIS_NAMES.to_owned(),
            Self::Hypothesis => format!("{HYPOTHESIS_NAMES} {TEXT_NAMES}"),
        }
    }
}

impl Columns {
    /// Whether the user named any column.
    pub(crate) fn are_given(&self) -> bool {
        *self != Self::default()
    }

    fn text(&self, side: Side) -> Option<&str> {
        match side {
            Side::Reference => self.reference.as_deref(),
            Side::Hypothesis => self.hypothesis.as_deref(),
        }
    }

    /// Returns the index of the column of ids (`None` if there is none), and the index of one
    /// column of texts for each of `sides`.
    fn find(
        &self,
        sides: &[Side],
        (file, line): (&str, u64),
        header: &[&str],
        index: impl Fn(&str) -> Result<Option<usize>, EvalError>,
    ) -> Result<(Option<usize>, Vec<usize>), EvalError> {
        let names_found = || shortened(&header.join(", "), 200);
        let index_of_named = |name: &str| {
            let reason = || format!("has no `{}`; it has: {}", shortened(name, 60), names_found());
            index(name)?
                .ok_or_else(|| malformed(file, line, reason(), "check the names of the columns"))
        };
        let first_index =
            |names: &str| names.split_whitespace().find_map(|name| index(name).transpose());
        let id = match self.id.as_deref() {
            Some(name) => Some(index_of_named(name)?),
            None => first_index(ID_NAMES).transpose()?,
        };
        let mut texts = Vec::with_capacity(sides.len());
        for side in sides {
            let column = match self.text(*side) {
                Some(name) => Some(index_of_named(name)?),
                None => first_index(&side.names(sides.len() > 1)).transpose()?,
            };
            texts.push(column.ok_or_else(|| {
                let column = match side {
                    Side::Reference => "references",
                    Side::Hypothesis => "hypotheses",
                };
                let location = Location::new(file, line);
                EvalError::NoColumn {
                    location,
                    column,
                    found: format!("; it has: {}", names_found()),
                }
            })?);
        }
        Ok((id, texts))
    }
}

/// Whether the fields are a header: one is a usual name of ids, another is a usual name of texts.
pub(super) fn is_header<'a>(fields: impl Iterator<Item = &'a str>) -> bool {
    let (mut id, mut text) = (false, false);
    for field in fields {
        let name = field.trim().trim_matches('"').to_ascii_lowercase();
        let is_in = |names: &str| names.split_whitespace().any(|other| other == name);
        id |= is_in(ID_NAMES) || name == "client_id";
        text |= [REFERENCE_NAMES, HYPOTHESIS_NAMES, TEXT_NAMES].into_iter().any(is_in);
    }
    id && text
}

/// Whether columns or keys with these names hold both references and hypotheses.
pub(super) fn hold_both_sides<'a>(names: impl Iterator<Item = &'a str>) -> bool {
    let names: Vec<&str> = names.collect();
    [Side::Reference, Side::Hypothesis]
        .iter()
        .all(|side| side.names(true).split_whitespace().any(|name| names.contains(&name)))
}

/// The columns from which ids and texts are read, if they have other names than usual in this
/// toolkit: `id`, and `text` or, in a file with both sides, `reference` and `hypothesis`. `None` if
/// all have these names, and for a format without columns.
///
/// # Errors
/// as [`parse_side`](super::parse_side)
pub fn other_names(
    (file, text): (&str, &str),
    format: TextFormat,
    sides: &[Side],
    columns: &Columns,
) -> Result<Option<String>, EvalError> {
    let input = || Input::new(file, text.as_bytes());
    let header = match format {
        TextFormat::Csv => Table::csv(input()?)?.header().to_vec(),
        TextFormat::Tsv if columns.are_given() || has_header(text) => {
            Table::tsv(input()?, false)?.header().to_vec()
        }
        TextFormat::Jsonl => {
            let first = non_blank_lines(text).next().map(|(_, line)| line).unwrap_or_default();
            let fields: Fields<'_> = parse_json_line(file, 1, first, ONE_OBJECT)?;
            fields.0.iter().map(|(key, _)| key.to_string()).collect()
        }
        _ => return Ok(None),
    };
    let header: Vec<&str> = header.iter().map(String::as_str).collect();
    let index = |name: &str| Ok(header.iter().position(|other| other.eq_ignore_ascii_case(name)));
    let (id, texts) = columns.find(sides, (file, 1), &header, index)?;
    let text_names: &[&str] =
        if sides.len() > 1 { &["reference", "hypothesis"] } else { &["text"] };
    let read = id.map(|id| ("id", header[id])).into_iter();
    let read = read.chain(text_names.iter().copied().zip(texts.iter().map(|text| header[*text])));
    let others = read.filter(|(part, name)| part != name);
    let others: Vec<String> = others.map(|(part, name)| format!("{part} from `{name}`")).collect();
    Ok(Some(others.join(", ")).filter(|names| !names.is_empty()))
}

/// The id of a row or an object, and one text for each side.
pub(super) struct Record<'a> {
    pub line: u64,
    pub id: Option<Cow<'a, str>>,
    pub texts: Vec<Cow<'a, str>>,
}

/// Reads the rows of a table with a header.
pub(super) fn read_table<'a>(
    mut table: Table<'_>,
    sides: &[Side],
    columns: &Columns,
) -> Result<Vec<Record<'a>>, EvalError> {
    let header: Vec<&str> = table.header().iter().map(String::as_str).collect();
    let index = |name: &str| Ok(table.optional_column(name)?);
    let (id, texts) = columns.find(sides, (table.file(), table.line()), &header, index)?;
    let start = id.and_then(|id| start_name(header[id])).map(index).transpose()?.flatten();
    let mut records = Vec::new();
    while table.advance()? {
        let field = |column: &usize| table.field(*column).to_owned().into();
        let start = start.map_or("", |column| table.field(column).trim());
        records.push(Record {
            line: table.line(),
            id: id.map(|id| with_start(table.field(id).trim().to_owned().into(), start)),
            texts: texts.iter().map(field).collect(),
        });
    }
    Ok(records)
}

/// Reads JSON Lines. The keys of the first object determine the keys that are read from all
/// objects.
pub(super) fn read_objects<'a>(
    file: &str,
    text: &'a str,
    sides: &[Side],
    columns: &Columns,
) -> Result<Vec<Record<'a>>, EvalError> {
    let Some((line, first)) = non_blank_lines(text).next() else { return Ok(Vec::new()) };
    let first: Fields<'_> = parse_json_line(file, line, first, ONE_OBJECT)?;
    let header: Vec<&str> = first.0.iter().map(|(key, _)| &**key).collect();
    let index = |name: &str| Ok(header.iter().position(|key| *key == name));
    let (id, texts) = columns.find(sides, (file, line), &header, index)?;
    let id = id.map_or("id", |key| header[key]);
    let start = Some(id).filter(|id| *id == STARTS[0].0).and_then(start_name);
    let record = |line: u64, mut fields: Fields<'a>| {
        let error = |key: &str, reason: &str| {
            malformed(file, line, format!("`{}` {reason}", shortened(key, 60)), ONE_OBJECT)
        };
        let record_id = match fields.take(id).map(|id| serde_json::from_str(id.get())) {
            None => None,
            Some(Ok(Id(id_text))) => Some(match start.and_then(|start| fields.take(start)) {
                Some(start) => with_start(id_text, start.get()),
                None => id_text,
            }),
            Some(Err(_)) => return Err(error(id, "is not a string or an integer")),
        };
        let text = |key: &usize| match fields.take(header[*key]) {
            None => Err(error(header[*key], "is missing")),
            Some(text) => match serde_json::from_str(text.get()) {
                Ok(Text(text)) => Ok(text),
                Err(_) => Err(error(header[*key], "is not a string")),
            },
        };
        let texts = texts.iter().map(text).collect::<Result<_, _>>()?;
        Ok(Record { line, id: record_id, texts })
    };
    json_lines(file, text, ONE_OBJECT, record)?.into_iter().flatten().collect()
}

/// The name of the starts, if `id` is a column of files.
fn start_name(id: &str) -> Option<&'static str> {
    STARTS.iter().find(|(file, _)| id.eq_ignore_ascii_case(file)).map(|(_, start)| *start)
}

/// The id of a part of a recording, as `engram_data` makes it: the file and the part's start in
/// seconds, if that is not 0.
fn with_start<'a>(file: Cow<'a, str>, start: &str) -> Cow<'a, str> {
    match start.parse::<f64>() {
        Ok(start) if start > 0.0 => format!("{file}-{start}").into(),
        _ => file,
    }
}

/// The fields of a JSON object.
struct Fields<'a>(Vec<(Cow<'a, str>, &'a RawValue)>);

impl<'a> Fields<'a> {
    fn take(&mut self, key: &str) -> Option<&'a RawValue> {
        let index = self.0.iter().position(|(name, _)| name == key)?;
        Some(self.0.swap_remove(index).1)
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Fields<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct FieldsVisitor;
        impl<'de> Visitor<'de> for FieldsVisitor {
            type Value = Fields<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields<'de>, A::Error> {
                let mut fields: Vec<(Cow<'de, str>, &'de RawValue)> = Vec::new();
                while let Some((Text(key), value)) = map.next_entry::<Text<'de>, _>()? {
                    if fields.iter().any(|(name, _)| *name == key) {
                        return Err(duplicate_key_error(&key));
                    }
                    fields.push((key, value));
                }
                Ok(Fields(fields))
            }
        }
        deserializer.deserialize_map(FieldsVisitor)
    }
}
