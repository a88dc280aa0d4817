//! The errors of a memory. Most messages name the file and the remedy.

use std::io;
use std::path::{Path, PathBuf};

/// An error of this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// A file could not be read.
    #[error("{}: could not be read; check the path and its permissions", .file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// The error of the operating system.
        #[source]
        source: io::Error,
    },
    /// A text input is invalid.
    #[error(transparent)]
    Text(#[from] engram_textfile::TextError),
    /// A file could not be written.
    #[error("{}: could not be written; check the folder, its permissions and the free space", .file.display())]
    Write {
        /// The file.
        file: PathBuf,
        /// The error of the operating system.
        #[source]
        source: io::Error,
    },
    /// A change was made, but a later step failed.
    #[error(
        "{}: the change is made: generation {generation} is current. A later step failed; \
         check the memory with `engram memory verify` (on a server: `info`). Only a push may be \
         repeated", .folder.display()
    )]
    ChangeMade {
        /// The memory's folder or address.
        folder: PathBuf,
        /// The generation that the change created.
        generation: u64,
        /// The error of the failed step.
        #[source]
        source: Box<Self>,
    },
    /// The folder is not a memory.
    #[error("{}: is not a memory; build one with `engram memory build`", .folder.display())]
    NoMemory {
        /// The folder.
        folder: PathBuf,
    },
    /// The current generation was removed.
    #[error(
        "{}: generation {generation} is missing: it was removed, perhaps while it was read; \
         restore a copy of the memory, or build it again (for the memory of a run: resume the \
         training)", .folder.display()
    )]
    MissingGeneration {
        /// The memory's folder.
        folder: PathBuf,
        /// The name of the generation's folder or pack.
        generation: String,
    },
    /// The folder for a new memory exists and is not empty.
    #[error(
        "{}: already exists; give a new folder, or add to its memory with `engram memory add`",
        .folder.display()
    )]
    AlreadyExists {
        /// The folder.
        folder: PathBuf,
    },
    /// A file of the memory is missing, was changed, or has invalid content.
    #[error(
        "{}: {reason}; run `engram memory verify` to list the damaged files, then build the \
         memory again or restore a copy", .file.display()
    )]
    Corrupt {
        /// The file.
        file: PathBuf,
        /// The reason.
        reason: String,
    },
    /// The memory has another version of the format than this program reads.
    #[error(
        "{}: has format version {found}, but this program reads version {known}; use the version of \
         Engram that wrote it, or build the memory again", .file.display()
    )]
    UnknownFormat {
        /// The manifest.
        file: PathBuf,
        /// The format version of the memory.
        found: u64,
        /// The version that this program reads.
        known: u64,
    },
    /// Another process is writing to the memory.
    #[error("{}: another process is writing to this memory; wait until it has ended", .folder.display())]
    Locked {
        /// The memory's folder.
        folder: PathBuf,
    },
    /// The server of a memory could not be reached, or refused a request.
    #[error("{location}: {reason}; {remedy}")]
    Remote {
        /// The address of the memory, without a password.
        location: String,
        /// The reason.
        reason: String,
        /// The remedy.
        remedy: &'static str,
    },
    /// A memory exists on the server, and was not to be replaced.
    #[error(
        "{location}: a memory exists here already; replace it, or give another name with memory=NAME"
    )]
    RemoteExists {
        /// The address of the memory, without a password.
        location: String,
    },
    /// An object store has the values of another memory, and they were not to be replaced.
    #[error(
        "{location}: has the values of another memory; give another address, because each memory \
         needs one of its own, or replace the values"
    )]
    ForeignValues {
        /// The address of the object store.
        location: String,
    },
    /// An object of an object store is missing or damaged.
    #[error(
        "{location}: {reason}; restore a copy of the object; if the memory's folder still has the \
         values, push it again and recheck all shards"
    )]
    DamagedObject {
        /// The address of the object.
        location: String,
        /// The reason.
        reason: String,
    },
    /// The values of a memory are in an object store, and this program cannot read them.
    #[error(
        "{location}: has the values of {}, and this program cannot read them; use a program with a \
         client of object stores", .folder.display()
    )]
    UnreadableValues {
        /// The address of the values.
        location: String,
        /// The memory's folder.
        folder: PathBuf,
    },
    /// The columns of a CSV do not fit the fields of entries.
    #[error(transparent)]
    Columns(engram_textfile::TextError),
    /// Vectors have another width than the memory.
    #[error(
        "{what} of width {found}, but the memory has width {expected}; encode them with the \
         model that encoded the memory"
    )]
    Width {
        /// The vectors, such as `queries`, with the name of their file if they are from a file.
        what: String,
        /// The memory's width.
        expected: usize,
        /// The width of the vectors.
        found: usize,
    },
    /// A query, a key or a value is not valid, for example because it contains NaN.
    #[error("{what} {row} {reason}; correct or remove that row")]
    BadVector {
        /// The kind of vector, such as `query` or `the key of row`.
        what: &'static str,
        /// The row of the vector, from 0.
        row: usize,
        /// The reason.
        reason: &'static str,
    },
    /// A batch has unequal numbers of entries, keys and values, or the batches have more or fewer
    /// rows in all than the caller announced.
    #[error("{found} {what} instead of {expected}; give one entry, one key and one value per row")]
    Count {
        /// The counted items, such as `entries` or `key components`.
        what: &'static str,
        /// The expected number of items.
        expected: usize,
        /// The number of items.
        found: usize,
    },
    /// No entry has this id.
    #[error("no entry has the id {id} ({missing} of {requested} ids are unknown)")]
    UnknownId {
        /// The first unknown id.
        id: i64,
        /// The number of unknown ids.
        missing: usize,
        /// The number of requested ids.
        requested: usize,
    },
    /// An entry with this id exists already.
    #[error(
        "the id {id} exists already; give each entry its own id (`engram memory update` replaces \
         entries)"
    )]
    DuplicateId {
        /// The id.
        id: i64,
    },
    /// No entry has this source.
    #[error("no entry has the source `{name}`; the sources are {known}")]
    UnknownSource {
        /// The requested name.
        name: String,
        /// The existing names.
        known: String,
    },
    /// The gates of a search lack a source of the memory.
    #[error("the gate of source `{name}` is missing; give one gate for each source of the memory")]
    MissingGate {
        /// The source.
        name: String,
    },
    /// A transaction cannot have this part, or cannot be committed.
    #[error("{reason}; the memory is unchanged")]
    Transaction {
        /// The reason and the remedy.
        reason: &'static str,
    },
    /// A refresh was cancelled; the memory is unchanged.
    #[error("the refresh was cancelled; the memory is unchanged")]
    RefreshCancelled,
    /// Nearly all queries retrieve the same entry.
    #[error(
        "retrieval has collapsed: {:.0} % of {queries} queries retrieved the same entry, and \
         all queries together only {distinct} entries; warm up the retriever longer, lower its \
         learning rate, raise the weight of the contrastive loss, or refresh the memory more often",
        100.0 * .largest_share
    )]
    Collapsed {
        /// The number of queries.
        queries: u64,
        /// The number of distinct entries that the queries retrieved.
        distinct: u64,
        /// The fraction of queries that retrieved the most frequent entry.
        largest_share: f64,
    },
    /// An input file is malformed.
    #[error("{}{}: {reason}; {remedy}", .file.display(), .line.map_or_else(String::new, |line| format!(":{line}")))]
    Malformed {
        /// The file.
        file: PathBuf,
        /// The line, from 1; `None` for an error that is not in a line.
        line: Option<u64>,
        /// The reason.
        reason: String,
        /// The remedy.
        remedy: &'static str,
    },
    /// The caller's iterator of batches failed, for example because its model cannot encode an
    /// image.
    #[error(transparent)]
    Rows(Box<dyn std::error::Error + Send + Sync>),
    /// A setting is not valid.
    #[error("{option} is {found}, but must be {expected}")]
    InvalidOption {
        /// The setting.
        option: &'static str,
        /// The value of the setting.
        found: String,
        /// The valid values.
        expected: &'static str,
    },
}

