//! Holds generations, so that no writer removes their rows.
//!
//! A held generation has a shared advisory lock. A writer removes a generation only if it gets the
//! exclusive lock. All locks of a store are on one connection. If it breaks, the locks are taken
//! again. If a generation was removed before that, its next read fails.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use engram_memory::MemoryError;
use tokio_postgres::Row;
use tokio_postgres::error::SqlState;

use crate::connection::Connection;
use crate::failure::Failure;
use crate::record::GenerationRecord;
use crate::server::Server;
use crate::tables::has_build;

/// The maximum number of attempts to hold the current generation while writers replace it.
const MAX_ATTEMPTS: usize = 100;
/// The number of the writer's lock. The lock of a generation has the generation's number, from 1.
const WRITER: i32 = 0;

/// Advisory locks of a memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Locks {
    /// The hash of the schema's name. Two memories with equal hashes only wait for each other.
    class: i32,
}

impl Locks {
    pub(crate) fn new(schema: &str) -> Self {
        // FNV-1a.
        let hash = schema
            .bytes()
            .fold(0x811C_9DC5u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
        Self { class: hash.cast_signed() }
    }

    /// The lock of a generation.
    fn of(number: u64) -> i32 {
        (number % (1 << 31)) as i32
    }

    /// Calls a function of PostgreSQL for a lock of this memory.
    fn call(self, connection: &mut Connection, function: &str, lock: i32) -> Result<bool, Failure> {
        let sql = format!("SELECT {function}($1, $2)");
        Ok(connection.query(&sql, &[&self.class, &lock])?[0].get(0))
    }

    /// Takes the lock of the writer, for the connection. Returns false if another process has it.
    pub(crate) fn try_writer(self, connection: &mut Connection) -> Result<bool, Failure> {
        self.call(connection, "pg_try_advisory_lock", WRITER)
    }

    pub(crate) fn release_writer(self, connection: &mut Connection) -> Result<(), Failure> {
        self.call(connection, "pg_advisory_unlock", WRITER).map(drop)
    }

    /// Takes the exclusive lock of a generation until the end of the transaction. Returns false if
    /// the generation is held.
    pub(crate) fn try_remove(
        self,
        connection: &mut Connection,
        number: u64,
    ) -> Result<bool, Failure> {
        self.call(connection, "pg_try_advisory_xact_lock", Self::of(number))
    }

    fn try_hold(self, connection: &mut Connection, number: u64) -> Result<bool, Failure> {
        self.call(connection, "pg_try_advisory_lock_shared", Self::of(number))
    }

    fn release(self, connection: &mut Connection, number: u64) -> Result<(), Failure> {
        self.call(connection, "pg_advisory_unlock_shared", Self::of(number)).map(drop)
    }
}

/// A row of the table of generations.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Stored {
    pub(crate) number: u64,
    pub(crate) stamp: String,
    pub(crate) record: GenerationRecord,
}

impl Stored {
    /// Reads the number, the stamp and the record of a generation.
    fn of_row(row: &Row, server: &Server) -> Result<Self, Failure> {
        let number: i64 = row.try_get(0)?;
        Ok(Self {
            number: number.cast_unsigned(),
            stamp: row.try_get(1)?,
            record: GenerationRecord::parse(row.try_get(2)?, &server.address.to_string())?,
        })
    }
}

/// A held generation. It is released after this value is dropped.
pub(crate) struct Held {
    number: u64,
    released: Arc<Mutex<Vec<u64>>>,
}

impl Drop for Held {
    fn drop(&mut self) {
        // The holder releases the lock later, because its connection may be in use or broken now.
        self.released.lock().unwrap_or_else(PoisonError::into_inner).push(self.number);
    }
}

/// The connection with the locks of a store.
pub(crate) struct Holder {
    locks: Locks,
    connection: Option<Connection>,
    /// The number of holders of each held generation.
    held: HashMap<u64, usize>,
    released: Arc<Mutex<Vec<u64>>>,
}

impl Holder {
    pub(crate) fn new(locks: Locks) -> Self {
        Self { locks, connection: None, held: HashMap::new(), released: Arc::default() }
    }

    /// Holds the generation `named` by another server, or the current one. Returns it with this
    /// server's record; `None` if this server does not have it. Tries again while the server is
    /// unreachable.
    pub(crate) fn hold(
        &mut self,
        server: &Server,
        named: Option<&Stored>,
    ) -> Result<Option<(Stored, Held)>, MemoryError> {
        server.retry(|| {
            let result = self.try_hold(server, named);
            if matches!(&result, Err(failure) if failure.is_broken()) {
                self.connection = None;
            }
            result
        })
    }

