//! A memory on a server.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use engram_memory::{
    Batch, EncoderRecord, MemoryError, MemoryFormat, Snapshot, Store, Transaction,
};
use tokio_postgres::error::SqlState;

use crate::address::Connect;
use crate::connection::Connection;
use crate::failure::Failure;
use crate::holder::{Holder, Locks};
use crate::record::{GenerationRecord, GraphSettings};
use crate::rows::{RowWriter, insert_generation};
use crate::server::Server;
use crate::snapshot::PostgresSnapshot;
use crate::tables::{create_generations, create_indexes, create_rows};
use crate::transaction::PostgresTransaction;

/// The largest width of a key with a graph: the limit of pgvector for half precision.
const MAX_GRAPH_WIDTH: usize = 4000;
/// The largest width of a key: the limit of pgvector.
const MAX_WIDTH: usize = 16_000;

/// A memory on a PostgreSQL server with pgvector.
pub struct PostgresStore {
    pub(crate) shared: Arc<Shared>,
    current: RwLock<Arc<PostgresSnapshot>>,
}

/// The parts of a store that its transactions share.
pub(crate) struct Shared {
    pub(crate) server: Arc<Server>,
    pub(crate) locks: Locks,
    holder: Mutex<Holder>,
}

impl Shared {
    /// Holds the current generation. Returns `previous` if it is still current.
    pub(crate) fn hold_current(
        &self,
        previous: Option<&Arc<PostgresSnapshot>>,
    ) -> Result<Arc<PostgresSnapshot>, MemoryError> {
        let mut holder = self.holder.lock().unwrap_or_else(PoisonError::into_inner);
        let (generation, held) = holder.hold_current(&self.server)?;
        match previous.filter(|previous| previous.generation == generation) {
            Some(previous) => Ok(Arc::clone(previous)),
            None => {
                let server = Arc::clone(&self.server);
                Ok(Arc::new(PostgresSnapshot::new(server, generation, held)))
            }
        }
    }
}

impl fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PostgresStore").field(&self.location()).finish()
    }
}

impl PostgresStore {
    /// Opens a memory, such as `postgres://user@/database?host=/run/postgresql&memory=name`.
    ///
    /// # Errors
    /// [`MemoryError::Remote`], [`MemoryError::NoMemory`], [`MemoryError::NewerFormat`],
    /// [`MemoryError::Corrupt`]
    pub fn open(url: &str, connect: Connect) -> Result<Self, MemoryError> {
        let server = Server::new(url, connect)?;
        // A first error, such as a wrong port, is returned at once.
        let connection = server.connect().map_err(|failure| server.failed(failure))?;
        server.give_back(connection);
        Self::of_server(server)
    }

    fn of_server(server: Server) -> Result<Self, MemoryError> {
        let locks = Locks::new(&server.address.schema);
        let holder = Mutex::new(Holder::new(locks));
        let shared = Arc::new(Shared { server: Arc::new(server), locks, holder });
        let current = RwLock::new(shared.hold_current(None)?);
        Ok(Self { shared, current })
    }

    /// Builds a memory from batches with `rows` rows in all, and records the models that encoded the
    /// keys. The user needs the privilege to create schemas in the database.
    ///
    /// # Errors
    /// [`MemoryError::AlreadyExists`], [`MemoryError::Remote`]; the errors of the batches;
    /// [`MemoryError::Count`], [`MemoryError::BadVector`], [`MemoryError::DuplicateId`],
    /// [`MemoryError::InvalidOption`]
    pub fn create(
        url: &str,
        connect: Connect,
        format: MemoryFormat,
        encoders: Vec<EncoderRecord>,
        rows: usize,
        batches: impl Iterator<Item = Result<Batch, MemoryError>>,
    ) -> Result<Self, MemoryError> {
        check_widths(format)?;
        let server = Server::new(url, connect)?;
        let mut connection = server.connect().map_err(|failure| server.failed(failure))?;
        create_schema(&server, &mut connection).map_err(|failure| server.failed(failure))?;
        let MemoryFormat { width, normalised, values } = format;
        let mut record = GenerationRecord::empty(1, (width, normalised, values), encoders);
        let build = || -> Result<(), Failure> {
            create_generations(&mut connection)?;
            create_rows(&mut connection, 1, width)?;
            let mut writer = RowWriter::new(&server, &mut connection, &mut record, 1);
            writer.write(rows, batches, |_, _| Ok(()))?;
            create_indexes(&mut connection, 1)?;
            insert_generation(&mut connection, 1, &record)?;
            connection.commit()
        };
        // After an error, the end of the connection undoes all.
        build().map_err(|failure| server.failed(failure))?;
        drop(connection);
        Self::of_server(server)
    }

