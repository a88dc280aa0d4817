//! A change of a memory: one transaction of the server.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use engram_memory::{Batch, Batches, EncoderRecord, MemoryError, Row, Snapshot, Transaction};

use crate::connection::Connection;
use crate::failure::Failure;
use crate::holder::current;
use crate::record::{GenerationRecord, GraphSettings};
use crate::rows::{RowWriter, insert_generation};
use crate::snapshot::PostgresSnapshot;
use crate::store::{Shared, check_width};
use crate::sweep::sweep;
use crate::tables::{
    NEVER, create_graphs, create_indexes, create_partition, create_rows, rows_table,
};

/// The maximum number of rows, and of key and value components, that are encoded again at once.
const MAX_ENCODED: (usize, usize) = (1024, 1 << 20);

/// The errors of transactions.
const FAILED: &str = "a part of the transaction failed; begin a new transaction";
const NOT_ALONE: &str =
    "a transaction that encodes all entries again has other parts; commit them separately";

/// A change of a memory, with the lock of its writer.
pub(crate) struct PostgresTransaction {
    shared: Arc<Shared>,
    base: Arc<PostgresSnapshot>,
    /// The connection with the lock and the transaction; `None` once it is given back.
    connection: Option<Connection>,
    /// The number of the new generation.
    number: u64,
    /// The record of the new generation.
    record: GenerationRecord,
    /// Whether there is a part so far, and whether it encoded all entries again.
    has_parts: bool,
    has_encoded: bool,
    has_failed: bool,
}

impl fmt::Debug for PostgresTransaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PostgresTransaction").field(&self.base).finish()
    }
}

impl PostgresTransaction {
    /// Takes the lock of the writer, and begins a change of the current generation. `previous` is the
    /// generation that the store has open.
    pub(crate) fn begin(
        shared: Arc<Shared>,
        previous: Option<&Arc<PostgresSnapshot>>,
    ) -> Result<Self, MemoryError> {
        let server = &shared.server;
        let connection = server.retry(|| {
            let mut connection = server.take()?;
            if shared.locks.try_writer(&mut connection)? {
                return Ok(connection);
            }
            server.give_back(connection);
            Err(MemoryError::Locked { folder: server.address.as_folder() }.into())
        })?;
        Self::begin_locked(shared, previous, connection)
    }

    /// Begins a change on a connection with the lock of the writer.
    fn begin_locked(
        shared: Arc<Shared>,
        previous: Option<&Arc<PostgresSnapshot>>,
        mut connection: Connection,
    ) -> Result<Self, MemoryError> {
        let started = shared.hold_current(previous).and_then(|base| {
            let began = connection.begin();
            let swept = began.and_then(|()| sweep(shared.locks, &mut connection, &base.generation));
            Ok((base, swept.map_err(|failure| shared.server.failed(failure))?))
        });
        let (base, swept_rows) = match started {
            Ok(started) => started,
            Err(error) => {
                end(&shared, connection);
                return Err(error);
            }
        };
        let mut record = base.generation.record.clone();
        record.stored_rows = record.stored_rows.saturating_sub(swept_rows);
        let number = base.generation.number + 1;
        Ok(Self {
            shared,
            base,
            connection: Some(connection),
            number,
            record,
            has_parts: false,
            has_encoded: false,
            has_failed: false,
        })
    }

    pub(crate) fn base_snapshot(&self) -> &Arc<PostgresSnapshot> {
        &self.base
    }

    /// Makes a part of the change. After an error, the change can no longer be committed.
    fn attempt<T>(
        &mut self,
        part: impl FnOnce(&mut Self, &mut Connection) -> Result<T, Failure>,
    ) -> Result<T, MemoryError> {
        let has_failed = std::mem::replace(&mut self.has_failed, true);
        let Some(mut connection) = self.connection.take() else {
            return Err(MemoryError::Transaction { reason: FAILED });
        };
        let result = part(self, &mut connection);
        self.connection = Some(connection);
        let result = result.map_err(|failure| self.shared.server.failed(failure))?;
        self.has_failed = has_failed;
        self.has_parts = true;
        Ok(result)
    }

    fn check_keeps_base(&self) -> Result<(), MemoryError> {
        if self.has_encoded {
            return Err(MemoryError::Transaction { reason: NOT_ALONE });
        }
        Ok(())
    }

