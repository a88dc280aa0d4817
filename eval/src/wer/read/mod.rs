//! Reads references and hypotheses: plain lines, sclite's `trn`, Kaldi's `text`, tables, JSON
//! Lines, NeMo's manifests.
//!
//! | File | Content |
//! |---|---|
//! | this file | texts, and pairs joined by id or by line |
//! | `formats` | the parsers of formats without columns |
//! | `columns` | tables and JSON Lines: columns by their names |
//! | [`detect_format`] | detects files in another format than assumed |
//!
//! In formats with ids, texts are joined by id; a missing, duplicate or unknown id is an error that
//! names it. Plain lines are joined by line number, so empty lines count.

mod columns;
pub mod detect_format;
mod formats;

pub use columns::{Columns, Side};
pub(crate) use formats::SHORTER;

use std::borrow::Cow;
use std::collections::HashMap;
use std::path::Path;

use columns::Record;
use engram_textfile::{Input, Table, UniqueIds, check_line_ends, lines, shortened};
use serde::{Deserialize, Serialize};

use super::Alignment;
use super::sclite::{self, Lattice, has_markup};
use crate::error::{EvalError, Location};
use crate::normalise::Normaliser;

/// Maximum length of a text, in bytes: about three days of speech.
const LONGEST: usize = 4 << 20;

/// The format of a text file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TextFormat {
    /// One text per line, without ids.
    Lines,
    /// sclite's `text (id)`, with mark-up; lines that begin with `;;` are comments.
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
    /// The format from the file extension (without `.gz`): `.trn`, `.tsv`, `.csv`, `.jsonl` and
    /// `.json`, or plain lines.
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
    /// Whether the text has sclite mark-up.
    pub markup: bool,
}

impl<'a> Utterance<'a> {
    /// A text without mark-up.
    fn plain(id: Option<&'a str>, text: &'a str, line: u64) -> Self {
        Self { id: id.map(|id| id.trim().into()), text: text.into(), line, markup: false }
    }
}

/// The texts with sclite mark-up, and how mark-up is scored.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Markup {
    /// Whether the references have mark-up.
    pub references: bool,
    /// Whether the hypotheses have mark-up.
    pub hypotheses: bool,
    /// Whether a missing optionally deletable word counts as correct (sclite's `-D`).
    pub optional_deletions: bool,
}

/// References with their hypotheses.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pairs<'a> {
    /// Ids; for plain lines, the line numbers from 1.
    pub ids: Vec<Cow<'a, str>>,
    /// References.
    pub references: Vec<Cow<'a, str>>,
    /// Hypotheses, in the order of the references.
    pub hypotheses: Vec<Cow<'a, str>>,
    /// The mark-up of the texts; most formats have none.
    pub markup: Markup,
    /// The alignment of words: sclite's if the texts have mark-up.
    pub alignment: Alignment,
}

impl<'a> Pairs<'a> {
    /// Builds pairs from references and hypotheses with equal indices; ids are numbers from 1.
    ///
    /// # Errors
    /// [`EvalError::LengthMismatch`]
    pub fn new<R, H>(references: &'a [R], hypotheses: &'a [H]) -> Result<Self, EvalError>
    where
        R: AsRef<str>,
        H: AsRef<str>,
    {
        if references.len() != hypotheses.len() {
            return Err(EvalError::LengthMismatch {
                references: references.len(),
                hypotheses: hypotheses.len(),
            });
        }
        Ok(Self {
            ids: (1..=references.len()).map(|id| id.to_string().into()).collect(),
            references: references.iter().map(|text| text.as_ref().into()).collect(),
            hypotheses: hypotheses.iter().map(|text| text.as_ref().into()).collect(),
            ..Self::default()
        })
    }

    fn with_capacity(pairs: usize) -> Self {
        Self {
            ids: Vec::with_capacity(pairs),
            references: Vec::with_capacity(pairs),
            hypotheses: Vec::with_capacity(pairs),
            ..Self::default()
        }
    }

