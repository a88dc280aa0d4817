//! Shared code of the data set readers: finds audio files and images by name, reads lines of the
//! form `name value`, and lists clips whose audio file is missing.

use std::collections::HashMap;
use std::fmt;
use std::path::{Component, Path, PathBuf};

use engram_textfile::{Input, Lines, TextError, UniqueIds};
use serde::Serialize;

use super::SpeechSource;
use super::frames::{Frame, NumberedImages, numbered_images};
use super::manifest::{Clip, EXTENSIONS, check_id, check_times, extension_rank, is_audio_file};
use crate::DataError;
use crate::folder::{self, SkippedFiles};

/// The maximum number of missing files that an error names; further files are only counted.
const MAX_EXAMPLES: usize = 20;

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
    pub zero_length: usize,
    /// Files and folders that were skipped.
    pub skipped: SkippedFiles,
    /// What was taken for what in a list of another program; `None` for other inputs.
    pub taken_as: Option<String>,
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
    pub(super) output: SpeechClips,
    /// The last folder of images that was read, and its images. Consecutive clips often share it.
    images: (PathBuf, NumberedImages),
    has_images: bool,
}

impl<'s> ClipCollector<'s> {
    pub(super) fn new(source: &'s SpeechSource) -> Self {
        let images = (PathBuf::new(), Vec::new());
        Self { source, output: SpeechClips::default(), images, has_images: false }
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
            if clip.frames.is_empty() { self.frames_of(&clip, recording)? } else { clip.frames };
        self.output.clips.push(Clip { audio, frames, ..clip });
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
        self.output.missing.push(MissingAudio { id, position, expected_file, clips });
    }

    /// Returns the images of the clip's folder if it exists, otherwise of its recording's folder.
    /// With a frame rate, returns only the recording's images within the clip's time. If there is
    /// none, returns the nearest image if it is near enough, without a time.
    fn frames_of(&mut self, clip: &Clip, recording: &str) -> Result<Vec<Frame>, DataError> {
        let Some(folder) = &self.source.frames else { return Ok(Vec::new()) };
        // An id from a file must not lead out of the folder.
        let is_inside = |name: &&str| {
            let mut components = Path::new(name).components();
            !name.is_empty()
                && components.all(|component| matches!(component, Component::Normal(_)))
        };
        let names = [clip.id.as_str(), recording];
        let mut folders = names.into_iter().filter(is_inside).map(|name| folder.join(name));
        let Some(images_folder) = folders.find(|folder| folder.is_dir()) else {
            return Ok(Vec::new());
        };
        let is_of_clip = images_folder == folder.join(&clip.id) && clip.id != recording;
        if self.images.0 != images_folder {
            let (images, skipped) = numbered_images(&images_folder)?;
            self.output.skipped.hidden += skipped.hidden;
            self.output.skipped.links += skipped.links;
            self.images = (images_folder, images);
        }
        self.has_images |= !self.images.1.is_empty();
        let rate = self.source.frame_rate.filter(|_| !is_of_clip);
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
        let half_duration = clip.end.map_or(0.0, |end| (end - clip.start) / 2.0);
        let centre = clip.start + half_duration;
        let max_distance = half_duration + rate.map_or(0.0, |rate| 1.0 / rate);
        let distance =
            |frame: &Frame| frame.time.map_or(f64::INFINITY, |time| (time - centre).abs());
        let candidates =
            self.images.1.iter().map(frame).filter(|frame| distance(frame) <= max_distance);
        let nearest = candidates.min_by(|a, b| distance(a).total_cmp(&distance(b)));
        Ok(nearest.into_iter().map(|frame| Frame { time: None, ..frame }).collect())
    }

