//! Waits for new generations. The commit of a generation notifies the channel `engram_memory_NAME` of
//! the database, with the number of the generation.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use engram_memory::MemoryError;

use crate::connection::Connection;
use crate::failure::Failure;
use crate::holder::current;
use crate::servers::Servers;

/// The longest time without a check whether the server is still there.
const CHECK: Duration = Duration::from_secs(30);

/// Waits for new generations of a memory.
pub struct Watch {
    servers: Arc<Servers>,
    /// The connection that listens; `None` after it broke.
    connection: Option<Connection>,
    /// The newest generation so far.
    newest: u64,
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Watch").field(&self.servers.location()).finish()
    }
}

impl Watch {
    pub(crate) fn new(servers: Arc<Servers>, newest: u64) -> Self {
        Self { servers, connection: None, newest }
    }

    /// Waits for at most `time` until there is a generation after all that this value has returned, and
    /// after the one that the store had open. Returns its number; `None` if there is none in this
    /// time. Generations that come while nobody waits are not missed.
    ///
    /// # Errors
    /// [`MemoryError::Remote`]; [`MemoryError::NoMemory`] if the memory was removed
    pub fn wait(&mut self, time: Duration) -> Result<Option<u64>, MemoryError> {
        let servers = Arc::clone(&self.servers);
        let end = Instant::now() + time;
        servers.lead().server.retry(|| {
            let result = self.try_wait(end);
            if result.is_err() {
                self.connection = None;
            }
            result
        })
    }

    fn try_wait(&mut self, end: Instant) -> Result<Option<u64>, Failure> {
        let server = &self.servers.lead().server;
        let connection = match &mut self.connection {
            Some(connection) => connection,
            None => {
                let mut connection = server.connect()?;
                connection.batch_execute(&format!("LISTEN {}", channel(&connection.schema)))?;
                // Generations that came before the server listened.
                let number = current(&mut connection, server)?.number;
                self.connection = Some(connection);
                if number > self.newest {
                    self.newest = number;
                    return Ok(Some(number));
                }
                return self.try_wait(end);
            }
        };
        loop {
            let left = end.saturating_duration_since(Instant::now());
            match connection.client.notification(left.min(CHECK))? {
                Some(number) => {
                    let number = number.parse().unwrap_or(0);
                    if number > self.newest {
                        self.newest = number;
                        return Ok(Some(number));
                    }
                }
                None if left <= CHECK => return Ok(None),
                None => connection.client.check()?,
            }
        }
    }
}

/// Notifies of a generation, as soon as the transaction of the connection commits.
pub(crate) fn notify(connection: &mut Connection, number: u64) -> Result<(), Failure> {
    let channel = channel(&connection.schema);
    connection.query("SELECT pg_notify($1, $2)", &[&channel, &number.to_string()]).map(drop)
}

fn channel(schema: &str) -> String {
    format!("engram_memory_{}", schema.trim_start_matches("engram_"))
}
