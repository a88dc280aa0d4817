//! The error type of this crate. A message names the file and the line, if any, then the problem
//! and the next step for the user.

use std::io;
use std::path::PathBuf;

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
    #[error("{path}: {reason}; convert the file to WAV or FLAC, or remove it from the data", path = path.display())]
    Audio { path: PathBuf, reason: String },

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

    /// The vocabulary lacks a special token.
    #[error("{path}: no {role} token (looked for {names}); use the tokenizer.json of an encoder such as BERT or RoBERTa", path = path.display())]
    MissingSpecialToken { path: PathBuf, role: &'static str, names: String },

    /// The vocabulary sizes of tokenizer and model do not match.
    #[error("{path}: the tokenizer has {tokenizer} entries, but the model has {model} embeddings; use the tokenizer.json that was published with the weights", path = path.display())]
    VocabularyMismatch { path: PathBuf, tokenizer: usize, model: usize },

    /// The tokenizer and the model have different padding ids.
    #[error("{path}: the tokenizer pads with id {tokenizer}, the model with id {model}; use the tokenizer.json that was published with the weights", path = path.display())]
    PadMismatch { path: PathBuf, tokenizer: u32, model: u32 },

    /// The tokenizer cannot encode a text.
    #[error("{path}: cannot encode {piece:?}: {reason}; download tokenizer.json again, or use a tokenizer with an unknown token", path = path.display())]
    Encode { path: PathBuf, piece: String, reason: String },

    // Images
    /// An image cannot be decoded.
    #[error("{path}: {reason}; use a complete JPEG, PNG, WebP, GIF or BMP file", path = path.display())]
    Image { path: PathBuf, reason: String },

    /// An image exceeds the pixel limit.
    #[error("{path}: the image has {width} x {height} pixels, more than the limit of {max}; resize it first", path = path.display())]
    ImageTooLarge { path: PathBuf, width: u32, height: u32, max: u64 },

    /// The image preprocessing settings cannot be used.
    #[error("{path}: {reason}; use the preprocessor_config.json from the model's folder", path = path.display())]
    Preprocessor { path: PathBuf, reason: String },

    // Settings
    /// A setting is out of range.
    #[error("{what} is {value}; {wanted}")]
    OutOfRange { what: &'static str, value: String, wanted: &'static str },

    // Published data sets
    /// An item does not match its format.
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

    /// The hub requires an access token, or rejects the one given.
    #[error(
        "{location}: the hub refuses access (status {status}); check the name; for a private or gated model, accept its terms and set HF_TOKEN"
    )]
    AccessRefused { location: String, status: u16 },

    /// The hub's response cannot be used.
    #[error(
        "{location}: {endpoint} responded to the request for {file} with {reason}; check HF_ENDPOINT"
    )]
    HubResponse { location: String, file: String, endpoint: String, reason: String },

    /// A download has a different size from the hub's file.
    #[error(
        "{location}: {file} has {announced} bytes on the hub, but {found} bytes arrived; run again"
    )]
    WrongSize { location: String, file: String, announced: u64, found: u64 },

    /// A download does not match the hub's checksum.
    #[error(
        "{location}: the download of {file} does not match its checksum ({hash}); run again, over another network if the error persists"
    )]
    WrongChecksum { location: String, file: String, hash: &'static str },

    /// The missing bytes of a file exceed the free disk space.
    #[error(
        "{location}: {file} has {size} bytes on the hub, but {path} has {free} bytes free; free some space, or set HF_HUB_CACHE to a folder on a larger disk",
        path = path.display()
    )]
    NoSpace { location: String, file: String, size: u64, free: u64, path: PathBuf },

    /// A link in the cache leads out of the cache.
    #[error("{path}: this link leads out of the hub's cache, so Engram does not write through it; remove the link, or set HF_HUB_CACHE to another folder", path = path.display())]
    CacheLink { path: PathBuf },

    /// The access token cannot be sent.
    #[error(
        "{location}: the access token has characters that are not allowed in an HTTP header; set HF_TOKEN to the token alone"
    )]
    InvalidAccessToken { location: String },

    /// The disk of the cache is full.
    #[error("{path}: no space left on the disk; free some space, or set HF_HOME to a folder on a larger disk", path = path.display())]
    DiskFull { path: PathBuf },
}

impl DataError {
    pub(crate) fn out_of_range(
        what: &'static str,
        value: impl ToString,
        wanted: &'static str,
    ) -> Self {
        Self::OutOfRange { what, value: value.to_string(), wanted }
    }
}
