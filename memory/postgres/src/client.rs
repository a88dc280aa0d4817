//! A blocking connection with time limits.
//!
//! A server that is stopped, or behind a network that drops packets, never answers. So each
//! statement has a time limit here, beside the limit of the server. A long statement of a writer,
//! such as the build of a graph, is waited for as long as the server accepts new connections.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::try_join_all;
use futures_util::{SinkExt, TryStreamExt};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::runtime::Runtime;
use tokio::time::{sleep, timeout};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Config, NoTls, Row, Socket, Statement};

use crate::failure::Failure;
use crate::tls::Tls;

/// The maximum number of prepared statements of a connection. Statements name the tables of a
/// generation, so old statements become useless.
const MAX_STATEMENTS: usize = 128;

/// A server, with the means and the time limits of a connection.
#[derive(Clone)]
pub(crate) struct Endpoint {
    pub(crate) config: Config,
    /// Encrypts connections; `None` for unencrypted ones.
    pub(crate) tls: Option<Tls>,
    /// The time limit of a new connection, from the first packet to the login.
    pub(crate) connect_limit: Duration,
    /// The time limit of a statement.
    pub(crate) limit: Duration,
}

/// The error that ended a connection.
type Fault = Arc<Mutex<Option<tokio_postgres::Error>>>;

/// A connection with its prepared statements. It sends and receives only while one of its methods
/// runs.
pub(crate) struct Connection {
    client: tokio_postgres::Client,
    /// The schema of the memory.
    pub(crate) schema: String,
    statements: HashMap<String, Statement>,
    fault: Fault,
    endpoint: Endpoint,
    /// Whether a statement may exceed the limit, as long as the server accepts connections.
    pub(crate) is_patient: bool,
    is_silent: bool,
    // Dropped last.
    runtime: Runtime,
}

impl Endpoint {
    /// Opens a connection for the memory in this schema.
    pub(crate) fn connect(&self, schema: &str) -> Result<Connection, Failure> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| engram_memory::MemoryError::Rows(error.into()))?;
        let fault = Fault::default();
        let client = runtime.block_on(self.open(&fault))?;
        let mut connection = Connection {
            client,
            schema: schema.to_owned(),
            statements: HashMap::new(),
            fault,
            endpoint: self.clone(),
            is_patient: false,
            is_silent: false,
            runtime,
        };
        connection.set_up(self.limit)?;
        Ok(connection)
    }

    async fn open(&self, fault: &Fault) -> Result<tokio_postgres::Client, Failure> {
        let open = async {
            Ok::<_, tokio_postgres::Error>(match self.tls.clone() {
                Some(tls) => {
                    let (client, connection) = self.config.connect(tls).await?;
                    tokio::spawn(run(connection, Arc::clone(fault)));
                    client
                }
                None => {
                    let (client, connection) = self.config.connect(NoTls).await?;
                    tokio::spawn(run(connection, Arc::clone(fault)));
                    client
                }
            })
        };
        match timeout(self.connect_limit, open).await {
            Ok(client) => Ok(client?),
            Err(_) => Err(Failure::Silent(self.connect_limit)),
        }
    }
}

/// Runs a connection until it ends.
async fn run<S: AsyncRead + AsyncWrite + Unpin>(
    connection: tokio_postgres::Connection<Socket, S>,
    fault: Fault,
) {
    if let Err(error) = connection.await {
        *fault.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
    }
}

impl Connection {
    /// Waits for a statement.
    fn wait<T>(
        &mut self,
        statement: impl AsyncFnOnce(&tokio_postgres::Client) -> Result<T, tokio_postgres::Error>,
    ) -> Result<T, Failure> {
        self.wait_for(async |client| Ok(statement(client).await?), true)
    }

    /// Waits for `work`. If `is_limited`, the time limit is for all of the work.
    fn wait_for<T>(
        &mut self,
        work: impl AsyncFnOnce(&tokio_postgres::Client) -> Result<T, Failure>,
        is_limited: bool,
    ) -> Result<T, Failure> {
        let limit = patience(&self.endpoint);
        let result = self.runtime.block_on(async {
            let work = work(&self.client);
            if !is_limited {
                return work.await;
            }
            let mut work = pin!(work);
            loop {
                tokio::select! {
                    result = &mut work => return result,
                    () = sleep(limit) => {
                        if !self.is_patient {
                            return Err(Failure::Silent(limit));
                        }
                        // After the limit, a patient wait goes on only if the server accepts a
                        // connection.
                        self.endpoint.open(&Fault::default()).await?;
                    }
                }
            }
        });
        match result {
            Err(Failure::Server(error)) if error.is_closed() => {
                // The reason is in the last message of the server.
                let mut fault = self.fault.lock().unwrap_or_else(PoisonError::into_inner);
                Err(fault.take().unwrap_or(error).into())
            }
            result => {
                self.is_silent |= matches!(result, Err(Failure::Silent(_)));
                result
            }
        }
    }

