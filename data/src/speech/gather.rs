//! Shared code of the data set readers: finds audio files and images by name, reads lines of the
//! form `name rest`, and lists clips whose audio file is missing.

use std::collections::HashMap;
use std::fmt;
use std::path::{Component, Path, PathBuf};

use engram_textfile::{Input, Lines, TextError, UniqueIds};
use serde::Serialize;

use super::SpeechSource;
use super::frames::{Frame, Numbered, numbered};
use super::manifest::{Clip, EXTENSIONS, check_id, check_times, is_audio_file, rank};
use crate::DataError;
use crate::folder;

/// The maximum number of missing files that an error names; further files are only counted.
const NAMED: usize = 20;

/// The clips of a data set, in file order, and counts of the skipped items.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct SpeechClips {
    /// The clips whose audio file exists.
    pub clips: Vec<Clip>,
    /// Clips that were skipped because their audio file is missing.
    pub missing: Vec<MissingAudio>,
    /// Utterances that were skipped because they have no transcript.
    pub without_text: usize,
    /// Utterances that were skipped because they have zero length.
    pub without_length: usize,
    /// Hidden files and folders that were skipped.
    pub hidden: usize,
}

/// A missing audio file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MissingAudio {
    /// The id of the clip, or of the recording if the data set lists its clips in one entry.
    pub id: String,
    /// The line, or the key of the entry, in the data set's file.
    pub position: String,
    /// The path that the reader looked for.
    pub expected_file: String,
    /// The number of clips without it.
    pub clips: usize,
}

/// The position of a clip in its file.
#[derive(Clone, Copy)]
pub(super) enum Position<'a> {
    /// The line number, from 1.
    Line(u64),
    /// The key of an entry in a JSON file.
    Entry(&'a str),
}

impl Position<'_> {
    /// Creates an error for this position.
    pub(super) fn error(
        self,
        path: &Path,
        reason: impl Into<String>,
        remedy: &'static str,
    ) -> DataError {
        match self {
            Self::Line(line) => TextError::malformed(path, line, reason, remedy).into(),
            Self::Entry(_) => {
                let (path, place) = (path.to_owned(), Some(self.to_string()));
                DataError::Malformed { path, place, reason: reason.into(), remedy }
            }
        }
    }
}

impl fmt::Display for Position<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Line(line) => write!(f, "line {line}"),
            Self::Entry(name) => write!(f, "entry `{name}`"),
        }
    }
}

/// Creates an error for a whole file or folder.
pub(super) fn file_error(path: &Path, reason: &str, remedy: &'static str) -> DataError {
    TextError::malformed(path, None, reason, remedy).into()
}

/// Collects the clips of a data set, and adds their images.
pub(super) struct ClipCollector<'s> {
    source: &'s SpeechSource,
    pub(super) found: SpeechClips,
    /// The last folder of images that was read, and its images. Consecutive clips often share it.
    images: (PathBuf, Numbered),
    has_images: bool,
}

impl<'s> ClipCollector<'s> {
    pub(super) fn new(source: &'s SpeechSource) -> Self {
        let images = (PathBuf::new(), Vec::new());
        Self { source, found: SpeechClips::default(), images, has_images: false }
    }

    /// Adds a clip of `recording`. `audio` is its audio file, or the name of the missing file.
    /// `path` is the file that lists the clip.
    pub(super) fn push(
        &mut self,
        path: &Path,
        position: Position<'_>,
        recording: &str,
        clip: Clip,
        audio: Result<PathBuf, String>,
    ) -> Result<(), DataError> {
        let remedy = "correct the clip, or download the file again";
        check_times(&clip)
            .and_then(|()| check_id(&clip))
            .map_err(|reason| position.error(path, reason, remedy))?;
        let audio = match audio {
            Ok(audio) => audio,
            Err(expected_file) => {
                self.add_missing(clip.id, position, expected_file, 1);
                return Ok(());
            }
        };
        let frames =
            if clip.frames.is_empty() { self.images_of(&clip, recording)? } else { clip.frames };
        self.found.clips.push(Clip { audio, frames, ..clip });
        Ok(())
    }

    /// Records a missing audio file.
    pub(super) fn add_missing(
        &mut self,
        id: String,
        position: Position<'_>,
        expected_file: String,
        clips: usize,
    ) {
        let position = position.to_string();
        self.found.missing.push(MissingAudio { id, position, expected_file, clips });
    }

    /// Returns the images of the clip's own folder, or of its recording's folder. With a frame
    /// rate, only images of the recording within the clip's time are returned.
    fn images_of(&mut self, clip: &Clip, recording: &str) -> Result<Vec<Frame>, DataError> {
        let Some(folder) = &self.source.frames else { return Ok(Vec::new()) };
        // An id from a file must not lead out of the folder.
        let within = |name: &&str| {
            let mut parts = Path::new(name).components();
            !name.is_empty() && parts.all(|part| matches!(part, Component::Normal(_)))
        };
        let names = [clip.id.as_str(), recording];
        let mut folders = names.into_iter().filter(within).map(|name| folder.join(name));
        let Some(found) = folders.find(|folder| folder.is_dir()) else { return Ok(Vec::new()) };
        let is_own = found == folder.join(&clip.id) && clip.id != recording;
        if self.images.0 != found {
            let (images, hidden) = numbered(&found)?;
            self.found.hidden += hidden;
            self.images = (found, images);
        }
        self.has_images |= !self.images.1.is_empty();
        let rate = self.source.frame_rate.filter(|_| !is_own);
        let frame = |(number, image): &(Option<f64>, PathBuf)| Frame {
            image: image.clone(),
            time: number.zip(rate).map(|(number, rate)| number / rate),
        };
        let times = clip.start..=clip.end.unwrap_or(f64::INFINITY);
        let is_in_clip = |frame: &Frame| frame.time.is_none_or(|time| times.contains(&time));
        let in_clip: Vec<Frame> = self.images.1.iter().map(frame).filter(is_in_clip).collect();
        if !in_clip.is_empty() {
            return Ok(in_clip);
        }
        // No image is within the clip, so use the nearest image. Its time is outside the clip, so
        // drop the time.
        let half = clip.end.map_or(0.0, |end| (end - clip.start) / 2.0);
        let middle = clip.start + half;
        let max_distance = half + rate.map_or(0.0, |rate| 1.0 / rate);
        let distance =
            |frame: &Frame| frame.time.map_or(f64::INFINITY, |time| (time - middle).abs());
        let near = self.images.1.iter().map(frame).filter(|frame| distance(frame) <= max_distance);
        let nearest = near.min_by(|a, b| distance(a).total_cmp(&distance(b)));
        Ok(nearest.into_iter().map(|frame| Frame { time: None, ..frame }).collect())
    }

