//! Errors of a server: which ones a new connection may repair, and their descriptions.

use std::error::Error;
use std::io;
use std::time::Duration;

use engram_memory::MemoryError;
use engram_memory::error::one_line;
use tokio_postgres::error::SqlState;

use crate::tls;

/// An error of the server, or of the memory.
#[derive(Debug)]
pub(crate) enum Failure {
    Server(tokio_postgres::Error),
    /// The server did not answer within this time.
    Silent(Duration),
    Memory(MemoryError),
}

impl From<tokio_postgres::Error> for Failure {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Server(error)
    }
}

impl From<MemoryError> for Failure {
    fn from(error: MemoryError) -> Self {
        Self::Memory(error)
    }
}

impl Failure {
    /// The code of an error that the server returned.
    pub(crate) fn code(&self) -> Option<&SqlState> {
        match self {
            Self::Server(error) => error.code(),
            Self::Silent(_) | Self::Memory(_) => None,
        }
    }

    /// Whether the connection broke, or was refused because the server starts or ends.
    pub(crate) fn is_broken(&self) -> bool {
        match self {
            Self::Silent(_) => true,
            Self::Memory(_) => false,
            Self::Server(error) => is_broken(error),
        }
    }

    /// Describes the error. `location` is the address of the memory.
    pub(crate) fn describe(self, location: &str) -> MemoryError {
        let (reason, remedy) = match self {
            Self::Memory(error) => return error,
            Self::Silent(limit) => (
                format!("no answer within {:.1} s", limit.as_secs_f64()),
                "check that the server runs and is not overloaded, and the network to it",
            ),
            Self::Server(error) => describe(&error),
        };
        MemoryError::Remote { location: location.to_owned(), reason: one_line(&reason), remedy }
    }
}

fn is_broken(error: &tokio_postgres::Error) -> bool {
    if let Some(code) = error.code() {
        let codes =
            [SqlState::ADMIN_SHUTDOWN, SqlState::CRASH_SHUTDOWN, SqlState::CANNOT_CONNECT_NOW];
        return codes.contains(code) || code.code().starts_with("08");
    }
    let source = error.source().and_then(|source| source.downcast_ref::<io::Error>());
    error.is_closed() || source.is_some_and(|source| tls::handshake_error(source).is_none())
}

/// The reason and the remedy of an error.
fn describe(error: &tokio_postgres::Error) -> (String, &'static str) {
    let Some(server_error) = error.as_db_error() else {
        let source = error.source();
        let io = source.and_then(|source| source.downcast_ref::<io::Error>());
        if let Some(handshake) = io.and_then(tls::handshake_error) {
            return tls::describe(handshake);
        }
        let mut reason = error.to_string();
        if let Some(source) = source {
            reason = format!("{reason}: {source}");
        }
        let remedy = if is_broken(error) {
            "check that the server runs and can be reached from here"
        } else if reason.contains("server does not support TLS") {
            "turn on `ssl` on the server, use a Unix socket or a tunnel, or allow an unencrypted \
             connection (insecure)"
        } else {
            "check the address, the user and the password (PGPASSWORD or ~/.pgpass)"
        };
        return (reason, remedy);
    };
    let code = server_error.code();
    let is = |codes: &[SqlState]| codes.contains(code);
    let remedy = if is(&[SqlState::INVALID_PASSWORD, SqlState::INVALID_AUTHORIZATION_SPECIFICATION])
    {
        "check the user, and the password in PGPASSWORD or ~/.pgpass"
    } else if is(&[SqlState::INVALID_CATALOG_NAME]) {
        "create the database, or correct its name"
    } else if is(&[SqlState::INSUFFICIENT_PRIVILEGE]) {
        "ask the owner of the database for the privilege (CREATE on the database for a new memory)"
    } else if is(&[SqlState::DISK_FULL]) {
        "free space on the server"
    } else if is(&[SqlState::TOO_MANY_CONNECTIONS]) {
        "wait, or raise max_connections of the server"
    } else if is(&[SqlState::QUERY_CANCELED]) {
        "search for fewer queries or entries at a time, or raise the time limit of a statement"
    } else if is(&[SqlState::LOCK_NOT_AVAILABLE]) {
        "end other programs that use the tables of this memory, then try again"
    } else if is_broken(error) {
        "check that the server runs"
    } else {
        "see the log of the server"
    };
    (format!("{} (SQLSTATE {})", server_error.message(), code.code()), remedy)
}
