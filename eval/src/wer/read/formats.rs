//! Parsers of the formats without named columns.

use engram_textfile::{non_blank_lines, without_quotes};

use super::columns::is_header;
use super::{Utterance, detect_format};
use crate::error::{EvalError, malformed};
use crate::wer::sclite::{Lattice, has_markup};

/// The remedy for invalid markup.
pub(super) const MARKUP_REMEDY: &str =
    "write alternatives as `{ a b / c / @ }`, or write a .tsv file of id<TAB>text";
/// The remedy for a text that is too long for sclite's alignment.
pub(crate) const LENGTH_REMEDY: &str = "divide it into shorter utterances";

/// Parses sclite's `text (id)`. The parentheses at the end of a line hold the id. A line that
/// begins with `;;` is a comment.
pub(super) fn parse_trn<'a>(file: &str, text: &'a str) -> Result<Vec<Utterance<'a>>, EvalError> {
    let utterance = |(line, row): (u64, &'a str)| {
        let ends = row.trim_end().strip_suffix(')').and_then(|text| text.rsplit_once('('));
        let Some((spoken, id)) = ends else {
            let remedy = "end each line with the utterance's id in parentheses: `text (id)`";
            return Err(malformed(file, line, "has no id at its end", remedy));
        };
        let text = spoken.trim();
        let markup = has_markup(text);
        if markup {
            Lattice::parse(text).map_err(|reason| malformed(file, line, reason, MARKUP_REMEDY))?;
        }
        Ok(Utterance { markup, ..Utterance::plain(Some(id), text, line) })
    };
    non_blank_lines(text).filter(|(_, row)| !row.starts_with(";;")).map(utterance).collect()
}

/// Parses Kaldi's `id text`; the text may be empty.
pub(super) fn parse_kaldi(text: &str) -> Vec<Utterance<'_>> {
    let utterance = |(line, row): (u64, _)| {
        let (id, text) = detect_format::first_token(row);
        Utterance::plain(Some(id), text.trim(), line)
    };
    non_blank_lines(text).map(utterance).collect()
}

/// Whether the first line of a tab-separated file is a header.
pub(super) fn has_header(text: &str) -> bool {
    let first = non_blank_lines(text).next().map(|(_, line)| line);
    first.is_some_and(|line| {
        let mut names = line.split('\t');
        names.clone().next() == Some("id") || is_header(&mut names)
    })
}

/// Parses `id<TAB>text` without a header. Fields after the text are ignored.
pub(super) fn parse_tsv<'a>(file: &str, text: &'a str) -> Result<Vec<Utterance<'a>>, EvalError> {
    let utterance = |(line, row): (u64, &'a str)| {
        let mut fields = row.split('\t');
        let id = fields.next();
        let Some(text) = fields.next() else {
            let remedy = "write `id<TAB>text`, with the tab even if the text is empty";
            return Err(malformed(file, Some(line), "has no tab before a text", remedy));
        };
        Ok(Utterance { text: without_quotes(text), ..Utterance::plain(id, "", line) })
    };
    non_blank_lines(text).map(utterance).collect()
}