    /// Returns the clips, or an error if none can be used.
    pub(super) fn finish(self) -> Result<SpeechClips, DataError> {
        let (path, output) = (&self.source.path, self.output);
        let missing: usize = output.missing.iter().map(|missing| missing.clips).sum();
        if missing > 0 && (output.clips.is_empty() || !self.source.skip_missing) {
            let describe = |file: &MissingAudio| {
                format!("{} ({}): {}", file.id, file.position, file.expected_file)
            };
            let mut examples: Vec<String> =
                output.missing.iter().take(MAX_EXAMPLES).map(describe).collect();
            if output.missing.len() > MAX_EXAMPLES {
                examples.push(format!("and {} more", output.missing.len() - MAX_EXAMPLES));
            }
            let (path, clips) = (path.clone(), missing + output.clips.len());
            let examples = examples.join(", ");
            return Err(DataError::MissingAudio { path, missing, clips, examples });
        }
        if output.clips.is_empty() {
            let remedy = "check that the file has this format and is complete";
            return Err(file_error(path, "has no clip with a transcript", remedy));
        }
        let has_frames = output.clips.iter().any(|clip| !clip.frames.is_empty());
        match &self.source.frames {
            Some(frames) if !self.has_images && !has_frames => {
                let remedy = "use a folder with a subfolder of JPEG or PNG files for each clip or \
                              recording, named by its id";
                Err(file_error(frames, "no clip has images here", remedy))
            }
            _ => Ok(output),
        }
    }
}

/// The audio files of a folder, by file name without extension.
pub(super) struct AudioFiles {
    folder: PathBuf,
    files: HashMap<String, Vec<PathBuf>>,
    pub(super) skipped: SkippedFiles,
}

impl AudioFiles {
    /// Lists the audio files in the source's audio folder.
    pub(super) fn of_source(source: &SpeechSource) -> Result<Self, DataError> {
        let Some(folder) = &source.audio else {
            let remedy = "specify the folder of the audio files";
            return Err(file_error(&source.path, "does not name its audio files", remedy));
        };
        let listing = folder::files(folder, &is_audio_file)?;
        let mut files: HashMap<String, Vec<PathBuf>> = HashMap::new();
        for path in listing.files {
            let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            files.entry(name).or_default().push(path);
        }
        Ok(Self { folder: folder.clone(), files, skipped: listing.skipped })
    }

    /// Returns the audio file called `name`, or the expected file name as the inner error.
    ///
    /// # Errors
    /// `Malformed` if two folders have such a file, so that the name is ambiguous
    pub(super) fn find(&self, name: &str) -> Result<Result<PathBuf, String>, DataError> {
        let files = self.files.get(name).map_or(&[][..], Vec::as_slice);
        let Some(preferred) = files.iter().min_by_key(|path| extension_rank(path)) else {
            return Ok(Err(self.expected_file(name)));
        };
        match files
            .iter()
            .find(|path| *path != preferred && extension_rank(path) == extension_rank(preferred))
        {
            Some(other) => {
                let reason = format!("{} has the same name", preferred.display());
                Err(file_error(other, &reason, "rename or remove one of the two"))
            }
            None => Ok(Ok(preferred.clone())),
        }
    }

    fn expected_file(&self, name: &str) -> String {
        format!("{}.{{{}}}", self.folder.join(name).display(), EXTENSIONS.join(","))
    }
}

/// Refuses a folder of audio files if the data set gives their paths.
pub(super) fn refuse_audio_folder(source: &SpeechSource) -> Result<(), DataError> {
    match &source.audio {
        None => Ok(()),
        Some(folder) => {
            let remedy = "omit the folder of audio files";
            Err(file_error(folder, "this data set gives the paths of its audio files", remedy))
        }
    }
}

/// A line of the form `name value`.
pub(super) struct NamedLine {
    pub(super) number: u64,
    pub(super) name: String,
    /// The rest of the line, trimmed; may be empty.
    pub(super) value: String,
}

/// Reads the lines of a file in Kaldi format: a unique name, white space, and a value. The file is
/// plain or gzip; blank lines are skipped.
///
/// # Errors
/// `Text`, also for a duplicate name
pub(super) fn named_lines(path: &Path) -> Result<Vec<NamedLine>, DataError> {
    let mut lines = Lines::new(Input::open(path)?);
    let (mut named_lines, mut ids) = (Vec::new(), UniqueIds::with_capacity(0));
    while lines.advance()? {
        let text = lines.text().trim();
        let (name, value) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
        let (name, value) = (name.to_owned(), value.trim().to_owned());
        ids.add(name.clone(), lines.location())?;
        named_lines.push(NamedLine { number: lines.number(), name, value });
    }
    Ok(named_lines)
}
