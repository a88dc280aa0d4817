//! Detects files in another format than assumed: read as plain text, their ids, braces and commas
//! would be scored as words.
//!
//! All lines are examined before a file is refused, so plain text with a bracket or a comma is
//! accepted.

use std::collections::HashSet;

use engram_textfile::{lines, not_blank};
use serde_json::Value;

use super::{TextFormat, malformed};
use crate::error::EvalError;

/// Returns an error if the lines look like another format than `format`.
///
/// # Errors   [`EvalError::Malformed`] with the detected format and the remedy
pub fn check(file: &str, text: &str, format: TextFormat) -> Result<(), EvalError> {
    let fault = match format {
        TextFormat::Lines => plain(text),
        TextFormat::Jsonl => manifest(text),
        TextFormat::Tsv | TextFormat::Kaldi => alternatives(text),
        TextFormat::Trn => None,
    };
    match fault {
        Some((line, reason, remedy)) => Err(malformed(file, line, reason, remedy)),
        None => Ok(()),
    }
}

/// Returns an error if two files of plain lines begin with the same ids: Kaldi's `text`.
///
/// # Errors   [`EvalError::Malformed`]
pub fn check_pair(
    (reference_file, reference): (&str, &str),
    hypothesis: &str,
) -> Result<(), EvalError> {
    let first = |text| not_blank(text).map(|(_, row)| first_token(row).0).collect::<Vec<&str>>();
    let (reference_ids, hypothesis_ids) = (first(reference), first(hypothesis));
    let [ids, others] =
        [&reference_ids, &hypothesis_ids].map(|ids| ids.iter().copied().collect::<HashSet<_>>());
    let distinct = !reference_ids.is_empty()
        && ids.len() == reference_ids.len()
        && others.len() == hypothesis_ids.len();
    let in_common = ids.intersection(&others).count();
    let sorted = reference_ids.is_sorted() && hypothesis_ids.is_sorted();
    let number = |id: &&str| id.bytes().all(|byte| byte.is_ascii_digit());
    let all = |is: &dyn Fn(&&str) -> bool| reference_ids.iter().chain(&hypothesis_ids).all(is);
    // Sorted numbers are ids; unsorted numbers may be words. A single line is weaker evidence than
    // several.
    let like_ids = all(&|id| like_id(id) && (!number(id) || sorted))
        && (reference_ids.len() > 1 || all(&|id| has_letter_and_digit(id)));
    let same = in_common == reference_ids.len() && in_common == hypothesis_ids.len();
    let kaldi = (like_ids && 2 * in_common >= reference_ids.len().min(hypothesis_ids.len()))
        || (same && (reference_ids != hypothesis_ids || (sorted && reference_ids.len() >= 5)));
    if distinct && kaldi {
        let (_, reason, remedy) = KALDI;
        return Err(malformed(reference_file, None, reason, remedy));
    }
    Ok(())
}

/// A format error: the line (`None` for the whole file), the reason and the remedy.
type Fault = (Option<u64>, &'static str, &'static str);

const KALDI: Fault = (
    None,
    "looks like Kaldi's `text`: each line begins with an id",
    "give --format kaldi; if these are words, give --format lines",
);
const MANIFEST: Fault = (
    Some(1),
    "looks like a NeMo manifest: JSON Lines with `audio_filepath`",
    "write {\"id\", \"ref\", \"hyp\"} lines with `jq -c '{id: .audio_filepath, ref: .text, hyp: .pred_text}'` \
     and give them as --pairs",
);

