//! The one error of this crate. Each case names the file (and line), what was found, what was
//! wanted, and what the user can do next.

use std::io;
use std::path::PathBuf;

/// What can go wrong with data that comes from outside.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)] // The fields are named for what they are, and the message uses each.
pub enum DataError {
    // Files
    /// The file cannot be opened, read or written.
    #[error("{path}: {source}; check the path and its permissions", path = path.display())]
    Io { path: PathBuf, source: io::Error },

    /// The file has no content at all.
    #[error("{path}: the file is empty; was its download or export broken off?", path = path.display())]
    EmptyFile { path: PathBuf },

    /// The file has a header and nothing else.
    #[error("{path}: a header but no rows; was its download or export broken off?", path = path.display())]
    NoRows { path: PathBuf },

    /// Bytes that are not UTF-8.
    #[error("{path}, line {line}: not UTF-8; save the file as UTF-8 (with or without BOM)", path = path.display())]
    NotUtf8 { path: PathBuf, line: usize },

    // Tables
    /// A column is not in the header.
    #[error(
        "{path}, line 1: no column {column:?}, found: {}; add it to the header or correct its name",
        found.join(", "), path = path.display()
    )]
    MissingColumn { path: PathBuf, column: String, found: Vec<String> },

    /// A column is in the header twice.
    #[error("{path}, line 1: column {column:?} appears twice; remove or rename one", path = path.display())]
    DoubledColumn { path: PathBuf, column: String },

    /// A quoted field is never closed.
    #[error("{path}, line {line}: a quote opened here is never closed; close it, and write a quote inside a field as \"\"", path = path.display())]
    UnclosedQuote { path: PathBuf, line: usize },

    /// A quoted field is followed by something else than a separator.
    #[error("{path}, line {line}: text after a closing quote; write a quote inside a field as \"\"", path = path.display())]
    TextAfterQuote { path: PathBuf, line: usize },

    /// A row has more or fewer fields than the header.
    #[error("{path}, line {line}: {found} fields where the header has {expected}; quote a field that contains the separator", path = path.display())]
    FieldCount { path: PathBuf, line: usize, expected: usize, found: usize },

    /// A field that must have text is blank.
    #[error("{path}, line {line}: {column} is empty; fill it in or remove the row", path = path.display())]
    EmptyField { path: PathBuf, line: usize, column: &'static str },

    // Sound
    /// A sound file that cannot be used.
    #[error("{path}: {reason}; convert it to WAV or FLAC, or leave it out", path = path.display())]
    Audio { path: PathBuf, reason: String },

    /// A line of a manifest that names no clip.
    #[error("{path}, line {line}: {reason}", path = path.display())]
    Manifest { path: PathBuf, line: usize, reason: String },

    /// A clip that is not seen as it should be.
    #[error("clip `{clip}`: {reason}")]
    Frames { clip: String, reason: String },

    /// Clips whose sound files are not there.
    #[error("{path}: {missing} of {clips} clips have no sound file: {named}; fetch these files, correct the folder, or ask for such clips to be left out", path = path.display())]
    MissingAudio { path: PathBuf, missing: usize, clips: usize, named: String },

    // Phrase pairs
    /// A score is not a number from 0 to 1.
    #[error("{path}, line {line}: score {value:?} {reason}; scores are numbers from 0 to 1", path = path.display())]
    Score { path: PathBuf, line: usize, value: String, reason: &'static str },

    /// Two rows have one id.
    #[error("{path}, line {second}: id {id:?} was already used on line {first}; make ids unique", path = path.display())]
    DoubledId { path: PathBuf, id: String, first: usize, second: usize },

    /// A context has no title.
    #[error(
        "{path}, line {line}: context {context:?} is not in the list of class titles{}; correct it, or use a title list that has it",
        nearest.as_ref().map(|n| format!(", the nearest is {n:?}")).unwrap_or_default(), path = path.display()
    )]
    UnknownContext { path: PathBuf, line: usize, context: String, nearest: Option<String> },

    /// A line of a title list is not `code TAB … TAB title`.
    #[error("{path}, line {line}: expected `code<TAB>title` or `code<TAB><TAB>title`; is this a list of class titles?", path = path.display())]
    TitleLine { path: PathBuf, line: usize },

    // Folds
    /// There are fewer groups than parts to fill.
    #[error("{groups} groups cannot fill {parts} parts; use at most {groups} folds, or more data")]
    TooFewGroups { groups: usize, parts: usize },

    /// Fewer than two folds, or a share outside (0, 1).
    #[error("{what} is {value}; {wanted}")]
    Split { what: &'static str, value: f64, wanted: &'static str },

    /// Two columns of one data set differ in length.
    #[error("{left} {left_name} but {right} {right_name}: one of each is needed for every row")]
    LengthMismatch { left_name: &'static str, left: usize, right_name: &'static str, right: usize },

    // Tokens
    /// The file is no tokenizer.
    #[error("{path}: not a usable tokenizer: {reason}; take tokenizer.json from the folder of the model's weights", path = path.display())]
    Tokenizer { path: PathBuf, reason: String },

    /// A special token is not in the vocabulary.
    #[error("{path}: no {role} token (looked for {names}); take the tokenizer.json of an encoder such as BERT or RoBERTa", path = path.display())]
    MissingSpecialToken { path: PathBuf, role: &'static str, names: String },

    /// The tokenizer and the model count different vocabularies.
    #[error("{path}: the tokenizer has {tokenizer} entries, the model {model} embeddings; use the tokenizer.json that was published with the weights", path = path.display())]
    VocabularyMismatch { path: PathBuf, tokenizer: usize, model: usize },

    /// The tokenizer and the model fill batches with different ids.
    #[error("{path}: the tokenizer pads with id {tokenizer}, the model with id {model}; use the tokenizer.json that was published with the weights", path = path.display())]
    PadMismatch { path: PathBuf, tokenizer: u32, model: u32 },

    /// A text cannot be expressed in the vocabulary.
    #[error("{path}: cannot encode {piece:?}: {reason}; fetch tokenizer.json again, or take one with an unknown token", path = path.display())]
    Encode { path: PathBuf, piece: String, reason: String },

    // Pictures
    /// A picture cannot be decoded.
    #[error("{path}: {reason}; give a whole JPEG, PNG, WebP, GIF or BMP file", path = path.display())]
    Picture { path: PathBuf, reason: String },

    /// A picture of more pixels than are decoded.
    #[error("{path}: a picture of {width} x {height} pixels, more than {most}; make it smaller first", path = path.display())]
    LargePicture { path: PathBuf, width: u32, height: u32, most: u64 },

    /// The settings of a picture's way into a model.
    #[error("{path}: {reason}; take preprocessor_config.json from the folder of the model's weights", path = path.display())]
    Preprocessor { path: PathBuf, reason: String },

    // Word vectors
    /// A line of a vector file is not a word and its values.
    #[error("{path}, line {line}: {reason}; give a GloVe or word2vec file in text form, whole", path = path.display())]
    VectorLine { path: PathBuf, line: usize, reason: String },

    // Augmentation and the embedded world
    /// A setting is outside of what it may be.
    #[error("{what} is {value}; {wanted}")]
    OutOfRange { what: &'static str, value: String, wanted: &'static str },

    // Published data sets
    /// A gzip file is cut short or broken.
    #[error("{path}: is gzip-compressed but cannot be unpacked: {reason}; fetch or pack the file again", path = path.display())]
    Gzip { path: PathBuf, reason: String },

    /// A row or an item is not as its format has it.
    #[error(
        "{path}{}: {reason}; {remedy}",
        place.as_ref().map(|place| format!(", {place}")).unwrap_or_default(), path = path.display()
    )]
    Malformed { path: PathBuf, place: Option<String>, reason: String, remedy: &'static str },

    /// A pattern for the names of pictures has no place for the number.
    #[error(
        "{pattern:?}: no pattern for file names; write %d, %012d or %s once, where the picture's number stands"
    )]
    ImagePattern { pattern: String },

    // Weights from the hub
    /// An `hf://` address that names no model.
    #[error("{location:?} names no model; write hf://owner/name or hf://owner/name@revision")]
    HubLocation { location: String },

    /// Neither the folder nor the hub has the file.
    #[error(
        "{location}: no file {file:?} (or no such model or revision); check the names, or give a folder that has the file"
    )]
    MissingFile { location: String, file: String },

    /// The file is not in the cache, and the network must not be used.
    #[error("{location}: {file} is not in the cache, and this run is offline; run once online, or put the file at {put}", put = put.display())]
    Offline { location: String, file: String, put: PathBuf },

    /// The hub cannot be reached, or the connection broke once too often.
    #[error("{location}: cannot fetch {file} from {endpoint}: {reason}; run again when online (what has arrived is kept), or put the file at {put}", put = put.display())]
    NoNetwork { location: String, file: String, endpoint: String, reason: String, put: PathBuf },

    /// The hub wants a token, or a better one.
    #[error(
        "{location}: the hub refuses access (status {status}); check the name, and for a private or gated model accept its terms and set HF_TOKEN"
    )]
    AccessRefused { location: String, status: u16 },

    /// The hub's answer cannot be used.
    #[error("{location}: {endpoint} answers for {file} with {reason}; check HF_ENDPOINT")]
    HubAnswer { location: String, file: String, endpoint: String, reason: String },

    /// A download ended with another size than was announced.
    #[error("{location}: {file} has {announced} bytes on the hub, {found} arrived; run again")]
    WrongSize { location: String, file: String, announced: u64, found: u64 },

    /// A download is not what the hub says it is.
    #[error(
        "{location}: what arrived as {file} does not match its checksum ({hash}); run again, over another network if it stays so"
    )]
    WrongChecksum { location: String, file: String, hash: &'static str },

    /// A file is larger than the disk can hold.
    #[error(
        "{location}: {file} has {size} bytes on the hub, and {path} has {free} free; free some space, or set HF_HUB_CACHE to a folder on a larger disk",
        path = path.display()
    )]
    NoSpace { location: String, file: String, size: u64, free: u64, path: PathBuf },

    /// A link in the cache leads out of it.
    #[error("{path}: this link leads out of the hub's cache, so nothing is written through it; remove the link, or set HF_HUB_CACHE to another folder", path = path.display())]
    CacheLink { path: PathBuf },

    /// The access token cannot be sent.
    #[error(
        "{location}: the access token holds characters that no HTTP header can carry; set HF_TOKEN to the token alone"
    )]
    BadToken { location: String },

    /// The cache cannot grow.
    #[error("{path}: no space left; free some, or set HF_HOME to a folder on a larger disk", path = path.display())]
    DiskFull { path: PathBuf },
}
