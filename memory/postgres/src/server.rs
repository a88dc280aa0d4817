//! A server: its unused connections, and attempts that are repeated.

use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use engram_memory::MemoryError;

use crate::address::{Address, Connect};
use crate::connection::Connection;
use crate::failure::Failure;

/// The maximum number of unused connections that stay open.
const MAX_IDLE: usize = 8;
/// The pauses between attempts double from the first to the last.
const PAUSES: [Duration; 2] = [Duration::from_millis(20), Duration::from_secs(1)];

/// The time for which partial results leave out a server that was unreachable.
const AWAY: Duration = Duration::from_secs(5);

/// A server, with connections that wait for their next use.
pub(crate) struct Server {
    pub(crate) address: Address,
    pub(crate) options: Connect,
    idle: Mutex<Vec<Connection>>,
    /// The time until which an unreachable server is not asked, if partial results are allowed.
    away_until: Mutex<Option<Instant>>,
}

impl Server {
    /// A server with an address such as `postgres://user@host/database?memory=name`.
    ///
    /// # Errors
    /// [`MemoryError::Remote`] for an address that cannot be used
    pub(crate) fn new(url: &str, options: Connect) -> Result<Self, MemoryError> {
        let address = Address::parse(url, &options)?;
        let (idle, away_until) = (Mutex::new(Vec::new()), Mutex::new(None));
        Ok(Self { address, options, idle, away_until })
    }

    /// Opens a new connection.
    pub(crate) fn connect(&self) -> Result<Connection, Failure> {
        self.address.endpoint.connect(&self.address.schema)
    }

    /// Takes an unused connection, or opens a new one.
    pub(crate) fn take(&self) -> Result<Connection, Failure> {
        let idle = self.idle().pop();
        match idle {
            Some(connection) => Ok(connection),
            None => self.connect(),
        }
    }

    /// Gives a connection back, unless it broke.
    pub(crate) fn give_back(&self, connection: Connection) {
        let mut idle = self.idle();
        if idle.len() < MAX_IDLE && !connection.is_closed() {
            idle.push(connection);
        }
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Connection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads from the server. Tries again while the server is unreachable.
    pub(crate) fn read<T>(
        &self,
        mut read: impl FnMut(&mut Connection) -> Result<T, Failure>,
    ) -> Result<T, MemoryError> {
        self.retry(|| {
            let mut connection = self.take()?;
            let result = read(&mut connection);
            if !matches!(&result, Err(failure) if failure.is_broken()) {
                self.give_back(connection);
            }
            result
        })
    }

    /// Repeats an attempt while its connection breaks.
    pub(crate) fn retry<T>(
        &self,
        mut attempt: impl FnMut() -> Result<T, Failure>,
    ) -> Result<T, MemoryError> {
        let start = Instant::now();
        if self.options.partial && self.away_until().is_some_and(|until| start < until) {
            return Err(self.remote("cannot be reached", "check that the server runs"));
        }
        let end = start + self.options.patience;
        let [mut pause, longest] = PAUSES;
        loop {
            match attempt() {
                Ok(result) => return Ok(result),
                Err(failure) if failure.is_broken() && Instant::now() < end => {
                    // The other connections to this server broke, too.
                    self.idle().clear();
                    thread::sleep(with_jitter(pause));
                    pause = (2 * pause).min(longest);
                }
                Err(failure) => {
                    if failure.is_broken() {
                        *self.away_until() = Some(Instant::now() + AWAY);
                    }
                    return Err(self.failed(failure));
                }
            }
        }
    }

    fn away_until(&self) -> MutexGuard<'_, Option<Instant>> {
        self.away_until.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns an error about this server.
    pub(crate) fn remote(&self, reason: impl Into<String>, remedy: &'static str) -> MemoryError {
        MemoryError::Remote { location: self.address.to_string(), reason: reason.into(), remedy }
    }

    /// Returns the error of a failure.
    pub(crate) fn failed(&self, failure: Failure) -> MemoryError {
        failure.describe(&self.address.to_string())
    }
}

/// Returns a random pause from half of this pause to all of it, so that many clients of a restarted
/// server do not connect at the same time.
fn with_jitter(pause: Duration) -> Duration {
    let random = RandomState::new().hash_one(0) as u32;
    pause / 2 + pause.mul_f64(f64::from(random) / f64::from(u32::MAX)) / 2
}
