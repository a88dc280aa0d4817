//! A change of a memory: one transaction of each server.
//!
//! The servers commit one after the other, the first one last. So the change is made if and only if
//! the first server commits. If the writer is killed before that, the other servers have a
//! generation that no reader opens, and the next writer removes it.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use engram_memory::{Batch, Batches, EncoderRecord, MemoryError, Row, Snapshot, Transaction};

use crate::change::{Change, check_not_live, index, insert_on_all, remove, replace};
use crate::connection::Connection;
use crate::failure::Failure;
use crate::fan_out::each;
use crate::holder::current;
use crate::record::{GenerationRecord, GraphSettings, server_of};
use crate::rows::write;
use crate::servers::{Servers, Shared};
use crate::snapshot::PostgresSnapshot;
use crate::store::check_width;
use crate::sweep::sweep;
use crate::tables::{create_graphs, drop_build};
use crate::undo::undo_later;

/// The maximum number of rows, and of key and value components, that are encoded again at once.
const MAX_ENCODED: (usize, usize) = (1024, 1 << 20);

/// The errors of transactions.
const FAILED: &str = "a part of the transaction failed; begin a new transaction";
const NOT_ALONE: &str =
    "a transaction that encodes all entries again has other parts; commit them separately";

/// A change of a memory, with the locks of its writer.
pub(crate) struct PostgresTransaction {
    servers: Arc<Servers>,
    base: Arc<PostgresSnapshot>,
    /// The part of each server; empty once their connections are given back.
    parts: Vec<Change>,
    /// The number of the new generation.
    number: u64,
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
    /// Takes the locks of the writer, and begins a change of the current generation. `previous` is
    /// the generation that the store has open.
    pub(crate) fn begin(
        servers: Arc<Servers>,
        previous: Option<&Arc<PostgresSnapshot>>,
    ) -> Result<Self, MemoryError> {
        let connections = servers.lock()?;
        Self::begin_locked(servers, previous, connections)
    }

    /// Begins a change on connections with the locks of the writer.
    fn begin_locked(
        servers: Arc<Servers>,
        previous: Option<&Arc<PostgresSnapshot>>,
        mut connections: Vec<Connection>,
    ) -> Result<Self, MemoryError> {
        match Self::begin_parts(&servers, previous, &mut connections) {
            Ok((base, records)) => {
                let parts = servers.all().iter().zip(connections).zip(records);
                let parts = parts.map(|((shared, connection), record)| Change {
                    server: Arc::clone(&shared.server),
                    connection,
                    record,
                });
                let number = base.description.generation + 1;
                Ok(Self {
                    parts: parts.collect(),
                    servers,
                    base,
                    number,
                    has_parts: false,
                    has_encoded: false,
                    has_failed: false,
                })
            }
            Err(error) => {
                servers.release(connections);
                Err(error)
            }
        }
    }

    /// Begins the transactions, removes unneeded rows, and returns the current generation with its
    /// records.
    fn begin_parts(
        servers: &Arc<Servers>,
        previous: Option<&Arc<PostgresSnapshot>>,
        connections: &mut [Connection],
    ) -> Result<(Arc<PostgresSnapshot>, Vec<GenerationRecord>), MemoryError> {
        let base = servers.hold_current(previous)?;
        let parts = base.all_parts()?;
        let records = each(connections.iter_mut(), |index, connection| {
            let (part, shared) = (parts[index], &servers.all()[index]);
            let begin = |connection: &mut Connection| {
                connection.begin()?;
                if index > 0 {
                    undo_later(connection, &part.generation)?;
                }
                // An unfinished push has the number of this change, so its rows are dropped.
                drop_build(connection)?;
                sweep(shared.locks, connection, &part.generation)
            };
            let swept_rows = begin(connection).map_err(|failure| shared.failed(failure))?;
            let mut record = part.generation.record.clone();
            record.stored_rows = record.stored_rows.saturating_sub(swept_rows);
            Ok(record)
        });
        let records = records.into_iter().collect::<Result<_, MemoryError>>()?;
        Ok((Arc::clone(&base), records))
    }

    pub(crate) fn base_snapshot(&self) -> &Arc<PostgresSnapshot> {
        &self.base
    }

    /// Makes a part of the change. After an error, the change can no longer be committed.
    fn attempt<T>(
        &mut self,
        part: impl FnOnce(&mut Self) -> Result<T, MemoryError>,
    ) -> Result<T, MemoryError> {
        if self.has_failed {
            return Err(MemoryError::Transaction { reason: FAILED });
        }
        self.has_failed = true;
        let result = part(self)?;
        self.has_failed = false;
        self.has_parts = true;
        Ok(result)
    }

    /// Does the same on all servers at the same time.
    fn on_each(
        &mut self,
        part: impl Fn(&mut Connection, &mut GenerationRecord) -> Result<(), Failure> + Sync,
    ) -> Result<(), MemoryError> {
        let done = each(self.parts.iter_mut(), |_, change| change.attempt(&part));
        done.into_iter().collect()
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
        self.attempt(|change| {
            change.check_keeps_base()?;
            let number = change.number;
            let changes = change.parts.iter_mut().collect();
            write(changes, number, rows, batches, |change, ids| match is_update {
                true => replace(change, number, ids, rows),
                false => {
                    check_not_live(&mut change.connection, &change.record, ids, &HashSet::new())
                }
            })
        })
    }

