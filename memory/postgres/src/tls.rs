//! Encrypted connections, by rustls. The server's certificate must be valid, and for its host name.
//! Its authority must be in Mozilla's list, or in the file `sslrootcert`.

use std::future::Future;
use std::io;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, InvalidDnsNameError, ServerName};
use rustls::{CertificateError, ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::Socket;
use tokio_postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect, TlsStream};
use tokio_rustls::TlsConnector;

/// Encrypts connections.
#[derive(Clone)]
pub(crate) struct Tls {
    config: Arc<ClientConfig>,
}

impl Tls {
    /// Trusts the authorities of a PEM file or, without a file, of Mozilla's list.
    ///
    /// # Errors
    /// The reason why the file cannot be used.
    pub(crate) fn new(authorities: Option<&Path>) -> Result<Self, String> {
        let mut roots = RootCertStore::empty();
        match authorities {
            None => roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned()),
            Some(file) => {
                let failed =
                    |error| format!("{} has no usable certificates: {error}", file.display());
                let certificates = CertificateDer::pem_file_iter(file)
                    .map_err(|error| failed(error.to_string()))?;
                for certificate in certificates {
                    let certificate = certificate.map_err(|error| failed(error.to_string()))?;
                    roots.add(certificate).map_err(|error| failed(error.to_string()))?;
                }
                if roots.is_empty() {
                    return Err(failed("it has none".to_owned()));
                }
            }
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?
            .with_root_certificates(roots)
            .with_no_client_auth();
        // A server needs the name if the address has `sslnegotiation=direct`.
        config.alpn_protocols = vec![b"postgresql".to_vec()];
        Ok(Self { config: Arc::new(config) })
    }
}

/// Encrypts one connection.
pub(crate) struct Handshake {
    tls: Tls,
    host: ServerName<'static>,
}

/// An encrypted connection.
pub(crate) struct Encrypted(tokio_rustls::client::TlsStream<Socket>);

impl MakeTlsConnect<Socket> for Tls {
    type Stream = Encrypted;
    type TlsConnect = Handshake;
    type Error = InvalidDnsNameError;

    fn make_tls_connect(&mut self, host: &str) -> Result<Handshake, InvalidDnsNameError> {
        Ok(Handshake { tls: self.clone(), host: ServerName::try_from(host.to_owned())? })
    }
}

impl TlsConnect<Socket> for Handshake {
    type Stream = Encrypted;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Encrypted>> + Send>>;

    fn connect(self, socket: Socket) -> Self::Future {
        Box::pin(async move {
            let connector = TlsConnector::from(self.tls.config);
            Ok(Encrypted(connector.connect(self.host, socket).await?))
        })
    }
}

impl TlsStream for Encrypted {
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}

impl AsyncRead for Encrypted {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().0).poll_read(context, buffer)
    }
}

impl AsyncWrite for Encrypted {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().0).poll_write(context, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().0).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().0).poll_shutdown(context)
    }
}

/// Returns the error of a handshake, if this is one. A repeated handshake would fail again.
pub(crate) fn handshake_error(error: &io::Error) -> Option<&rustls::Error> {
    error.get_ref()?.downcast_ref()
}

/// Describes the error of a handshake: the reason and the remedy.
pub(crate) fn describe(error: &rustls::Error) -> (String, &'static str) {
    use CertificateError::{
        Expired, ExpiredContext, NotValidForName, NotValidForNameContext, NotValidYet,
        NotValidYetContext, UnknownIssuer,
    };
    let (reason, remedy) = match error {
        rustls::Error::InvalidCertificate(Expired | ExpiredContext { .. }) => (
            "the certificate of the server has expired",
            "renew it on the server, or correct the clock of this machine",
        ),
        rustls::Error::InvalidCertificate(NotValidYet | NotValidYetContext { .. }) => (
            "the certificate of the server is not valid yet",
            "correct the clock of this machine, or the certificate of the server",
        ),
        rustls::Error::InvalidCertificate(NotValidForName | NotValidForNameContext { .. }) => (
            "the certificate of the server is for another host",
            "give the host name of the certificate in the address",
        ),
        rustls::Error::InvalidCertificate(UnknownIssuer) => (
            "the certificate of the server is of an unknown authority",
            "give the authority's certificate with sslrootcert=FILE in the address",
        ),
        error => {
            return (
                format!("the connection could not be encrypted: {error}"),
                "check the certificate and the TLS settings of the server",
            );
        }
    };
    (reason.to_owned(), remedy)
}
