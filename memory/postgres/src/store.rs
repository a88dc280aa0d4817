//! A memory on a server.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use engram_memory::{Description, MemoryError, Snapshot, Store, Transaction};

use crate::address::Connect;
use crate::record::GraphSettings;
use crate::servers::Servers;
use crate::snapshot::PostgresSnapshot;
use crate::transaction::PostgresTransaction;

/// The largest width of a key with a graph: the limit of pgvector for half precision.
const MAX_GRAPH_WIDTH: usize = 4000;
/// The largest width of a key: the limit of pgvector.
const MAX_WIDTH: usize = 16_000;

/// A memory on a PostgreSQL server with pgvector, or on several.
pub struct PostgresStore {
    pub(crate) servers: Arc<Servers>,
    current: RwLock<Arc<PostgresSnapshot>>,
}

impl fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PostgresStore").field(&self.location()).finish()
    }
}

impl PostgresStore {
    /// Opens a memory, such as `postgres://user@/database?host=/run/postgresql&memory=name`. The
    /// addresses of a memory on several servers are separated by spaces or commas.
    ///
    /// # Errors
    /// [`MemoryError::Remote`], [`MemoryError::NoMemory`], [`MemoryError::UnknownFormat`],
    /// [`MemoryError::Corrupt`]
    pub fn open(urls: &str, connect: Connect) -> Result<Self, MemoryError> {
        let servers = Arc::new(Servers::new(urls, connect)?);
        // A first error, such as a wrong port, is returned at once.
        let lead = &servers.lead().server;
        lead.give_back(lead.connect().map_err(|failure| lead.failed(failure))?);
        Self::of_servers(servers)
    }

    pub(crate) fn of_servers(servers: Arc<Servers>) -> Result<Self, MemoryError> {
        let current = RwLock::new(servers.hold_current(None)?);
        Ok(Self { servers, current })
    }

    /// Builds graphs of the keys, for [`Method::Graph`](engram_memory::Method::Graph), in place of
    /// the graphs that there are. Later changes keep them up to date.
    ///
    /// # Errors
    /// [`MemoryError::InvalidOption`] if keys are not normalised or too wide, or if a setting is
    /// out of range; the errors of a transaction
    pub fn index(&self, settings: GraphSettings) -> Result<(), MemoryError> {
        let mut transaction = self.begin_change()?;
        check_graph(settings, &transaction.base_snapshot().description)?;
        transaction.build_graphs(settings)?;
        Box::new(transaction).commit().map(drop)
    }

    fn begin_change(&self) -> Result<PostgresTransaction, MemoryError> {
        PostgresTransaction::begin(Arc::clone(&self.servers), Some(&self.current()))
    }

    fn current(&self) -> Arc<PostgresSnapshot> {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Store for PostgresStore {
    fn location(&self) -> String {
        self.servers.location()
    }

    fn snapshot(&self) -> Arc<dyn Snapshot> {
        self.current()
    }

    fn reload(&self) -> Result<bool, MemoryError> {
        let previous = self.current();
        let current = self.servers.hold_current(Some(&previous))?;
        let is_changed = !Arc::ptr_eq(&previous, &current);
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = current;
        Ok(is_changed)
    }

    fn begin(&self) -> Result<Box<dyn Transaction>, MemoryError> {
        Ok(Box::new(self.begin_change()?))
    }
}

/// Returns an error if a memory cannot have keys of this width.
pub(crate) fn check_width(width: usize) -> Result<(), MemoryError> {
    if (1..=MAX_WIDTH).contains(&width) {
        return Ok(());
    }
    Err(MemoryError::invalid("the width of a key", width, "from 1 to 16000 for pgvector"))
}

pub(crate) fn check_graph(
    settings: GraphSettings,
    record: &Description,
) -> Result<(), MemoryError> {
    let error = |option, found: String, expected| {
        Err(MemoryError::InvalidOption { option, found, expected })
    };
    if !record.normalised {
        return error("a graph", "of keys that are not normalised".into(), "of normalised keys");
    }
    if record.width > MAX_GRAPH_WIDTH {
        let found = record.width.to_string();
        return error("the width of a key with a graph", found, "at most 4000 for pgvector");
    }
    let GraphSettings { connections, ef_construction } = settings;
    if !(2..=100).contains(&connections) {
        return error("connections", connections.to_string(), "from 2 to 100");
    }
    if !(2 * connections..=1000).contains(&ef_construction) {
        let expected = "at least twice the connections, and at most 1000";
        return error("ef_construction", ef_construction.to_string(), expected);
    }
    Ok(())
}