    /// Builds graphs of the keys, now and after later changes.
    pub(crate) fn build_graphs(&mut self, settings: GraphSettings) -> Result<(), MemoryError> {
        self.attempt(|change| {
            change.on_each(|connection, record| {
                create_graphs(connection, (record.base, record.width), settings)?;
                record.graph = Some(settings);
                Ok(())
            })
        })
    }

    /// Commits. Returns the connections, which still have the locks of the writer.
    fn finish(&mut self) -> Result<Vec<Connection>, MemoryError> {
        let number = self.number;
        let stamp = self.attempt(|change| insert_on_all(&mut change.parts, number))?;
        self.has_failed = true;
        for part in self.parts.iter_mut().skip(1) {
            part.attempt(|connection, _| connection.commit())?;
        }
        let mut parts = std::mem::take(&mut self.parts).into_iter();
        let Some(Change { mut connection, .. }) = parts.next() else {
            return Err(MemoryError::Transaction { reason: FAILED });
        };
        let others = parts.map(|part| part.connection);
        let lead = self.servers.lead();
        let connection = match connection.commit() {
            Ok(()) => Ok(connection),
            Err(failure) if failure.is_broken() => {
                drop(connection);
                self.find_out(lead, &stamp, &lead.failed(failure))
            }
            Err(failure) => {
                lead.release(connection);
                Err(lead.failed(failure))
            }
        };
        match connection {
            Ok(connection) => Ok(std::iter::once(connection).chain(others).collect()),
            Err(error) => {
                let others = self.servers.all()[1..].iter().zip(others);
                others.for_each(|(shared, connection)| shared.release(connection));
                Err(error)
            }
        }
    }

    /// Finds out whether the change was made, after the connection to the first server broke in the
    /// commit. The lock of the writer is free as soon as the server has ended the transaction.
    fn find_out(
        &self,
        lead: &Shared,
        stamp: &str,
        error: &MemoryError,
    ) -> Result<Connection, MemoryError> {
        let server = &lead.server;
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
                if lead.locks.try_writer(&mut connection)? {
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
        self.attempt(|change| {
            change.check_keeps_base()?;
            let (servers, number) = (change.parts.len(), change.number);
            let removed = each(change.parts.iter_mut(), |index, part| {
                let own = ids.iter().copied().filter(|id| server_of(*id, servers) == index);
                let own: Vec<i64> = own.collect();
                part.attempt(|connection, record| remove(connection, record, number, &own))
            });
            let removed: Vec<HashSet<i64>> =
                removed.into_iter().collect::<Result<_, MemoryError>>()?;
            let is_missing = |id: &&i64| !removed[server_of(**id, servers)].contains(*id);
            let mut seen = HashSet::new();
            let missing = ids.iter().filter(is_missing).filter(|id| seen.insert(**id));
            let missing: Vec<i64> = missing.copied().collect();
            MemoryError::check_known(&missing, ids.len())
        })
    }

    fn re_encode(
        &mut self,
        encoders: Vec<EncoderRecord>,
        width: usize,
        encode: &mut dyn FnMut(Batch) -> Result<Batch, MemoryError>,
    ) -> Result<(), MemoryError> {
        check_width(width)?;
        self.attempt(|change| {
            if change.has_parts {
                return Err(MemoryError::Transaction { reason: NOT_ALONE });
            }
            let (base, number) = (Arc::clone(&change.base), change.number);
            let mut ids_and_rows = Vec::new();
            for (change, part) in change.parts.iter_mut().zip(base.all_parts()?) {
                change.begin_anew(part, number, (encoders.clone(), width))?;
                ids_and_rows.extend(part.ids_and_rows()?);
            }
            if change.parts.len() > 1 {
                // The rows of several servers have no common order.
                ids_and_rows.sort_unstable();
            }
            let rows: Vec<Row> = ids_and_rows.into_iter().map(|(_, row)| row).collect();
            let values = base.description.values.map_or(0, |values| values.tokens * values.width);
            let (most, numbers) = MAX_ENCODED;
            let at_once = (numbers / (base.description.width + values)).clamp(1, most);
            let batches = rows.chunks(at_once).map(|rows: &[Row]| {
                let (entries, keys) = (base.entries(rows)?, base.keys(rows)?);
                encode(Batch { entries, keys, values: base.values(rows)? })
            });
            let changes = change.parts.iter_mut().collect();
            write(changes, number, rows.len(), batches, |_, _| Ok(()))?;
            change.on_each(index)?;
            change.has_encoded = true;
            Ok(())
        })
    }

    fn commit(mut self: Box<Self>) -> Result<Arc<dyn Snapshot>, MemoryError> {
        let connections = self.finish()?;
        let current = self.servers.hold_current(None);
        // The locks end after the change is held.
        self.servers.release(connections);
        Ok(current.map_err(|error| self.servers.change_made(self.number, error))?)
    }

    fn commit_and_begin(mut self: Box<Self>) -> Result<Box<dyn Transaction>, MemoryError> {
        let connections = self.finish()?;
        let next = Self::begin_locked(Arc::clone(&self.servers), None, connections);
        Ok(Box::new(next.map_err(|error| self.servers.change_made(self.number, error))?))
    }
}

impl Drop for PostgresTransaction {
    fn drop(&mut self) {
        let connections = std::mem::take(&mut self.parts).into_iter().map(|part| part.connection);
        self.servers.release(connections.collect());
    }
}