    /// Returns the pairs after normalisation.
    pub fn normalised(&self, normaliser: Normaliser) -> Self {
        if normaliser == Normaliser::None {
            return self.clone();
        }
        let all = |texts: &[Cow<'a, str>]| {
            normaliser.normalise_all(texts).into_iter().map(Cow::Owned).collect()
        };
        Self {
            ids: self.ids.clone(),
            references: all(&self.references),
            hypotheses: all(&self.hypotheses),
            ..*self
        }
    }

    /// Returns the pairs without mark-up: the alternatives that align best after normalisation, in
    /// their original form.
    ///
    /// # Errors
    /// [`EvalError::Malformed`] for a text with invalid mark-up, and for a text that is
    /// too long
    pub fn without_markup(&self, normaliser: Normaliser) -> Result<Self, EvalError> {
        let Markup { references, hypotheses, optional_deletions } = self.markup;
        let mut pairs = Self { markup: Markup::default(), ..self.clone() };
        for (pair, id) in self.ids.iter().enumerate() {
            let [reference, hypothesis] = [&self.references[pair], &self.hypotheses[pair]];
            if !(references && has_markup(reference) || hypotheses && has_markup(hypothesis)) {
                continue;
            }
            let fault = |reason: &str, remedy| {
                malformed(&format!("utterance {}", shortened(id, 60)), None, reason, remedy)
            };
            let lattice = |text, markup| {
                if markup {
                    Lattice::parse(text).map_err(|reason| fault(reason, formats::BRACES))
                } else {
                    Ok(Lattice::plain(super::tokens::words(text)))
                }
            };
            let (reference, hypothesis) =
                (lattice(reference, references)?, lattice(hypothesis, hypotheses)?);
            let chosen = sclite::choose(&reference, &hypothesis, normaliser, optional_deletions)
                .ok_or_else(|| fault("is too long for a choice of alternatives", SHORTER))?;
            pairs.references[pair] = chosen.reference.into();
            pairs.hypotheses[pair] = chosen.hypothesis.into();
        }
        Ok(pairs)
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
/// [`EvalError::Malformed`] with the line; [`EvalError::Text`] for an empty or duplicate id
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
        TextFormat::Trn => formats::trn(file, text)?,
        TextFormat::Kaldi => formats::kaldi(text),
        TextFormat::Tsv if !columns.are_given() && !formats::has_header(text) => {
            formats::tsv(file, text)?
        }
        TextFormat::Tsv | TextFormat::Csv | TextFormat::Jsonl => {
            let utterance = |Record { line, id, texts }: Record<'a>| {
                let id = Some(id.ok_or_else(|| {
                    malformed(file, line, "has no id", "name the column of ids with --id-column")
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
    let ids = utterances.iter().filter_map(|u| Some((u.id.as_deref()?, u.line)));
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
    let mut pairs = Pairs::with_capacity(records.len());
    let mut lines = Vec::with_capacity(records.len());
    let (mut with_id, mut first_without) = (0, None);
    for Record { line, id, texts } in records {
        match id {
            Some(_) => with_id += 1,
            None => first_without = first_without.or(Some(line)),
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
    if with_id > 0 && first_without.is_some() {
        let remedy = "give an `id` to every pair, or to none";
        return Err(malformed(file, first_without, "has no `id`, but others do", remedy));
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
        TextFormat::Tsv => columns::table(Table::tsv(input()?, false)?, sides, columns),
        TextFormat::Csv => columns::table(Table::csv(input()?)?, sides, columns),
        TextFormat::Jsonl => columns::objects(file, text, sides, columns),
        TextFormat::Lines | TextFormat::Trn | TextFormat::Kaldi => Err(EvalError::InvalidOption {
            option: "format",
            found: format!("{format:?}").to_lowercase(),
            expected: "csv, tsv or jsonl for a file with both references and hypotheses",
        }),
    }
}

/// Joins the references and hypotheses of two files; the names are for error messages.
///
/// # Errors
/// [`EvalError::MissingPrediction`], [`EvalError::ExtraPrediction`] for an id in only
/// one file; [`EvalError::Malformed`] for a different number of plain lines, and if only one file
/// has ids
pub fn join<'a>(
    reference_file: &str,
    references: Vec<Utterance<'a>>,
    hypothesis_file: &str,
    hypotheses: Vec<Utterance<'a>>,
) -> Result<Pairs<'a>, EvalError> {
    let has_ids = |utterances: &[Utterance<'_>]| utterances.iter().any(|u| u.id.is_some());
    let has_markup = |utterances: &[Utterance<'_>]| utterances.iter().any(|u| u.markup);
    let (in_references, in_hypotheses) = (has_markup(&references), has_markup(&hypotheses));
    let joined = match (has_ids(&references), has_ids(&hypotheses)) {
        (false, false) => join_by_line(reference_file, references, hypothesis_file, hypotheses),
        (true, true) => join_by_id(reference_file, references, hypothesis_file, hypotheses),
        (with_ids, _) => {
            let (with, without) = if with_ids {
                (reference_file, hypothesis_file)
            } else {
                (hypothesis_file, reference_file)
            };
            let reason = format!("has no ids, but {with} has");
            let remedy = "write both in the same format, and set --format if the file name \
                          does not show it";
            Err(malformed(without, None, &reason, remedy))
        }
    };
    let alignment =
        if in_references || in_hypotheses { Alignment::Sclite } else { Alignment::Jiwer };
    let markup =
        Markup { references: in_references, hypotheses: in_hypotheses, ..Markup::default() };
    Ok(Pairs { markup, alignment, ..joined? })
}

fn join_by_line<'a>(
    reference_file: &str,
    references: Vec<Utterance<'a>>,
    hypothesis_file: &str,
    hypotheses: Vec<Utterance<'a>>,
) -> Result<Pairs<'a>, EvalError> {
    let (wanted, found) = (references.len(), hypotheses.len());
    if wanted != found {
        let reason = format!("has {found} lines, but {reference_file} has {wanted}");
        let remedy = "line i of one file must match line i of the other, including empty lines";
        return Err(malformed(hypothesis_file, None, &reason, remedy));
    }
    let mut pairs = Pairs::with_capacity(wanted);
    for (reference, hypothesis) in references.into_iter().zip(hypotheses) {
        pairs.ids.push(reference.line.to_string().into());
        pairs.references.push(reference.text);
        pairs.hypotheses.push(hypothesis.text);
    }
    Ok(pairs)
}

fn join_by_id<'a>(
    reference_file: &str,
    references: Vec<Utterance<'a>>,
    hypothesis_file: &str,
    hypotheses: Vec<Utterance<'a>>,
) -> Result<Pairs<'a>, EvalError> {
    let rows = hypotheses.len();
    let mut by_id: HashMap<Cow<'a, str>, (Cow<'a, str>, u64)> = HashMap::with_capacity(rows);
    for Utterance { id, text, line, .. } in hypotheses {
        by_id.insert(id.unwrap_or_default(), (text, line));
    }
    let total = references.len();
    let (mut pairs, mut missing) = (Pairs::with_capacity(total), Vec::new());
    for Utterance { id, text, line, .. } in references {
        let id = id.unwrap_or_default();
        match by_id.remove(&id) {
            Some((hypothesis, _)) => {
                pairs.ids.push(id);
                pairs.references.push(text);
                pairs.hypotheses.push(hypothesis);
            }
            None => missing.push((id, line)),
        }
    }
    if let Some((id, line)) = missing.first() {
        return Err(EvalError::MissingPrediction {
            predictions: hypothesis_file.to_owned(),
            gold: Location::new(reference_file, *line),
            id: shortened(id, 60),
            missing: missing.len(),
            rows: total,
        });
    }
    if let Some((id, (_, line))) = by_id.iter().min_by_key(|(_, (_, line))| *line) {
        return Err(EvalError::ExtraPrediction {
            location: Location::new(hypothesis_file, *line),
            gold: reference_file.to_owned(),
            id: shortened(id, 60),
            extra: by_id.len(),
            rows,
        });
    }
    Ok(pairs)
}

/// Returns an error for an empty or duplicate id.
pub(super) fn check_ids<'a>(
    file: &str,
    ids: impl Iterator<Item = (&'a str, u64)>,
) -> Result<(), EvalError> {
    let mut seen = UniqueIds::with_capacity(ids.size_hint().0);
    for (id, line) in ids {
        seen.add(id, Location::new(file, line))?;
    }
    Ok(())
}

/// Returns an error for a text that is too long for an utterance. Probably the line ends are lost,
/// and the alignment time is quadratic in the length.
fn check_lengths<'a>(
    file: &str,
    mut texts: impl Iterator<Item = (&'a str, u64)>,
) -> Result<(), EvalError> {
    let Some((text, line)) = texts.find(|(text, _)| text.len() > LONGEST) else { return Ok(()) };
    let reason = format!("has a text of {} bytes, more than {LONGEST}", text.len());
    Err(malformed(file, line, &reason, "write each utterance on its own line"))
}

fn malformed(
    file: &str,
    line: impl Into<Option<u64>>,
    reason: &str,
    remedy: &'static str,
) -> EvalError {
    EvalError::Malformed { location: Location::new(file, line), reason: reason.to_owned(), remedy }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(text: &str, format: TextFormat) -> Vec<(String, String)> {
        let found = parse_texts("f", text, format).unwrap();
        let own = |u: Utterance<'_>| (u.id.unwrap_or_default().into_owned(), u.text.into_owned());
        found.into_iter().map(own).collect()
    }

    fn refused(text: &str, format: TextFormat) -> String {
        parse_texts("f", text, format).unwrap_err().to_string()
    }

    #[test]
    fn texts_in_memory_are_numbered_pairs() {
        let hypotheses = ["a".to_owned(), "c".to_owned()];
        let pairs = Pairs::new(&["a b", "c"], &hypotheses).unwrap();
        assert_eq!(
            (pairs.ids, pairs.hypotheses),
            (vec!["1".into(), "2".into()], vec!["a".into(), "c".into()])
        );
        let refused = Pairs::new(&["a"], &["a", "b"]).unwrap_err();
        assert!(matches!(refused, EvalError::LengthMismatch { references: 1, hypotheses: 2 }));
    }

    #[test]
    fn empty_lines_are_texts_too() {
        let found = texts("a b\r\n\nc\n\n", TextFormat::Lines);
        let found: Vec<&str> = found.iter().map(|(_, text)| text.as_str()).collect();
        assert_eq!(found, ["a b", "", "c", ""]);
        assert!(refused("", TextFormat::Lines).starts_with("f: has no texts"));
    }

    #[test]
    fn ids_come_from_trn_tsv_and_json() {
        let of = |rows: &[(&str, &str)]| -> Vec<(String, String)> {
            rows.iter().map(|(id, text)| (id.to_string(), text.to_string())).collect()
        };
        assert_eq!(
            texts("hello (laughs) you (s1-2)\n(s1-3)\n", TextFormat::Trn),
            of(&[("s1-2", "hello (laughs) you"), ("s1-3", "")])
        );
        assert_eq!(
            texts("s1-2 hello  you\n\ns1-3\ns1-4\ta\n", TextFormat::Kaldi),
            of(&[("s1-2", "hello  you"), ("s1-3", ""), ("s1-4", "a")])
        );
        assert_eq!(texts(";; a comment\na (1)\n;; another\n", TextFormat::Trn), of(&[("1", "a")]));
        assert_eq!(
            texts("1\ta b\t[\"x\"]\n2\t\n", TextFormat::Tsv),
            of(&[("1", "a b"), ("2", "")])
        );
        assert_eq!(texts("id\twav\ttext\nu\tu.wav\ta b\n", TextFormat::Tsv), of(&[("u", "a b")]));
        assert_eq!(
            texts("{\"id\":7,\"text\":\"a\\n\"}\n{\"id\":\"x\",\"text\":\"\"}", TextFormat::Jsonl),
            of(&[("7", "a\n"), ("x", "")])
        );
    }

    #[test]
    fn bad_lines_are_named() {
        assert!(refused("a (1)\nb\n", TextFormat::Trn).starts_with("f:2: has no id at its end"));
        assert!(refused("1 a\n", TextFormat::Tsv).starts_with("f:1: has no tab"));
        let header = refused("id\twav\n", TextFormat::Tsv);
        assert!(
            header.starts_with("f:1: has no column of references; it has: id, wav"),
            "{header}"
        );
        let doubled = refused("id\ttext\ttext\n", TextFormat::Tsv);
        assert!(doubled.starts_with("f:1: column `text` occurs twice"), "{doubled}");
        let tab = refused("id\ttext\nu\ta\tb\n", TextFormat::Tsv);
        assert!(tab.starts_with("f:2: 3 fields where the header has 2"), "{tab}");
        assert!(refused("a\rb", TextFormat::Lines).starts_with("f:1: ends its lines with"));
        assert!(refused("1 a\n1 b\n", TextFormat::Kaldi).starts_with("f:2: id `1` was already"));
        let list = refused("[\"1\", \"a\"]\n", TextFormat::Jsonl);
        assert!(list.contains("invalid type: sequence, expected an object"), "{list}");
        assert!(refused("1\ta\n\n1\tb\n", TextFormat::Tsv).starts_with("f:3: id `1` was already"));
        assert!(
            refused("{\"id\":1}\n", TextFormat::Jsonl).contains("f:1: has no column of references")
        );
        let json = |text| parse_pairs("f", text, TextFormat::Jsonl, &Columns::default());
        let doubled =
            json("{\"id\":1,\"ref\":\"\",\"hyp\":\"\"}\n{\"id\":\"1\",\"ref\":\"\",\"hyp\":\"\"}");
        assert!(
            doubled.unwrap_err().to_string().starts_with("f:2: id `1` was already given at f:1")
        );
        let long = format!("a\n{}\n", "b ".repeat(LONGEST / 2 + 1));
        let long = refused(&long, TextFormat::Lines);
        assert!(
            long.starts_with("f:2: has a text of 4194306 bytes, more than 4194304; "),
            "{long}"
        );
        let float = json("{\"id\":1.5,\"ref\":\"\",\"hyp\":\"\"}").unwrap_err().to_string();
        assert!(float.contains("f:1: `id` is not a string or an integer"), "{float}");
    }

    #[test]
    fn columns_are_found_by_usual_names_or_named() {
        let of = |text, format, side, columns: &Columns| {
            let found = parse_side("f", text, format, side, columns).map_err(|e| e.to_string())?;
            let own = |u: Utterance<'_>| format!("{}={}", u.id.unwrap_or_default(), u.text);
            Ok::<_, String>(found.into_iter().map(own).collect::<Vec<_>>().join(" "))
        };
        let usual = Columns::default();
        let nemo = "{\"audio_filepath\": \"a.wav\", \"duration\": 1.5, \"text\": \"x\", \
                    \"pred_text\": \"y\"}\n";
        let common_voice = "client_id\tpath\tsentence\nc\ta.mp3\tx\nc\tb.mp3\ty\n";
        let csv = "Utterance_ID,Transcript\nu1,\"a, b\"\nu2,\n";
        for (text, format, side, expected) in [
            (nemo, TextFormat::Jsonl, Side::Reference, "a.wav=x"),
            (nemo, TextFormat::Jsonl, Side::Hypothesis, "a.wav=y"),
            (common_voice, TextFormat::Tsv, Side::Hypothesis, "a.mp3=x b.mp3=y"),
            (csv, TextFormat::Csv, Side::Reference, "u1=a, b u2="),
            ("id,reference,hypothesis\n1,a,b\n", TextFormat::Csv, Side::Hypothesis, "1=b"),
        ] {
            assert_eq!(of(text, format, side, &usual).as_deref(), Ok(expected), "{text}");
        }
        let named =
            Columns { id: Some("Nr".into()), reference: Some("Satz".into()), ..Columns::default() };
        let text = "Nr,Satz,text\n1,a,b\n";
        assert_eq!(of(text, TextFormat::Csv, Side::Reference, &named).as_deref(), Ok("1=a"));
        assert_eq!(
            of("{\"Nr\":1,\"Satz\":\"a\"}", TextFormat::Jsonl, Side::Reference, &named).as_deref(),
            Ok("1=a")
        );
        let later = format!("{nemo}{{\"audio_filepath\": \"b.wav\", \"text\": \"x\"}}\n");
        for (text, format, side, columns, expected) in [
            (&*later, TextFormat::Jsonl, Side::Hypothesis, &usual, "f:2: `pred_text` is missing; "),
            (
                "id,wav\n1,a\n",
                TextFormat::Csv,
                Side::Hypothesis,
                &usual,
                "f:1: has no column of hypotheses; it has: id, wav; name it with --hyp-column",
            ),
            ("u1,a b\n", TextFormat::Csv, Side::Reference, &usual, "f:1: has no column of refe"),
            ("a,text\n1,x\n", TextFormat::Csv, Side::Reference, &usual, "f:2: has no id; name the"),
            (
                "id,text\n1,x\n",
                TextFormat::Csv,
                Side::Reference,
                &named,
                "f:1: has no `Nr`; it has",
            ),
        ] {
            let error = of(text, format, side, columns).unwrap_err();
            assert!(error.starts_with(expected), "{error}");
        }
    }

    #[test]
    fn one_file_has_both_sides() {
        let pairs = |text, format| parse_pairs("f", text, format, &Columns::default());
        let nemo = "{\"audio_filepath\": \"a\", \"text\": \"x\", \"pred_text\": \"y\"}\n";
        let found = pairs(nemo, TextFormat::Jsonl).unwrap();
        assert_eq!((&*found.ids[0], &*found.references[0], &*found.hypotheses[0]), ("a", "x", "y"));
        let found = pairs("reference,hypothesis\na b,a\n", TextFormat::Csv).unwrap();
        assert_eq!((&*found.ids[0], &*found.hypotheses[0]), ("2", "a"));
        let error = pairs("id,text,transcript\n1,a,b\n", TextFormat::Csv).unwrap_err().to_string();
        assert!(error.starts_with("f:1: has no column of hypotheses"), "{error}");
        let error = pairs("a (1)\n", TextFormat::Trn).unwrap_err().to_string();
        assert!(error.starts_with("option `format` is trn; expected csv, tsv or jsonl"), "{error}");
    }

    #[test]
    fn texts_are_joined_by_id_or_by_line() {
        let parse = |text, format| parse_texts("f", text, format).unwrap();
        let joined = |a, b, format| {
            join("r", parse(a, format), "h", parse(b, format)).map_err(|e| e.to_string())
        };
        let pairs = joined("1\ta\n2\tb\n", "2\tx\n1\ty\n", TextFormat::Tsv).unwrap();
        assert_eq!(
            (&pairs.references[..], &pairs.hypotheses[..]),
            (&["a".into(), "b".into()][..], &["y".into(), "x".into()][..])
        );
        let missing = joined("1\ta\n2\tb\n", "2\tx\n", TextFormat::Tsv).unwrap_err();
        assert!(missing.starts_with("h: no prediction for id `1` (r:1)"), "{missing}");
        let extra = joined("1\ta\n", "1\tx\n3\t\n", TextFormat::Tsv).unwrap_err();
        assert!(extra.starts_with("h:2: id `3` is not in r"), "{extra}");
        let lines = joined("a\n\n", "a\n", TextFormat::Lines).unwrap_err();
        assert!(lines.starts_with("h: has 1 lines, but r has 2"), "{lines}");
        let mixed = join("r", parse("a", TextFormat::Lines), "h", parse("a (1)", TextFormat::Trn));
        assert!(mixed.unwrap_err().to_string().starts_with("r: has no ids, but h has"));
    }
}
