//! How2, and other folders in Kaldi format. Files: `text` (`utterance transcript`), `segments`
//! (`utterance recording start end`, in seconds) and, optionally, `utt2spk` (`utterance speaker`).
//! The audio is listed in `wav.scp` (`recording path`) or is in a folder of files named by
//! recording.
//!
//! # Source   Sanabria et al., "How2" (2018), and Kaldi's "Data preparation". The format of How2's
//! files is based on the project's README and memory; it was not verified on the files.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use super::gather::{AudioFiles, Gathering, NamedLine, Position, named_lines, refusal};
use super::manifest::Clip;
use super::{SpeechClips, SpeechSource};
use crate::DataError;

/// Reads the clips of a folder, in the order of `text`. If both the folder of audio files and
/// `wav.scp` exist, the folder is used. Paths in `wav.scp` are relative to its own folder. An end
/// of -1 is the end of the recording, as in Kaldi. Utterances without a transcript, including those
/// that are only in `segments`, are skipped and counted.
///
/// # Errors
/// `MissingAudio`; `Text` with the line, also for an utterance that is missing from
/// `segments`, invalid times, a command in `wav.scp`
pub fn read(source: &SpeechSource) -> Result<SpeechClips, DataError> {
    let sounds = Sounds::of(source)?;
    let (text, segments) = (source.path.join("text"), source.path.join("segments"));
    let speakers = optional(&source.path.join("utt2spk"))?;
    let mut segments_of = HashMap::new();
    for NamedLine { number, name, rest } in named_lines(&segments)? {
        let segment = segment(&rest).map_err(|reason| {
            let remedy = "write `utterance recording start end`, times in seconds";
            Position::Line(number).error(&segments, format!("{name}: {reason}"), remedy)
        })?;
        segments_of.insert(name, segment);
    }
    let mut gathering = Gathering::new(source);
    if let Sounds::Folder(files) = &sounds {
        gathering.found.hidden = files.hidden;
    }
    for NamedLine { number, name, rest } in named_lines(&text)? {
        let position = Position::Line(number);
        let Some(Segment { recording, start, end }) = segments_of.remove(&name) else {
            let reason = format!("{name} is not in {}", segments.display());
            let remedy = "add its recording and times there, or remove this line";
            return Err(position.error(&text, reason, remedy));
        };
        if rest.is_empty() {
            gathering.found.without_text += 1;
            continue;
        }
        let audio = sounds.find(&recording)?;
        let speaker = speakers.get(&name).cloned();
        let (id, text_of) = (name, Some(rest));
        let clip = Clip { id, start, end, text: text_of, speaker, line: number, ..Clip::default() };
        gathering.push(&text, position, &recording, clip, audio)?;
    }
    gathering.found.without_text += segments_of.len();
    gathering.finish()
}

struct Segment {
    recording: String,
    start: f64,
    end: Option<f64>,
}

fn segment(fields: &str) -> Result<Segment, String> {
    let fields: Vec<&str> = fields.split_whitespace().collect();
    let &[recording, start, end] = fields.as_slice() else {
        return Err(format!("{} fields after the utterance instead of 3", fields.len()));
    };
    let seconds = |text: &str| text.parse::<f64>().map_err(|_| format!("{text:?} is not a number"));
    let (start, end) = (seconds(start)?, seconds(end)?);
    if !(start >= 0.0 && (end > start || end == -1.0) && end.is_finite()) {
        return Err(format!("end {end} is not after start {start}"));
    }
    Ok(Segment { recording: recording.to_owned(), start, end: (end != -1.0).then_some(end) })
}

/// Reads the lines of a file by name; empty if the file does not exist.
fn optional(path: &Path) -> Result<HashMap<String, String>, DataError> {
    if path.exists() {
        Ok(named_lines(path)?.into_iter().map(|line| (line.name, line.rest)).collect())
    } else {
        Ok(HashMap::new())
    }
}

/// The locations of the recordings.
enum Sounds {
    Folder(AudioFiles),
    Table { path: PathBuf, files: HashMap<String, PathBuf> },
}

impl Sounds {
    fn of(source: &SpeechSource) -> Result<Self, DataError> {
        if source.audio.is_some() {
            return AudioFiles::of_source(source).map(Self::Folder);
        }
        let path = source.path.join("wav.scp");
        if !path.exists() {
            let remedy = "specify the folder of the audio files";
            return Err(refusal(&source.path, "has no wav.scp", remedy));
        }
        let mut files = HashMap::new();
        for NamedLine { number, name, rest } in named_lines(&path)? {
            if rest.ends_with('|') {
                let reason = format!("the audio of {name} is the output of a command");
                let remedy = "run the command, and write the path of its output file; \
                              commands in data files are not run";
                return Err(Position::Line(number).error(&path, reason, remedy));
            }
            if rest.is_empty() {
                let reason = format!("{name} has no path");
                return Err(Position::Line(number).error(&path, reason, "write `recording path`"));
            }
            files.insert(name, source.path.join(rest));
        }
        Ok(Self::Table { path, files })
    }

    fn find(&self, recording: &str) -> Result<Result<PathBuf, String>, DataError> {
        match self {
            Self::Folder(files) => files.find(recording),
            Self::Table { path, files } => Ok(match files.get(recording) {
                Some(file) if file.is_file() => Ok(file.clone()),
                Some(file) => Err(file.display().to_string()),
                None => Err(format!("a line {recording} in {}", path.display())),
            }),
        }
    }
}
