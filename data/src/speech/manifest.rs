//! Speech clips from an audio file, a folder of audio files, a manifest, or a list of another
//! program.
//!
//! A manifest is a JSON lines file: `{"audio": "a.flac", "start": 1.5, "end": 4.0, "text": "…",
//! "speaker": "…", "frames": ["1.png"], "id": "…"}`. Only `audio` is required. Paths are relative
//! to the manifest's folder, and times are in seconds. A [`Frame`] may have a time, or be a folder
//! of images.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

use engram_durable::write_file;
use engram_textfile::{
    Location, TextError, UniqueIds, base_folder, non_blank_lines, parse_json_line, read_text,
};
use serde::{Deserialize, Deserializer, Serialize};

use super::frames::Frame;
use super::lists::{self, ListFormat};
use crate::DataError;
use crate::audio::AudioReader;
use crate::folder::{self, FolderFiles, SkippedFiles};

/// A clip may end this much after its recording, whatever its length: times in lists are rounded, and
/// programs count the padding of an encoder differently.
const MAX_MISSING_SECONDS: f64 = 0.1;

const REMEDY: &str = "write {\"audio\": \"a.flac\", \"text\": \"…\", \"frames\": [\"1.png\"]}";

/// Extensions of audio files, in order of preference for files that differ only in their extension.
pub(super) const EXTENSIONS: [&str; 22] = [
    "wav", "flac", "mp3", "ogg", "oga", "m4a", "mp4", "aac", "opus", "webm", "mka", "mkv", "aif",
    "aiff", "aifc", "caf", "au", "snd", "mp2", "w64", "rf64", "mov",
];

/// A speech clip.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Clip {
    /// The clip id. The default is the path of the audio file in the manifest or folder, without
    /// the extension. The start is appended if it is not 0.
    #[serde(default, deserialize_with = "or_default")]
    pub id: String,
    /// The audio file.
    pub audio: PathBuf,
    /// The start time in the file, in seconds.
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "is_zero")]
    pub start: f64,
    /// The end time in seconds; `None` for the end of the file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<f64>,
    /// The transcript; `None` if it is unknown. An empty text means that the clip has no speech.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// The speaker's name in the data set; `None` if it is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub speaker: Option<String>,
    /// The video frames, in order.
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "Vec::is_empty")]
    pub frames: Vec<Frame>,
    /// The line in the manifest, table or list of transcripts, from 1; 0 for other clips.
    #[serde(skip)]
    pub line: u64,
}

/// The clips of an input.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct InputClips {
    /// The clips, in the order of the input.
    pub clips: Vec<Clip>,
    /// The counts of files skipped in a folder.
    pub skipped: SkippedFiles,
    /// What was taken for what in a list of another program, such as `a NeMo manifest: audio from
    /// …`; `None` for other inputs.
    pub taken_as: Option<String>,
}

/// Returns the clips of a path: a list as in [`read_list`], by the end of its name, a folder, or one
/// audio file.
///
/// # Errors
/// as [`read_list`]; `Io`; `Malformed` for a folder without audio files
pub fn input_clips(path: &Path) -> Result<InputClips, DataError> {
    if path.is_dir() {
        let FolderFiles { files, skipped } = folder::files(path, &is_audio_file)?;
        if files.is_empty() {
            let extensions = EXTENSIONS.join(", ");
            let reason = format!("no audio files ({extensions}) in this folder; skipped {skipped}");
            let remedy = "name the folder of the audio files, or a list of them such as wav.scp";
            return Err(DataError::of_file(path, reason, remedy));
        }
        let mut clips: Vec<Clip> =
            files.into_iter().map(|file| whole_file(default_id(&file, path), file)).collect();
        let mut clips_per_id: HashMap<String, usize> = HashMap::new();
        clips.iter().for_each(|clip| *clips_per_id.entry(clip.id.clone()).or_default() += 1);
        for clip in &mut clips {
            // Files that differ only in their extension keep it in the id.
            if clips_per_id[&clip.id] > 1 {
                let file = clip.audio.strip_prefix(path).unwrap_or(&clip.audio);
                clip.id = file.to_string_lossy().into_owned();
            }
        }
        return Ok(InputClips { clips, skipped, taken_as: None });
    }
    if ListFormat::of(path).is_some() {
        return read_list(path);
    }
    let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    Ok(InputClips { clips: vec![whole_file(name, path.to_path_buf())], ..InputClips::default() })
}

