//! Detects a file whose format differs from the format given by its extension. Its ids, braces and
//! commas would be scored as words.
//!
//! Most formats are detected only if all lines have them, so plain text with a bracket or a comma
//! is accepted.

use std::collections::HashSet;

use engram_textfile::{lines, non_blank_lines};
use serde_json::Value;

use super::TextFormat;
use super::columns::{hold_both_sides, is_header};
use crate::error::{EvalError, Location};

/// Returns an error if the lines look like another format than `format`.
///
/// # Errors
/// [`EvalError::OtherFormat`] with the detected format and the remedy
pub fn check(file: &str, text: &str, format: TextFormat) -> Result<(), EvalError> {
    let fault = match format {
        TextFormat::Lines => other_format(text),
        TextFormat::Tsv | TextFormat::Kaldi => unsupported_alternatives(text),
        TextFormat::Trn | TextFormat::Csv | TextFormat::Jsonl => None,
    };
    fault.map_or(Ok(()), |fault| refuse(file, fault))
}

/// The format of a file without a known extension: JSON Lines if the first line is an object with
/// the key `audio_filepath` (a NeMo manifest), otherwise plain lines.
pub fn of_content(text: &str) -> TextFormat {
    let first_value = non_blank_lines(text).next().map(|(_, line)| serde_json::from_str(line));
    match first_value {
        Some(Ok(Value::Object(fields))) if fields.contains_key("audio_filepath") => {
            TextFormat::Jsonl
        }
        _ => TextFormat::Lines,
    }
}

/// The format of two files without a known extension: Kaldi's `text` if each line begins with an id
/// that cannot be a word, such as `1272-128104-0000`, and both files have the same ids; otherwise
/// plain lines.
///
/// # Errors
/// [`EvalError::OtherFormat`] if the lines of both files begin with words such as `spk_12` and
/// `x86_64`, which may be ids or words, if the files have different ids, and for other formats
pub fn of_pair(files: [(&str, &str); 2]) -> Result<TextFormat, EvalError> {
    for (file, text) in files {
        if let Some(fault) = other_format(text).filter(|fault| *fault != KALDI) {
            return refuse(file, fault);
        }
    }
    let texts = files.map(|(_, text)| text);
    let has_lines = non_blank_lines(texts[0]).nth(1).is_some();
    if !has_lines || same_ids(texts, looks_like_id).is_none() {
        return Ok(TextFormat::Lines);
    }
    match same_ids(texts, cannot_be_word) {
        Some(true) => Ok(TextFormat::Kaldi),
        _ => refuse(files[0].0, KALDI),
    }
}

/// Whether each line begins with one of these ids.
pub fn begins_with_ids<'a>(text: &str, ids: impl Iterator<Item = &'a str>) -> bool {
    let ids: HashSet<&str> = ids.collect();
    non_blank_lines(text).all(|(_, row)| ids.contains(first_token(row).0))
}

/// Whether the lines of two files of plain lines begin with the same words, which may be ids.
pub fn may_begin_with_ids(texts: [&str; 2]) -> bool {
    same_ids(texts, may_be_id) == Some(true)
}

/// Whether both files have the same ids; `None` unless all lines begin with different ids.
fn same_ids(texts: [&str; 2], is_id: fn(&str) -> bool) -> Option<bool> {
    let ids_of = |text| -> Option<HashSet<&str>> {
        let mut ids = HashSet::new();
        let mut words = non_blank_lines(text).map(|(_, row)| first_token(row).0);
        let are_ids = words.all(|word| is_id(word) && ids.insert(word));
        (are_ids && !ids.is_empty()).then_some(ids)
    };
    let [reference, hypothesis] = texts.map(ids_of);
    Some(reference? == hypothesis?)
}

/// The parts of an error about the format.
#[derive(Clone, Copy, PartialEq)]
struct Fault {
    /// `None` for the whole file.
    line: Option<u64>,
    reason: &'static str,
    remedy: &'static str,
    /// The formats as which the file can be read.
    formats: &'static [&'static str],
    /// Whether the file holds both the references and the hypotheses.
    holds_both: bool,
}

const KALDI: Fault = Fault {
    line: None,
    reason: "looks like Kaldi's `text`: each line begins with an id",
    remedy: "read it as Kaldi's `text`, or as lines if these are words",
    formats: &["kaldi", "lines"],
    holds_both: false,
};

