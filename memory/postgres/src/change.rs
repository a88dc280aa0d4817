//! The part of a change that is on one server.

use std::collections::HashSet;
use std::sync::Arc;

use engram_memory::{EncoderRecord, MemoryError};

use crate::connection::Connection;
use crate::failure::Failure;
use crate::part::Part;
use crate::record::GenerationRecord;
use crate::rows::insert_generation;
use crate::server::Server;
use crate::tables::{NEVER, create_graphs, create_indexes, create_rows, rows_table};

/// A transaction of a server, with the lock of its writer.
pub(crate) struct Change {
    pub(crate) server: Arc<Server>,
    pub(crate) connection: Connection,
    /// The record of the new generation.
    pub(crate) record: GenerationRecord,
}

impl Change {
    /// Does a part of the change.
    pub(crate) fn attempt<T>(
        &mut self,
        part: impl FnOnce(&mut Connection, &mut GenerationRecord) -> Result<T, Failure>,
    ) -> Result<T, MemoryError> {
        let result = part(&mut self.connection, &mut self.record);
        result.map_err(|failure| self.server.failed(failure))
    }

    /// Starts a generation in which all rows get new keys: creates new tables for them.
    pub(crate) fn begin_anew(
        &mut self,
        part: &Part,
        number: u64,
        (encoders, width): (Vec<EncoderRecord>, usize),
    ) -> Result<(), MemoryError> {
        let old = &part.generation.record;
        let shape = (width, old.normalised, old.values);
        let mut record = GenerationRecord::empty(number, shape, encoders, old.share);
        record.next_id = old.next_id;
        record.graph = old.graph;
        self.record = record;
        self.attempt(|connection, record| {
            create_rows(connection, number, width)?;
            // The sources keep their indices, because gates depend on their order.
            let names: Vec<String> = old.sources.iter().map(|source| source.name.clone()).collect();
            record.create_sources(connection, &names)
        })
    }
}

/// Inserts the record of the generation `number` on each server. Returns its stamp.
pub(crate) fn insert_on_all(parts: &mut [Change], number: u64) -> Result<String, MemoryError> {
    let mut stamp: Option<String> = None;
    for part in parts {
        let insert = |connection: &mut Connection, record: &mut GenerationRecord| {
            insert_generation(connection, number, record, stamp.as_deref())
        };
        stamp = Some(part.attempt(insert)?);
    }
    Ok(stamp.unwrap_or_default())
}

/// Indexes the rows of a generation that were written anew, and builds their graphs.
pub(crate) fn index(
    connection: &mut Connection,
    record: &mut GenerationRecord,
) -> Result<(), Failure> {
    create_indexes(connection, record.base)?;
    let shape = (record.base, record.width);
    record.graph.map_or(Ok(()), |settings| create_graphs(connection, shape, settings))
}

/// Removes the entries of the base with these ids. Returns their ids.
pub(crate) fn remove(
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

/// Removes the entries that new rows replace. `requested` is the number of all new rows.
pub(crate) fn replace(
    change: &mut Change,
    number: u64,
    ids: &[i64],
    requested: usize,
) -> Result<(), Failure> {
    let Change { connection, record, .. } = change;
    let removed = remove(connection, record, number, ids)?;
    if removed.len() < ids.len() {
        check_not_live(connection, record, ids, &removed)?;
    }
    match ids.iter().find(|id| !removed.contains(id)) {
        None => Ok(()),
        Some(id) => Err(MemoryError::UnknownId { id: *id, missing: 1, requested }.into()),
    }
}

/// Returns an error if an entry has one of these ids, except for the ids in `removed`.
pub(crate) fn check_not_live(
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
