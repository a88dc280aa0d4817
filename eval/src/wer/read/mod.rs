//! Reads references and hypotheses: plain lines, sclite's `trn`, Kaldi's `text`, tables, JSON
//! Lines, NeMo's manifests.
//!
//! | File | Content |
//! |---|---|
//! | this file | the formats, and the texts of one file |
//! | `pairs` | references with their hypotheses, joined by id or by line |
//! | `formats` | parsers of formats without named columns |
//! | `columns` | parsers of tables and JSON Lines |
//! | [`detect_format`] | detects a file whose format differs from its extension |
//!
//! In formats with ids, texts are joined by id. A missing, duplicate or unknown id is an error, and
//! the message contains the id. Plain lines are joined by line number, so empty lines count.

mod columns;
pub mod detect_format;
mod formats;
mod pairs;

pub use columns::{Columns, Side, other_names};
pub(crate) use formats::LENGTH_REMEDY;
pub use pairs::{Markup, Pairs, join};

use std::borrow::Cow;
use std::path::Path;

use columns::Record;
use engram_textfile::{Input, Table, UniqueIds, check_line_ends, lines};
use serde::{Deserialize, Serialize};

use crate::error::{EvalError, Location, malformed};

/// Maximum length of a text, in bytes: about three days of speech.
const MAX_TEXT_BYTES: usize = 4 << 20;

/// The format of a text file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TextFormat {
    /// One text per line, without ids.
    Lines,
    /// sclite's `text (id)`, with markup; lines that begin with `;;` are comments.
    Trn,
    /// Kaldi's `id text`.
    Kaldi,
    /// `id<TAB>text`, or a table with a header.
    Tsv,
    /// Comma-separated values with a header.
    Csv,
    /// JSON Lines, such as NeMo's manifests.
    Jsonl,
}

impl TextFormat {
    /// The name of the format, in lower case.
    pub fn name(self) -> String {
        format!("{self:?}").to_lowercase()
    }

    /// The format from the file extension (without `.gz`): `.trn`, `.tsv`, `.csv`; `.jsonl`,
    /// `.ndjson` or `.json` for JSON Lines; plain lines for any other extension.
    pub fn of_path(path: &Path) -> Self {
        let name = path.to_string_lossy().to_ascii_lowercase();
        let name = name.strip_suffix(".gz").unwrap_or(&name);
        match name.rsplit_once('.').map(|(_, extension)| extension) {
            Some("trn") => Self::Trn,
            Some("tsv") => Self::Tsv,
            Some("csv") => Self::Csv,
            Some("jsonl" | "ndjson" | "json") => Self::Jsonl,
            _ => Self::Lines,
        }
    }
}

/// A text with its id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Utterance<'a> {
    /// The id; `None` for plain lines.
    pub id: Option<Cow<'a, str>>,
    /// The text.
    pub text: Cow<'a, str>,
    /// Line number, from 1.
    pub line: u64,
    /// Whether the text has sclite markup.
    pub markup: bool,
}

impl<'a> Utterance<'a> {
    /// A text without markup.
    fn plain(id: Option<&'a str>, text: &'a str, line: u64) -> Self {
        Self { id: id.map(|id| id.trim().into()), text: text.into(), line, markup: false }
    }
}

/// Parses the texts of a file; `file` is its name in error messages. Columns have their usual
/// names.
///
/// # Errors
/// as [`parse_side`]
pub fn parse_texts<'a>(
    file: &str,
    text: &'a str,
    format: TextFormat,
) -> Result<Vec<Utterance<'a>>, EvalError> {
    parse_side(file, text, format, Side::Reference, &Columns::default())
}

/// Parses the references or the hypotheses of a file.
///
/// # Errors
/// [`EvalError::Text`] with the line, also for an empty or duplicate id
pub fn parse_side<'a>(
    file: &str,
    text: &'a str,
    format: TextFormat,
    side: Side,
    columns: &Columns,
) -> Result<Vec<Utterance<'a>>, EvalError> {
    if format != TextFormat::Jsonl {
        check_line_ends(file, text)?;
    }
    let utterances = match format {
        TextFormat::Lines => {
            lines(text).map(|(line, text)| Utterance::plain(None, text, line)).collect()
        }
        TextFormat::Trn => formats::parse_trn(file, text)?,
        TextFormat::Kaldi => formats::parse_kaldi(text),
        TextFormat::Tsv if !columns.are_given() && !formats::has_header(text) => {
            formats::parse_tsv(file, text)?
        }
        TextFormat::Tsv | TextFormat::Csv | TextFormat::Jsonl => {
            let utterance = |Record { line, id, texts }: Record<'a>| {
                let id = Some(id.ok_or_else(|| EvalError::NoColumn {
                    location: Location::new(file, line),
                    column: "ids",
                    found: String::new(),
                })?);
                let text = texts.into_iter().next().unwrap_or_default();
                Ok(Utterance { id, text, line, markup: false })
            };
            let records = records(file, text, format, &[side], columns)?;
            records.into_iter().map(utterance).collect::<Result<_, EvalError>>()?
        }
    };
    if utterances.is_empty() {
        return Err(malformed(file, None, "has no texts", "give one text per line"));
    }
    let ids =
        utterances.iter().filter_map(|utterance| Some((utterance.id.as_deref()?, utterance.line)));
    check_ids(file, ids)?;
    check_lengths(file, utterances.iter().map(|utterance| (&*utterance.text, utterance.line)))?;
    Ok(utterances)
}