    /// Adds entries, or replaces entries.
    fn put(
        &mut self,
        rows: usize,
        batches: &mut Batches<'_>,
        is_update: bool,
    ) -> Result<(), MemoryError> {
        self.attempt(|change, connection| {
            change.check_keeps_base()?;
            let (server, number) = (Arc::clone(&change.shared.server), change.number);
            let mut writer = RowWriter::new(&server, connection, &mut change.record, number);
            writer.write(rows, batches, |writer, ids| {
                let (connection, record) = writer.parts();
                if is_update {
                    let removed = remove(connection, record, number, ids)?;
                    if removed.len() < ids.len() {
                        check_not_live(connection, record, ids, &removed)?;
                    }
                    return match ids.iter().find(|id| !removed.contains(id)) {
                        None => Ok(()),
                        Some(id) => {
                            Err(MemoryError::UnknownId { id: *id, missing: 1, requested: rows }
                                .into())
                        }
                    };
                }
                check_not_live(connection, record, ids, &HashSet::new())
            })?;
            Ok(())
        })
    }

    /// Builds graphs of the keys, now and after later changes.
    pub(crate) fn build_graphs(&mut self, settings: GraphSettings) -> Result<(), MemoryError> {
        self.attempt(|change, connection| {
            let table = (change.record.base, change.record.width);
            create_graphs(connection, table, settings)?;
            change.record.graph = Some(settings);
            Ok(())
        })
    }

    /// Commits. Returns the connection, which still has the lock of the writer.
    fn finish(&mut self) -> Result<Connection, MemoryError> {
        let server = Arc::clone(&self.shared.server);
        let failed = || MemoryError::Transaction { reason: FAILED };
        if self.has_failed {
            return Err(failed());
        }
        let (number, record) = (self.number, self.record.clone());
        let stamp = self.attempt(|_, connection| insert_generation(connection, number, &record))?;
        let mut connection = self.connection.take().ok_or_else(failed)?;
        match connection.commit() {
            Ok(()) => Ok(connection),
            Err(failure) if failure.is_broken() => {
                drop(connection);
                self.find_out(&stamp, &server.failed(failure))
            }
            Err(failure) => Err(server.failed(failure)),
        }
    }

    /// Finds out whether the change was made, after the connection broke in the commit. The lock of
    /// the writer is free as soon as the server has ended the transaction.
    fn find_out(&self, stamp: &str, error: &MemoryError) -> Result<Connection, MemoryError> {
        let server = &self.shared.server;
        let unknown = || {
            let reason = format!("the connection broke in the commit of a change ({error})");
            let remedy = "whether the change was made is unknown; compare the number of the \
                          generation";
            server.remote(reason, remedy)
        };
        let end = Instant::now() + server.options.patience;
        let connected = server.retry(|| {
            let mut connection = server.connect()?;
            loop {
                if self.shared.locks.try_writer(&mut connection)? {
                    let current = current(&mut connection, server)?;
                    return Ok((connection, current));
                }
                if Instant::now() > end {
                    return Err(unknown().into());
                }
                thread::sleep(Duration::from_millis(50));
            }
        });
        let (connection, current) = connected.map_err(|_| unknown())?;
        if current.stamp == stamp {
            return Ok(connection);
        }
        if current.number >= self.number {
            // Another process has changed the memory meanwhile.
            return Err(unknown());
        }
        let reason = format!("the connection broke in the commit of a change ({error})");
        Err(server.remote(reason, "the memory is unchanged; try again"))
    }

    /// Returns the error of a step after the commit.
    fn change_made(&self, error: MemoryError) -> MemoryError {
        MemoryError::ChangeMade {
            folder: self.shared.server.address.as_folder(),
            generation: self.number,
            source: Box::new(error),
        }
    }
}

impl Transaction for PostgresTransaction {
    fn base(&self) -> Arc<dyn Snapshot> {
        Arc::clone(&self.base) as Arc<dyn Snapshot>
    }

    fn add(&mut self, rows: usize, batches: &mut Batches<'_>) -> Result<(), MemoryError> {
        self.put(rows, batches, false)
    }

    fn update(&mut self, rows: usize, batches: &mut Batches<'_>) -> Result<(), MemoryError> {
        self.put(rows, batches, true)
    }

    fn delete(&mut self, ids: &[i64]) -> Result<(), MemoryError> {
        self.attempt(|change, connection| {
            change.check_keeps_base()?;
            let removed = remove(connection, &mut change.record, change.number, ids)?;
            let missing: HashSet<i64> =
                ids.iter().copied().filter(|id| !removed.contains(id)).collect();
            match ids.iter().find(|id| missing.contains(id)) {
                None => Ok(()),
                Some(id) => Err(MemoryError::UnknownId {
                    id: *id,
                    missing: missing.len(),
                    requested: ids.len(),
                }
                .into()),
            }
        })
    }

