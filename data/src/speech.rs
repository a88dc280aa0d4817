//! Speech: clips of sound files, published data sets of them, texts as tokens, and masked frames.
//!
//! [`read`] gives the clips of any of the known forms, and [`write_manifest`] keeps them:
//!
//! ```no_run
//! use engram_data::speech::{self, SpeechFormat, SpeechSource, manifest::write_manifest};
//!
//! let format: SpeechFormat = "visspeech".parse()?;
//! let source = SpeechSource { audio: Some("audio".into()), ..SpeechSource::new("VisSpeech.csv") };
//! let read = speech::read(format, &source)?;
//! write_manifest("visspeech.jsonl".as_ref(), &read.clips)?;
//! # Ok::<(), engram_data::DataError>(())
//! ```
//!
//! [`write_manifest`]: manifest::write_manifest

pub mod ego4d;
pub mod frames;
mod gather;
pub mod how2;
pub mod howto100m;
pub mod librispeech;
pub mod manifest;
pub mod spec_augment;
pub mod tokens;
pub mod visspeech;

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use self::gather::{Gathering, Place};
pub use self::gather::{MissingAudio, SpeechClips};
use crate::DataError;

/// A form in which clips are published.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum SpeechFormat {
    /// [`librispeech`]
    LibriSpeech,
    /// [`how2`], and other folders in the form of Kaldi
    How2,
    /// [`visspeech`]
    VisSpeech,
    /// [`ego4d`]
    Ego4D,
    /// [`howto100m`]
    HowTo100M,
    /// [`manifest`]: our own lines, a folder of sound files, or one of them
    Manifest,
}

impl SpeechFormat {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::LibriSpeech,
        Self::How2,
        Self::VisSpeech,
        Self::Ego4D,
        Self::HowTo100M,
        Self::Manifest,
    ];

    /// Its name in recipes and commands.
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
                wanted: "give librispeech, how2, visspeech, ego4d, howto100m or manifest",
            }
        })
    }
}

/// Where a data set lies, and what is done about sound that is not there.
#[derive(Debug, Clone, PartialEq)]
pub struct SpeechSource {
    /// The folder or file that each format's module names.
    pub path: PathBuf,
    /// The folder of the sound files, where the data set does not say where they are. Folders in it are
    /// searched too; of files of one name the first by ending is taken (WAV, FLAC, MP3, …).
    pub audio: Option<PathBuf>,
    /// A folder with a folder of JPEG files for each clip, named by the clip's id or by its recording's.
    /// All pictures of a recording are given to each of its clips, in the order of the number at the
    /// end of their names.
    pub frames: Option<PathBuf>,
    /// How many of these numbers make a second, where pictures are numbered from 0 in even steps (1 where
    /// the numbers are seconds): a clip then gets those of its recording that are seen while it lasts.
    pub frame_rate: Option<f64>,
    /// Whether clips without their sound file are left out and listed, instead of ending the reading.
    pub skip_missing: bool,
}

impl SpeechSource {
    /// A data set with nothing beside it, every sound file of which must be there.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), audio: None, frames: None, frame_rate: None, skip_missing: false }
    }
}

/// Reads the clips of a data set. Sound files are looked for, and not opened.
///
/// # Errors   those of the format's `read`; `MissingAudio`, with `skip_missing` only where no clip is
/// left; `Malformed` for a folder of pictures of which no clip has one, and for a folder of sound files
/// where the data set says itself where they are
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
    gather::refuse_audio(source)?;
    let mut gathering = Gathering::new(source);
    let (clips, passed_over) = manifest::clips_and_passed_over(&source.path)?;
    gathering.found.hidden = passed_over.hidden;
    for clip in clips {
        let id = clip.id.clone();
        let place = if clip.line == 0 { Place::Entry(&id) } else { Place::Line(clip.line) };
        let audio = match clip.audio.exists() {
            true => Ok(clip.audio.clone()),
            false => Err(clip.audio.display().to_string()),
        };
        gathering.push(&source.path, place, &id, clip, audio)?;
    }
    gathering.finish()
}
