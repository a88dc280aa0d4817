//! Limits the number of connections and their idle time.
//!
//! | limit | closed connection |
//! |---|---|
//! | [`HEADER_TIMEOUT`] | a connection whose request header is incomplete |
//! | [`MAX_IDLE`] | a connection without a request, or whose client reads no response |
//! | [`MAX_CONNECTIONS`] | the longest idle connection, if a new client connects |

use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::Router;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};

/// Maximum number of connections; below the limit on open files of a process.
const MAX_CONNECTIONS: usize = 256;
/// Timeout for receiving a request header.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum idle time of a connection.
const MAX_IDLE: Duration = Duration::from_secs(60);
/// Minimum idle time before a connection is closed in favour of a new one.
const GRACE: Duration = Duration::from_millis(500);
/// Interval between checks for idle connections.
const TICK: Duration = Duration::from_millis(100);
/// Maximum header size in bytes.
const MAX_HEADER_BYTES: usize = 1 << 16;
/// Time for pending responses to finish on shutdown.
const SHUTDOWN_TIME: Duration = Duration::from_secs(1);

/// Start of the idle time; `None` while a request is being handled.
struct Idle(Mutex<Option<Instant>>);

struct OpenConnection {
    idle: Arc<Idle>,
    task: AbortHandle,
}

/// A request being handled. When it is dropped, the connection becomes idle.
struct ActiveRequest(Arc<Idle>);

impl Idle {
    fn new() -> Self {
        Self(Mutex::new(Some(Instant::now())))
    }

    fn set_since(&self, since: Option<Instant>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = since;
    }

    /// The idle time; `None` while a request is being handled.
    fn duration(&self) -> Option<Duration> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).map(|since| since.elapsed())
    }
}

impl ActiveRequest {
    fn new(idle: &Arc<Idle>) -> Self {
        idle.set_since(None);
        Self(Arc::clone(idle))
    }
}

impl Drop for ActiveRequest {
    fn drop(&mut self) {
        self.0.set_since(Some(Instant::now()));
    }
}

/// Serves until `stopped` resolves, then waits briefly for pending responses.
pub(super) async fn serve(listener: TcpListener, app: Router, stopped: impl Future<Output = ()>) {
    let mut stopped = pin!(stopped);
    let (stop, stopping) = watch::channel(());
    let mut tasks = JoinSet::new();
    let mut open: Vec<OpenConnection> = Vec::new();
    loop {
        tokio::select! {
            accepted = listener.accept(), if open.len() < MAX_CONNECTIONS => match accepted {
                Ok((stream, _)) => {
                    let idle = Arc::new(Idle::new());
                    let (app, stopping) = (app.clone(), stopping.clone());
                    let served = serve_connection(stream, app, Arc::clone(&idle), stopping);
                    open.push(OpenConnection { idle, task: tasks.spawn(served) });
                }
                // Most likely too many open files: wait for connections to close.
                Err(_) => tokio::time::sleep(TICK).await,
            },
            () = tokio::time::sleep(TICK), if !open.is_empty() => {}
            () = &mut stopped => break,
        }
        while tasks.try_join_next().is_some() {}
        close_idle(&mut open);
    }
    drop(listener);
    let _ = stop.send(());
    let pending = async { while tasks.join_next().await.is_some() {} };
    let _ = tokio::time::timeout(SHUTDOWN_TIME, pending).await;
}

/// Closes connections that are idle too long; at the limit, also the longest idle connection.
fn close_idle(open: &mut Vec<OpenConnection>) {
    open.retain(|connection| !connection.task.is_finished());
    let longest = open.iter().filter_map(|connection| connection.idle.duration()).max();
    let limit = match longest {
        Some(longest) if open.len() >= MAX_CONNECTIONS && longest > GRACE => longest,
        _ => MAX_IDLE,
    };
    open.retain(|connection| {
        let expired = connection.idle.duration().is_some_and(|idle| idle >= limit);
        if expired {
            connection.task.abort();
        }
        !expired
    });
}

/// Handles the requests of a connection.
async fn serve_connection(
    stream: TcpStream,
    app: Router,
    idle: Arc<Idle>,
    mut stopping: watch::Receiver<()>,
) {
    let app = TowerToHyperService::new(app);
    let service = service_fn(move |request| {
        let active_request = ActiveRequest::new(&idle);
        let response = app.call(request);
        async move {
            let response = response.await;
            drop(active_request);
            response
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .max_buf_size(MAX_HEADER_BYTES)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = pin!(connection);
    // A closed browser is not an error.
    tokio::select! {
        _ = connection.as_mut() => return,
        _ = stopping.changed() => connection.as_mut().graceful_shutdown(),
    }
    let _ = connection.await;
}
