//! The traits of a memory: its storage ([`Store`]), one state ([`Snapshot`]), one [`Transaction`].
//!
//! Training, inference, the command line and the explorer search and change memories through these
//! traits. A memory in a local folder, [`Memory`](crate::Memory), is one [`Store`].

use std::fmt::Debug;
use std::sync::Arc;

use engram_entry::Entry;

use crate::error::MemoryError;
use crate::format::manifest::{EncoderRecord, ValueFormat};
use crate::generation::{Generation, Info, Row};
use crate::search::{Filter, Queries, SearchResults};
use crate::segment::Batch;

/// A memory in a folder, a database or another storage. All methods of a memory on a server may
/// return [`MemoryError::Remote`].
pub trait Store: Debug + Send + Sync {
    /// The folder or address of the memory, for messages.
    fn location(&self) -> String;

    /// The state that was current when the store was opened or last [reloaded](Store::reload).
    fn snapshot(&self) -> Arc<dyn Snapshot>;

    /// Loads the current state. Returns true if it changed. Existing snapshots keep the old state.
    ///
    /// # Errors
    /// [`MemoryError::NoMemory`], [`MemoryError::MissingGeneration`],
    /// [`MemoryError::UnknownFormat`], [`MemoryError::Corrupt`], [`MemoryError::Read`]
    fn reload(&self) -> Result<bool, MemoryError>;

    /// Starts a change of the current state. No other process can change the memory until the
    /// transaction is committed or dropped.
    ///
    /// # Errors
    /// [`MemoryError::Locked`] while another process writes; the errors of [`Store::reload`]
    fn begin(&self) -> Result<Box<dyn Transaction>, MemoryError>;
}

/// The address of a memory on servers. The memory need not exist yet.
pub trait MemoryServer: Debug + Send + Sync {
    /// The address, for messages.
    fn location(&self) -> String;

    /// Opens the memory; `None` if there is none. Returns `None` for an unfinished push, too.
    ///
    /// # Errors
    /// [`MemoryError::Remote`]
    fn open(&self) -> Result<Option<Box<dyn Store>>, MemoryError>;

    /// Copies a state of a local memory to the servers, and opens the copy. `encoders` are the
    /// models of its keys. With `replace`, the copy becomes the next state of a memory that exists
    /// there. Readers see the copy only when it is complete.
    ///
    /// # Errors
    /// [`MemoryError::Remote`]; [`MemoryError::RemoteExists`] for an existing memory without
    /// `replace`; [`MemoryError::Locked`] while another process writes to it;
    /// [`MemoryError::Corrupt`]
    fn push(
        &self,
        source: &Arc<Generation>,
        encoders: Vec<EncoderRecord>,
        replace: bool,
    ) -> Result<Box<dyn Store>, MemoryError>;
}

/// A change of a memory. Nothing changes before [`Transaction::commit`], which makes all parts of
/// the change at once. Dropping a transaction discards it.
///
/// The ids of added, updated and deleted entries differ, except that a deleted id can be added
/// again. After an error, a transaction can no longer be committed.
pub trait Transaction: Debug + Send {
    /// The state that is changed.
    fn base(&self) -> Arc<dyn Snapshot>;