/// Reads the clips of a manifest or of another list, as [`read_list`] does.
///
/// # Errors
/// as [`read_list`]
pub fn read_manifest(path: &Path) -> Result<Vec<Clip>, DataError> {
    Ok(read_list(path)?.clips)
}

/// Reads a manifest, or a list of another program: a NeMo manifest, a table of Common Voice, metadata
/// of Hugging Face, a CSV or TSV with the names of a manifest, or Kaldi's `wav.scp`. The audio and
/// image files are not opened.
///
/// # Errors
/// `Text` with the line
pub fn read_list(path: &Path) -> Result<InputClips, DataError> {
    let format = ListFormat::of(path).unwrap_or(ListFormat::Json);
    let json = if format == ListFormat::Json { read_text(path)? } else { String::new() };
    let file = path.display().to_string();
    let (clips, taken_as) = match lists::read(path, format, &json)? {
        Some((clips, taken_as)) => (clips, Some(taken_as)),
        None => {
            let parse =
                |(line, text)| Ok(Clip { line, ..parse_json_line(&file, line, text, REMEDY)? });
            (non_blank_lines(&json).map(parse).collect::<Result<_, TextError>>()?, None)
        }
    };
    let (folder, is_own) = (base_folder(path), taken_as.is_none());
    let mut ids = UniqueIds::with_capacity(0);
    let mut check = |mut clip: Clip| {
        let line_error = |reason: String| {
            TextError::malformed(path, clip.line, reason, "correct the clip, or remove the line")
        };
        check_times(&clip).map_err(line_error)?;
        let files = clip.frames.iter().map(|frame| &frame.image).chain([&clip.audio]);
        for name in files.filter_map(|file| file.to_str()) {
            if name.is_empty() {
                return Err(line_error("a file has an empty path".to_owned()));
            }
            if name.contains(char::is_control) {
                let reason = "has a tab or another control character; in JSON, write a backslash \
                              as `\\\\`";
                return Err(line_error(format!("the path {name:?} {reason}")));
            }
        }
        if clip.id.is_empty() {
            clip.id = with_start(default_id(&clip.audio, Path::new("")), clip.start);
        }
        check_id(&clip).map_err(line_error)?;
        ids.add(clip.id.clone(), Location::new(path, clip.line))?;
        if is_own {
            clip.audio = folder.join(&clip.audio);
            clip.frames.iter_mut().for_each(|frame| frame.image = folder.join(&frame.image));
        }
        Ok(clip)
    };
    let clips = clips.into_iter().map(&mut check).collect::<Result<Vec<Clip>, TextError>>()?;
    if clips.is_empty() {
        return Err(TextError::Empty { file }.into());
    }
    Ok(InputClips { clips, skipped: SkippedFiles::default(), taken_as })
}

/// The id of a part of a recording that has this id: it ends with the start, if that is not 0.
pub(super) fn with_start(id: String, start: f64) -> String {
    if start > 0.0 { format!("{id}-{start}") } else { id }
}

/// The value, or the default for `null`, as other programs write for a missing value.
fn or_default<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(
    deserializer: D,
) -> Result<T, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// Writes clips as a manifest for [`read_manifest`], atomically.
///
/// # Errors
/// as [`manifest`]; `Io`
pub fn write_manifest(path: &Path, clips: &[Clip]) -> Result<(), DataError> {
    let io = |source| DataError::Io { path: path.into(), source };
    write_file(path, &manifest(path, clips)?).map_err(io)
}