/// Parses references and hypotheses from the columns of one file. Without ids, the ids are the line
/// numbers.
///
/// # Errors
/// as [`parse_side`]; [`EvalError::InvalidOption`] for a format without columns
pub fn parse_pairs<'a>(
    file: &str,
    text: &'a str,
    format: TextFormat,
    columns: &Columns,
) -> Result<Pairs<'a>, EvalError> {
    let sides = [Side::Reference, Side::Hypothesis];
    let records = records(file, text, format, &sides, columns)?;
    let mut pairs = Pairs { formats: [Some(format), None], ..Pairs::default() };
    let mut lines = Vec::with_capacity(records.len());
    let (mut id_count, mut first_without_id) = (0, None);
    for Record { line, id, texts } in records {
        match id {
            Some(_) => id_count += 1,
            None => first_without_id = first_without_id.or(Some(line)),
        }
        lines.push(line);
        pairs.ids.push(id.unwrap_or_else(|| line.to_string().into()));
        let mut texts = texts.into_iter();
        pairs.references.push(texts.next().unwrap_or_default());
        pairs.hypotheses.push(texts.next().unwrap_or_default());
    }
    if lines.is_empty() {
        return Err(malformed(file, None, "has no pairs", "give one JSON object per line"));
    }
    if id_count > 0 && first_without_id.is_some() {
        let remedy = "give an `id` to every pair, or to none";
        return Err(malformed(file, first_without_id, "has no `id`, but others do", remedy));
    }
    check_ids(file, pairs.ids.iter().map(|id| &**id).zip(lines.iter().copied()))?;
    for texts in [&pairs.references, &pairs.hypotheses] {
        check_lengths(file, texts.iter().map(|text| &**text).zip(lines.iter().copied()))?;
    }
    Ok(pairs)
}

/// Reads ids and texts from a format with columns.
fn records<'a>(
    file: &str,
    text: &'a str,
    format: TextFormat,
    sides: &[Side],
    columns: &Columns,
) -> Result<Vec<Record<'a>>, EvalError> {
    let input = || Input::new(file, text.as_bytes());
    match format {
        TextFormat::Tsv => columns::read_table(Table::tsv(input()?, false)?, sides, columns),
        TextFormat::Csv => columns::read_table(Table::csv(input()?)?, sides, columns),
        TextFormat::Jsonl => columns::read_objects(file, text, sides, columns),
        TextFormat::Lines | TextFormat::Trn | TextFormat::Kaldi => Err(EvalError::InvalidOption {
            option: "format",
            found: format.name(),
            expected: "csv, tsv or jsonl for a file with both references and hypotheses",
        }),
    }
}

/// Returns an error for an empty or duplicate id.
pub(super) fn check_ids<'a>(
    file: &str,
    ids: impl Iterator<Item = (&'a str, u64)>,
) -> Result<(), EvalError> {
    let mut unique_ids = UniqueIds::with_capacity(ids.size_hint().0);
    for (id, line) in ids {
        unique_ids.add(id, Location::new(file, line))?;
    }
    Ok(())
}

/// Returns an error for a text that is too long for an utterance. Probably the file has lost its
/// line ends. The time of an alignment can be quadratic in the length.
fn check_lengths<'a>(
    file: &str,
    mut texts: impl Iterator<Item = (&'a str, u64)>,
) -> Result<(), EvalError> {
    let Some((text, line)) = texts.find(|(text, _)| text.len() > MAX_TEXT_BYTES) else {
        return Ok(());
    };
    let reason = format!("has a text of {} bytes, more than {MAX_TEXT_BYTES}", text.len());
    Err(malformed(file, line, reason, "write each utterance on its own line"))
}

#[cfg(test)]
mod tests;
