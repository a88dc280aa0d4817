//! Removes generations without a holder, and rows that no remaining generation needs.

use std::collections::HashSet;

use tokio_postgres::error::SqlState;

use crate::connection::Connection;
use crate::failure::Failure;
use crate::holder::{Locks, Stored};
use crate::record::GenerationRecord;
use crate::tables::rows_table;

/// Removes older generations, as a part of the transaction of the connection, which has the lock of
/// the writer. Returns the number of removed rows of the current tables.
pub(crate) fn sweep(
    locks: Locks,
    connection: &mut Connection,
    current: &Stored,
) -> Result<u64, Failure> {
    let number = current.number.cast_signed();
    let sql = "SELECT number, record ->> 'base' FROM generations WHERE number < $1 ORDER BY number";
    let older = connection.query(sql, &[&number])?;
    if older.is_empty() {
        return Ok(0);
    }
    connection.batch_execute("SAVEPOINT sweep; SET LOCAL lock_timeout = '1s'")?;
    let mut unneeded = HashSet::new();
    let (mut oldest_held, mut needed) = (number, HashSet::from([current.record.base]));
    let mut removed = Vec::new();
    for row in older {
        let (number, base): (i64, &str) = (row.try_get(0)?, row.try_get(1)?);
        let Ok(base) = base.parse::<u64>() else { continue };
        if locks.try_remove(connection, number.cast_unsigned())? {
            removed.push(number);
            unneeded.insert(base);
        } else {
            oldest_held = oldest_held.min(number);
            needed.insert(base);
        }
    }
    let result = remove(connection, &current.record, &removed, oldest_held).and_then(|rows| {
        for base in unneeded.difference(&needed) {
            let table = rows_table(*base);
            connection.batch_execute(&format!("DROP TABLE IF EXISTS {table}"))?;
        }
        Ok(rows)
    });
    match result {
        // A slow reader that lost its lock still reads. The next writer tries again.
        Err(failure) if failure.code() == Some(&SqlState::LOCK_NOT_AVAILABLE) => {
            connection.batch_execute("ROLLBACK TO sweep; RELEASE sweep")?;
            Ok(0)
        }
        result => {
            let rows = result?;
            connection.batch_execute("RELEASE sweep")?;
            Ok(rows)
        }
    }
}

/// Removes these generations, and the rows that were removed by the oldest held generation or an
/// earlier one. Returns the number of these rows.
fn remove(
    connection: &mut Connection,
    record: &GenerationRecord,
    generations: &[i64],
    oldest_held: i64,
) -> Result<u64, Failure> {
    if generations.is_empty() {
        return Ok(0);
    }
    connection.query("DELETE FROM generations WHERE number = ANY($1)", &[&generations])?;
    let sql = format!("DELETE FROM {} WHERE removed <= $1", rows_table(record.base));
    connection.execute(&sql, &[&oldest_held])
}
