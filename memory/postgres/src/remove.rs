//! Removes a memory.

use engram_memory::MemoryError;

use crate::address::Connect;
use crate::connection::Connection;
use crate::fan_out::each;
use crate::holder::newest;
use crate::servers::Servers;
use crate::tables::{has_build, has_table};

/// Removes the memory at these addresses, separated by spaces or commas, with all its generations,
/// also an unfinished push. Returns whether there was one. A schema without a memory stays.
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