/// Returns the bytes of a manifest to be written to `path`. Paths of files in the manifest's folder
/// are relative to it, and other paths are absolute.
///
/// # Errors
/// `Io`; `Malformed` with the clip, if a manifest cannot represent it: invalid times; an empty or
/// duplicate id, or an id with control characters; a path that is not UTF-8
pub fn manifest(path: &Path, clips: &[Clip]) -> Result<Vec<u8>, DataError> {
    let io = |source| DataError::Io { path: path.into(), source };
    let absolute_path = std::path::absolute(path).map_err(io)?;
    let folder = absolute_path.parent().unwrap_or(Path::new(""));
    let relative_to_folder = |file: &Path| -> Result<PathBuf, DataError> {
        let file = std::path::absolute(file).map_err(io)?;
        Ok(file.strip_prefix(folder).map(Path::to_path_buf).unwrap_or(file))
    };
    let (mut lines, mut seen) = (String::new(), HashSet::new());
    for clip in clips {
        let clip_error = |reason: String| DataError::Malformed {
            path: path.into(),
            place: Some(format!("clip {:?}", clip.id)),
            reason,
            remedy: "a manifest cannot hold this clip; correct or remove the clip",
        };
        check_times(clip).and_then(|()| check_id(clip)).map_err(clip_error)?;
        if clip.id.is_empty() || !seen.insert(&clip.id) {
            return Err(clip_error("the id is empty or not unique".to_string()));
        }
        let audio = relative_to_folder(&clip.audio)?;
        let frame =
            |frame: &Frame| Ok(Frame { image: relative_to_folder(&frame.image)?, ..*frame });
        let frames = clip.frames.iter().map(frame).collect::<Result<_, DataError>>()?;
        let line = serde_json::to_string(&Clip { audio, frames, ..clip.clone() })
            .map_err(|error| clip_error(error.to_string()))?;
        lines += &line;
        lines.push('\n');
    }
    Ok(lines.into_bytes())
}

/// Checks that the start is not negative and the end is after it.
pub(super) fn check_times(clip: &Clip) -> Result<(), String> {
    if !(clip.start >= 0.0 && clip.start.is_finite()) {
        return Err(format!("start {} is not a time in seconds", clip.start));
    }
    match clip.end.filter(|end| !(*end > clip.start && end.is_finite())) {
        Some(end) => Err(format!("end {end} is not after start {}", clip.start)),
        None => Ok(()),
    }
}

/// Checks that the id has no control characters, and that the names of the files are UTF-8. Other
/// names cannot be written to a table or to JSON.
pub(super) fn check_id(clip: &Clip) -> Result<(), String> {
    if clip.id.contains(char::is_control) {
        return Err(format!("id {:?} contains a tab or another control character", clip.id));
    }
    let images = clip.frames.iter().map(|frame| &frame.image);
    match images.chain([&clip.audio]).find(|file| file.to_str().is_none()) {
        Some(file) => Err(format!("the name {file:?} is not UTF-8")),
        None => Ok(()),
    }
}

fn is_zero(seconds: &f64) -> bool {
    *seconds == 0.0
}

fn whole_file(id: String, audio: PathBuf) -> Clip {
    Clip { id, audio, ..Clip::default() }
}

/// Returns the path relative to `folder`, without the extension. For an absolute path and an empty
/// `folder`, returns only the file name.
fn default_id(file: &Path, folder: &Path) -> String {
    let relative = file.strip_prefix(folder).unwrap_or(file);
    if folder.as_os_str().is_empty() && relative.is_absolute() {
        relative.file_stem().map_or_else(String::new, |name| name.to_string_lossy().into_owned())
    } else {
        relative.with_extension("").to_string_lossy().into_owned()
    }
}

/// Whether a file is an audio file, judging by its extension.
pub(super) fn is_audio_file(path: &Path) -> bool {
    extension_rank(path).is_some()
}

/// Returns the index of a file's extension in [`EXTENSIONS`]; `None` for other extensions.
pub(super) fn extension_rank(path: &Path) -> Option<usize> {
    let extension = path.extension()?;
    EXTENSIONS.iter().position(|candidate| extension.eq_ignore_ascii_case(candidate))
}

/// A streaming reader of a clip.
pub struct ClipReader {
    reader: AudioReader,
    audio: PathBuf,
    /// Start and end in samples, at the requested rate.
    start: usize,
    end: Option<usize>,
    /// The number of samples read from the file.
    num_read: usize,
    /// The number of samples of the clip that were returned.
    num_returned: usize,
    /// The sample rate of the output, in Hz.
    rate: u32,
    ended: bool,
}

impl Clip {
    /// Returns an error if the id, which may come from the name of the file, has control characters,
    /// or if the name of a file is not UTF-8.
    ///
    /// # Errors
    /// `Malformed`
    pub fn check_name(&self) -> Result<(), DataError> {
        check_id(self).map_err(|reason| DataError::of_file(&self.audio, reason, "rename the file"))
    }

