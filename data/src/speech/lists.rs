//! Lists of clips that other programs write: NeMo's manifests, tables of Common Voice, metadata of
//! an AudioFolder of Hugging Face, and Kaldi's `wav.scp`.
//!
//! The names of the columns or keys tell the lists apart. Relative paths are relative to the folder
//! of the list. The id of a clip is its `id`, `utterance_id` or the like, otherwise its path as the
//! list has it, so that `engram eval wer` finds the same ids in the list.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use engram_textfile::{
    Input, ONE_OBJECT, Table, TextError, base_folder, non_blank_lines, parse_json_line, shortened,
};
use serde_json::{Map, Value};

use super::how2::{Segment, read_optional, read_recordings, read_segments};
use super::manifest::{Clip, with_start};
use crate::DataError;

/// The columns or keys of a list. Of several names, the first that the list has is used.
struct Shape {
    /// What the list is called in messages.
    name: &'static str,
    /// The column of the audio files, which only this shape has.
    audio: &'static str,
    text: &'static [&'static str],
    speaker: &'static [&'static str],
    /// The columns of the start, the end and the duration, in seconds.
    times: [&'static str; 3],
    /// The folder of the audio files, beside the list.
    folder: &'static str,
}

const SHAPES: [Shape; 4] = [
    Shape {
        name: "a table of clips",
        audio: "audio",
        text: &["text"],
        speaker: &["speaker"],
        times: ["start", "end", ""],
        folder: "",
    },
    Shape {
        name: "a NeMo manifest",
        audio: "audio_filepath",
        text: &["text"],
        speaker: &["speaker"],
        times: ["offset", "", "duration"],
        folder: "",
    },
    Shape {
        name: "a table of Common Voice",
        audio: "path",
        text: &["sentence", "text"],
        speaker: &["client_id"],
        times: [""; 3],
        folder: "clips",
    },
    Shape {
        name: "metadata of Hugging Face",
        audio: "file_name",
        text: &["transcription", "text", "sentence", "transcript"],
        speaker: &["speaker_id", "speaker"],
        times: [""; 3],
        folder: "",
    },
];
/// The columns of the id.
const IDS: [&str; 6] = ["id", "utterance_id", "utt_id", "utterance", "utt", "segment_id"];

/// The format of a list, by the end of its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ListFormat {
    Json,
    Csv,
    Tsv,
    Scp,
}

impl ListFormat {
    /// The format of a file; `None` if its name is not that of a list. Letter case and the ending
    /// `.gz` do not count.
    pub(super) fn of(path: &Path) -> Option<Self> {
        let name = path.file_name()?.to_string_lossy().to_lowercase();
        let name = name.strip_suffix(".gz").unwrap_or(&name);
        match name.rsplit_once('.')?.1 {
            "jsonl" | "ndjson" | "json" => Some(Self::Json),
            "csv" => Some(Self::Csv),
            "tsv" => Some(Self::Tsv),
            "scp" => Some(Self::Scp),
            _ => None,
        }
    }
}

/// A line of a list by the names of its columns or keys.
type Row = (u64, Map<String, Value>);

/// Reads a list of another program; `json` is its text if it is JSON. Returns the clips, and what
/// was taken for what; `None` for JSON lines of our own.
pub(super) fn read(
    path: &Path,
    format: ListFormat,
    json: &str,
) -> Result<Option<(Vec<Clip>, String)>, DataError> {
    let (names, rows) = match format {
        ListFormat::Scp => return read_scp(path).map(Some),
        ListFormat::Json => {
            let file = path.display().to_string();
            let mut objects = non_blank_lines(json).map(|(line, text)| {
                Ok((line, parse_json_line::<Map<String, Value>>(&file, line, text, ONE_OBJECT)?))
            });
            let Some(Ok(first)) = objects.next() else { return Ok(None) };
            let shape = SHAPES.iter().position(|shape| first.1.contains_key(shape.audio));
            if matches!(shape, None | Some(0)) {
                return Ok(None);
            }
            let rows = std::iter::once(Ok(first)).chain(objects);
            let rows = rows.collect::<Result<Vec<Row>, TextError>>()?;
            let names = rows.iter().flat_map(|(_, row)| row.keys().cloned()).collect();
            (names, rows)
        }
        _ => read_table(path, format)?,
    };
    clips(path, &names, rows).map(Some)
}

/// Reads the rows of a table with its names of columns, in lower case. A name that occurs twice is
/// refused if a shape has it.
fn read_table(path: &Path, format: ListFormat) -> Result<(Vec<String>, Vec<Row>), TextError> {
    let input = Input::open(path)?;
    let mut table = match format {
        ListFormat::Tsv => Table::tsv(input, false)?,
        _ => Table::csv(input)?,
    };
    let names: Vec<String> = table.header().iter().map(|name| name.to_lowercase()).collect();
    for shape in &SHAPES {
        table.optional_column(shape.audio)?;
        shape.text.iter().try_for_each(|name| table.optional_column(name).map(drop))?;
    }
    let mut rows = Vec::new();
    while table.advance()? {
        let fields = names.iter().cloned().zip(table.fields().map(Value::from));
        rows.push((table.line(), fields.collect()));
    }
    Ok((names, rows))
}

