//! Connections to a server: a pool, retries and errors.

use std::collections::HashMap;
use std::error::Error;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use engram_memory::MemoryError;
use postgres::error::SqlState;
use postgres::fallible_iterator::FallibleIterator;
use postgres::types::ToSql;
use postgres::{Client, NoTls, Row, Statement};

use crate::address::{Address, Connect};

/// The maximum number of unused connections that stay open.
const MAX_IDLE: usize = 8;
/// The maximum number of prepared statements of a connection. Statements name the tables of a
/// generation, so that old ones become useless.
const MAX_STATEMENTS: usize = 128;
/// The pauses between attempts double from the first to the last.
const PAUSES: [Duration; 2] = [Duration::from_millis(20), Duration::from_secs(1)];

/// An error of the server, or of the memory.
#[derive(Debug)]
pub(crate) enum Failure {
    Server(postgres::Error),
    Memory(MemoryError),
}

impl From<postgres::Error> for Failure {
    fn from(error: postgres::Error) -> Self {
        Self::Server(error)
    }
}

impl From<MemoryError> for Failure {
    fn from(error: MemoryError) -> Self {
        Self::Memory(error)
    }
}

/// A connection with its prepared statements.
pub(crate) struct Connection {
    pub(crate) client: Client,
    statements: HashMap<String, Statement>,
    /// The number of candidates that a graph search collects at a time, as last set.
    candidates: Option<usize>,
}

impl Connection {
    /// Runs a statement, which stays prepared for the next time.
    pub(crate) fn query(
        &mut self,
        sql: &str,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, postgres::Error> {
        let statement = self.prepare(sql)?;
        self.client.query(&statement, parameters)
    }

    /// Runs a statement, and calls `each` with one row after the other, so that they need not fit into
    /// main memory.
    pub(crate) fn for_each(
        &mut self,
        sql: &str,
        parameters: &[&(dyn ToSql + Sync)],
        mut each: impl FnMut(Row) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let statement = self.prepare(sql)?;
        let mut rows = self.client.query_raw(&statement, parameters.iter().copied())?;
        while let Some(row) = rows.next()? {
            each(row)?;
        }
        Ok(())
    }

    /// Prepares a statement.
    pub(crate) fn prepare(&mut self, sql: &str) -> Result<Statement, postgres::Error> {
        if let Some(statement) = self.statements.get(sql) {
            return Ok(statement.clone());
        }
        let statement = self.client.prepare(sql)?;
        if self.statements.len() >= MAX_STATEMENTS {
            self.statements.clear();
        }
        self.statements.insert(sql.to_owned(), statement.clone());
        Ok(statement)
    }

    /// Sets the number of candidates that a graph search collects at a time.
    pub(crate) fn set_candidates(&mut self, candidates: usize) -> Result<(), postgres::Error> {
        if self.candidates != Some(candidates) {
            let sql = "SELECT set_config('hnsw.ef_search', $1, false)";
            self.query(sql, &[&candidates.to_string()])?;
            self.candidates = Some(candidates);
        }
        Ok(())
    }
}

/// A server, with connections that wait for their next use.
pub(crate) struct Server {
    pub(crate) address: Address,
    pub(crate) options: Connect,
    idle: Mutex<Vec<Connection>>,
}

impl Server {
    pub(crate) fn new(address: Address, options: Connect) -> Self {
        Self { address, options, idle: Mutex::new(Vec::new()) }
    }

    /// Opens a new connection.
    pub(crate) fn connect(&self) -> Result<Connection, postgres::Error> {
        let mut client = self.address.config.connect(NoTls)?;
        // Plans for the actual parameters find the partitions and the graph. With iterative scans,
        // a graph search with a filter returns as many rows as it is asked for.
        client.batch_execute(
            "SET plan_cache_mode = force_custom_plan; SET hnsw.iterative_scan = relaxed_order; \
             SET client_min_messages = warning",
        )?;
        // Names of tables need no schema. pgvector may be in any schema.
        client.query(
            "SELECT set_config('search_path', concat_ws(', ', $1::text, (SELECT quote_ident(nspname) \
             FROM pg_extension JOIN pg_namespace n ON n.oid = extnamespace \
             WHERE extname = 'vector')), false)",
            &[&self.address.schema],
        )?;
        Ok(Connection { client, statements: HashMap::new(), candidates: None })
    }

    /// Takes an unused connection, or opens a new one.
    pub(crate) fn take(&self) -> Result<Connection, postgres::Error> {
        match self.idle().pop() {
            Some(connection) => Ok(connection),
            None => self.connect(),
        }
    }