    /// Takes the locks of all held generations again if the connection broke.
    fn connected(&mut self, server: &Server) -> Result<(), Failure> {
        if let Some(connection) = &mut self.connection {
            if connection.check().is_ok() {
                return Ok(());
            }
            self.connection = None;
        }
        let mut connection = server.connect()?;
        for number in self.held.keys() {
            // If a writer is removing the generation, its readers will notice.
            self.locks.try_hold(&mut connection, *number)?;
        }
        self.connection = Some(connection);
        Ok(())
    }

    fn try_hold(
        &mut self,
        server: &Server,
        named: Option<&Stored>,
    ) -> Result<Option<(Stored, Held)>, Failure> {
        self.connected(server)?;
        self.release_unused()?;
        let Some(connection) = &mut self.connection else {
            return Err(server.remote("has no connection", "try again").into());
        };
        for attempt in 0..MAX_ATTEMPTS {
            let wanted = match named {
                Some(generation) => generation.clone(),
                None => current(connection, server)?,
            };
            let number = wanted.number;
            let is_new = !self.held.contains_key(&number);
            if !is_new || self.locks.try_hold(connection, number)? {
                // A writer may have removed the generation before it was held.
                if let Some(stored) = find(connection, server, &wanted)? {
                    *self.held.entry(number).or_default() += 1;
                    let released = Arc::clone(&self.released);
                    return Ok(Some((stored, Held { number, released })));
                }
                if is_new {
                    self.locks.release(connection, number)?;
                }
            }
            if named.is_some() {
                return Ok(None);
            }
            thread::sleep(Duration::from_millis(attempt as u64));
        }
        Err(server.remote("changes too often to be opened", "try again").into())
    }

    /// Releases the locks of generations without holders.
    fn release_unused(&mut self) -> Result<(), Failure> {
        let released =
            std::mem::take(&mut *self.released.lock().unwrap_or_else(PoisonError::into_inner));
        for number in released {
            let holders = self.held.entry(number).or_default();
            *holders = holders.saturating_sub(1);
            if *holders == 0 {
                self.held.remove(&number);
                if let Some(connection) = &mut self.connection {
                    self.locks.release(connection, number)?;
                }
            }
        }
        Ok(())
    }
}

/// Reads the current generation: the one with the largest number.
pub(crate) fn current(connection: &mut Connection, server: &Server) -> Result<Stored, Failure> {
    let no_memory = || MemoryError::NoMemory { folder: server.address.as_folder() };
    match newest(connection, server) {
        Ok(Some(newest)) => Ok(newest),
        Ok(None) if has_build(connection)? => {
            let reason = "has only an unfinished push";
            Err(server.remote(reason, "push it again with `engram memory push`").into())
        }
        Ok(None) => Err(no_memory().into()),
        Err(failure) if failure.code() == Some(&SqlState::UNDEFINED_TABLE) => {
            Err(no_memory().into())
        }
        Err(failure) => Err(failure),
    }
}

/// Reads the generation with the largest number; `None` if there is none.
pub(crate) fn newest(
    connection: &mut Connection,
    server: &Server,
) -> Result<Option<Stored>, Failure> {
    let sql = "SELECT number, stamp::text, record::text FROM generations \
               ORDER BY number DESC LIMIT 1";
    connection.query(sql, &[])?.first().map(|row| Stored::of_row(row, server)).transpose()
}

/// Reads a generation; `None` if this server does not have it.
fn find(
    connection: &mut Connection,
    server: &Server,
    generation: &Stored,
) -> Result<Option<Stored>, Failure> {
    let sql = "SELECT number, stamp::text, record::text FROM generations \
               WHERE number = $1 AND stamp::text = $2";
    let number = generation.number.cast_signed();
    match connection.query(sql, &[&number, &generation.stamp]) {
        Ok(rows) => rows.first().map(|row| Stored::of_row(row, server)).transpose(),
        Err(failure) if failure.code() == Some(&SqlState::UNDEFINED_TABLE) => Ok(None),
        Err(failure) => Err(failure),
    }
}

/// Whether a generation was not removed.
pub(crate) fn exists(connection: &mut Connection, generation: &Stored) -> Result<bool, Failure> {
    let sql = "SELECT FROM generations WHERE number = $1 AND stamp::text = $2";
    let number = generation.number.cast_signed();
    Ok(!connection.query(sql, &[&number, &generation.stamp])?.is_empty())
}
