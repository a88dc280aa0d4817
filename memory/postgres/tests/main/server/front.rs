//! A front of a test server: TCP, with TLS or without, with delays and cuts.
#![allow(clippy::unwrap_used, dead_code)]

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, date_time_ymd,
};
use rustls::ServerConfig;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
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
    /// Starts a front of a Unix socket; with a TLS configuration, for encrypted connections only.
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

/// An authority for the certificates of servers.
pub struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    pub fn new(name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    /// The certificate of the authority as a PEM file.
    pub fn pem(&self) -> String {
        self.0.pem()
    }

    /// A server with a certificate for a host, which is valid until the end of a year.
    pub fn server(&self, host: &str, year: i32) -> ServerConfig {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec![host.to_owned()]).unwrap();
        params.not_before = date_time_ymd(2020, 1, 1);
        params.not_after = date_time_ymd(year, 12, 31);
        let certificate = params.signed_by(&key, &self.0).unwrap();
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], key)
            .unwrap()
    }
}
