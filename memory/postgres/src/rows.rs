//! Writes rows to the servers, by binary COPY.

use engram_memory::stored_rows::{StoredRow, encode};
use engram_memory::{Batch, MemoryError};

use crate::connection::Connection;
use crate::copy;
use crate::failure::Failure;
use crate::fan_out::each;
use crate::record::GenerationRecord;
use crate::server::Server;
use crate::tables::{COLUMNS, rows_table};
use crate::watch::notify;

/// The number of rows after which a memory must be written again: row numbers have 32 bits.
const MAX_ROWS: u64 = u32::MAX as u64;

/// A server that gets rows, and the record of its share of the new generation.
pub(crate) struct Target<'a> {
    pub(crate) server: &'a Server,
    pub(crate) connection: &'a mut Connection,
    pub(crate) record: &'a mut GenerationRecord,
}

/// Writes the rows of batches with `rows` rows in all, and counts them in the records. `number` is
/// the number of the new generation. Each target gets the rows of its share. Calls `before`
/// with each target and the ids of its rows before they are written.
pub(crate) fn write(
    targets: &mut [Target<'_>],
    number: u64,
    rows: usize,
    batches: impl Iterator<Item = Result<Batch, MemoryError>>,
    before: impl Fn(&mut Target<'_>, &[i64]) -> Result<(), Failure> + Sync,
) -> Result<(), MemoryError> {
    let Some(first) = targets.first() else { return Ok(()) };
    let next_row = targets.iter().map(|target| target.record.next_row).max().unwrap_or(0);
    // All rows may be on one server.
    let last_row = next_row + rows as u64 * first.record.servers();
    if last_row > MAX_ROWS {
        return Err(MemoryError::InvalidOption {
            option: "the number of rows since the memory was written as a whole",
            found: last_row.to_string(),
            expected: "less than 2^32; encode the memory again, or build several memories",
        });
    }
    let mut description = first.record.description(&first.server.address.to_string(), number);
    let longest_key = encode(&mut description, rows, batches, |rows| {
        let written = each(targets.iter_mut(), |_, target| {
            let share = target.record.share;
            let own: Vec<&StoredRow<'_>> =
                rows.iter().filter(|row| share.is_none_or(|share| share.has(row.id))).collect();
            if own.is_empty() {
                return Ok(());
            }
            let ids: Vec<i64> = own.iter().map(|row| row.id).collect();
            let copied = before(target, &ids).and_then(|()| target.copy(number, &own));
            copied.map_err(|failure| target.server.failed(failure))
        });
        written.into_iter().collect()
    })?;
    for target in targets {
        let record = &mut *target.record;
        record
            .create_sources(target.connection, &description.sources)
            .map_err(|failure| target.server.failed(failure))?;
        record.next_id = description.next_id;
        record.longest_key = record.longest_key.max(longest_key);
    }
    Ok(())
}

impl Target<'_> {
    fn copy(&mut self, number: u64, rows: &[&StoredRow<'_>]) -> Result<(), Failure> {
        let sources = rows.iter().map(|row| row.source as usize + 1).max().unwrap_or(0);
        let record = &mut *self.record;
        // Names follow once all rows are written.
        record.create_sources(self.connection, &vec![String::new(); sources])?;
        for row in rows {
            record.sources[row.source as usize].entries += 1;
        }
        let (first, step) = (record.next_row.cast_signed(), record.servers());
        let numbered = (first..).step_by(step as usize).zip(rows.iter().copied());
        let parts = copy::encode(numbered, number.cast_signed(), record.values.is_some());
        let sql = format!("COPY {} ({COLUMNS}) FROM STDIN BINARY", rows_table(record.base));
        self.connection.copy_in(&sql, parts)?;
        record.next_row += step * rows.len() as u64;
        record.stored_rows += rows.len() as u64;
        Ok(())
    }
}

/// Inserts the record of a generation, which is current from the commit on. The first server gives it
/// a stamp, which the others get, too.
pub(crate) fn insert_generation(
    connection: &mut Connection,
    number: u64,
    record: &GenerationRecord,
    stamp: Option<&str>,
) -> Result<String, Failure> {
    if stamp.is_none() {
        notify(connection, number)?;
    }
    let record = record.to_json()?;
    let sql = "INSERT INTO generations (number, stamp, record) \
               VALUES ($1, coalesce($2::text::uuid, gen_random_uuid()), $3::text::json) \
               RETURNING stamp::text";
    Ok(connection.query(sql, &[&number.cast_signed(), &stamp, &record])?[0].try_get(0)?)
}