    /// Adds entries with new ids, from batches with `rows` rows in all.
    ///
    /// # Errors
    /// The errors of the batches; [`MemoryError::DuplicateId`], [`MemoryError::Count`],
    /// [`MemoryError::BadVector`], [`MemoryError::InvalidOption`], [`MemoryError::Transaction`],
    /// [`MemoryError::Corrupt`], [`MemoryError::Write`]
    fn add(&mut self, rows: usize, batches: &mut Batches<'_>) -> Result<(), MemoryError>;

    /// Replaces the entries with the same ids, from batches with `rows` rows in all.
    ///
    /// # Errors
    /// [`MemoryError::UnknownId`]; the errors of [`Transaction::add`]
    fn update(&mut self, rows: usize, batches: &mut Batches<'_>) -> Result<(), MemoryError>;

    /// Deletes entries.
    ///
    /// # Errors
    /// [`MemoryError::UnknownId`], [`MemoryError::Corrupt`]
    fn delete(&mut self, ids: &[i64]) -> Result<(), MemoryError>;

    /// Gives all entries new keys of the models `encoders`, which have `width` components. `encode`
    /// gets all entries in batches, in row order, and returns each batch with new keys. It may also
    /// return new values of the same format. This must be the only part of the transaction.
    ///
    /// # Errors
    /// The errors of `encode`; [`MemoryError::Count`], [`MemoryError::BadVector`],
    /// [`MemoryError::InvalidOption`], [`MemoryError::Corrupt`], [`MemoryError::Write`]
    fn re_encode(
        &mut self,
        encoders: Vec<EncoderRecord>,
        width: usize,
        encode: &mut dyn FnMut(Batch) -> Result<Batch, MemoryError>,
    ) -> Result<(), MemoryError>;

    /// Does the slow part of the commit in advance, such as sending values to an object store.
    /// Readers do not see it. Without this call, the commit does it.
    ///
    /// # Errors
    /// [`MemoryError::Remote`], [`MemoryError::Corrupt`]; the change can then not be committed
    fn prepare(&mut self) -> Result<(), MemoryError> {
        Ok(())
    }

    /// Makes the change. Returns the new state. The store's own snapshot does not change until its
    /// next [reload](Store::reload).
    ///
    /// # Errors
    /// [`MemoryError::ChangeMade`] if the change is made despite the error. All other errors leave
    /// the memory unchanged: [`MemoryError::Write`], [`MemoryError::Corrupt`];
    /// [`MemoryError::Transaction`] if a part of the transaction failed.
    fn commit(self: Box<Self>) -> Result<Arc<dyn Snapshot>, MemoryError> {
        Ok(self.commit_and_begin()?.base())
    }

    /// Makes the change, and starts the next transaction. No other process can change the memory
    /// between the two.
    ///
    /// # Errors
    /// The errors of [`Transaction::commit`].
    fn commit_and_begin(self: Box<Self>) -> Result<Box<dyn Transaction>, MemoryError>;
}

/// Batches of new entries, with keys and values.
pub type Batches<'a> = dyn Iterator<Item = Result<Batch, MemoryError>> + 'a;

/// The shape and the origin of a memory's entries.
#[derive(Debug, Clone, PartialEq)]
pub struct Description {
    /// The folder or address of the memory, for messages.
    pub location: String,
    /// The number of the generation.
    pub generation: u64,
    /// The number of entries, excluding deleted rows.
    pub entries: usize,
    /// The number of deleted rows that still need space.
    pub deleted: usize,
    /// The width of a key.
    pub width: usize,
    /// Whether keys are normalised to unit length, so that scores are cosines.
    pub normalised: bool,
    /// The format of values; `None` for a memory without values.
    pub values: Option<ValueFormat>,
    /// The models that encoded the keys, in the order of their parts of a key. Empty if the models
    /// are unknown.
    pub encoders: Vec<EncoderRecord>,
    /// The names of the sources. [`Hit::source`](crate::search::Hit::source) is an index of this
    /// list.
    pub sources: Vec<String>,
    /// A number above every id so far, including ids of deleted entries.
    pub next_id: i64,
    /// Whether there is a graph for [`Method::Graph`]. Without a graph, all keys are searched.
    pub has_graph: bool,
}

/// The search method.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Method {
    /// Compares all keys.
    #[default]
    Exact,
    /// Takes candidates from a graph; faster for many keys, nearly exact.
    Graph {
        /// The number of candidates of a query, at least `2 k`. More candidates give higher recall
        /// and take longer.
        candidates: usize,
    },
}

impl Method {
    /// Search in a graph, with the default number of candidates.
    pub const GRAPH: Self = Self::Graph { candidates: Self::CANDIDATES };
    /// The default number of candidates of a search in a graph.
    pub const CANDIDATES: usize = 96;
}

/// One state of a memory. It never changes: its holder always sees the same entries.
pub trait Snapshot: Debug + Send + Sync {
    /// The shape and the origin of the entries.
    fn description(&self) -> &Description;