/// Another format that a file of plain lines looks like.
fn plain(text: &str) -> Option<Fault> {
    let rows: Vec<(u64, &str)> = not_blank(text).collect();
    let (line, first) = *rows.first()?;
    if manifest(text).is_some() {
        return Some(MANIFEST);
    }
    let is_json = |text: &str| {
        text.trim_start().starts_with(['{', '['])
            && serde_json::from_str::<Value>(text).is_ok_and(|value| holds_text(&value))
    };
    if is_json(first) || is_json(text) {
        let remedy = "give --format jsonl for lines of {\"id\", \"text\"}, --pairs for lines of \
                      {\"id\", \"ref\", \"hyp\"}; as plain text, give --format lines";
        return Some((Some(line), "looks like JSON", remedy));
    }
    if distinct(rows.iter().map(|(_, row)| Some(row.split_once('\t')?.0))) {
        let remedy = "give --format tsv for id<TAB>text, --format kaldi for Kaldi's `text`; as plain \
                      text, give --format lines";
        return Some((None, "looks like a table: each line has a tab", remedy));
    }
    if is_csv(&rows) {
        let remedy = "convert it to tab-separated values, id<TAB>text; as plain text, give --format \
                      lines";
        return Some((None, "looks like comma-separated values", remedy));
    }
    let spoken: Vec<&str> =
        rows.iter().map(|(_, row)| *row).filter(|row| !row.starts_with(";;")).collect();
    if is_trn(&spoken) {
        let remedy = "give --format trn; as plain text, give --format lines";
        return Some((
            None,
            "looks like sclite's trn: each line ends with an id in parentheses",
            remedy,
        ));
    }
    if !spoken.is_empty() && spoken.iter().all(|row| is_timed(row)) {
        let remedy = "convert it to .trn, `text (id)`; as plain text, give --format lines";
        return Some((None, "looks like an stm or ctm file: each line has times", remedy));
    }
    if let Some((line, _)) = rows.iter().find(|(_, row)| is_cue(row)) {
        let remedy = "write the words of each utterance on one line; as plain text, give --format \
                      lines";
        return Some((Some(*line), "looks like subtitles", remedy));
    }
    let ids = spoken.iter().map(|row| Some(first_token(row).0));
    if spoken.len() > 1 && distinct(ids.map(|id| id.filter(|id| has_letter_and_digit(id)))) {
        return Some(KALDI);
    }
    alternatives(text)
}

/// A line with sclite's alternatives in a format without mark-up.
fn alternatives(text: &str) -> Option<Fault> {
    let marked = |row: &str| {
        let mut rest = row.split_whitespace();
        ["{", "/", "}"].iter().all(|brace| rest.any(|word| word == *brace))
    };
    let (line, _) = lines(text).find(|(_, row)| marked(row))?;
    let remedy = "give the texts as .trn, `text (id)`; to count the braces as words, give --format";
    Some((Some(line), "has sclite's alternatives `{ a / b }`, supported only in .trn", remedy))
}

fn manifest(text: &str) -> Option<Fault> {
    let (_, first) = not_blank(text).next()?;
    let Ok(Value::Object(fields)) = serde_json::from_str(first) else { return None };
    (fields.contains_key("audio_filepath") && !fields.contains_key("id")).then_some(MANIFEST)
}

fn holds_text(value: &Value) -> bool {
    match value {
        Value::Object(_) => true,
        Value::Array(values) => values.iter().any(|value| value.is_object() || value.is_string()),
        _ => false,
    }
}

/// Whether every line has a key and all keys are different.
fn distinct<'a>(keys: impl Iterator<Item = Option<&'a str>>) -> bool {
    let mut seen = HashSet::new();
    let mut keys = keys.peekable();
    keys.peek().is_some() && keys.all(|key| key.is_some_and(|key| seen.insert(key)))
}

/// Names of id columns and text columns in tables of published datasets.
const ID_COLUMNS: [&str; 12] = [
    "id",
    "utt",
    "utt_id",
    "utterance",
    "utterance_id",
    "path",
    "file",
    "file_name",
    "filename",
    "audio",
    "audio_filepath",
    "client_id",
];
const TEXT_COLUMNS: [&str; 13] = [
    "text",
    "sentence",
    "transcript",
    "transcription",
    "ref",
    "reference",
    "hyp",
    "hypothesis",
    "raw_text",
    "normalized_text",
    "prediction",
    "pred_text",
    "words",
];

/// Whether the fields are a header, with an id column and a text column.
pub(super) fn is_header<'a>(fields: impl Iterator<Item = &'a str>) -> bool {
    let (mut id, mut text) = (false, false);
    for field in fields {
        let name = field.trim().trim_matches('"').to_ascii_lowercase();
        id |= ID_COLUMNS.contains(&name.as_str());
        text |= TEXT_COLUMNS.contains(&name.as_str());
    }
    id && text
}

