//! A proxy in front of a test server: TCP with or without TLS, which can delay and cut connections.
#![allow(clippy::unwrap_used, dead_code)]

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, split};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::runtime::Runtime;
use tokio::sync::Notify;
use tokio_rustls::TlsAcceptor;

/// A front. It ends when this value is dropped.
pub struct Front {
    port: u16,
    state: Arc<State>,
    _runtime: Runtime,
}

/// The state that all connections share.
pub struct State {
    socket: PathBuf,
    acceptor: Option<TlsAcceptor>,
    /// The pause in milliseconds before each part of an answer.
    pub delay: AtomicU64,
    /// The number of bytes of answers until the connection is cut; negative for never.
    pub cut_after: AtomicI64,
    /// The number of connections so far.
    pub connections: AtomicUsize,
    cut: Notify,
}

impl Front {
    /// Starts a proxy to a Unix socket. With a TLS configuration, all connections must be
    /// encrypted.
    pub fn start(socket: PathBuf, tls: Option<ServerConfig>) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        let runtime = runtime.unwrap();
        let state = Arc::new(State {
            socket,
            acceptor: tls.map(|config| TlsAcceptor::from(Arc::new(config))),
            delay: AtomicU64::new(0),
            cut_after: AtomicI64::new(-1),
            connections: AtomicUsize::new(0),
            cut: Notify::new(),
        });
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let port = listener.local_addr().unwrap().port();
        let shared = Arc::clone(&state);
        runtime.spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                shared.connections.fetch_add(1, Ordering::SeqCst);
                let state = Arc::clone(&shared);
                // A client that refuses the certificate ends the connection.
                tokio::spawn(async move { state.serve(client).await.ok() });
            }
        });
        Self { port, state, _runtime: runtime }
    }

    /// The address of a memory, at a host that stands for this machine.
    pub fn url(&self, host: &str, name: &str) -> String {
        format!("postgres://app@{host}:{}/memories?memory={name}", self.port)
    }

    pub fn state(&self) -> &State {
        &self.state
    }
}

impl State {
    /// Cuts all connections.
    pub fn cut(&self) {
        self.cut.notify_waiters();
    }

    async fn serve(&self, mut client: TcpStream) -> std::io::Result<()> {
        let Some(acceptor) = &self.acceptor else { return self.copy(client).await };
        let mut request = [0; 8];
        client.read_exact(&mut request).await?;
        assert_eq!(request, [0, 0, 0, 8, 4, 210, 22, 47], "not an SSLRequest");
        client.write_all(b"S").await?;
        self.copy(acceptor.accept(client).await?).await
    }

    async fn copy(&self, client: impl AsyncRead + AsyncWrite) -> std::io::Result<()> {
        let server = UnixStream::connect(&self.socket).await?;
        let (mut from_client, mut to_client) = split(client);
        let (mut from_server, mut to_server) = server.into_split();
        let requests = async { tokio::io::copy(&mut from_client, &mut to_server).await.map(drop) };
        let answers = async {
            let mut part = vec![0; 16 << 10];
            loop {
                let count = from_server.read(&mut part).await?;
                if count == 0 {
                    return to_client.shutdown().await;
                }
                tokio::time::sleep(Duration::from_millis(self.delay.load(Ordering::SeqCst))).await;
                if self.cut_after.load(Ordering::SeqCst) >= 0
                    && self.cut_after.fetch_sub(count as i64, Ordering::SeqCst) < count as i64
                {
                    self.cut_after.store(-1, Ordering::SeqCst);
                    // A part of an answer.
                    to_client.write_all(&part[..count / 2]).await?;
                    return to_client.flush().await;
                }
                to_client.write_all(&part[..count]).await?;
                to_client.flush().await?;
            }
        };
        tokio::select! {
            result = requests => result,
            result = answers => result,
            () = self.cut.notified() => Ok(()),
        }
    }
}

/// The folder of the certificates. `make.sh` in it made them.
pub const CERTIFICATES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/certificates");

/// A server with a certificate of the authority `own` for `localhost`: `valid` or `expired`.
pub fn encrypted(certificate: &str) -> ServerConfig {
    let path = |name: &str| format!("{CERTIFICATES}/{name}");
    let certificate = CertificateDer::from_pem_file(path(&format!("{certificate}.pem"))).unwrap();
    let key = PrivateKeyDer::from_pem_file(path("server.key")).unwrap();
    ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .unwrap()
}
