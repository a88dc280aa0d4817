//! Removes from a server the changes that the first server does not have, because the writer or the
//! first server was killed between their commits.

use tokio_postgres::error::SqlState;

use crate::connection::Connection;
use crate::failure::Failure;
use crate::holder::Stored;
use crate::tables::{NEVER, rows_table};

/// Removes the generations after `current`, and their rows, as a part of the transaction of the
/// connection, which has the lock of the writer.
pub(crate) fn undo_later(connection: &mut Connection, current: &Stored) -> Result<(), Failure> {
    let number = current.number.cast_signed();
    let sql = "DELETE FROM generations WHERE number > $1 RETURNING record ->> 'base'";
    let later = connection.query(sql, &[&number])?;
    if later.is_empty() {
        return Ok(());
    }
    for row in later {
        let base: &str = row.try_get(0)?;
        if let Ok(base) = base.parse::<u64>()
            && base > current.number
        {
            let table = rows_table(base);
            connection.batch_execute(&format!("DROP TABLE IF EXISTS {table}"))?;
        }
    }
    let table = rows_table(current.record.base);
    connection.execute(&format!("DELETE FROM {table} WHERE added > $1"), &[&number])?;
    let sql =
        format!("UPDATE {table} SET removed = {NEVER} WHERE removed > $1 AND removed < {NEVER}");
    connection.execute(&sql, &[&number])?;
    // Partitions of sources that the later generations added.
    for source in current.record.sources.len().. {
        let sql = format!("DROP TABLE {table}_{source}");
        connection.batch_execute("SAVEPOINT partition")?;
        match connection.batch_execute(&sql) {
            Ok(()) => {}
            Err(failure) if failure.code() == Some(&SqlState::UNDEFINED_TABLE) => {
                return connection.batch_execute("ROLLBACK TO partition");
            }
            Err(failure) => return Err(failure),
        }
    }
    Ok(())
}
