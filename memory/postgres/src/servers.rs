//! The servers of a memory. Entry `id` is on server `id % N`. The newest generation of the first
//! server is the current one, once all servers have it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use engram_memory::MemoryError;

use crate::address::Connect;
use crate::connection::Connection;
use crate::failure::Failure;
use crate::fan_out::each;
use crate::holder::{Holder, Locks, Stored};
use crate::part::Part;
use crate::record::Share;
use crate::server::Server;
use crate::snapshot::PostgresSnapshot;

/// The maximum number of attempts to open a generation while writers replace it.
const MAX_ATTEMPTS: u64 = 100;
/// The time to wait for the lock of a writer whose connection to the first server has ended.
const WRITER_ENDS: Duration = Duration::from_secs(2);

/// A server with the locks of a memory.
pub(crate) struct Shared {
    pub(crate) server: Arc<Server>,
    pub(crate) locks: Locks,
    holder: Mutex<Holder>,
}

/// The servers of a memory, with the leading one first.
pub(crate) struct Servers(Vec<Shared>);

impl Servers {
    /// The servers with these addresses, separated by spaces or commas.
    pub(crate) fn new(urls: &str, connect: Connect) -> Result<Self, MemoryError> {
        let urls = urls.replace(",postgres", " postgres");
        let urls: Vec<&str> = urls.split_whitespace().collect();
        // An empty text is an error, too.
        let urls = if urls.is_empty() { vec![""] } else { urls };
        let servers = urls.iter().map(|url| {
            let server = Arc::new(Server::new(url, connect)?);
            let locks = Locks::new(&server.address.schema);
            Ok(Shared { server, locks, holder: Mutex::new(Holder::new(locks)) })
        });
        let servers = Self(servers.collect::<Result<_, MemoryError>>()?);
        for (index, shared) in servers.0.iter().enumerate() {
            let address = shared.server.address.to_string();
            if servers.0[..index].iter().any(|s| s.server.address.to_string() == address) {
                return Err(shared.server.remote("is given twice", "give each server once"));
            }
        }
        Ok(servers)
    }

    pub(crate) fn all(&self) -> &[Shared] {
        &self.0
    }

    pub(crate) fn lead(&self) -> &Shared {
        &self.0[0]
    }

    /// The addresses, for messages.
    pub(crate) fn location(&self) -> String {
        let addresses: Vec<String> =
            self.0.iter().map(|shared| shared.server.address.to_string()).collect();
        addresses.join(" ")
    }

    /// Returns the error of a step after the commit of a generation.
    pub(crate) fn change_made(&self, generation: u64, error: MemoryError) -> MemoryError {
        let (folder, source) = (self.location().into(), Box::new(error));
        MemoryError::ChangeMade { folder, generation, source }
    }

    pub(crate) fn is_partial(&self) -> bool {
        self.lead().server.options.partial
    }

    /// The share of a server.
    pub(crate) fn share(&self, server: usize) -> Share {
        Share { server: server as u32, servers: self.0.len() as u32 }
    }

    /// Holds the current generation. Returns `previous` if it is still current.
    pub(crate) fn hold_current(
        self: &Arc<Self>,
        previous: Option<&Arc<PostgresSnapshot>>,
    ) -> Result<Arc<PostgresSnapshot>, MemoryError> {
        let lead = self.lead();
        for attempt in 0..MAX_ATTEMPTS {
            let held = lead.holder().hold(&lead.server, None)?;
            let Some((generation, held)) = held else { continue };
            self.check_share(0, &generation)?;
            let Some(others) = self.hold_others(&generation)? else {
                // A writer removed the generation meanwhile.
                thread::sleep(Duration::from_millis(attempt));
                continue;
            };
            let is_same = |part: &&Part| part.generation == generation;
            let complete = previous.filter(|snapshot| snapshot.parts().count() == self.0.len());
            if let Some(previous) = complete
                && others.iter().all(Option::is_some)
                && previous.parts().next().filter(is_same).is_some()
            {
                return Ok(Arc::clone(previous));
            }
            let lead = Part::new(Arc::clone(&lead.server), generation, held);
            let servers = Arc::clone(self);
            return Ok(Arc::new(PostgresSnapshot::new(servers, lead, others)));
        }
        let reason = "names a generation that the other servers do not have";
        let remedy = "give the addresses of one memory, in their first order, or push it again";
        Err(lead.server.remote(reason, remedy))
    }

