//! Speech data: clips of audio files, published data sets, transcripts as tokens, and SpecAugment.
//!
//! [`read`] returns the clips of any supported format, and [`write_manifest`] saves them:
//!
//! ```no_run
//! use engram_data::speech::{self, SpeechFormat, SpeechSource, manifest::write_manifest};
//!
//! let format: SpeechFormat = "visspeech".parse()?;
//! let source = SpeechSource { audio: Some("audio".into()), ..SpeechSource::new("VisSpeech.csv") };
//! let data_set = speech::read(format, &source)?;
//! write_manifest("visspeech.jsonl".as_ref(), &data_set.clips)?;
//! # Ok::<(), engram_data::DataError>(())
//! ```
//!
//! [`write_manifest`]: manifest::write_manifest

pub mod ego4d;
pub mod espeak;
pub mod frames;
mod gather;
pub mod how2;
pub mod howto100m;
pub mod librispeech;
mod lists;
pub mod manifest;
pub mod spec_augment;
pub mod tokenizer;
pub mod visspeech;

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use self::gather::{ClipCollector, Position};
pub use self::gather::{MissingAudio, SpeechClips};
use self::manifest::InputClips;
use crate::DataError;
use crate::audio::check_is_not_text;

/// A format of speech clips.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum SpeechFormat {
    /// [`librispeech`]
    LibriSpeech,
    /// [`how2`], and other folders in Kaldi format
    How2,
    /// [`visspeech`]
    VisSpeech,
    /// [`ego4d`]
    Ego4D,
    /// [`howto100m`]
    HowTo100M,
    /// [`manifest`]: our own JSON lines, a list of another program, a folder of audio files, or a
    /// single audio file
    Manifest,
}

impl SpeechFormat {
    /// All formats.
    pub const ALL: [Self; 6] = [
        Self::LibriSpeech,
        Self::How2,
        Self::VisSpeech,
        Self::Ego4D,
        Self::HowTo100M,
        Self::Manifest,
    ];

    /// Returns the name in recipes and commands.
    pub fn name(self) -> &'static str {
        match self {
            Self::LibriSpeech => "librispeech",
            Self::How2 => "how2",
            Self::VisSpeech => "visspeech",
            Self::Ego4D => "ego4d",
            Self::HowTo100M => "howto100m",
            Self::Manifest => "manifest",
        }
    }
}

impl fmt::Display for SpeechFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for SpeechFormat {
    type Err = DataError;

    fn from_str(name: &str) -> Result<Self, DataError> {
        Self::ALL.into_iter().find(|format| format.name() == name).ok_or_else(|| {
            DataError::OutOfRange {
                what: "the format of the clips",
                value: format!("{name:?}"),
                wanted: "use librispeech, how2, visspeech, ego4d, howto100m or manifest",
            }
        })
    }
}

/// The location of a data set, and the treatment of missing audio files.
#[derive(Debug, Clone, PartialEq)]
pub struct SpeechSource {
    /// The folder or file; each format's module documents it.
    pub path: PathBuf,
    /// The folder of the audio files; `None` if the data set gives their paths. Subfolders are
    /// searched, too. If files differ only in their extension, the first extension in the order
    /// WAV, FLAC, MP3, … is used.
    pub audio: Option<PathBuf>,
    /// A folder with a subfolder of JPEG or PNG files per clip, named by the id of the clip or of
    /// its recording; `None` for clips without images. Every clip of a recording gets all images of
    /// the recording, sorted by the number at the end of their names.
    pub frames: Option<PathBuf>,
    /// The frame rate of images that are numbered from 0: the time of an image in seconds is its
    /// number divided by this rate. Use 1 if the numbers are seconds. Each clip then gets only the
    /// images of its recording within its time. If there is none, it gets the nearest image, if
    /// that is at most one image interval away. With `None`, images have no times.
    pub frame_rate: Option<f64>,
    /// Whether to skip clips without an audio file and return a list of them, instead of an error.
    pub skip_missing: bool,
}

impl SpeechSource {
    /// Creates a source with only a path. A missing audio file is an error.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), audio: None, frames: None, frame_rate: None, skip_missing: false }
    }
}

/// Reads the clips of a data set. Audio files are located but not opened.
///
/// # Errors
/// - as the format's `read`;
/// - `MissingAudio` if the audio files of some clips are missing; with `skip_missing`, only if
///   the audio files of all clips are missing;
/// - `Text` if `frames` has no image of any clip, or if `audio` is given although the data set
///   gives the paths.
pub fn read(format: SpeechFormat, source: &SpeechSource) -> Result<SpeechClips, DataError> {
    match format {
        SpeechFormat::LibriSpeech => librispeech::read(source),
        SpeechFormat::How2 => how2::read(source),
        SpeechFormat::VisSpeech => visspeech::read(source),
        SpeechFormat::Ego4D => ego4d::read(source),
        SpeechFormat::HowTo100M => howto100m::read(source),
        SpeechFormat::Manifest => read_manifest(source),
    }
}

fn read_manifest(source: &SpeechSource) -> Result<SpeechClips, DataError> {
    gather::refuse_audio_folder(source)?;
    let mut collector = ClipCollector::new(source);
    // A pipe such as standard input is a manifest, because clips of its audio could not be read.
    let InputClips { clips, skipped, taken_as } = if source.path.starts_with("/dev") {
        manifest::read_list(&source.path)?
    } else {
        manifest::input_clips(&source.path)?
    };
    if clips.iter().any(|clip| clip.audio == source.path) {
        check_is_not_text(&source.path)?;
    }
    (collector.output.skipped, collector.output.taken_as) = (skipped, taken_as);
    for clip in clips {
        let id = clip.id.clone();
        let position =
            if clip.line == 0 { Position::Entry(&id) } else { Position::Line(clip.line) };
        let audio = if clip.audio.exists() {
            Ok(clip.audio.clone())
        } else {
            Err(clip.audio.display().to_string())
        };
        collector.push(&source.path, position, &id, clip, audio)?;
    }
    collector.finish()
}