/// Whether lines are CSV: a header with known names, or each line begins with a different key and a
/// comma without a space.
fn is_csv(rows: &[(u64, &str)]) -> bool {
    let keys = rows.iter().map(|(_, row)| {
        let (key, rest) = row.split_once(',')?;
        (!key.contains(' ') && !rest.starts_with(' ')).then_some(key)
    });
    rows.first().is_some_and(|(_, row)| row.contains(',') && is_header(row.split(',')))
        || (rows.len() > 1 && distinct(keys))
}

/// Whether lines are trn: each line ends with a different `(id)`. A single line counts only if the
/// id has a digit, `-` or `_`.
fn is_trn(rows: &[&str]) -> bool {
    let id = |row: &&'_ str| -> Option<String> {
        let (_, id) = row.trim_end().strip_suffix(')')?.rsplit_once('(')?;
        (!id.is_empty() && !id.contains(char::is_whitespace)).then(|| id.to_owned())
    };
    let ids: Option<HashSet<String>> = rows.iter().map(id).collect();
    ids.is_some_and(|ids| {
        ids.len() == rows.len() && (ids.len() > 1 || ids.iter().all(|id| like_id(id)))
    })
}

/// Whether a line is `file channel speaker start end …` or `file channel start duration word …`.
fn is_timed(row: &str) -> bool {
    let fields: Vec<&str> = row.split_whitespace().collect();
    let number = |at: usize| fields.get(at).and_then(|field| field.parse::<f64>().ok());
    let times = |at| number(at).zip(number(at + 1)).is_some_and(|(a, b)| a >= 0.0 && b >= 0.0);
    let channel = fields.get(1).is_some_and(|channel| channel.len() == 1);
    channel && (times(3) || (times(2) && fields.len() <= 6))
}

/// Whether a line is a cue timing of SubRip or WebVTT.
fn is_cue(row: &str) -> bool {
    let time = |text: &str| {
        text.contains(':')
            && text.trim().chars().all(|c| c.is_ascii_digit() || matches!(c, ':' | '.' | ','))
    };
    let Some((start, end)) = row.split_once("-->") else { return false };
    time(start) && end.split_whitespace().next().is_some_and(time)
}

/// The first word of a line, and the text after the white space that follows.
pub(super) fn first_token(row: &str) -> (&str, &str) {
    row.trim_start().split_once([' ', '\t']).unwrap_or((row.trim(), ""))
}

/// Whether a word looks like an id: it contains a digit, an underscore or an inner hyphen.
fn like_id(word: &str) -> bool {
    word.contains(|c: char| c.is_ascii_digit() || c == '_') || word.trim_matches('-').contains('-')
}