    /// Holds a generation on all servers but the first. Returns `None` if one of them does not have
    /// it. With partial results, the part of an unreachable server is `None`.
    fn hold_others(&self, generation: &Stored) -> Result<Option<Vec<Option<Part>>>, MemoryError> {
        let held = each(self.0[1..].iter(), |_, shared| -> Result<_, MemoryError> {
            shared.holder().hold(&shared.server, Some(generation))
        });
        let mut parts = Vec::with_capacity(held.len());
        for (index, (shared, held)) in self.0[1..].iter().zip(held).enumerate() {
            match held {
                Ok(Some((generation, held))) => {
                    self.check_share(index + 1, &generation)?;
                    parts.push(Some(Part::new(Arc::clone(&shared.server), generation, held)));
                }
                Ok(None) => return Ok(None),
                Err(MemoryError::Remote { .. }) if self.is_partial() => parts.push(None),
                Err(error) => return Err(error),
            }
        }
        Ok(Some(parts))
    }

    /// Returns an error if the server has another position in the memory than its address in the
    /// list.
    pub(crate) fn check_share(
        &self,
        server: usize,
        generation: &Stored,
    ) -> Result<(), MemoryError> {
        let share = generation.record.share;
        if share == self.share(server) {
            return Ok(());
        }
        let Share { server: index, servers } = share;
        let reason = format!("is server {} of the {servers} servers of its memory", index + 1);
        let remedy = "give the addresses of all servers of the memory, in their first order";
        Err(self.0[server].server.remote(reason, remedy))
    }

    /// Takes the locks of the writer on all servers.
    pub(crate) fn lock(&self) -> Result<Vec<Connection>, MemoryError> {
        let mut locked: Vec<Connection> = Vec::with_capacity(self.0.len());
        for (index, shared) in self.0.iter().enumerate() {
            let wait = if index == 0 { Duration::ZERO } else { WRITER_ENDS };
            match shared.lock(wait) {
                Ok(connection) => locked.push(connection),
                Err(error) => {
                    self.release(locked);
                    return Err(error);
                }
            }
        }
        Ok(locked)
    }

    /// Ends the transactions of these connections, and releases the locks of the writer.
    pub(crate) fn release(&self, connections: Vec<Connection>) {
        for (shared, connection) in self.0.iter().zip(connections) {
            shared.release(connection);
        }
    }
}

impl Shared {
    pub(crate) fn holder(&self) -> MutexGuard<'_, Holder> {
        self.holder.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the lock of the writer. Waits for another writer for this time.
    fn lock(&self, wait: Duration) -> Result<Connection, MemoryError> {
        let end = Instant::now() + wait;
        self.server.retry(|| {
            let mut connection = self.server.take()?;
            loop {
                if self.locks.try_writer(&mut connection)? {
                    return Ok(connection);
                }
                if Instant::now() >= end {
                    break;
                }
                thread::sleep(Duration::from_millis(20));
            }
            self.server.give_back(connection);
            Err(MemoryError::Locked { folder: self.server.address.as_folder() }.into())
        })
    }

    /// Ends the transaction of a connection, and releases the lock of the writer.
    pub(crate) fn release(&self, mut connection: Connection) {
        let undone = connection.roll_back();
        // A connection that is not given back is closed, which releases the lock a little later.
        if undone.and_then(|()| self.locks.release_writer(&mut connection)).is_ok() {
            self.server.give_back(connection);
        }
    }

    /// Returns the error of a failure.
    pub(crate) fn failed(&self, failure: Failure) -> MemoryError {
        self.server.failed(failure)
    }
}