    /// Opens the audio file and converts its samples to `rate` Hz.
    ///
    /// # Errors
    /// as [`AudioReader::open`] and [`Clip::check_name`]
    pub fn open(&self, rate: u32) -> Result<ClipReader, DataError> {
        self.check_name()?;
        let to_samples = |seconds: f64| (seconds * f64::from(rate)).round() as usize;
        Ok(ClipReader {
            reader: AudioReader::open(&self.audio, rate)?,
            audio: self.audio.clone(),
            start: to_samples(self.start),
            end: self.end.map(to_samples),
            num_read: 0,
            num_returned: 0,
            rate,
            ended: false,
        })
    }

    /// Reads all samples at `rate` Hz.
    ///
    /// # Errors
    /// as [`ClipReader::read`]
    pub fn samples(&self, rate: u32) -> Result<Vec<f32>, DataError> {
        let (mut reader, mut samples) = (self.open(rate)?, Vec::new());
        while reader.read(&mut samples)? {}
        Ok(samples)
    }
}

impl ClipReader {
    /// Appends the next block of samples to `samples`; returns `false` if it was the last.
    ///
    /// # Errors
    /// as [`AudioReader::read`]; `Malformed` for a clip that starts after the end of its file, or
    /// ends more than 0.1 s after it; `Audio` for a file without samples
    pub fn read(&mut self, samples: &mut Vec<f32>) -> Result<bool, DataError> {
        if self.ended {
            return Ok(false);
        }
        let old_length = samples.len();
        let has_more = self.reader.read(samples)?;
        let block = samples.len() - old_length;
        let too_early = self.start.saturating_sub(self.num_read).min(block);
        samples.drain(old_length..old_length + too_early);
        self.num_read += block;
        self.ended = !has_more;
        if let Some(end) = self.end.filter(|end| *end <= self.num_read) {
            let too_late = (self.num_read - end).min(block - too_early);
            samples.truncate(samples.len() - too_late);
            self.ended = true;
        }
        self.num_returned += samples.len() - old_length;
        let seconds = |samples: usize| samples as f64 / f64::from(self.rate);
        let (length, start, end) =
            (seconds(self.num_read), seconds(self.start), self.end.map_or(0.0, seconds));
        let fault = if self.ended && self.num_returned == 0 && self.start == 0 {
            let (path, reason) = (self.audio.clone(), "has no samples".to_string());
            return Err(DataError::Audio { path, reason });
        } else if self.ended && self.num_returned == 0 {
            format!("begins at {start} s")
        } else if !has_more && end > length + MAX_MISSING_SECONDS {
            let (present, wanted) = (length - start, end - start);
            format!("ends at {end} s: {present:.2} of {wanted:.2} s are there")
        } else {
            return Ok(!self.ended);
        };
        let reason = format!("has {length:.2} s, but the clip {fault}");
        let remedy = "correct the times of the clip, or get the whole recording";
        Err(DataError::of_file(&self.audio, reason, remedy))
    }