fn refuse<T>(file: &str, fault: Fault) -> Result<T, EvalError> {
    let Fault { line, reason, remedy, formats, holds_both } = fault;
    let location = Location::new(file, line);
    Err(EvalError::OtherFormat { location, reason, remedy, formats, holds_both })
}

/// An error if a file of plain lines looks like another format, otherwise `None`.
fn other_format(text: &str) -> Option<Fault> {
    let rows: Vec<(u64, &str)> = non_blank_lines(text).collect();
    let (line, first) = *rows.first()?;
    let is_json = |text: &str| {
        text.trim_start().starts_with(['{', '['])
            && serde_json::from_str::<Value>(text).is_ok_and(|value| holds_text(&value))
    };
    let fault = |line, reason, remedy, formats| {
        Some(Fault { line, reason, remedy, formats, holds_both: false })
    };
    if is_json(first) || is_json(text) {
        let holds_both = is_pair(first);
        let remedy = if holds_both {
            "it holds both references and hypotheses; read both from it, or read it as JSON lines"
        } else {
            "read it as JSON lines"
        };
        let (line, formats) = (Some(line), &["jsonl", "lines"]);
        return Some(Fault { line, reason: "looks like JSON", remedy, formats, holds_both });
    }
    if distinct(rows.iter().map(|(_, row)| Some(row.split_once('\t')?.0))) {
        let remedy = "read it as id<TAB>text (tsv) or as Kaldi's `text`";
        let reason = "looks like a table: each line has a tab";
        return fault(None, reason, remedy, &["tsv", "kaldi", "lines"]);
    }
    if is_csv(&rows) {
        let remedy = "read it as csv, with a header of the names of the columns";
        return fault(None, "looks like comma-separated values", remedy, &["csv", "lines"]);
    }
    let without_comments: Vec<&str> =
        rows.iter().map(|(_, row)| *row).filter(|row| !row.starts_with(";;")).collect();
    if is_trn(&without_comments) {
        let reason = "looks like sclite's trn: each line ends with an id in parentheses";
        return fault(None, reason, "read it as trn", &["trn", "lines"]);
    }
    if !without_comments.is_empty() && without_comments.iter().all(|row| is_timed(row)) {
        let reason = "looks like an stm or ctm file: each line has times";
        return fault(None, reason, "convert it to .trn, `text (id)`", &[]);
    }
    if let Some((line, _)) = rows.iter().find(|(_, row)| is_cue(row)) {
        let remedy = "write the words of each utterance on one line";
        return fault(Some(*line), "looks like subtitles", remedy, &[]);
    }
    let ids = without_comments.iter().map(|row| Some(first_token(row).0));
    if without_comments.len() > 1 && distinct(ids.map(|id| id.filter(|id| looks_like_id(id)))) {
        return Some(KALDI);
    }
    unsupported_alternatives(text)
}

/// An error if a line has sclite's alternatives in a format without markup, otherwise `None`.
fn unsupported_alternatives(text: &str) -> Option<Fault> {
    let has_alternatives = |row: &str| {
        let mut words = row.split_whitespace();
        ["{", "/", "}"].iter().all(|brace| words.any(|word| word == *brace))
    };
    let (line, _) = lines(text).find(|(_, row)| has_alternatives(row))?;
    let remedy =
        "give the texts as .trn, `text (id)`, or state the format to count braces as words";
    let reason = "has sclite's alternatives `{ a / b }`, supported only in .trn";
    Some(Fault { line: Some(line), reason, remedy, formats: &["trn"], holds_both: false })
}

/// Whether a line is a JSON object with a reference and a hypothesis.
fn is_pair(line: &str) -> bool {
    match serde_json::from_str(line) {
        Ok(Value::Object(fields)) => hold_both_sides(fields.keys().map(String::as_str)),
        _ => false,
    }
}

fn holds_text(value: &Value) -> bool {
    match value {
        Value::Object(_) => true,
        Value::Array(values) => values.iter().any(|value| value.is_object() || value.is_string()),
        _ => false,
    }
}

