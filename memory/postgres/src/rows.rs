//! Writes rows to the server, by binary COPY.

use engram_memory::stored_rows::{StoredRow, encode};
use engram_memory::{Batch, MemoryError};

use crate::connection::Connection;
use crate::copy;
use crate::failure::Failure;
use crate::record::{GenerationRecord, SourceRecord};
use crate::server::Server;
use crate::tables::{COLUMNS, create_partition, rows_table};

/// The number of rows after which a memory must be written again: row numbers have 32 bits.
const MAX_ROWS: u64 = u32::MAX as u64;

/// Writes new rows of a generation, and counts them in its record.
pub(crate) struct RowWriter<'a> {
    server: &'a Server,
    connection: &'a mut Connection,
    record: &'a mut GenerationRecord,
    /// The number of the new generation.
    number: u64,
}

impl<'a> RowWriter<'a> {
    pub(crate) fn new(
        server: &'a Server,
        connection: &'a mut Connection,
        record: &'a mut GenerationRecord,
        number: u64,
    ) -> Self {
        Self { server, connection, record, number }
    }

    /// Writes the rows of batches with `rows` rows in all. Calls `before` with the connection and
    /// the ids of each batch before its rows are written.
    pub(crate) fn write(
        &mut self,
        rows: usize,
        batches: impl Iterator<Item = Result<Batch, MemoryError>>,
        mut before: impl FnMut(&mut Self, &[i64]) -> Result<(), Failure>,
    ) -> Result<(), MemoryError> {
        if rows as u64 > MAX_ROWS.saturating_sub(self.record.next_row) {
            return Err(MemoryError::InvalidOption {
                option: "the number of rows since the memory was written as a whole",
                found: (self.record.next_row + rows as u64).to_string(),
                expected: "less than 2^32; encode the memory again, or build several memories",
            });
        }
        let location = self.server.address.to_string();
        let mut description = self.record.description(&location, self.number);
        let longest_key = encode(&mut description, rows, batches, |rows| {
            let ids: Vec<i64> = rows.iter().map(|row| row.id).collect();
            before(self, &ids)
                .and_then(|()| self.copy(rows))
                .map_err(|failure| self.server.failed(failure))
        })?;
        for (source, name) in self.record.sources.iter_mut().zip(description.sources) {
            source.name = name;
        }
        self.record.next_id = description.next_id;
        self.record.longest_key = self.record.longest_key.max(longest_key);
        Ok(())
    }

    pub(crate) fn parts(&mut self) -> (&mut Connection, &mut GenerationRecord) {
        (self.connection, self.record)
    }

    fn copy(&mut self, rows: &[StoredRow<'_>]) -> Result<(), Failure> {
        let (base, record) = (self.record.base, &mut *self.record);
        for row in rows {
            while record.sources.len() <= row.source as usize {
                let source = record.sources.len() as u32;
                create_partition(self.connection, base, source)?;
                // The name follows once all rows are written.
                record.sources.push(SourceRecord { name: String::new(), entries: 0 });
            }
            record.sources[row.source as usize].entries += 1;
        }
        let table = rows_table(base);
        let (first, number) = (record.next_row.cast_signed(), self.number.cast_signed());
        let parts = copy::encode((first..).zip(rows), number, record.values.is_some());
        self.connection.copy_in(&format!("COPY {table} ({COLUMNS}) FROM STDIN BINARY"), parts)?;
        record.next_row += rows.len() as u64;
        record.stored_rows += rows.len() as u64;
        Ok(())
    }
}

/// Inserts the record of a generation, which is current from the commit on.
pub(crate) fn insert_generation(
    connection: &mut Connection,
    number: u64,
    record: &GenerationRecord,
) -> Result<String, Failure> {
    let record = serde_json::to_string(record).map_err(|error| MemoryError::Rows(error.into()))?;
    let sql = "INSERT INTO generations (number, record) VALUES ($1, $2::text::json) \
               RETURNING stamp::text";
    Ok(connection.query(sql, &[&number.cast_signed(), &record])?[0].try_get(0)?)
}
