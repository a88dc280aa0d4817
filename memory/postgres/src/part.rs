//! The part of one state of a memory that is on one server.

use std::collections::HashMap;
use std::sync::Arc;

use engram_memory::cache::StoredValue;
use engram_memory::{Entry, MemoryError, Row};
use tokio_postgres::error::SqlState;
use tokio_postgres::types::FromSqlOwned;

use crate::connection::Connection;
use crate::failure::Failure;
use crate::holder::{Held, Stored, exists};
use crate::server::Server;
use crate::tables::{VISIBLE, rows_table};
use crate::vector::Vector;

/// The maximum number of rows or ids of a statement.
const MAX_ROWS: usize = 4096;
/// The maximum number of bytes of keys and values that a statement returns, approximately.
const MAX_BYTES: usize = 1 << 24;

/// The part of a generation that is on a server. It is held as long as this value exists.
pub(crate) struct Part {
    pub(crate) server: Arc<Server>,
    pub(crate) generation: Stored,
    _held: Held,
}

impl Part {
    pub(crate) fn new(server: Arc<Server>, generation: Stored, held: Held) -> Self {
        Self { server, generation, _held: held }
    }

    /// The parameters of [`VISIBLE`].
    pub(crate) fn parameters(&self) -> (i64, &str) {
        (self.generation.number.cast_signed(), &self.generation.stamp)
    }

    /// The index of the server.
    pub(crate) fn index(&self) -> u32 {
        self.generation.record.share.server
    }

    /// The table of the rows.
    pub(crate) fn table(&self) -> String {
        rows_table(self.generation.record.base)
    }

    /// Reads from the server. Tries again while the server is unreachable.
    pub(crate) fn read<T>(
        &self,
        read: impl FnMut(&mut Connection) -> Result<T, Failure>,
    ) -> Result<T, MemoryError> {
        let mut read = read;
        self.server.read(|connection| {
            read(connection).map_err(|failure| match failure.code() {
                Some(code) if *code == SqlState::UNDEFINED_TABLE => self.removed().into(),
                _ => failure,
            })
        })
    }

    /// Returns an error if the generation was removed. A statement that finds no row calls this.
    pub(crate) fn check_exists(&self, connection: &mut Connection) -> Result<(), Failure> {
        if exists(connection, &self.generation)? { Ok(()) } else { Err(self.removed().into()) }
    }

    fn removed(&self) -> MemoryError {
        MemoryError::MissingGeneration {
            folder: self.server.address.as_folder(),
            generation: self.generation.number.to_string(),
        }
    }

    /// The size of a value in components; 0 without values.
    pub(crate) fn value_len(&self) -> usize {
        self.generation.record.values.map_or(0, |values| values.tokens * values.width)
    }

    /// Reads one column of rows. Returns it in the order of `rows`.
    fn column<T: FromSqlOwned + Clone>(
        &self,
        column: &str,
        rows: &[Row],
        bytes: usize,
    ) -> Result<Vec<T>, MemoryError> {
        let sql =
            format!("SELECT row, {column} FROM {} WHERE row = ANY($3) AND {VISIBLE}", self.table());
        let (number, stamp) = self.parameters();
        let mut all = Vec::with_capacity(rows.len());
        for rows in rows.chunks((MAX_BYTES / bytes.max(1)).clamp(1, MAX_ROWS)) {
            let numbers: Vec<i64> = rows.iter().map(|row| i64::from(row.number())).collect();
            let by_row = self.read(|connection| {
                let found = connection.query(&sql, &[&number, &stamp, &numbers])?;
                let mut by_row: HashMap<i64, T> = HashMap::with_capacity(found.len());
                for row in found {
                    by_row.insert(row.try_get(0)?, row.try_get(1)?);
                }
                if by_row.is_empty() && !numbers.is_empty() {
                    self.check_exists(connection)?;
                }
                Ok(by_row)
            })?;
            for number in &numbers {
                all.push(by_row.get(number).cloned().ok_or_else(|| {
                    MemoryError::invalid("a row", number, "a row of this generation")
                })?);
            }
        }
        Ok(all)
    }

    pub(crate) fn corrupt(&self, reason: impl Into<String>) -> MemoryError {
        MemoryError::Corrupt { file: self.server.address.as_folder(), reason: reason.into() }
    }

    pub(crate) fn parse_entry(&self, text: &str) -> Result<Entry, MemoryError> {
        serde_json::from_str(text)
            .map_err(|error| self.corrupt(format!("a row is not an entry: {error}")))
    }