    fn re_encode(
        &mut self,
        encoders: Vec<EncoderRecord>,
        width: usize,
        encode: &mut dyn FnMut(Batch) -> Result<Batch, MemoryError>,
    ) -> Result<(), MemoryError> {
        check_width(width)?;
        self.attempt(|change, connection| {
            if change.has_parts {
                return Err(MemoryError::Transaction { reason: NOT_ALONE }.into());
            }
            let (base, number) = (Arc::clone(&change.base), change.number);
            let old = &base.generation.record;
            let (normalised, values) = (old.normalised, old.values);
            let mut record = GenerationRecord::empty(number, (width, normalised, values), encoders);
            record.next_id = old.next_id;
            record.graph = old.graph;
            create_rows(connection, number, width)?;
            // The sources keep their indices, because gates depend on their order.
            for (index, source) in old.sources.iter().enumerate() {
                create_partition(connection, number, index as u32)?;
                let mut source = source.clone();
                source.entries = 0;
                record.sources.push(source);
            }
            let live = base.rows()?;
            let (rows, numbers) = MAX_ENCODED;
            let rows = (numbers / (old.width + base.value_len())).clamp(1, rows);
            let batches = live.chunks(rows).map(|rows: &[Row]| encode(base.batch(rows)?));
            let server = Arc::clone(&change.shared.server);
            RowWriter::new(&server, connection, &mut record, number).write(
                live.len(),
                batches,
                |_, _| Ok(()),
            )?;
            create_indexes(connection, number)?;
            if let Some(settings) = record.graph {
                create_graphs(connection, (number, width), settings)?;
            }
            change.record = record;
            change.has_encoded = true;
            Ok(())
        })
    }

    fn commit(mut self: Box<Self>) -> Result<Arc<dyn Snapshot>, MemoryError> {
        self.connection = Some(self.finish()?);
        let current = self.shared.hold_current(None);
        Ok(current.map_err(|error| self.change_made(error))?)
    }

    fn commit_and_begin(mut self: Box<Self>) -> Result<Box<dyn Transaction>, MemoryError> {
        let connection = self.finish()?;
        let next = Self::begin_locked(Arc::clone(&self.shared), None, connection);
        Ok(Box::new(next.map_err(|error| self.change_made(error))?))
    }
}

impl Drop for PostgresTransaction {
    fn drop(&mut self) {
        if let Some(connection) = self.connection.take() {
            end(&self.shared, connection);
        }
    }
}

/// Ends the transaction of a connection, and releases the lock of the writer.
fn end(shared: &Shared, mut connection: Connection) {
    let undone = connection.roll_back();
    // A connection that is not given back is closed, which releases the lock a little later.
    if undone.and_then(|()| shared.locks.release_writer(&mut connection)).is_ok() {
        shared.server.give_back(connection);
    }
}

/// Removes the entries of the base with these ids. Returns their ids.
fn remove(
    connection: &mut Connection,
    record: &mut GenerationRecord,
    number: u64,
    ids: &[i64],
) -> Result<HashSet<i64>, Failure> {
    let sql = format!(
        "UPDATE {} SET removed = $1 WHERE id = ANY($2) AND removed = {NEVER} AND added < $1 \
         RETURNING id, source",
        rows_table(record.base)
    );
    let rows = connection.query(&sql, &[&number.cast_signed(), &ids])?;
    let mut removed = HashSet::with_capacity(rows.len());
    for row in rows {
        let (id, source): (i64, i32) = (row.try_get(0)?, row.try_get(1)?);
        if let Some(source) = record.sources.get_mut(source.cast_unsigned() as usize) {
            source.entries = source.entries.saturating_sub(1);
        }
        removed.insert(id);
    }
    Ok(removed)
}

/// Returns an error if an entry has one of these ids, except for the ids in `removed`.
fn check_not_live(
    connection: &mut Connection,
    record: &GenerationRecord,
    ids: &[i64],
    removed: &HashSet<i64>,
) -> Result<(), Failure> {
    let sql = format!(
        "SELECT id FROM {} WHERE id = ANY($1) AND removed = {NEVER}",
        rows_table(record.base)
    );
    let rows = connection.query(&sql, &[&ids])?;
    let live = rows.iter().map(|row| row.try_get(0)).collect::<Result<HashSet<i64>, _>>()?;
    match ids.iter().find(|id| live.contains(id) && !removed.contains(id)) {
        None => Ok(()),
        Some(id) => Err(MemoryError::DuplicateId { id: *id }.into()),
    }
}
