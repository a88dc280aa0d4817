//! The error type of this crate. A message names the file and the line, if any, then the problem
//! and the next step for the user.

use std::io;
use std::path::{Path, PathBuf};

use engram_textfile::{Location, TextError};

/// An error in external data.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)] // The message of a variant explains its fields.
pub enum DataError {
    // Files
    /// A text file cannot be read, or a line of it has the wrong format.
    #[error(transparent)]
    Text(#[from] TextError),

    /// The file cannot be opened, read or written.
    #[error("{path}: {source}; check the path and its permissions", path = path.display())]
    Io { path: PathBuf, source: io::Error },

    /// The file has no content at all.
    #[error("{path}: the file is empty; was the download or export interrupted?", path = path.display())]
    EmptyFile { path: PathBuf },

    // Audio
    /// An audio file cannot be used.
    #[error("{path}: {reason}; convert it to a new WAV file (ffmpeg -i IN -ar 16000 -ac 1 OUT.wav), or remove it from the data", path = path.display())]
    Audio { path: PathBuf, reason: String },

    /// A file came where raw samples are expected.
    #[error("{path}: begins like a file of the format {format}, but is read as raw samples (16 kHz, mono, 16 bits, little-endian); convert the recording (ffmpeg -i RECORDING -f s16le -ar 16000 -ac 1 -), or give the name of its file", path = path.display())]
    NotRaw { path: PathBuf, format: &'static str },

    /// The video frames of a clip cannot be used.
    #[error("clip `{clip}`: {reason}")]
    Frames { clip: String, reason: String },

    /// The audio files of some clips are missing.
    #[error("{path}: {missing} of {clips} clips have no audio file: {examples}; download these files, correct the folder, or skip clips without audio", path = path.display())]
    MissingAudio { path: PathBuf, missing: usize, clips: usize, examples: String },

    // Phrase pairs
    /// A context has no title.
    #[error(
        "{location}: context {context:?} is not in the list of class titles{}; correct the context, or use a title list that contains it",
        nearest.as_ref().map(|title| format!(", the nearest is {title:?}")).unwrap_or_default()
    )]
    UnknownContext { location: Location, context: String, nearest: Option<String> },

    // Folds
    /// There are fewer groups than parts to fill.
    #[error("{groups} groups cannot fill {parts} parts; use at most {groups} folds, or more data")]
    TooFewGroups { groups: usize, parts: usize },

    // Tokens
    /// The file is not a usable tokenizer.
    #[error("{path}: not a usable tokenizer: {reason}; use the tokenizer.json from the model's folder", path = path.display())]
    Tokenizer { path: PathBuf, reason: String },

    // Images
    /// An image cannot be decoded.
    #[error("{path}: {reason}; use a complete JPEG, PNG, WebP, GIF or BMP file", path = path.display())]
    Image { path: PathBuf, reason: String },

    /// An image exceeds the pixel limit.
    #[error("{path}: the image has {width} x {height} pixels, more than the limit of {max}; resize it first", path = path.display())]
    ImageTooLarge { path: PathBuf, width: u32, height: u32, max: u64 },

    // Settings
    /// The arguments for a data set do not fit together.
    #[error("{reason}; {remedy}")]
    Arguments { reason: String, remedy: &'static str },

    /// A setting is out of range.
    #[error("{what} is {value}; {wanted}")]
    OutOfRange { what: &'static str, value: String, wanted: &'static str },

    // Files with a format
    /// A file, or an item of it, does not match its format, or cannot be used.
    #[error(
        "{path}{}: {reason}; {remedy}",
        place.as_ref().map(|place| format!(", {place}")).unwrap_or_default(), path = path.display()
    )]
    Malformed { path: PathBuf, place: Option<String>, reason: String, remedy: &'static str },

    // Weights from the hub
    /// An `hf://` address does not name a model.
    #[error(
        "{location:?} does not name a model; write hf://owner/name or hf://owner/name@revision"
    )]
    HubLocation { location: String },

    /// `owner/name` without `hf://` is not a folder.
    #[error(
        "{location}: there is no such folder; check the path, or write hf://{location} for the model on the Hugging Face Hub"
    )]
    NoFolder { location: String },

    /// Neither the folder nor the hub has the file.
    #[error(
        "{location}: no file {file:?} (or no such model or revision); check the names, or use a folder that has the file"
    )]
    MissingFile { location: String, file: String },

    /// The file is not in the cache, and the run is offline.
    #[error("{location}: {file} is not in the cache, and this run is offline; run once online, or put the file at {cache_path}", cache_path = cache_path.display())]
    Offline { location: String, file: String, cache_path: PathBuf },

    /// The hub cannot be reached, or all retries failed.
    #[error("{location}: cannot download {file} from {endpoint}: {reason}; run again when online (the download resumes), or put the file at {cache_path}", cache_path = cache_path.display())]
    NoNetwork {
        location: String,
        file: String,
        endpoint: String,
        reason: String,
        cache_path: PathBuf,
    },

    /// The hub or its response cannot be used.
    #[error("{location}: {reason}; {remedy}")]
    Hub { location: String, reason: String, remedy: &'static str },
}

impl DataError {
    /// Creates an error about a whole file.
    pub(crate) fn of_file(path: &Path, reason: impl Into<String>, remedy: &'static str) -> Self {
        Self::Malformed { path: path.to_owned(), place: None, reason: reason.into(), remedy }
    }

    /// Creates an error about a value outside of its range.
    pub fn out_of_range(what: &'static str, value: impl ToString, wanted: &'static str) -> Self {
        Self::OutOfRange { what, value: value.to_string(), wanted }
    }
}