    /// Runs statements without parameters and without results.
    pub(crate) fn batch_execute(&mut self, sql: &str) -> Result<(), Failure> {
        self.wait(async |client| client.batch_execute(sql).await)
    }

    /// Prepares a statement, which stays prepared for the next time.
    pub(crate) fn prepare(&mut self, sql: &str) -> Result<Statement, Failure> {
        if let Some(statement) = self.statements.get(sql) {
            return Ok(statement.clone());
        }
        let statement = self.wait(async |client| client.prepare(sql).await)?;
        if self.statements.len() >= MAX_STATEMENTS {
            self.statements.clear();
        }
        self.statements.insert(sql.to_owned(), statement.clone());
        Ok(statement)
    }

    /// Runs a statement, and returns its rows.
    pub(crate) fn query(
        &mut self,
        sql: &str,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, Failure> {
        let statement = self.prepare(sql)?;
        self.wait(async |client| client.query(&statement, parameters).await)
    }

    /// Runs statements one after the other, which are sent at once. Returns the rows of each.
    pub(crate) fn query_all(
        &mut self,
        statements: &[(Statement, Vec<&(dyn ToSql + Sync)>)],
    ) -> Result<Vec<Vec<Row>>, Failure> {
        self.wait(async |client| {
            let queries = statements
                .iter()
                .map(|(statement, parameters)| client.query(statement, parameters));
            try_join_all(queries).await
        })
    }

    /// Runs a statement, and returns the number of its rows.
    pub(crate) fn execute(
        &mut self,
        sql: &str,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<u64, Failure> {
        let statement = self.prepare(sql)?;
        self.wait(async |client| client.execute(&statement, parameters).await)
    }

    /// Runs a statement, and calls `each` with one row after the other, so that they need not fit
    /// into main memory. The time limit is for each row.
    pub(crate) fn for_each(
        &mut self,
        sql: &str,
        parameters: &[&(dyn ToSql + Sync)],
        mut each: impl FnMut(Row) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let statement = self.prepare(sql)?;
        let limit = patience(&self.endpoint);
        let silent = |_| Failure::Silent(limit);
        let work = async |client: &tokio_postgres::Client| {
            let parameters = parameters.iter().copied();
            let rows = timeout(limit, client.query_raw(&statement, parameters)).await;
            let mut rows = pin!(rows.map_err(silent)??);
            while let Some(row) = timeout(limit, rows.try_next()).await.map_err(silent)?? {
                each(row)?;
            }
            Ok(())
        };
        self.wait_for(work, false)
    }

    /// Sends the data of a statement `COPY … FROM STDIN`. The time limit is for each part of it.
    pub(crate) fn copy_in(
        &mut self,
        sql: &str,
        parts: impl Iterator<Item = Bytes>,
    ) -> Result<(), Failure> {
        let limit = patience(&self.endpoint);
        let silent = |_| Failure::Silent(limit);
        let work = async |client: &tokio_postgres::Client| {
            let sink = timeout(limit, client.copy_in::<_, Bytes>(sql)).await;
            let mut sink = pin!(sink.map_err(silent)??);
            for part in parts {
                timeout(limit, sink.send(part)).await.map_err(silent)??;
            }
            timeout(limit, sink.finish()).await.map_err(silent)??;
            Ok(())
        };
        self.wait_for(work, false)
    }

    /// Returns an error if the server does not answer.
    pub(crate) fn check(&mut self) -> Result<(), Failure> {
        let limit = self.endpoint.connect_limit;
        self.wait_for(
            async |client| match timeout(limit, client.batch_execute("")).await {
                Ok(result) => Ok(result?),
                Err(_) => Err(Failure::Silent(limit)),
            },
            false,
        )
    }

    /// Whether the connection can no longer be used.
    pub(crate) fn is_closed(&self) -> bool {
        self.is_silent || self.client.is_closed()
    }
}

/// The time after which a server counts as silent. A working server would have ended the statement
/// at its own, shorter limit.
fn patience(endpoint: &Endpoint) -> Duration {
    endpoint.limit.saturating_add(endpoint.limit.min(Duration::from_secs(5)))
}