    /// Gives a connection back, unless it broke.
    pub(crate) fn give_back(&self, connection: Connection) {
        let mut idle = self.idle();
        if idle.len() < MAX_IDLE && !connection.client.is_closed() {
            idle.push(connection);
        }
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<Connection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads from the server. Tries again while the server is away.
    pub(crate) fn read<T>(
        &self,
        mut read: impl FnMut(&mut Connection) -> Result<T, Failure>,
    ) -> Result<T, MemoryError> {
        self.retry(|| {
            let mut connection = self.take()?;
            let result = read(&mut connection);
            match &result {
                Err(Failure::Server(error)) if is_broken(error) => {}
                _ => self.give_back(connection),
            }
            result
        })
    }

    /// Repeats an attempt while its connection breaks.
    pub(crate) fn retry<T>(
        &self,
        mut attempt: impl FnMut() -> Result<T, Failure>,
    ) -> Result<T, MemoryError> {
        let end = Instant::now() + self.options.patience;
        let [mut pause, longest] = PAUSES;
        loop {
            match attempt() {
                Ok(result) => return Ok(result),
                Err(Failure::Memory(error)) => return Err(error),
                Err(Failure::Server(error)) => {
                    if !is_broken(&error) || Instant::now() >= end {
                        return Err(self.error(&error));
                    }
                    // The other connections to this server broke, too.
                    self.idle().clear();
                    thread::sleep(with_jitter(pause));
                    pause = (2 * pause).min(longest);
                }
            }
        }
    }

    /// Returns an error about this server.
    pub(crate) fn remote(&self, reason: impl Into<String>, remedy: &'static str) -> MemoryError {
        MemoryError::Remote { location: self.address.to_string(), reason: reason.into(), remedy }
    }

    /// Returns the error of a failure.
    pub(crate) fn failed(&self, failure: Failure) -> MemoryError {
        match failure {
            Failure::Server(error) => self.error(&error),
            Failure::Memory(error) => error,
        }
    }

    /// Describes an error of the server.
    pub(crate) fn error(&self, error: &postgres::Error) -> MemoryError {
        let Some(server_error) = error.as_db_error() else {
            let mut reason = error.to_string();
            if let Some(source) = error.source() {
                reason = format!("{reason}: {source}");
            }
            let remedy = match is_broken(error) {
                true => "check that the server runs and can be reached from here",
                false => "check the address, the user and the password (PGPASSWORD or ~/.pgpass)",
            };
            return self.remote(one_line(&reason), remedy);
        };
        let code = server_error.code();
        let remedy = if [SqlState::INVALID_PASSWORD, SqlState::INVALID_AUTHORIZATION_SPECIFICATION]
            .contains(code)
        {
            "check the user, and the password in PGPASSWORD or ~/.pgpass"
        } else if *code == SqlState::INVALID_CATALOG_NAME {
            "create the database, or correct its name"
        } else if *code == SqlState::INSUFFICIENT_PRIVILEGE {
            "ask the owner of the database for the privilege (CREATE on the database for a new memory)"
        } else if *code == SqlState::DISK_FULL {
            "free space on the server"
        } else if *code == SqlState::TOO_MANY_CONNECTIONS {
            "wait, or raise max_connections of the server"
        } else if is_broken(error) {
            "check that the server runs"
        } else {
            "see the log of the server"
        };
        let reason = format!("{} (SQLSTATE {})", server_error.message(), code.code());
        self.remote(one_line(&reason), remedy)
    }
}

/// Puts a message of the server on one line.
fn one_line(message: &str) -> String {
    message.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// Whether the connection broke, or was refused because the server starts or ends.
pub(crate) fn is_broken(error: &postgres::Error) -> bool {
    match error.code() {
        Some(code) => {
            let codes =
                [SqlState::ADMIN_SHUTDOWN, SqlState::CRASH_SHUTDOWN, SqlState::CANNOT_CONNECT_NOW];
            codes.contains(code) || code.code().starts_with("08")
        }
        None => {
            let source = error.source();
            error.is_closed() || source.is_some_and(|source| source.is::<io::Error>())
        }
    }
}

/// Returns a random pause from half of this pause to all of it, so that many clients of a restarted
/// server do not connect at the same time.
fn with_jitter(pause: Duration) -> Duration {
    let random = RandomState::new().hash_one(0) as u32;
    pause / 2 + pause.mul_f64(f64::from(random) / f64::from(u32::MAX)) / 2
}