    /// Returns the duration of the clip in seconds, or `None` if it is unknown.
    pub fn seconds(&self) -> Option<f64> {
        let seconds = |samples: usize| samples as f64 / f64::from(self.rate);
        let file_seconds = self.reader.seconds();
        let end = self.end.map(seconds).map(|end| file_seconds.map_or(end, |file| file.min(end)));
        Some((end.or(file_seconds)? - seconds(self.start)).max(0.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hound::{SampleFormat, WavSpec, WavWriter};

    fn write_audio(path: &Path, values: impl Iterator<Item = i16>) {
        let spec = WavSpec {
            channels: 1,
            sample_rate: 16_000,
            bits_per_sample: 16,
            sample_format: SampleFormat::Int,
        };
        let mut writer = WavWriter::create(path, spec).expect("a file");
        values.for_each(|value| writer.write_sample(value).expect("a sample"));
        writer.finalize().expect("a header");
    }

    #[test]
    fn a_clip_has_the_samples_between_its_times() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("a.wav");
        write_audio(&file, 0..16_000);
        let manifest = folder.path().join("m.jsonl");
        let lines = "{\"audio\": \"a.wav\", \"start\": null, \"end\": null, \"id\": null}\n\n\
                     {\"audio\": \"a.wav\", \"start\": 0.25, \"end\": 0.5, \
                     \"text\": \"t\", \"id\": \"x\"}\n{\"audio\": \"a.wav\", \"start\": 0.9}\n\
                     {\"audio\": \"a.wav\", \"start\": 2, \"end\": 3}\n\
                     {\"audio\": \"a.wav\", \"start\": 0.5, \"end\": 1.09}\n\
                     {\"audio\": \"a.wav\", \"start\": 0.75, \"end\": 7}\n";
        std::fs::write(&manifest, lines).expect("a manifest");
        let clips = read_manifest(&manifest).expect("clips");
        let ids: Vec<(&str, u64)> = clips.iter().map(|c| (c.id.as_str(), c.line)).collect();
        let expected = [("a", 1), ("x", 3), ("a-0.9", 4), ("a-2", 5), ("a-0.5", 6), ("a-0.75", 7)];
        assert_eq!(ids, expected);
        let first_and_count = |clip: &Clip| {
            let samples = clip.samples(16_000)?;
            Ok::<_, DataError>(((samples[0] * 32_768.0) as i16, samples.len()))
        };
        assert_eq!(first_and_count(&clips[0]).expect("samples"), (0, 16_000));
        assert_eq!(first_and_count(&clips[1]).expect("samples"), (4_000, 4_000));
        assert_eq!(first_and_count(&clips[2]).expect("samples"), (14_400, 1_600));
        let error = first_and_count(&clips[3]).expect_err("after the end").to_string();
        assert!(error.contains("has 1.00 s") && error.contains("begins at 2 s"), "{error}");
        assert!(error.contains("correct the times"), "{error}");
        assert_eq!(first_and_count(&clips[4]).expect("samples"), (8_000, 8_000));
        let error = first_and_count(&clips[5]).expect_err("a part is missing").to_string();
        let parts = ["has 1.00 s, but the clip ends at 7 s: 0.25 of 6.25 s are there", "the times"];
        assert!(parts.iter().all(|part| error.contains(part)), "{error}");
    }

    #[test]
    fn clips_of_a_folder_are_sorted_by_path() {
        let folder = tempfile::tempdir().expect("a folder");
        assert!(input_clips(folder.path()).unwrap_err().to_string().contains("no audio files"));
        std::fs::create_dir(folder.path().join("b")).expect("a folder");
        for name in ["c.WAV", "b/z.flac", "a.mp3", "a.ogg", "b/notes.txt"] {
            std::fs::write(folder.path().join(name), b"x").expect("a file");
        }
        let clips = input_clips(folder.path()).expect("clips").clips;
        let ids: Vec<&str> = clips.iter().map(|clip| clip.id.as_str()).collect();
        assert_eq!(ids, ["a.mp3", "a.ogg", "b/z", "c"]);
    }

    #[test]
    fn invalid_lines_are_reported() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("m.jsonl");
        for (line, reason) in [
            ("{\"audio\": 3}", "write {\"audio\": \"a.flac\""),
            ("{\"audio\": \"a.wav\", \"frames\": [3]}", "a frame is a path, or {\"image\""),
            ("{\"audio\": \"a.wav\", \"frames\": [\"\"]}", "a file has an empty path"),
            ("{\"audio\": \"a.wav\", \"strat\": 1}", "strat"),
            ("{\"audio\": \"a.wav\", \"start\": -1}", "start -1"),
            ("{\"audio\": \"a.wav\", \"start\": 2, \"end\": 2}", "end 2 is not after"),
            ("{\"audio\": \"b.wav\"}", "was already given at"),
            ("{\"audio\": \"c.wav\", \"id\": \"a\\tb\"}", "control character"),
            ("{\"audio\": \"C:\\tmp\\no.wav\"}", "write a backslash as `\\\\`"),
            ("{\"audio\": \"C:\\data\"}", "because a backslash begins an escape"),
        ] {
            std::fs::write(&path, format!("{{\"audio\": \"b.wav\"}}\n{line}\n")).expect("a file");
            let error = read_manifest(&path).expect_err("a refusal").to_string();
            assert!(error.contains(reason) && error.contains("m.jsonl:2: "), "{error}");
        }
    }
}
