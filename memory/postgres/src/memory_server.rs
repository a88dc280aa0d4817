//! The address of a memory, which need not exist yet.

use std::sync::Arc;

use engram_memory::{EncoderRecord, Generation, MemoryError, MemoryServer, Store};
use tokio_postgres::error::SqlState;

use crate::address::Connect;
use crate::holder::newest;
use crate::push::{PushOptions, push};
use crate::servers::Servers;
use crate::store::PostgresStore;

/// The addresses of a memory, separated by spaces or commas, and the means to connect to them.
#[derive(Debug, Clone)]
pub struct PostgresServer {
    urls: String,
    connect: Connect,
    location: String,
}

impl PostgresServer {
    /// Checks the addresses. Sends no request.
    ///
    /// # Errors
    /// [`MemoryError::Remote`] for an address that cannot be used
    pub fn new(urls: &str, connect: Connect) -> Result<Self, MemoryError> {
        let location = Servers::new(urls, connect)?.location();
        Ok(Self { urls: urls.to_owned(), connect, location })
    }
}

impl MemoryServer for PostgresServer {
    fn location(&self) -> String {
        self.location.clone()
    }

    fn open(&self) -> Result<Option<Box<dyn Store>>, MemoryError> {
        let servers = Arc::new(Servers::new(&self.urls, self.connect)?);
        let lead = &servers.lead().server;
        let newest = lead.connect().and_then(|mut connection| newest(&mut connection, lead));
        match newest {
            Ok(Some(_)) => Ok(Some(Box::new(PostgresStore::of_servers(servers)?))),
            Ok(None) => Ok(None),
            Err(failure) if failure.code() == Some(&SqlState::UNDEFINED_TABLE) => Ok(None),
            Err(failure) => Err(lead.failed(failure)),
        }
    }

    fn push(
        &self,
        source: &Arc<Generation>,
        encoders: Vec<EncoderRecord>,
        replace: bool,
    ) -> Result<Box<dyn Store>, MemoryError> {
        let options = PushOptions { replace, encoders: &encoders, ..PushOptions::default() };
        push(source, &self.urls, self.connect, options, &mut |_| {})?;
        Ok(Box::new(PostgresStore::open(&self.urls, self.connect)?))
    }
}