impl MemoryError {
    /// Wraps an error of reading a file, for `map_err`.
    pub(crate) fn read(file: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Read { file: file.to_owned(), source }
    }

    /// Wraps an error of writing a file, for `map_err`.
    pub(crate) fn write(file: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Write { file: file.to_owned(), source }
    }

    /// Creates an [`InvalidOption`](Self::InvalidOption) error.
    pub fn invalid(option: &'static str, found: impl ToString, expected: &'static str) -> Self {
        Self::InvalidOption { option, found: found.to_string(), expected }
    }

    /// Returns a [`Count`](Self::Count) error unless `expected` and `found` are equal.
    pub fn check_count(what: &'static str, expected: usize, found: usize) -> Result<(), Self> {
        if expected == found { Ok(()) } else { Err(Self::Count { what, expected, found }) }
    }

    /// Returns an [`UnknownId`](Self::UnknownId) error if there are `missing` ids among `requested`
    /// ids.
    pub fn check_known(missing: &[i64], requested: usize) -> Result<(), Self> {
        let missing_ids = missing.len();
        let error = |id: &i64| Self::UnknownId { id: *id, missing: missing_ids, requested };
        missing.first().map_or(Ok(()), |id| Err(error(id)))
    }

    /// Creates a [`Corrupt`](Self::Corrupt) error. The reason is a clause after the file name.
    pub(crate) fn corrupt(file: &Path, reason: impl Into<String>) -> Self {
        Self::Corrupt { file: file.to_owned(), reason: one_line(&reason.into()) }
    }
}

/// The maximum number of characters of a reason.
const MAX_REASON_CHARS: usize = 300;

/// Shortens a reason, which may quote a file, and puts it on one line.
pub fn one_line(reason: &str) -> String {
    let printable = reason.chars().map(|c| if c.is_control() { ' ' } else { c });
    if reason.chars().count() > MAX_REASON_CHARS {
        printable.take(MAX_REASON_CHARS).chain(['…']).collect()
    } else {
        printable.collect()
    }
}