/// Whether there are lines, every line has a key, and all keys are different.
fn distinct<'a>(keys: impl Iterator<Item = Option<&'a str>>) -> bool {
    let mut seen = HashSet::new();
    let mut keys = keys.peekable();
    keys.peek().is_some() && keys.all(|key| key.is_some_and(|key| seen.insert(key)))
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
        ids.len() == rows.len() && (ids.len() > 1 || ids.iter().all(|id| may_be_id(id)))
    })
}

/// Whether a line is from an stm file, `file channel speaker start end …`, or from a ctm file,
/// `file channel start duration word …`.
fn is_timed(row: &str) -> bool {
    let fields: Vec<&str> = row.split_whitespace().collect();
    let number = |index: usize| fields.get(index).and_then(|field| field.parse::<f64>().ok());
    let are_times =
        |index| number(index).zip(number(index + 1)).is_some_and(|(a, b)| a >= 0.0 && b >= 0.0);
    let channel = fields.get(1).is_some_and(|channel| channel.len() == 1);
    channel && (are_times(3) || (are_times(2) && fields.len() <= 6))
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

/// The first word of a line, and the text after the space or tab that follows the word.
pub(super) fn first_token(row: &str) -> (&str, &str) {
    row.trim_start().split_once([' ', '\t']).unwrap_or((row.trim(), ""))
}

/// Whether a word may be an id: it contains a digit, an underscore or an inner hyphen.
fn may_be_id(word: &str) -> bool {
    word.contains(|c: char| c.is_ascii_digit() || c == '_') || word.trim_matches('-').contains('-')
}

/// Whether a word is certainly an id: it is like those of LibriSpeech, three numbers of which the
/// last has four digits. Dates and telephone numbers differ.
fn cannot_be_word(word: &str) -> bool {
    let is_number = |part: &&str| part.bytes().all(|byte| byte.is_ascii_digit());
    let parts: Vec<&str> = word.split('-').collect();
    let is_numbered = parts.len() == 3 && parts[1].len() > 3 && parts[2].len() == 4;
    is_numbered && parts.iter().all(is_number)
}

/// Whether a word looks more like an id than like a word: it is certainly an id, or has an inner
/// underscore and a digit.
fn looks_like_id(word: &str) -> bool {
    cannot_be_word(word)
        || (word.trim_matches('_').contains('_') && word.contains(|c: char| c.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error_message(text: &str, format: TextFormat) -> String {
        check("f", text, format).err().map_or_else(String::new, |error| error.to_string())
    }

    #[test]
    fn other_formats_are_distinguished_from_plain_lines() {
        for (text, expected) in [
            ("a b (u-1)\nc (u-2)\n;; note\n", "f: looks like sclite's trn"),
            ("hello you (s1)\n", "f: looks like sclite's trn"),
            (
                "{\"id\": 1, \"text\": \"a\"}\n{\"id\": 2, \"text\": \"b\"}\n",
                "f:1: looks like JSON",
            ),
            ("\n[\n{\"id\": 1}\n]\n", "f:2: looks like JSON"),
            ("[\"u1\", \"a b\"]\n", "f:1: looks like JSON"),
            ("u1\ta b\nu2\tc\n", "f: looks like a table"),
            ("id\ttext\nu1\ta b\n", "f: looks like a table"),
            ("id,text\nu1,\"well, yes\"\n", "f: looks like comma-separated values"),
            ("path,sentence,age\na.mp3,Well then,5\n", "f: looks like comma-separated values"),
            ("utt1,hello you\nutt2,and, then\n", "f: looks like comma-separated values"),
            ("f 1 spk 0.0 1.5 <o> hello\nf 1 spk 1.5 2 you\n", "f: looks like an stm or ctm file"),
            (";; x\nf A 0.10 0.25 hello 0.9\nf A 0.4 0.2 you\n", "f: looks like an stm or ctm"),
            ("1\n00:00:01,000 --> 00:00:02,500\nhello\n", "f:2: looks like subtitles"),
            ("WEBVTT\n\n00:01.000 --> 00:02.500 align:start\nhello\n", "f:3: looks like subtitles"),
            ("spk1_u1 hello\nspk1_u2 you\n", "f: looks like Kaldi's `text`"),
            ("a\ni am { going to / gonna } go\n", "f:2: has sclite's alternatives"),
        ] {
            let message = error_message(text, TextFormat::Lines);
            assert!(message.starts_with(expected), "{text:?}: {message:?}");
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
            "H2O is water\nCO2 is gas\n",
            "we met at 3 5 6\nthen 1 2 3 4 5\n",
        ] {
            assert_eq!(error_message(text, TextFormat::Lines), "", "{text:?}");
        }
    }

    #[test]
    fn alternatives_in_other_formats_are_refused() {
        let trn = "u1\tam { going to / gonna } go\n";
        assert!(error_message(trn, TextFormat::Tsv).starts_with("f:1: has sclite's alternatives"));
        assert_eq!(error_message("u1\ta {b} / c\n", TextFormat::Tsv), "");
    }

    #[test]
    fn manifests_are_json_lines() {
        let manifest = "{\"audio_filepath\": \"a\", \"text\": \"a\"}\n";
        assert_eq!(of_content(manifest), TextFormat::Jsonl);
        assert_eq!(of_content("{\"id\": 1}\n"), TextFormat::Lines);
        assert_eq!(of_content(""), TextFormat::Lines);
    }

    #[test]
    fn a_file_with_both_texts_is_recognised() {
        for (text, expected) in [
            ("{\"text\": \"a\", \"pred_text\": \"b\"}\n", true),
            ("{\"id\": 1, \"ref\": \"a\", \"hyp\": \"b\"}\n", true),
            ("{\"id\": 1, \"text\": \"a\"}\n", false),
        ] {
            let error = check("f", text, TextFormat::Lines).unwrap_err();
            let EvalError::OtherFormat { holds_both, .. } = error else { panic!("{error}") };
            assert_eq!(holds_both, expected, "{text}");
        }
    }

    #[test]
    fn only_ids_that_cannot_be_words_are_kaldi_ids() {
        let format_of = |file: &str, reference: &str, hypothesis: &str| {
            of_pair([(file, reference), ("h", hypothesis)]).map_err(|e| e.to_string())
        };
        let kaldi = |ids: [&str; 2]| {
            [format!("{} a\n{} b\n", ids[0], ids[1]), format!("{}\n{} a\n", ids[1], ids[0])]
        };
        let [reference, reversed] = kaldi(["1272-128104-0000", "84-1211-0013"]);
        assert_eq!(format_of("r.txt", &reference, &reversed), Ok(TextFormat::Kaldi));
        let different = reference.replace("84", "85");
        for (reference, hypothesis) in [
            (&reference, &different),
            (&kaldi(["spk1_u1", "spk1_u2"])[0], &kaldi(["spk1_u1", "spk1_u2"])[1]),
            (&kaldi(["mp3_player", "x86_64"])[0], &kaldi(["mp3_player", "x86_64"])[1]),
            (&kaldi(["2019_01_02", "@user_12"])[0], &kaldi(["2019_01_02", "@user_12"])[0]),
        ] {
            let error = format_of("text", reference, hypothesis).unwrap_err();
            assert!(error.starts_with("text: looks like Kaldi's `text`"), "{error}");
        }
        assert!(begins_with_ids("u1 a\nu2\n", ["u1", "u2", "u3"].into_iter()));
        assert!(!begins_with_ids("u1 a\nwords\n", ["u1"].into_iter()));
        for words in [
            "COVID-19 cases\n",
            "2019 was\n2020 was\n",
            "H2O is\nCO2 is\n",
            "2019-01-05 was\n2019-01-06 was\n",
            "555-123-4567 a\n555-123-4568 b\n",
            "utt1 a\nutt2 b\n",
        ] {
            assert_eq!(format_of("text", words, words), Ok(TextFormat::Lines), "{words}");
            assert!(may_begin_with_ids([words; 2]), "{words}");
        }
        for words in ["", "hello you\nyes\n", "the cat\nthe dog\n", "monday a\ntuesday b\n"] {
            assert_eq!(format_of("text", words, words), Ok(TextFormat::Lines), "{words}");
            assert!(!may_begin_with_ids([words; 2]), "{words}");
        }
        let csv = format_of("r", "u1,a b\nu2,c\n", "u1,a b\nu2,c\n").unwrap_err();
        assert!(csv.starts_with("r: looks like comma-separated values"), "{csv}");
    }
}
