//! What can go wrong with a memory; each message names the file and says what to do.

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
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A file could not be written.
    #[error("{}: could not be written; check the folder, its permissions and the free space", .file.display())]
    Write {
        /// The file.
        file: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A change was made, and a step after it failed.
    #[error("{}: the change is made: generation {generation} is the current one. A later step failed; check the memory with `engram memory verify`", .folder.display())]
    Made {
        /// The memory's folder.
        folder: PathBuf,
        /// The generation that the change has made.
        generation: u64,
        /// What failed.
        #[source]
        source: Box<Self>,
    },
    /// A folder holds no memory.
    #[error("{}: holds no memory; make one with `engram memory build`", .folder.display())]
    NoMemory {
        /// The folder.
        folder: PathBuf,
    },
    /// The current generation was removed.
    #[error(
        "{}: its generation {generation} has vanished: the folder is gone, or was removed while it was read; copy the memory from elsewhere, or build it again (a run's: train again with --resume)", .folder.display()
    )]
    Vanished {
        /// The memory's folder.
        folder: PathBuf,
        /// The generation's folder.
        generation: String,
    },
    /// A folder that should become a memory holds something.
    #[error("{}: is already there; give a folder that is not, or `engram memory add` to the memory in it", .folder.display())]
    AlreadyThere {
        /// The folder.
        folder: PathBuf,
    },
    /// A file of the memory is not what was written.
    #[error("{}: {reason}; `engram memory verify` tells which files are broken, and the memory has to be built again or copied from elsewhere", .file.display())]
    Corrupt {
        /// The file.
        file: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The memory was written by a later version.
    #[error("{}: has format version {found}, and this program reads up to {known}; use a later version of Engram", .file.display())]
    Newer {
        /// The manifest.
        file: PathBuf,
        /// Its version.
        found: u64,
        /// The last version that is known here.
        known: u64,
    },
    /// Another process writes to the memory.
    #[error("{}: another process is writing to this memory; wait until it has ended", .folder.display())]
    Locked {
        /// The memory's folder.
        folder: PathBuf,
    },
    /// Vectors of another width than the memory's.
    #[error(
        "{what} of width {found}, but the memory has {expected}; encode them with the model that the memory was built with"
    )]
    Width {
        /// What has the width.
        what: String,
        /// The memory's width.
        expected: usize,
        /// The width that was found.
        found: usize,
    },
    /// A vector that no score can be made of.
    #[error("{what} {row} {reason}; mend or leave out that row")]
    BadVector {
        /// What the vector is: a key, a query, a value.
        what: &'static str,
        /// Its row, from 0.
        row: usize,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// Numbers of rows that should agree do not.
    #[error("{found} {what} for {expected} keys; give one for each key")]
    Count {
        /// What is counted.
        what: &'static str,
        /// The number of keys.
        expected: usize,
        /// The number found.
        found: usize,
    },
    /// An id that no entry has.
    #[error("no entry has the id {id} ({missing} of {asked} ids are unknown); nothing was changed")]
    UnknownId {
        /// The first one.
        id: i64,
        /// How many there are.
        missing: usize,
        /// How many were asked for.
        asked: usize,
    },
    /// An id that is there already.
    #[error(
        "the id {id} is there already; give each entry its own id (`engram memory update` replaces entries)"
    )]
    DoubledId {
        /// The id.
        id: i64,
    },
    /// A source that no entry has, or none that is left.
    #[error("no entry has the source `{name}`; the memory knows {known}")]
    UnknownSource {
        /// The name that was asked for.
        name: String,
        /// The names there are.
        known: String,
    },
    /// Nearly all queries retrieve the same entry.
    #[error("retrieval has collapsed: one entry was found by {:.0} % of {queries} queries, and only {distinct} entries by any; warm the retriever up longer, lower its learning rate, raise the weight of the contrastive loss, or refresh the memory more often", 100.0 * .largest_share)]
    Collapsed {
        /// Queries that were looked at.
        queries: u64,
        /// Entries that any of them found.
        distinct: u64,
        /// The share of queries that found the entry which most of them found.
        largest_share: f64,
    },
    /// An input file with a fault.
    #[error("{}{}: {reason}; {remedy}", .file.display(), .line.map_or_else(String::new, |line| format!(":{line}")))]
    Malformed {
        /// The file.
        file: PathBuf,
        /// The line, from 1, where there is one.
        line: Option<u64>,
        /// What is wrong.
        reason: String,
        /// What to do.
        remedy: &'static str,
    },
    /// Whoever makes the rows could not: a model, a picture.
    #[error(transparent)]
    Rows(Box<dyn std::error::Error + Send + Sync>),
    /// A setting that makes no sense.
    #[error("{option} is {found}, but must be {expected}")]
    BadOption {
        /// The setting.
        option: &'static str,
        /// Its value.
        found: String,
        /// What it may be.
        expected: &'static str,
    },
}

impl MemoryError {
    pub(crate) fn read(file: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Read { file: file.to_owned(), source }
    }

    pub(crate) fn write(file: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Write { file: file.to_owned(), source }
    }

    pub(crate) fn corrupt(file: &Path, reason: impl Into<String>) -> Self {
        Self::Corrupt { file: file.to_owned(), reason: one_line(&reason.into()) }
    }
}

/// Characters of a reason: it may quote what a file holds.
const REASON: usize = 300;

/// A reason that may quote a file, short and on one line.
pub(crate) fn one_line(reason: &str) -> String {
    let shown = reason.chars().map(|c| if c.is_control() { ' ' } else { c });
    match reason.chars().count() > REASON {
        true => shown.take(REASON).chain(['…']).collect(),
        false => shown.collect(),
    }
}
