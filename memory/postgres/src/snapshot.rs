//! One state of a memory on a server.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, OnceLock};

use engram_memory::generation::Info;
use engram_memory::search::{Filter, Queries, SearchResults};
use engram_memory::stored_rows::read_value;
use engram_memory::{Batch, Description, Entry, MemoryError, Method, Row, Snapshot};
use tokio_postgres::error::SqlState;
use tokio_postgres::types::FromSqlOwned;

use crate::connection::Connection;
use crate::failure::Failure;
use crate::holder::{Held, Stored, exists};
use crate::server::Server;
use crate::tables::{VISIBLE, rows_table};
use crate::text::Texts;
use crate::vector::Vector;

/// The maximum number of rows or ids of a statement.
const MAX_ROWS: usize = 4096;
/// The maximum number of bytes of keys and values that a statement returns, approximately.
const MAX_BYTES: usize = 1 << 24;

/// One state of a memory on a server. It is held as long as this value exists.
pub struct PostgresSnapshot {
    pub(crate) server: Arc<Server>,
    pub(crate) generation: Stored,
    pub(crate) description: Description,
    /// The words of all entries, once they were searched.
    pub(crate) texts: OnceLock<Texts>,
    _held: Held,
}

impl fmt::Debug for PostgresSnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let location = &self.description.location;
        write!(f, "generation {} of {location}", self.generation.number)
    }
}

impl PostgresSnapshot {
    pub(crate) fn new(server: Arc<Server>, generation: Stored, held: Held) -> Self {
        let location = server.address.to_string();
        let description = generation.record.description(&location, generation.number);
        Self { server, generation, description, texts: OnceLock::new(), _held: held }
    }

    /// The parameters of [`VISIBLE`].
    pub(crate) fn parameters(&self) -> (i64, &str) {
        (self.generation.number.cast_signed(), &self.generation.stamp)
    }

    /// The table of the rows.
    pub(crate) fn table(&self) -> String {
        rows_table(self.generation.record.base)
    }

    /// Reads from the server. Tries again while the server is away.
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
        self.description.values.map_or(0, |values| values.tokens * values.width)
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
                    MemoryError::InvalidOption {
                        option: "a row",
                        found: number.to_string(),
                        expected: "a row of this generation",
                    }
                })?);
            }
        }
        Ok(all)
    }

    /// Returns rows with their entries, keys and values, as they were added.
    pub(crate) fn batch(&self, rows: &[Row]) -> Result<Batch, MemoryError> {
        Ok(Batch {
            entries: self.entries(rows)?,
            keys: self.keys(rows)?,
            values: self.values(rows)?,
        })
    }

    pub(crate) fn corrupt(&self, reason: impl Into<String>) -> MemoryError {
        MemoryError::Corrupt { file: self.server.address.as_folder(), reason: reason.into() }
    }

    pub(crate) fn parse_entry(&self, text: &str) -> Result<Entry, MemoryError> {
        serde_json::from_str(text)
            .map_err(|error| self.corrupt(format!("a row is not an entry: {error}")))
    }
}

impl Snapshot for PostgresSnapshot {
    fn description(&self) -> &Description {
        &self.description
    }

    fn info(&self) -> Result<Info, MemoryError> {
        let table = self.table();
        let bytes = self.read(|connection| {
            let sql = "SELECT coalesce(sum(pg_total_relation_size(relid)), 0)::bigint \
                       FROM pg_partition_tree($1::text::regclass)";
            Ok(connection.query(sql, &[&table])?[0].try_get::<_, i64>(0)?)
        })?;
        let (description, record) = (&self.description, &self.generation.record);
        Ok(Info {
            generation: description.generation,
            entries: description.entries,
            deleted: description.deleted,
            width: description.width,
            normalised: description.normalised,
            values: description.values.map(|format| format.to_string()),
            encoders: description.encoders.clone(),
            sources: record.sources.iter().map(|s| (s.name.clone(), s.entries as usize)).collect(),
            bytes: bytes.cast_unsigned(),
            bytes_per_row: bytes as f64 / record.stored_rows.max(1) as f64,
        })
    }

    fn search(
        &self,
        method: Method,
        queries: Queries<'_>,
        filter: &Filter,
    ) -> Result<SearchResults, MemoryError> {
        crate::search::search(self, method, queries, filter)
    }

    fn search_texts(
        &self,
        queries: &[&str],
        k: usize,
        filter: &Filter,
    ) -> Result<SearchResults, MemoryError> {
        crate::text::search(self, queries, k, filter)
    }

    fn rows(&self) -> Result<Vec<Row>, MemoryError> {
        let sql = format!("SELECT row FROM {} WHERE {VISIBLE} ORDER BY row", self.table());
        let (number, stamp) = self.parameters();
        self.read(|connection| {
            let rows = connection.query(&sql, &[&number, &stamp])?;
            if rows.is_empty() {
                self.check_exists(connection)?;
            }
            rows.iter().map(|row| Ok(row_of(row.try_get(0)?))).collect()
        })
    }

    fn find(&self, ids: &[i64]) -> Result<Vec<Option<Row>>, MemoryError> {
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

    fn entries(&self, rows: &[Row]) -> Result<Vec<Entry>, MemoryError> {
        let texts: Vec<String> = self.column("entry::text", rows, 0)?;
        texts.iter().map(|text| self.parse_entry(text)).collect()
    }

    fn keys(&self, rows: &[Row]) -> Result<Vec<f32>, MemoryError> {
        let keys: Vec<Vector> = self.column("key", rows, 4 * self.description.width)?;
        Ok(keys.into_iter().flat_map(|key| key.0).collect())
    }

    fn values(&self, rows: &[Row]) -> Result<Vec<f32>, MemoryError> {
        let Some(format) = self.description.values else { return Ok(Vec::new()) };
        let len = self.value_len();
        let mut values = vec![0.0; rows.len() * len];
        let bytes: Vec<Vec<u8>> = self.column("value", rows, 2 * len)?;
        for (out, bytes) in values.chunks_mut(len).zip(bytes) {
            read_value(format, &bytes, out).map_err(|error| self.corrupt(error.to_string()))?;
        }
        Ok(values)
    }
}

/// The row with a number from the server.
pub(crate) fn row_of(number: i64) -> Row {
    // Writers give no larger numbers.
    Row::new(number as u32)
}