    /// The number of bytes of the rows and of their indexes.
    pub(crate) fn bytes(&self) -> Result<u64, MemoryError> {
        let table = self.table();
        self.read(|connection| {
            let sql = "SELECT coalesce(sum(pg_total_relation_size(relid)), 0)::bigint \
                       FROM pg_partition_tree($1::text::regclass)";
            let bytes: i64 = connection.query(sql, &[&table])?[0].try_get(0)?;
            Ok(bytes.cast_unsigned())
        })
    }

    /// As [`Snapshot::rows`](engram_memory::Snapshot::rows).
    pub(crate) fn rows(&self) -> Result<Vec<Row>, MemoryError> {
        Ok(self.ids_and_rows()?.into_iter().map(|(_, row)| row).collect())
    }

    /// The ids and the rows of all entries, in the order of the rows. An error unless there are as
    /// many as the record of the generation says.
    pub(crate) fn ids_and_rows(&self) -> Result<Vec<(i64, Row)>, MemoryError> {
        let sql = format!("SELECT id, row FROM {} WHERE {VISIBLE} ORDER BY row", self.table());
        let (number, stamp) = self.parameters();
        self.read(|connection| {
            let rows = connection.query(&sql, &[&number, &stamp])?;
            if rows.is_empty() {
                self.check_exists(connection)?;
            }
            let expected = self.generation.record.entries();
            if rows.len() as u64 != expected {
                let reason = format!("has {} of {expected} entries", rows.len());
                let remedy = "another program changed the tables; restore a backup of the \
                              database, or replace the memory by a complete one";
                return Err(self.server.remote(reason, remedy).into());
            }
            rows.iter().map(|row| Ok((row.try_get(0)?, row_of(row.try_get(1)?)))).collect()
        })
    }

    /// As [`Snapshot::find`](engram_memory::Snapshot::find).
    pub(crate) fn find(&self, ids: &[i64]) -> Result<Vec<Option<Row>>, MemoryError> {
        let sql = format!("SELECT id, row FROM {} WHERE id = ANY($3) AND {VISIBLE}", self.table());
        let (number, stamp) = self.parameters();
        let mut all = Vec::with_capacity(ids.len());
        for ids in ids.chunks(MAX_ROWS) {
            let by_id = self.read(|connection| {
                let rows = connection.query(&sql, &[&number, &stamp, &ids])?;
                if rows.is_empty() {
                    self.check_exists(connection)?;
                }
                let pairs = rows.iter().map(|row| Ok((row.try_get(0)?, row_of(row.try_get(1)?))));
                pairs.collect::<Result<HashMap<i64, Row>, Failure>>()
            })?;
            all.extend(ids.iter().map(|id| by_id.get(id).copied()));
        }
        Ok(all)
    }

    /// As [`Snapshot::entries`](engram_memory::Snapshot::entries).
    pub(crate) fn entries(&self, rows: &[Row]) -> Result<Vec<Entry>, MemoryError> {
        let texts: Vec<String> = self.column("entry::text", rows, 0)?;
        texts.iter().map(|text| self.parse_entry(text)).collect()
    }

    /// As [`Snapshot::keys`](engram_memory::Snapshot::keys).
    pub(crate) fn keys(&self, rows: &[Row]) -> Result<Vec<f32>, MemoryError> {
        let keys: Vec<Vector> = self.column("key", rows, 4 * self.generation.record.width)?;
        Ok(keys.into_iter().flat_map(|key| key.0).collect())
    }

    /// As [`Snapshot::values`](engram_memory::Snapshot::values).
    pub(crate) fn values(&self, rows: &[Row]) -> Result<Vec<f32>, MemoryError> {
        let Some(format) = self.generation.record.values else { return Ok(Vec::new()) };
        let len = self.value_len();
        let mut values = vec![0.0; rows.len() * len];
        let bytes: Vec<Vec<u8>> = self.column("value", rows, 2 * len)?;
        for (out, bytes) in values.chunks_mut(len).zip(bytes) {
            let value = StoredValue::from_bytes(format, bytes.into());
            value.map_err(|error| self.corrupt(error.to_string()))?.read(out);
        }
        Ok(values)
    }
}

/// The row with a number from the server.
pub(crate) fn row_of(number: i64) -> Row {
    // Writers give no larger numbers.
    Row::new(number as u32)
}
