//! How2, and other folders in Kaldi format. Files: `text` (`utterance transcript`) and, optionally,
//! `segments` (`utterance recording start end`, in seconds) and `utt2spk` (`utterance speaker`).
//! The audio is listed in `wav.scp` (`recording path`) or is in a folder of files named by
//! recording. Without `segments`, each recording is one utterance of the same name. A path in
//! `wav.scp` is relative to the folder of `wav.scp`; if there is no such file, it is relative to the
//! working directory, as in Kaldi.
//!
//! # Source   Sanabria et al., "How2" (2018), and Kaldi's "Data preparation". The format follows
//! How2's README; it was not verified on the published files.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use engram_textfile::base_folder;

use super::gather::{AudioFiles, ClipCollector, NamedLine, Position, file_error, named_lines};
use super::lists::existing;
use super::manifest::Clip;
use super::{SpeechClips, SpeechSource};
use crate::DataError;

/// Reads the clips of a folder, in the order of `text`. The folder of audio files, if given, is
/// used instead of `wav.scp`. An end of -1 is the end of the recording, as in Kaldi. Utterances
/// without a transcript, including those that are only in `segments` or `wav.scp`, are skipped and
/// counted.
///
/// # Errors
/// `MissingAudio`; `Text` with the line, also for an utterance that is missing from
/// `segments`, invalid times, a command in `wav.scp`
pub fn read(source: &SpeechSource) -> Result<SpeechClips, DataError> {
    let recordings = Recordings::open(source)?;
    let (text_path, segments) = (source.path.join("text"), source.path.join("segments"));
    let speakers = read_optional(&source.path.join("utt2spk"))?;
    let has_segments = segments.exists();
    let mut segments_by_name = match &recordings {
        Recordings::Table { files, .. } if !has_segments => {
            files.keys().map(|name| (name.clone(), Segment::whole(name))).collect()
        }
        _ => HashMap::new(),
    };
    if has_segments {
        segments_by_name.extend(read_segments(&segments)?);
    }
    let mut collector = ClipCollector::new(source);
    if let Recordings::Folder(files) = &recordings {
        collector.output.skipped = files.skipped;
    }
    for NamedLine { number, name, value } in named_lines(&text_path)? {
        let position = Position::Line(number);
        let segment = segments_by_name.remove(&name);
        let segment = segment.or_else(|| (!has_segments).then(|| Segment::whole(&name)));
        let Some(Segment { recording, start, end }) = segment else {
            let reason = format!("{name} is not in {}", segments.display());
            let remedy = "add its recording and times there, or remove this line";
            return Err(position.error(&text_path, reason, remedy));
        };
        if value.is_empty() {
            collector.output.without_text += 1;
            continue;
        }
        let audio = recordings.find(&recording)?;
        let speaker = speakers.get(&name).cloned();
        let (id, text, line) = (name, Some(value), number);
        let clip = Clip { id, start, end, text, speaker, line, ..Clip::default() };
        collector.push(&text_path, position, &recording, clip, audio)?;
    }
    collector.output.without_text += segments_by_name.len();
    collector.finish()
}

/// The part of a recording that is an utterance.
pub(super) struct Segment {
    pub(super) recording: String,
    pub(super) start: f64,
    pub(super) end: Option<f64>,
}

impl Segment {
    /// The segment of an utterance that is a recording of its own.
    pub(super) fn whole(recording: &str) -> Self {
        Self { recording: recording.to_owned(), start: 0.0, end: None }
    }
}

/// Reads the segments of a file by utterance.
pub(super) fn read_segments(path: &Path) -> Result<Vec<(String, Segment)>, DataError> {
    let segment = |NamedLine { number, name, value }| match parse_segment(&value) {
        Ok(segment) => Ok((name, segment)),
        Err(reason) => {
            let remedy = "write `utterance recording start end`, times in seconds";
            Err(Position::Line(number).error(path, format!("{name}: {reason}"), remedy))
        }
    };
    named_lines(path)?.into_iter().map(segment).collect()
}

fn parse_segment(fields: &str) -> Result<Segment, String> {
    let fields: Vec<&str> = fields.split_whitespace().collect();
    let &[recording, start, end] = fields.as_slice() else {
        let channel = if fields.len() == 4 { "; a channel cannot be selected" } else { "" };
        return Err(format!("{} fields after the utterance instead of 3{channel}", fields.len()));
    };
    let seconds = |text: &str| text.parse::<f64>().map_err(|_| format!("{text:?} is not a number"));
    let (start, end) = (seconds(start)?, seconds(end)?);
    if !(start >= 0.0 && (end > start || end == -1.0) && end.is_finite()) {
        return Err(format!("end {end} is not after start {start}"));
    }
    Ok(Segment { recording: recording.to_owned(), start, end: (end != -1.0).then_some(end) })
}

/// Reads the lines of a file by name; empty if the file does not exist.
pub(super) fn read_optional(path: &Path) -> Result<HashMap<String, String>, DataError> {
    if path.exists() {
        Ok(named_lines(path)?.into_iter().map(|line| (line.name, line.value)).collect())
    } else {
        Ok(HashMap::new())
    }
}

/// Reads the paths in a `wav.scp` by recording, with their lines.
pub(super) fn read_recordings(path: &Path) -> Result<Vec<(u64, String, PathBuf)>, DataError> {
    let folder = base_folder(path);
    let recording = |NamedLine { number, name, value }: NamedLine| {
        if value.ends_with('|') {
            // The command is not printed, because it may have a password.
            let reason = format!("the audio of {name} is the output of a command");
            let remedy = "run the command, and write the path of its output file; \
                          commands in data files are not run";
            return Err(Position::Line(number).error(path, reason, remedy));
        }
        if value.is_empty() {
            let reason = format!("{name} has no path");
            return Err(Position::Line(number).error(path, reason, "write `recording path`"));
        }
        Ok((number, name, existing([folder.join(&value), PathBuf::from(value)])))
    };
    named_lines(path)?.into_iter().map(recording).collect()
}

/// The locations of the recordings.
enum Recordings {
    Folder(AudioFiles),
    Table { path: PathBuf, files: HashMap<String, PathBuf> },
}

impl Recordings {
    fn open(source: &SpeechSource) -> Result<Self, DataError> {
        if source.audio.is_some() {
            return AudioFiles::of_source(source).map(Self::Folder);
        }
        let path = source.path.join("wav.scp");
        if !path.exists() {
            let remedy = "specify the folder of the audio files";
            return Err(file_error(&source.path, "has no wav.scp", remedy));
        }
        let recordings = read_recordings(&path)?.into_iter();
        let files = recordings.map(|(_, name, file)| (name, file)).collect();
        Ok(Self::Table { path, files })
    }

    fn find(&self, recording: &str) -> Result<Result<PathBuf, String>, DataError> {
        match self {
            Self::Folder(files) => files.find(recording),
            Self::Table { path, files } => Ok(match files.get(recording) {
                Some(file) if file.is_file() => Ok(file.clone()),
                Some(file) => Err(file.display().to_string()),
                None => Err(format!("a line for recording {recording} in {}", path.display())),
            }),
        }
    }
}
