//! What the readers of data sets do alike: they find sound files and pictures by name, read lines that
//! begin with a name, and keep clips apart from those whose sound is not there.

use std::collections::HashMap;
use std::fmt;
use std::path::{Component, Path, PathBuf};

use serde::Serialize;

use super::SpeechSource;
use super::frames::{Frame, Numbered, numbered};
use super::manifest::{Clip, ENDINGS, check_id, check_times, is_sound, rank};
use crate::DataError;
use crate::folder;
use crate::knowledge::lines::Lines;
use crate::knowledge::{Collector, Input};

/// Missing files that an error names; the others are counted.
const NAMED: usize = 20;

/// The clips of a data set, in its order, and what became no clip.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct SpeechClips {
    /// The clips, with all their sound files there.
    pub clips: Vec<Clip>,
    /// Clips that were left out because their sound file is not there.
    pub missing: Vec<MissingAudio>,
    /// Utterances that were left out because nothing is written for them.
    pub without_text: usize,
    /// Utterances that were left out because they end where they begin.
    pub without_length: usize,
    /// Hidden files and folders that were passed over.
    pub hidden: usize,
}

/// A sound file that is not there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MissingAudio {
    /// The clip's id, or the recording's where one entry of the file holds all its clips.
    pub id: String,
    /// Where it stands: the line or the entry.
    pub place: String,
    /// What was looked for.
    pub wanted: String,
    /// Clips that lack it.
    pub clips: usize,
}

/// Where a clip stands in its file.
#[derive(Clone, Copy)]
pub(super) enum Place<'a> {
    /// From 1.
    Line(usize),
    Entry(&'a str),
}

impl Place<'_> {
    /// A refusal of what stands here.
    pub(super) fn error(
        self,
        path: &Path,
        reason: impl Into<String>,
        remedy: &'static str,
    ) -> DataError {
        let (path, place) = (path.to_owned(), Some(self.to_string()));
        DataError::Malformed { path, place, reason: reason.into(), remedy }
    }
}

impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Line(line) => write!(f, "line {line}"),
            Self::Entry(name) => write!(f, "entry `{name}`"),
        }
    }
}

/// A refusal of a whole file or folder.
pub(super) fn refusal(path: &Path, reason: &str, remedy: &'static str) -> DataError {
    DataError::Malformed { path: path.to_owned(), place: None, reason: reason.to_owned(), remedy }
}

/// The clips that have been found.
pub(super) struct Gathering<'s> {
    source: &'s SpeechSource,
    pub(super) found: SpeechClips,
    /// The folder of pictures that was read last, and its pictures: clips of a recording follow each other.
    pictures: (PathBuf, Numbered),
    has_pictures: bool,
}

impl<'s> Gathering<'s> {
    pub(super) fn new(source: &'s SpeechSource) -> Self {
        let pictures = (PathBuf::new(), Vec::new());
        Self { source, found: SpeechClips::default(), pictures, has_pictures: false }
    }

    /// Keeps a clip of `recording`, with its sound file or with what was looked for. `path` is the file in
    /// which it stands.
    pub(super) fn push(
        &mut self,
        path: &Path,
        place: Place<'_>,
        recording: &str,
        clip: Clip,
        audio: Result<PathBuf, String>,
    ) -> Result<(), DataError> {
        let remedy = "correct it, or fetch the file again";
        check_times(&clip)
            .and_then(|()| check_id(&clip))
            .map_err(|reason| place.error(path, reason, remedy))?;
        let audio = match audio {
            Ok(audio) => audio,
            Err(wanted) => {
                self.miss(clip.id, place, wanted, 1);
                return Ok(());
            }
        };
        let frames = match clip.frames.is_empty() {
            true => self.pictures_of(&clip, recording)?,
            false => clip.frames,
        };
        self.found.clips.push(Clip { audio, frames, ..clip });
        Ok(())
    }

    /// Notes a sound file that is not there.
    pub(super) fn miss(&mut self, id: String, place: Place<'_>, wanted: String, clips: usize) {
        self.found.missing.push(MissingAudio { id, place: place.to_string(), wanted, clips });
    }

    /// The pictures of a clip's own folder, or those of its recording's; of the latter with a frame rate
    /// those that are seen while the clip lasts.
    fn pictures_of(&mut self, clip: &Clip, recording: &str) -> Result<Vec<Frame>, DataError> {
        let Some(folder) = &self.source.frames else { return Ok(Vec::new()) };
        // An id of a file must not lead out of the folder.
        let within = |name: &&str| {
            let mut parts = Path::new(name).components();
            !name.is_empty() && parts.all(|part| matches!(part, Component::Normal(_)))
        };
        let names = [clip.id.as_str(), recording];
        let mut folders = names.into_iter().filter(within).map(|name| folder.join(name));
        let Some(found) = folders.find(|folder| folder.is_dir()) else { return Ok(Vec::new()) };
        let is_own = found == folder.join(&clip.id) && clip.id != recording;
        if self.pictures.0 != found {
            let (pictures, hidden) = numbered(&found)?;
            self.found.hidden += hidden;
            self.pictures = (found, pictures);
        }
        self.has_pictures |= !self.pictures.1.is_empty();
        let rate = self.source.frame_rate.filter(|_| !is_own);
        let frame = |(number, image): &(Option<f64>, PathBuf)| Frame {
            image: image.clone(),
            time: number.zip(rate).map(|(number, rate)| number / rate),
        };
        let times = clip.start..=clip.end.unwrap_or(f64::INFINITY);
        let is_seen = |frame: &Frame| frame.time.is_none_or(|time| times.contains(&time));
        let seen: Vec<Frame> = self.pictures.1.iter().map(frame).filter(is_seen).collect();
        if !seen.is_empty() {
            return Ok(seen);
        }
        // Between two pictures the nearest is seen, whose own time would be outside the clip.
        let half = clip.end.map_or(0.0, |end| (end - clip.start) / 2.0);
        let middle = clip.start + half;
        let most = half + rate.map_or(0.0, |rate| 1.0 / rate);
        let away = |frame: &Frame| frame.time.map_or(f64::INFINITY, |time| (time - middle).abs());
        let near = self.pictures.1.iter().map(frame).filter(|frame| away(frame) <= most);
        let nearest = near.min_by(|a, b| away(a).total_cmp(&away(b)));
        Ok(nearest.into_iter().map(|frame| Frame { time: None, ..frame }).collect())
    }