    /// Builds graphs of the keys, for [`Method::Graph`](engram_memory::Method::Graph), in place of
    /// the graphs that there are. Later changes keep them up to date.
    ///
    /// # Errors
    /// [`MemoryError::InvalidOption`] if keys are not normalised or too wide, or if a setting is out
    /// of range; the errors of a transaction
    pub fn index(&self, settings: GraphSettings) -> Result<(), MemoryError> {
        let mut transaction = self.begin_change()?;
        check_graph(settings, &transaction.base_snapshot().generation.record)?;
        transaction.build_graphs(settings)?;
        Box::new(transaction).commit().map(drop)
    }

    fn begin_change(&self) -> Result<PostgresTransaction, MemoryError> {
        PostgresTransaction::begin(Arc::clone(&self.shared), Some(&self.current()))
    }

    fn current(&self) -> Arc<PostgresSnapshot> {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Store for PostgresStore {
    fn location(&self) -> String {
        self.shared.server.address.to_string()
    }

    fn snapshot(&self) -> Arc<dyn Snapshot> {
        self.current()
    }

    fn reload(&self) -> Result<bool, MemoryError> {
        let previous = self.current();
        let current = self.shared.hold_current(Some(&previous))?;
        let is_changed = !Arc::ptr_eq(&previous, &current);
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = current;
        Ok(is_changed)
    }

    fn begin(&self) -> Result<Box<dyn Transaction>, MemoryError> {
        Ok(Box::new(self.begin_change()?))
    }
}

/// Begins a transaction, and creates the schema of a new memory in it.
fn create_schema(server: &Server, connection: &mut Connection) -> Result<(), Failure> {
    let has_vectors = "SELECT FROM pg_extension WHERE extname = 'vector'";
    if connection.query(has_vectors, &[])?.is_empty() {
        let reason = "the database has no pgvector";
        let remedy = "let the owner of the database run `CREATE EXTENSION vector`";
        return Err(server.remote(reason, remedy).into());
    }
    let schema = &server.address.schema;
    connection.begin()?;
    let created = connection.batch_execute(&format!("CREATE SCHEMA {schema}"));
    created.map_err(|failure| match failure.code() {
        // The second: another process has just created it.
        Some(code) if [SqlState::DUPLICATE_SCHEMA, SqlState::UNIQUE_VIOLATION].contains(code) => {
            MemoryError::AlreadyExists { folder: server.address.as_folder() }.into()
        }
        _ => failure,
    })
}

/// Returns an error if a memory cannot have keys of this width.
pub(crate) fn check_width(width: usize) -> Result<(), MemoryError> {
    if (1..=MAX_WIDTH).contains(&width) {
        return Ok(());
    }
    Err(MemoryError::InvalidOption {
        option: "the width of a key",
        found: width.to_string(),
        expected: "from 1 to 16000 for pgvector",
    })
}

fn check_widths(format: MemoryFormat) -> Result<(), MemoryError> {
    check_width(format.width)?;
    match format.values {
        Some(values) if values.tokens == 0 || values.width == 0 => {
            Err(MemoryError::InvalidOption {
                option: "the tokens or the width of a value",
                found: "0".to_owned(),
                expected: "at least 1",
            })
        }
        _ => Ok(()),
    }
}

fn check_graph(settings: GraphSettings, record: &GenerationRecord) -> Result<(), MemoryError> {
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