/// Whether a word has both a letter and a digit; few words do.
fn has_letter_and_digit(word: &str) -> bool {
    word.contains(|c: char| c.is_alphabetic()) && word.contains(|c: char| c.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str, format: TextFormat) -> String {
        check("f", text, format).err().map_or_else(String::new, |error| error.to_string())
    }

    #[test]
    fn other_formats_are_told_from_plain_lines() {
        for (text, wanted) in [
            ("a b (u-1)\nc (u-2)\n;; note\n", "f: looks like sclite's trn"),
            ("hello you (s1)\n", "f: looks like sclite's trn"),
            (
                "{\"id\": 1, \"text\": \"a\"}\n{\"id\": 2, \"text\": \"b\"}\n",
                "f:1: looks like JSON",
            ),
            ("\n[\n{\"id\": 1}\n]\n", "f:2: looks like JSON"),
            ("[\"u1\", \"a b\"]\n", "f:1: looks like JSON"),
            (
                "{\"audio_filepath\": \"a.wav\", \"duration\": 1, \"text\": \"a\"}\n",
                "f:1: looks like a NeMo manifest",
            ),
            ("u1\ta b\nu2\tc\n", "f: looks like a table"),
            ("id\ttext\nu1\ta b\n", "f: looks like a table"),
            ("id,text\nu1,\"well, yes\"\n", "f: looks like comma-separated values"),
            ("path,sentence,age\na.mp3,Well then,5\n", "f: looks like comma-separated values"),
            ("utt1,hello you\nutt2,and, then\n", "f: looks like comma-separated values"),
            ("f 1 spk 0.0 1.5 <o> hello\nf 1 spk 1.5 2 you\n", "f: looks like an stm or ctm file"),
            (";; x\nf A 0.10 0.25 hello 0.9\nf A 0.4 0.2 you\n", "f: looks like an stm or ctm"),
            ("1\n00:00:01,000 --> 00:00:02,500\nhello\n", "f:2: looks like subtitles"),
            ("WEBVTT\n\n00:01.000 --> 00:02.500 align:start\nhello\n", "f:3: looks like subtitles"),
            ("spk1-u1 hello\nspk1-u2 you\n", "f: looks like Kaldi's `text`"),
            ("a\ni am { going to / gonna } go\n", "f:2: has sclite's alternatives"),
        ] {
            let message = found(text, TextFormat::Lines);
            assert!(message.starts_with(wanted), "{text:?}: {message:?}");
            assert!(message.contains("--format") || message.contains("--pairs"), "{message}");
        }
    }

    #[test]
    fn plain_text_stays_plain() {
        for text in [
            "",
            "\n\n",
            "well, that is fine\nno, not (yet)\n",
            "yes (laughs)\nno (laughs)\n",
            "hello (world)\n",
            "[noise] a\n{laughs} b\n",
            "12\n34\n",
            "a / b\n1/2 of it\n",
            "a\tb\nc\n",
            "yes, I do\nno, I do not\nwell, maybe\n",
            "1,000 of them\n1,000 more\n",
            "go --> there\n",
            "mp3 files\nother files\n",
            "we met at 3 5 6\nthen 1 2 3 4 5\n",
        ] {
            assert_eq!(found(text, TextFormat::Lines), "", "{text:?}");
        }
    }

    #[test]
    fn alternatives_and_manifests_are_told_in_other_formats() {
        let trn = "u1\tam { going to / gonna } go\n";
        assert!(found(trn, TextFormat::Tsv).starts_with("f:1: has sclite's alternatives"));
        assert_eq!(found("u1\ta {b} / c\n", TextFormat::Tsv), "");
        let manifest = "{\"audio_filepath\": \"a\", \"text\": \"a\"}\n";
        assert!(found(manifest, TextFormat::Jsonl).starts_with("f:1: looks like a NeMo manifest"));
        assert_eq!(found("{\"id\": 1, \"audio_filepath\": \"a\"}\n", TextFormat::Jsonl), "");
    }

    #[test]
    fn the_same_first_words_are_the_ids_of_kaldi() {
        let refused = |a: &str, b: &str| match check_pair(("r", a), b) {
            Ok(()) => false,
            Err(error) => {
                assert!(error.to_string().starts_with("r: looks like Kaldi's `text`"), "{error}");
                true
            }
        };
        for (a, b) in [
            ("spk1-u1 a b\nspk1-u2 c\n", "spk1-u1 a\nspk1-u2 c d\n"),
            ("utt1 a b\n", "utt1 a\n"),
            ("0001 a\n0002 b\n", "0001 a\n0002\n"),
            ("anna_a a\nanna_b b\n", "anna_b b\nanna_a a\n"),
            // Words without a digit, in another order.
            ("anna a\nbert b\n", "bert b\nanna a\n"),
            ("anna a\nbert b\ncarl c\ndora d\nemil e\n", "anna x\nbert\ncarl c\ndora d\nemil e\n"),
            // Some ids are missing.
            ("u-1 a\nu-2 b\nu-3 c\n", "u-1 a\nu-3 c\n"),
        ] {
            assert!(refused(a, b), "{a:?} {b:?}");
        }
        for (a, b) in [
            ("", ""),
            ("hello you\nyes\n", "hello you\nyes\n"),
            ("the cat\nthe dog\n", "the cat\nthe dog\n"),
            ("5 3 2\n1 7\n", "5 3 2\n1 7\n"),
            ("uh-huh yes\n", "uh-huh yes\n"),
            ("so it is\nand then\nbut no\nwell\na dog\n", "so it is\nand then\nbut no\nwell\na\n"),
        ] {
            assert!(!refused(a, b), "{a:?} {b:?}");
        }
    }
}