    /// The clips; refuses what would be none of them without a word.
    pub(super) fn finish(self) -> Result<SpeechClips, DataError> {
        let (path, found) = (&self.source.path, self.found);
        let missing: usize = found.missing.iter().map(|missing| missing.clips).sum();
        if missing > 0 && (found.clips.is_empty() || !self.source.skip_missing) {
            let name = |m: &MissingAudio| format!("{} ({}): {}", m.id, m.place, m.wanted);
            let mut named: Vec<String> = found.missing.iter().take(NAMED).map(name).collect();
            if found.missing.len() > NAMED {
                named.push(format!("and {} more", found.missing.len() - NAMED));
            }
            let (path, clips) = (path.clone(), missing + found.clips.len());
            return Err(DataError::MissingAudio { path, missing, clips, named: named.join(", ") });
        }
        if found.clips.is_empty() {
            let remedy = "check that it is of this format, and whole";
            return Err(refusal(path, "has no clip with a text", remedy));
        }
        let own = found.clips.iter().any(|clip| !clip.frames.is_empty());
        match &self.source.frames {
            Some(frames) if !self.has_pictures && !own => {
                let remedy = "give a folder with a folder of JPEG files for each clip or recording, \
                              named by its id";
                Err(refusal(frames, "no clip has pictures here", remedy))
            }
            _ => Ok(found),
        }
    }
}

/// The sound files of a folder, by their names without the ending.
pub(super) struct AudioFiles {
    folder: PathBuf,
    files: HashMap<String, Vec<PathBuf>>,
    /// Hidden files that were passed over.
    pub(super) hidden: usize,
}

impl AudioFiles {
    /// Those of the folder that the caller has given.
    pub(super) fn of_source(source: &SpeechSource) -> Result<Self, DataError> {
        let Some(folder) = &source.audio else {
            let remedy = "give the folder of the sound files";
            return Err(refusal(&source.path, "does not say where its sound files are", remedy));
        };
        let found = folder::files(folder, &is_sound)?;
        let mut files: HashMap<String, Vec<PathBuf>> = HashMap::new();
        for path in found.files {
            let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            files.entry(name).or_default().push(path);
        }
        Ok(Self { folder: folder.clone(), files, hidden: found.passed_over.hidden })
    }

    /// The file of a name, or what was looked for.
    ///
    /// # Errors   `Audio` where two folders have such a file, and it is not known which is meant
    pub(super) fn find(&self, name: &str) -> Result<Result<PathBuf, String>, DataError> {
        let files = self.files.get(name).map_or(&[][..], Vec::as_slice);
        let Some(best) = files.iter().min_by_key(|path| rank(path)) else {
            return Ok(Err(self.wanted(name)));
        };
        match files.iter().find(|path| *path != best && rank(path) == rank(best)) {
            Some(other) => {
                let reason = format!("{} has the same name", best.display());
                Err(DataError::Audio { path: other.clone(), reason })
            }
            None => Ok(Ok(best.clone())),
        }
    }

    fn wanted(&self, name: &str) -> String {
        format!("{}.{{{}}}", self.folder.join(name).display(), ENDINGS.join(","))
    }
}

/// Refuses a folder of sound files where the data set says itself where they are.
pub(super) fn refuse_audio(source: &SpeechSource) -> Result<(), DataError> {
    match &source.audio {
        None => Ok(()),
        Some(folder) => {
            let remedy = "leave the folder of sound files out";
            Err(refusal(folder, "this data set says itself where its sound files are", remedy))
        }
    }
}

/// A line `name rest`.
pub(super) struct NamedLine {
    pub(super) number: usize,
    pub(super) name: String,
    /// Without white space around it.
    pub(super) rest: String,
}

/// The lines of a file in the form of Kaldi: a name that no other line has, white space, and the rest.
/// Plain or gzip; blank lines are passed over.
///
/// # Errors   `Io`, `Gzip`, `NotUtf8`; `EmptyFile`; `DoubledId` with both lines
pub(super) fn named_lines(path: &Path) -> Result<Vec<NamedLine>, DataError> {
    let mut lines = Lines::new(Input::open(path)?);
    let mut to = Collector::new(|_| Ok(()));
    let mut named = Vec::new();
    while lines.advance(&mut to)? {
        let text = lines.text().trim();
        let (name, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
        let (name, rest) = (name.to_owned(), rest.trim().to_owned());
        named.push(NamedLine { number: lines.number(), name, rest });
    }
    if named.is_empty() {
        return Err(DataError::EmptyFile { path: path.into() });
    }
    let mut seen = HashMap::with_capacity(named.len());
    for NamedLine { number, name, .. } in &named {
        if let Some(first) = seen.insert(name.as_str(), *number) {
            let (path, id) = (path.to_owned(), name.clone());
            return Err(DataError::DoubledId { path, id, first, second: *number });
        }
    }
    Ok(named)
}
