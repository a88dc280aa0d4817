//! A blocking connection with time limits.
//!
//! A server that is stopped, or behind a network that drops packets, never answers. So each statement
//! has a time limit here, beside the limit of the server. A long statement of a writer, such as the
//! build of a graph, is waited for as long as the server accepts new connections.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::try_join_all;
use futures_util::{SinkExt, TryStreamExt};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::runtime::Runtime;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::{sleep, timeout};
use tokio_postgres::types::ToSql;
use tokio_postgres::{AsyncMessage, Config, NoTls, Row, Socket, Statement};

use crate::failure::Failure;
use crate::tls::Tls;

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

/// A connection. The connection works only while one of its methods runs.
pub(crate) struct Client {
    client: tokio_postgres::Client,
    notifications: UnboundedReceiver<String>,
    fault: Fault,
    endpoint: Endpoint,
    /// Whether statements may need longer than the limit, as long as the server is there.
    pub(crate) is_patient: bool,
    is_silent: bool,
    // Dropped last.
    runtime: Runtime,
}

impl Endpoint {
    /// Opens a connection.
    pub(crate) fn connect(&self) -> Result<Client, Failure> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| engram_memory::MemoryError::Rows(error.into()))?;
        let (sender, notifications) = unbounded_channel();
        let fault = Fault::default();
        let client = runtime.block_on(self.open(sender, &fault))?;
        Ok(Client {
            client,
            notifications,
            fault,
            endpoint: self.clone(),
            is_patient: false,
            is_silent: false,
            runtime,
        })
    }

    async fn open(
        &self,
        sender: UnboundedSender<String>,
        fault: &Fault,
    ) -> Result<tokio_postgres::Client, Failure> {
        let open = async {
            Ok::<_, tokio_postgres::Error>(match self.tls.clone() {
                Some(tls) => {
                    let (client, connection) = self.config.connect(tls).await?;
                    tokio::spawn(run(connection, sender, Arc::clone(fault)));
                    client
                }
                None => {
                    let (client, connection) = self.config.connect(NoTls).await?;
                    tokio::spawn(run(connection, sender, Arc::clone(fault)));
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
    mut connection: tokio_postgres::Connection<Socket, S>,
    notifications: UnboundedSender<String>,
    fault: Fault,
) {
    while let Some(message) = poll_fn(|context| connection.poll_message(context)).await {
        match message {
            Ok(AsyncMessage::Notification(notification)) => {
                // Nobody waits for notifications after the end of the client.
                let _ = notifications.send(notification.payload().to_owned());
            }
            Ok(_) => {}
            Err(error) => {
                *fault.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                return;
            }
        }
    }
}

impl Client {
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
                        // The server works for long. Is it still there?
                        self.endpoint.open(unbounded_channel().0, &Fault::default()).await?;
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

    /// Prepares a statement.
    pub(crate) fn prepare(&mut self, sql: &str) -> Result<Statement, Failure> {
        self.wait(async |client| client.prepare(sql).await)
    }

    /// Runs a statement, and returns its rows.
    pub(crate) fn query(
        &mut self,
        statement: &Statement,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, Failure> {
        self.wait(async |client| client.query(statement, parameters).await)
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
        statement: &Statement,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<u64, Failure> {
        self.wait(async |client| client.execute(statement, parameters).await)
    }

    /// Runs a statement, and calls `each` with one row after the other, so that they need not fit into
    /// main memory. The time limit is for each row.
    pub(crate) fn for_each(
        &mut self,
        statement: &Statement,
        parameters: &[&(dyn ToSql + Sync)],
        mut each: impl FnMut(Row) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let limit = patience(&self.endpoint);
        let silent = |_| Failure::Silent(limit);
        let work = async |client: &tokio_postgres::Client| {
            let parameters = parameters.iter().copied();
            let rows = timeout(limit, client.query_raw(statement, parameters)).await;
            let mut rows = pin!(rows.map_err(silent)??);
            while let Some(row) = timeout(limit, rows.try_next()).await.map_err(silent)?? {
                each(row)?;
            }
            Ok(())
        };
        self.wait_for(work, false)
    }

    /// Sends the data of a statement `COPY … FROM STDIN`. The time limit is for each part of the data.
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

    /// Waits for the next notification, for at most `time`. Returns its payload; `None` if there is
    /// none in this time.
    pub(crate) fn notification(&mut self, time: Duration) -> Result<Option<String>, Failure> {
        let (client, notifications, fault) = (&self.client, &mut self.notifications, &self.fault);
        self.runtime.block_on(async {
            match timeout(time, notifications.recv()).await {
                Err(_) => Ok(None),
                Ok(Some(payload)) => Ok(Some(payload)),
                Ok(None) => {
                    let fault = fault.lock().unwrap_or_else(PoisonError::into_inner).take();
                    match fault {
                        Some(error) => Err(error.into()),
                        // Returns the error of a closed connection.
                        None => Ok(client.batch_execute("").await.map(|()| None)?),
                    }
                }
            }
        })
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

/// The time after which a server is silent: it has ended a statement at its own limit before.
fn patience(endpoint: &Endpoint) -> Duration {
    endpoint.limit.saturating_add(endpoint.limit.min(Duration::from_secs(5)))
}