    /// The statistics of the memory.
    ///
    /// # Errors
    /// [`MemoryError::Corrupt`]
    fn info(&self) -> Result<Info, MemoryError>;

    /// Returns the best `k` entries for each query among the entries that the filter allows.
    ///
    /// # Errors
    /// [`MemoryError::Width`], [`MemoryError::BadVector`] and
    /// [`MemoryError::InvalidOption`] for queries and filters that do not match the memory, and for
    /// zero query vectors if scores are cosines; [`MemoryError::UnknownSource`],
    /// [`MemoryError::UnknownId`]; [`MemoryError::Corrupt`]
    fn search(
        &self,
        method: Method,
        queries: Queries<'_>,
        filter: &Filter,
    ) -> Result<SearchResults, MemoryError>;

    /// Returns the best `k` entries for each query text among the entries that the filter allows
    /// and that have a word of the query, by [BM25](crate::retrieval::text).
    ///
    /// # Errors
    /// [`MemoryError::InvalidOption`] for a filter that does not match the queries;
    /// [`MemoryError::UnknownSource`], [`MemoryError::UnknownId`]; [`MemoryError::Corrupt`]
    fn search_texts(
        &self,
        queries: &[&str],
        k: usize,
        filter: &Filter,
    ) -> Result<SearchResults, MemoryError>;

    /// The servers whose entries were missing from results of this snapshot, because they were
    /// unreachable and partial results are allowed.
    fn missing(&self) -> Vec<String> {
        Vec::new()
    }

    /// Returns the rows of all entries, in an order that changes of the memory may alter.
    ///
    /// # Errors
    /// [`MemoryError::Remote`]
    fn rows(&self) -> Result<Vec<Row>, MemoryError>;

    /// Returns the row of each id; `None` if no entry has the id.
    ///
    /// # Errors
    /// [`MemoryError::Corrupt`]
    fn find(&self, ids: &[i64]) -> Result<Vec<Option<Row>>, MemoryError>;

    /// Returns the entries of rows. Uses all threads.
    ///
    /// # Errors
    /// [`MemoryError::Corrupt`]; [`MemoryError::InvalidOption`] for a row of another snapshot
    fn entries(&self, rows: &[Row]) -> Result<Vec<Entry>, MemoryError>;

    /// Returns the keys of rows, `[rows, width]`.
    ///
    /// # Errors
    /// as [`Snapshot::entries`]
    fn keys(&self, rows: &[Row]) -> Result<Vec<f32>, MemoryError>;

    /// Returns the values of rows, `[rows, tokens, width]`; empty for a memory without values. Uses
    /// all threads.
    ///
    /// # Errors
    /// as [`Snapshot::entries`]
    fn values(&self, rows: &[Row]) -> Result<Vec<f32>, MemoryError>;

    /// Starts reading the values of rows in the background, if they are slow to read, for a later
    /// call of [`Snapshot::values`]. If reading fails, that call returns the error.
    ///
    /// # Errors
    /// as [`Snapshot::entries`]
    fn prefetch(&self, _rows: &[Row]) -> Result<(), MemoryError> {
        Ok(())
    }
}

impl dyn Snapshot + '_ {
    /// Returns the entry of a row.
    ///
    /// # Errors
    /// as [`Snapshot::entries`]
    pub fn entry(&self, row: Row) -> Result<Entry, MemoryError> {
        let no_entry = || MemoryError::invalid("a row", "of another snapshot", "of this snapshot");
        self.entries(&[row])?.pop().ok_or_else(no_entry)
    }
}