/// The clips of rows, and what was taken for what.
fn clips(path: &Path, names: &[String], rows: Vec<Row>) -> Result<(Vec<Clip>, String), DataError> {
    let has = |name: &str| names.iter().any(|other| other == name);
    let Some(shape) = SHAPES.iter().find(|shape| has(shape.audio)) else {
        let found = shortened(&names.join(", "), 200);
        let reason = format!("has no column of audio files; the header has: {found}");
        let remedy = "name it `audio`, `audio_filepath`, `path` or `file_name`";
        return Err(TextError::malformed(path, 1, reason, remedy).into());
    };
    let first = |names: &[&'static str]| names.iter().copied().find(|name| has(name));
    let (id, text, speaker) = (first(&IDS), first(shape.text), first(shape.speaker));
    let [start, end, duration] = shape.times.map(|name| first(&[name]));
    let in_folder = if shape.folder.is_empty() { "" } else { " in clips/" };
    let mut taken = format!("{}: audio from `{}`{in_folder}", shape.name, shape.audio);
    let parts = [("text", text), ("speaker", speaker), ("id", id)].into_iter();
    let times = [("start", start), ("end", end), ("duration", duration)];
    for (part, name) in parts.chain(times) {
        taken += &name.map_or(String::new(), |name| format!(", {part} from `{name}`"));
    }
    let base = base_folder(path);
    let clip = |(line, row): Row| {
        let error = |reason: String| {
            TextError::malformed(path, line, reason, "correct the line, or remove it")
        };
        let value = |name: Option<&str>| row.get(name?).filter(|value| !value.is_null());
        let string = |name| match value(name) {
            Some(Value::String(text)) => Some(text.clone()),
            Some(value @ Value::Number(_)) => Some(value.to_string()),
            _ => None,
        };
        let number = |name| match value(name) {
            None => Ok(None),
            Some(Value::String(text)) if text.trim().is_empty() => Ok(None),
            Some(value) => {
                let text = value.to_string();
                text.trim_matches('"').trim().parse().map(Some).map_err(|_| {
                    let name = name.unwrap_or_default();
                    error(format!("{name} {} is no number", shortened(&text, 40)))
                })
            }
        };
        let name = string(Some(shape.audio)).unwrap_or_default().trim().to_owned();
        if name.is_empty() {
            return Err(error(format!("`{}` is empty", shape.audio)));
        }
        let start = number(start)?.unwrap_or(0.0);
        let duration = number(duration)?.filter(|seconds| *seconds > 0.0);
        let id = string(id).map(|id| id.trim().to_owned()).filter(|id| !id.is_empty());
        Ok(Clip {
            id: id.unwrap_or_else(|| with_start(name.clone(), start)),
            audio: existing([base.join(shape.folder).join(&name), base.join(&name)]),
            start,
            end: number(end)?.or(duration.map(|seconds| start + seconds)),
            text: string(text),
            speaker: string(speaker).filter(|speaker| !speaker.trim().is_empty()),
            line,
            ..Clip::default()
        })
    };
    Ok((rows.into_iter().map(clip).collect::<Result<_, TextError>>()?, taken))
}

/// The first path that exists; the first of all if none does.
pub(super) fn existing(paths: [PathBuf; 2]) -> PathBuf {
    let [first, second] = paths;
    if !first.exists() && second.exists() { second } else { first }
}

/// Reads Kaldi's `wav.scp` with the files `segments`, `text` and `utt2spk` of its folder.
fn read_scp(path: &Path) -> Result<(Vec<Clip>, String), DataError> {
    let folder = base_folder(path);
    let recordings = read_recordings(path)?;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let mut taken = format!("Kaldi's {}", shortened(&name, 60));
    let (segments_path, mut files) = (folder.join("segments"), Vec::new());
    let segments: Vec<(String, Segment)> = if segments_path.exists() {
        files.push("segments");
        read_segments(&segments_path)?
    } else {
        recordings.iter().map(|(_, name, _)| (name.clone(), Segment::whole(name))).collect()
    };
    let mut optional = |name: &'static str| {
        let file = folder.join(name);
        files.extend(file.exists().then_some(name));
        read_optional(&file)
    };
    let (mut texts, mut speakers) = (optional("text")?, optional("utt2spk")?);
    if !files.is_empty() {
        taken += &format!(" with {}", files.join(", "));
    }
    let files: HashMap<&str, (u64, &PathBuf)> =
        recordings.iter().map(|(line, name, file)| (&**name, (*line, file))).collect();
    let clip = |(id, Segment { recording, start, end }): (String, Segment)| {
        let Some((line, audio)) = files.get(&*recording) else {
            let reason = format!("has no recording {recording}, which {id} of `segments` needs");
            let remedy = "add its line `recording path`";
            return Err(TextError::malformed(path, None, reason, remedy).into());
        };
        let (text, speaker) = (texts.remove(&id), speakers.remove(&id));
        let (audio, line) = ((*audio).clone(), *line);
        Ok(Clip { id, audio, start, end, text, speaker, line, ..Clip::default() })
    };
    Ok((segments.into_iter().map(clip).collect::<Result<_, DataError>>()?, taken))
}
