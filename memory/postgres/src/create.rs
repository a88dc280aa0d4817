//! Builds a new memory, in one transaction of each server, and removes a memory.

use std::sync::Arc;

use engram_memory::{Batch, EncoderRecord, MemoryError, MemoryFormat};
use tokio_postgres::error::SqlState;

use crate::address::Connect;
use crate::change::Change;
use crate::connection::Connection;
use crate::failure::Failure;
use crate::fan_out::each;
use crate::holder::newest;
use crate::record::GenerationRecord;
use crate::rows::{Target, insert_generation, write};
use crate::server::Server;
use crate::servers::Servers;
use crate::tables::{
    create_build, create_generations, create_indexes, create_rows, drop_build, has_build, has_table,
};

/// Builds a memory from batches with `rows` rows in all.
pub(crate) fn create(
    servers: &Servers,
    format: MemoryFormat,
    encoders: &[EncoderRecord],
    rows: usize,
    batches: impl Iterator<Item = Result<Batch, MemoryError>>,
) -> Result<(), MemoryError> {
    let MemoryFormat { width, normalised, values } = format;
    let mut parts = Vec::with_capacity(servers.all().len());
    for (index, shared) in servers.all().iter().enumerate() {
        let server = Arc::clone(&shared.server);
        let connection = server.connect().map_err(|failure| server.failed(failure))?;
        let shape = (width, normalised, values);
        let record = GenerationRecord::empty(1, shape, encoders.to_vec(), servers.share(index));
        let mut part = Change { server, connection, record };
        // After an error, the end of the connections undoes all.
        let server = Arc::clone(&part.server);
        part.attempt(|connection, _| {
            // The lock ends with the connection.
            if !shared.locks.try_writer(connection)? {
                return Err(MemoryError::Locked { folder: server.address.as_folder() }.into());
            }
            connection.begin()?;
            create_schema(&server, connection, index == 0)?;
            create_generations(connection)?;
            create_rows(connection, 1, width)?;
            // Until the first server commits, the other ones are unfinished.
            if index > 0 { create_build(connection) } else { Ok(()) }
        })?;
        parts.push(part);
    }
    let mut targets: Vec<Target<'_>> = parts.iter_mut().map(Change::target).collect();
    write(&mut targets, 1, rows, batches, |_, _| Ok(()))?;
    let indexed = each(parts.iter_mut(), |_, part| {
        part.attempt(|connection, _| create_indexes(connection, 1))
    });
    indexed.into_iter().collect::<Result<(), MemoryError>>()?;
    commit_first(&mut parts)
}

/// Removes the memory at these addresses, separated by spaces or commas, with all its generations, also
/// an unfinished push. Returns whether there was one. A schema without a memory stays.
///
/// # Errors
/// [`MemoryError::Remote`], also if the memory has other servers: nothing is removed then.
/// [`MemoryError::Locked`] while another process writes to the memory.
pub fn remove(urls: &str, connect: Connect) -> Result<bool, MemoryError> {
    let servers = Servers::new(urls, Connect { partial: false, ..connect })?;
    let mut connections = servers.lock()?;
    let removed = remove_on(&servers, &mut connections);
    servers.release(connections);
    removed
}

fn remove_on(servers: &Servers, connections: &mut [Connection]) -> Result<bool, MemoryError> {
    let mut found = Vec::with_capacity(connections.len());
    for (index, connection) in connections.iter_mut().enumerate() {
        found.push(has_memory(servers, index, connection)?);
    }
    let each_found = servers.all().iter().zip(connections.iter_mut()).zip(&found);
    let dropped = each(each_found, |_, ((shared, connection), found)| {
        let drop = format!("DROP SCHEMA {} CASCADE", shared.server.address.schema);
        let dropped = connection.begin();
        let dropped =
            dropped.and_then(|()| if *found { connection.batch_execute(&drop) } else { Ok(()) });
        dropped.map_err(|failure| shared.failed(failure))
    });
    dropped.into_iter().collect::<Result<(), MemoryError>>()?;
    // Readers look at the first server first.
    for (shared, connection) in servers.all().iter().zip(connections).rev() {
        connection.commit().map_err(|failure| shared.failed(failure))?;
    }
    Ok(found.contains(&true))
}

/// Whether a server has its share of a memory, or an unfinished push.
fn has_memory(
    servers: &Servers,
    index: usize,
    connection: &mut Connection,
) -> Result<bool, MemoryError> {
    let shared = &servers.all()[index];
    let failed = |failure| shared.failed(failure);
    if has_table(connection, "generations").map_err(failed)?
        && let Some(stored) = newest(connection, &shared.server).map_err(failed)?
    {
        servers.check_share(index, &stored)?;
        return Ok(true);
    }
    has_build(connection).map_err(failed)
}

/// Commits a generation 1 or a new one that was built as a whole, on the first server last. Then
/// removes the marks of the unfinished build.
pub(crate) fn commit_first(parts: &mut [Change]) -> Result<(), MemoryError> {
    let mut stamp: Option<String> = None;
    for part in parts.iter_mut() {
        let insert = |connection: &mut Connection, record: &mut GenerationRecord| {
            insert_generation(connection, record.base, record, stamp.as_deref())
        };
        stamp = Some(part.attempt(insert)?);
    }
    for index in (0..parts.len()).rev() {
        parts[index].attempt(|connection, _| connection.commit())?;
    }
    for part in parts {
        // The next writer removes a mark that stays.
        let _ = part.attempt(|connection, _| drop_build(connection));
    }
    Ok(())
}

/// Creates the schema of a new memory, in the transaction of the connection. Removes an unfinished
/// memory of this name.
pub(crate) fn create_schema(
    server: &Server,
    connection: &mut Connection,
    is_lead: bool,
) -> Result<(), Failure> {
    check_extension(server, connection)?;
    let schema = &server.address.schema;
    if has_build(connection)?
        && (!is_lead || connection.query("SELECT FROM generations LIMIT 1", &[])?.is_empty())
    {
        connection.batch_execute(&format!("DROP SCHEMA {schema} CASCADE"))?;
    }
    let created = connection.batch_execute(&format!("CREATE SCHEMA {schema}"));
    created.map_err(|failure| match failure.code() {
        // The second: another process has just created it.
        Some(code) if [SqlState::DUPLICATE_SCHEMA, SqlState::UNIQUE_VIOLATION].contains(code) => {
            MemoryError::AlreadyExists { folder: server.address.as_folder() }.into()
        }
        _ => failure,
    })
}

/// Returns an error if the database has no pgvector.
pub(crate) fn check_extension(server: &Server, connection: &mut Connection) -> Result<(), Failure> {
    let sql = "SELECT FROM pg_extension WHERE extname = 'vector'";
    if connection.query(sql, &[])?.is_empty() {
        let reason = "the database has no pgvector";
        let remedy = "let the owner of the database run `CREATE EXTENSION vector`";
        return Err(server.remote(reason, remedy).into());
    }
    Ok(())
}
