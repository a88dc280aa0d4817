//! Parsers of the formats other than JSON.

use engram_textfile::{not_blank, shortened};

use super::{Utterance, detect_format, malformed};
use crate::error::{EvalError, Location, TextError};
use crate::wer::sclite::{Lattice, has_markup};

/// The remedy for invalid mark-up.
pub(super) const BRACES: &str =
    "write alternatives as `{ a b / c / @ }`, or give --format tsv and a file of id<TAB>text";
/// The remedy for a text that is too long for sclite's alignment.
pub(crate) const SHORTER: &str = "divide it into shorter utterances";

/// Parses sclite's `text (id)`: the last parentheses of a line hold the id, and `;;` begins a
/// comment.
pub(super) fn trn<'a>(file: &str, text: &'a str) -> Result<Vec<Utterance<'a>>, EvalError> {
    let utterance = |(line, row): (u64, &'a str)| {
        let ends = row.trim_end().strip_suffix(')').and_then(|text| text.rsplit_once('('));
        let Some((spoken, id)) = ends else {
            let remedy = "end each line with the utterance's id in parentheses: `text (id)`";
            return Err(malformed(file, line, "has no id at its end", remedy));
        };
        let text = spoken.trim();
        let markup = has_markup(text);
        if markup {
            Lattice::parse(text).map_err(|reason| malformed(file, line, reason, BRACES))?;
        }
        Ok(Utterance { markup, ..Utterance::plain(Some(id), text, line) })
    };
    not_blank(text).filter(|(_, row)| !row.starts_with(";;")).map(utterance).collect()
}

/// Parses Kaldi's `id text`; the text may be empty.
pub(super) fn kaldi(text: &str) -> Vec<Utterance<'_>> {
    let utterance = |(line, row): (u64, _)| {
        let (id, text) = detect_format::first_token(row);
        Utterance::plain(Some(id), text.trim(), line)
    };
    not_blank(text).map(utterance).collect()
}

/// Parses `id<TAB>text`, with an optional header.
pub(super) fn tsv<'a>(file: &str, text: &'a str) -> Result<Vec<Utterance<'a>>, EvalError> {
    let mut rows = not_blank(text).peekable();
    let (mut column, mut most_fields) = (1, usize::MAX);
    if let Some((line, header)) = rows.next_if(|(_, line)| line.split('\t').next() == Some("id")) {
        let location = || Location::new(file, line);
        let mut found = header.split('\t').enumerate().filter(|(_, name)| *name == "text");
        column =
            found.next().map(|(column, _)| column).ok_or_else(|| TextError::MissingColumn {
                location: location(),
                column: "text".to_owned(),
                found: shortened(&header.replace('\t', ", "), 200),
            })?;
        if found.next().is_some() {
            let column = "text".to_owned();
            return Err(TextError::DuplicateColumn { location: location(), column }.into());
        }
        most_fields = header.split('\t').count();
    } else if let Some((line, header)) = rows.peek()
        && detect_format::is_header(header.split('\t'))
    {
        let remedy = "name the columns `id` and `text`, with `id` first";
        return Err(malformed(file, *line, "has a header without `id` at its start", remedy));
    }
    rows.map(|(line, row)| {
        let count = 1 + row.bytes().filter(|byte| *byte == b'\t').count();
        if count > most_fields {
            let reason = format!("has {count} fields, the header has {most_fields}");
            return Err(malformed(file, Some(line), &reason, "keep tabs out of the fields"));
        }
        let mut fields = row.split('\t');
        let id = fields.next().unwrap_or_default();
        let Some(text) = fields.nth(column - 1) else {
            let remedy = "write `id<TAB>text`, with the tab even if the text is empty";
            return Err(malformed(file, Some(line), "has no tab before a text", remedy));
        };
        Ok(Utterance::plain(Some(id), text, line))
    })
    .collect()
}
