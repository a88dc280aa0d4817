//! Writes rows to the servers, by binary COPY.

use engram_memory::stored_rows::{EncodedRow, encode};
use engram_memory::{Batch, MemoryError};

use crate::change::Change;
use crate::connection::Connection;
use crate::copy;
use crate::failure::Failure;
use crate::fan_out::each;
use crate::record::GenerationRecord;
use crate::tables::{COLUMNS, rows_table};

/// The number of rows after which a memory must be written again: row numbers have 32 bits.
const MAX_ROWS: u64 = u32::MAX as u64;

/// Writes the rows of batches with `rows` rows in all, and counts them in the records. `number` is
/// the number of the new generation. Each server gets the rows of its share. Calls `before`
/// with each change and the ids of its rows before they are written.
pub(crate) fn write(
    mut changes: Vec<&mut Change>,
    number: u64,
    rows: usize,
    batches: impl Iterator<Item = Result<Batch, MemoryError>>,
    before: impl Fn(&mut Change, &[i64]) -> Result<(), Failure> + Sync,
) -> Result<(), MemoryError> {
    let Some(first) = changes.first() else { return Ok(()) };
    let next_row = changes.iter().map(|change| change.record.next_row).max().unwrap_or(0);
    // All rows may be on one server.
    let last_row = next_row + rows as u64 * u64::from(first.record.share.servers);
    if last_row > MAX_ROWS {
        return Err(MemoryError::invalid(
            "the number of rows since the memory was written as a whole",
            last_row,
            "less than 2^32; encode the memory again, or build several memories",
        ));
    }
    let mut description = first.record.description(&first.server.address.to_string(), number);
    let longest_key = encode(&mut description, rows, batches, |rows| {
        let written = each(changes.iter_mut(), |_, change| {
            let share = change.record.share;
            let own: Vec<EncodedRow<'_>> = rows.rows().filter(|row| share.has(row.id)).collect();
            if own.is_empty() {
                return Ok(());
            }
            let ids: Vec<i64> = own.iter().map(|row| row.id).collect();
            let copied = before(change, &ids).and_then(|()| change.copy(number, &own));
            copied.map_err(|failure| change.server.failed(failure))
        });
        written.into_iter().collect()
    })?;
    for change in changes {
        let record = &mut change.record;
        record
            .create_sources(&mut change.connection, &description.sources)
            .map_err(|failure| change.server.failed(failure))?;
        record.next_id = description.next_id;
        record.longest_key = record.longest_key.max(longest_key);
    }
    Ok(())
}

impl Change {
    fn copy(&mut self, number: u64, rows: &[EncodedRow<'_>]) -> Result<(), Failure> {
        let sources = rows.iter().map(|row| row.source as usize + 1).max().unwrap_or(0);
        let record = &mut self.record;
        // Names follow once all rows are written.
        record.create_sources(&mut self.connection, &vec![String::new(); sources])?;
        for row in rows {
            record.sources[row.source as usize].entries += 1;
        }
        let (first, step) = (record.next_row.cast_signed(), u64::from(record.share.servers));
        let numbered = (first..).step_by(step as usize).zip(rows);
        let parts = copy::encode(numbered, number.cast_signed(), record.values.is_some());
        let sql = format!("COPY {} ({COLUMNS}) FROM STDIN BINARY", rows_table(record.base));
        self.connection.copy_in(&sql, parts)?;
        record.next_row += step * rows.len() as u64;
        record.stored_rows += rows.len() as u64;
        Ok(())
    }
}

/// Inserts the record of a generation, which is current from the commit on. The first server gives
/// it a stamp, which the others get, too.
pub(crate) fn insert_generation(
    connection: &mut Connection,
    number: u64,
    record: &GenerationRecord,
    stamp: Option<&str>,
) -> Result<String, Failure> {
    let record = record.to_json()?;
    let sql = "INSERT INTO generations (number, stamp, record) \
               VALUES ($1, coalesce($2::text::uuid, gen_random_uuid()), $3::text::json) \
               RETURNING stamp::text";
    Ok(connection.query(sql, &[&number.cast_signed(), &stamp, &record])?[0].try_get(0)?)
}