    /// Returns the clips, or an error if none can be used.
    pub(super) fn finish(self) -> Result<SpeechClips, DataError> {
        let (path, found) = (&self.source.path, self.found);
        let missing: usize = found.missing.iter().map(|missing| missing.clips).sum();
        if missing > 0 && (found.clips.is_empty() || !self.source.skip_missing) {
            let name = |m: &MissingAudio| format!("{} ({}): {}", m.id, m.position, m.expected_file);
            let mut named: Vec<String> = found.missing.iter().take(NAMED).map(name).collect();
            if found.missing.len() > NAMED {
                named.push(format!("and {} more", found.missing.len() - NAMED));
            }
            let (path, clips) = (path.clone(), missing + found.clips.len());
            return Err(DataError::MissingAudio { path, missing, clips, named: named.join(", ") });
        }
        if found.clips.is_empty() {
            let remedy = "check that the file has this format and is complete";
            return Err(file_error(path, "has no clip with a transcript", remedy));
        }
        let any_frames = found.clips.iter().any(|clip| !clip.frames.is_empty());
        match &self.source.frames {
            Some(frames) if !self.has_images && !any_frames => {
                let remedy = "use a folder with a subfolder of JPEG files for each clip or recording, \
                              named by its id";
                Err(file_error(frames, "no clip has images here", remedy))
            }
            _ => Ok(found),
        }
    }
}

/// The audio files of a folder, by file name without extension.
pub(super) struct AudioFiles {
    folder: PathBuf,
    files: HashMap<String, Vec<PathBuf>>,
    /// Hidden files that were skipped.
    pub(super) hidden: usize,
}

impl AudioFiles {
    /// Lists the audio files in the source's audio folder.
    pub(super) fn of_source(source: &SpeechSource) -> Result<Self, DataError> {
        let Some(folder) = &source.audio else {
            let remedy = "specify the folder of the audio files";
            return Err(file_error(
                &source.path,
                "does not give the paths of its audio files",
                remedy,
            ));
        };
        let found = folder::files(folder, &is_audio_file)?;
        let mut files: HashMap<String, Vec<PathBuf>> = HashMap::new();
        for path in found.files {
            let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            files.entry(name).or_default().push(path);
        }
        Ok(Self { folder: folder.clone(), files, hidden: found.skipped.hidden })
    }

    /// Finds the audio file with a name. Returns `Err` with the expected file name if it is
    /// missing.
    ///
    /// # Errors
    /// `Audio` if two folders have such a file, so that the name is ambiguous
    pub(super) fn find(&self, name: &str) -> Result<Result<PathBuf, String>, DataError> {
        let files = self.files.get(name).map_or(&[][..], Vec::as_slice);
        let Some(best) = files.iter().min_by_key(|path| rank(path)) else {
            return Ok(Err(self.expected_file(name)));
        };
        match files.iter().find(|path| *path != best && rank(path) == rank(best)) {
            Some(other) => {
                let reason = format!("{} has the same name", best.display());
                Err(DataError::Audio { path: other.clone(), reason })
            }
            None => Ok(Ok(best.clone())),
        }
    }

    fn expected_file(&self, name: &str) -> String {
        format!("{}.{{{}}}", self.folder.join(name).display(), EXTENSIONS.join(","))
    }
}

/// Refuses a folder of audio files if the data set gives their paths.
pub(super) fn refuse_audio(source: &SpeechSource) -> Result<(), DataError> {
    match &source.audio {
        None => Ok(()),
        Some(folder) => {
            let remedy = "omit the folder of audio files";
            Err(file_error(folder, "this data set gives the paths of its audio files", remedy))
        }
    }
}

/// A line of the form `name rest`.
pub(super) struct NamedLine {
    pub(super) number: u64,
    pub(super) name: String,
    /// The rest of the line, trimmed.
    pub(super) rest: String,
}

/// Reads the lines of a file in Kaldi format: a unique name, white space, and the rest. The file is
/// plain or gzip; blank lines are skipped.
///
/// # Errors
/// `Text`, also for a duplicate name
pub(super) fn named_lines(path: &Path) -> Result<Vec<NamedLine>, DataError> {
    let mut lines = Lines::new(Input::open(path)?);
    let (mut named, mut ids) = (Vec::new(), UniqueIds::with_capacity(0));
    while lines.advance()? {
        let text = lines.text().trim();
        let (name, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
        let (name, rest) = (name.to_owned(), rest.trim().to_owned());
        ids.add(name.clone(), lines.location())?;
        named.push(NamedLine { number: lines.number(), name, rest });
    }
    Ok(named)
}
