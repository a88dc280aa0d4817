//! The address of a memory, and the login.

use std::env;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use engram_memory::MemoryError;
use percent_encoding::percent_decode_str;
use tokio_postgres::Config;
use tokio_postgres::config::{Host, SslMode};

use crate::client::Endpoint;
use crate::password_file::find_password;
use crate::tls::Tls;

/// How to connect to a server.
#[derive(Debug, Clone, Copy)]
pub struct Connect {
    /// Allows a connection without encryption over a network. A Unix socket needs none.
    pub insecure: bool,
    /// The maximum number of connections of one search.
    pub connections: usize,
    /// Allows partial results of a memory on several servers: without the entries of unreachable
    /// servers. [`Snapshot::missing`](engram_memory::Snapshot::missing) names them. The first
    /// server must be there when the memory is opened.
    pub partial: bool,
    /// The time for which reads are tried again after the connection broke, for example while the
    /// server restarts.
    pub patience: Duration,
    /// The time limit of a new connection.
    pub connect_limit: Duration,
    /// The time limit of a statement. A change may take longer, as long as the server accepts
    /// connections.
    pub limit: Duration,
}

impl Default for Connect {
    fn default() -> Self {
        Self {
            insecure: false,
            partial: false,
            connections: 4,
            patience: Duration::from_secs(10),
            connect_limit: Duration::from_secs(10),
            limit: Duration::from_secs(60),
        }
    }
}

/// The name of a memory whose address has no `memory`.
const DEFAULT_NAME: &str = "memory";
/// The maximum length of a name. PostgreSQL cuts identifiers at 63 bytes.
const MAX_NAME: usize = 40;

/// A server, a login and the name of a memory.
pub(crate) struct Address {
    pub(crate) endpoint: Endpoint,
    /// The schema of the memory.
    pub(crate) schema: String,
    /// The address without a password, for messages.
    location: String,
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.location)
    }
}

impl Address {
    /// Parses an address, and finds the password.
    pub(crate) fn parse(url: &str, connect: &Connect) -> Result<Self, MemoryError> {
        let (url, Parameters { name, encryption, authorities }) = split(url);
        // The case of a scheme has no meaning.
        let url = match url.split_once("://") {
            Some((scheme, rest)) => format!("{}://{rest}", scheme.to_ascii_lowercase()),
            None => url,
        };
        // Only the part without a password may be in messages.
        let shown = url.rsplit_once('@').map_or(url.as_str(), |(_, host)| host);
        let shown = shown.split('?').next().unwrap_or_default();
        let error = |reason: String, remedy| MemoryError::Remote {
            location: format!("postgres://{}", shown.trim_start_matches("postgres://")),
            reason,
            remedy,
        };
        const EXAMPLE: &str = "give an address such as postgres://user@host/database?memory=name";
        let is_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        if name.is_empty() || name.len() > MAX_NAME || !name.chars().all(is_name) {
            let reason = format!("`{name}` is not the name of a memory");
            return Err(error(reason, "use up to 40 of a-z, 0-9 and _"));
        }
        if !url.starts_with("postgres://") && !url.starts_with("postgresql://") {
            return Err(error("is not an address of PostgreSQL".to_owned(), EXAMPLE));
        }
        let mut config: Config = url
            .parse()
            .map_err(|_| error("is not an address of PostgreSQL".to_owned(), EXAMPLE))?;
        if config.get_password().is_some() {
            let reason = "the address has a password, which other users of the machine can see";
            return Err(error(reason.to_owned(), "put it in PGPASSWORD or ~/.pgpass"));
        }
        if config.get_hosts().is_empty() {
            return Err(error("the address has no host".to_owned(), EXAMPLE));
        }
        if config.get_hosts().len() > 1 {
            return Err(error("the address has several hosts".to_owned(), EXAMPLE));
        }
        let socket = match &config.get_hosts()[0] {
            Host::Unix(folder) => Some(folder.clone()),
            Host::Tcp(_) => None,
        };
        let is_encrypted = match encryption.as_deref() {
            // A Unix socket stays on this machine.
            _ if socket.is_some() => false,
            None => !connect.insecure,
            Some("disable") if connect.insecure => false,
            Some("disable") => {
                let reason = "the connection would not be encrypted".to_owned();
                let remedy = "remove sslmode=disable, use a Unix socket or a tunnel, or allow an \
                              unencrypted connection (insecure)";
                return Err(error(reason, remedy));
            }
            Some("allow" | "prefer") => !connect.insecure,
            Some("require" | "verify-ca" | "verify-full") => true,
            Some(mode) => {
                let reason = format!("`{mode}` is not an sslmode");
                return Err(error(reason, "leave sslmode out: connections are encrypted"));
            }
        };
        let tls = match is_encrypted {
            true => Some(Tls::new(authorities.as_deref()).map_err(|reason| {
                error(reason, "give a PEM file with the certificate of the authority")
            })?),
            false => None,
        };
        config.ssl_mode(if is_encrypted { SslMode::Require } else { SslMode::Disable });
        if config.get_user().is_none()
            && let Some(user) = env::var("PGUSER").ok().or_else(|| env::var("USER").ok())
        {
            config.user(&user);
        }
        if config.get_dbname().is_none()
            && let Some(user) = config.get_user().map(str::to_owned)
        {
            config.dbname(&user);
        }
        config.connect_timeout(connect.connect_limit).application_name("engram");
        // Keepalives detect that a pooled connection has lost its server, even behind a firewall.
        config
            .keepalives_idle(Duration::from_secs(30))
            .keepalives_interval(Duration::from_secs(10))
            .keepalives_retries(3)
            .tcp_user_timeout(connect.limit.max(Duration::from_secs(10)));
        let (host, port) = (host_name(&config.get_hosts()[0]), config.get_ports().first());
        let port = port.copied().unwrap_or(5432);
        let (user, database) = (
            config.get_user().unwrap_or_default().to_owned(),
            config.get_dbname().unwrap_or_default().to_owned(),
        );
        let password = env::var("PGPASSWORD").ok();
        let password = password.or_else(|| {
            find_password(&password_file()?, [&host, &port.to_string(), &database, &user])
        });
        if let Some(password) = password {
            config.password(password);
        }
        let location = match socket {
            Some(folder) => {
                let folder = folder.display();
                format!("postgres://{user}@/{database}?host={folder}&memory={name}")
            }
            None => format!("postgres://{user}@{host}:{port}/{database}?memory={name}"),
        };
        let Connect { connect_limit, limit, .. } = *connect;
        let endpoint = Endpoint { config, tls, connect_limit, limit };
        Ok(Self { endpoint, schema: format!("engram_{name}"), location })
    }

    /// The address as the folder of errors of a memory.
    pub(crate) fn as_folder(&self) -> PathBuf {
        PathBuf::from(&self.location)
    }
}

/// The parameters of a URL that the client of PostgreSQL does not know.
struct Parameters {
    /// `memory`: the name of the memory.
    name: String,
    /// `sslmode`.
    encryption: Option<String>,
    /// `sslrootcert`: a PEM file with the certificates of authorities; `None` for Mozilla's list.
    authorities: Option<PathBuf>,
}

/// Takes our parameters out of a URL. Returns the rest, and the parameters.
fn split(url: &str) -> (String, Parameters) {
    let mut parameters =
        Parameters { name: DEFAULT_NAME.to_owned(), encryption: None, authorities: None };
    let Some((start, query)) = url.split_once('?') else { return (url.to_owned(), parameters) };
    let mut others = Vec::new();
    for parameter in query.split('&') {
        let (key, value) = parameter.split_once('=').unwrap_or((parameter, ""));
        let value = percent_decode_str(value).decode_utf8_lossy();
        match key {
            "memory" => parameters.name = value.into_owned(),
            "sslmode" => parameters.encryption = Some(value.into_owned()),
            "sslrootcert" if value == "system" => parameters.authorities = None,
            "sslrootcert" => parameters.authorities = Some(PathBuf::from(value.into_owned())),
            _ => others.push(parameter),
        }
    }
    let rest =
        if others.is_empty() { start.to_owned() } else { format!("{start}?{}", others.join("&")) };
    (rest, parameters)
}

fn host_name(host: &Host) -> String {
    match host {
        Host::Tcp(host) => host.clone(),
        Host::Unix(folder) => folder.display().to_string(),
    }
}

/// The password file of PostgreSQL's own programs.
fn password_file() -> Option<PathBuf> {
    let file = env::var_os("PGPASSFILE").map(PathBuf::from);
    file.or_else(|| Some(Path::new(&env::var_os("HOME")?).join(".pgpass")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(url: &str, insecure: bool) -> Result<Address, String> {
        let connect = Connect { insecure, ..Connect::default() };
        Address::parse(url, &connect).map_err(|error| error.to_string())
    }

    #[test]
    fn an_address_names_a_memory() {
        let address = parse("postgres://ann@/wiki?host=/run/pg&memory=birds", false).unwrap();
        assert_eq!(address.schema, "engram_birds");
        assert_eq!(address.to_string(), "postgres://ann@/wiki?host=/run/pg&memory=birds");
        let address = parse("PostgreSQL://ann@db.example:6000/wiki", true).unwrap();
        assert_eq!(address.schema, "engram_memory");
        assert_eq!(address.to_string(), "postgres://ann@db.example:6000/wiki?memory=memory");
    }

    #[test]
    fn only_unix_sockets_and_insecure_connections_are_not_encrypted() {
        let network = "postgres://ann@db.example/wiki";
        let with = |mode: &str| format!("{network}?sslmode={mode}");
        for (url, insecure, expected) in [
            ("postgres://ann@/wiki?host=/run/pg", false, false),
            (network, false, true),
            (network, true, false),
            (&with("prefer"), false, true),
            (&with("disable"), true, false),
            (&with("verify-full"), true, true),
        ] {
            let address = parse(url, insecure).unwrap();
            assert_eq!(address.endpoint.tls.is_some(), expected, "{url} {insecure}");
            let mode = if expected { SslMode::Require } else { SslMode::Disable };
            assert_eq!(address.endpoint.config.get_ssl_mode(), mode, "{url} {insecure}");
        }
    }

    #[test]
    fn unsafe_and_wrong_addresses_are_refused() {
        for (url, expected) in [
            ("postgres://ann@db.example/wiki?sslmode=disable", "would not be encrypted"),
            ("postgres://ann:secret@db.example/wiki", "put it in PGPASSWORD"),
            ("postgres://ann@db.example/wiki?sslmode=no", "`no` is not an sslmode"),
            ("postgres://ann@db.example/wiki?sslrootcert=/none.pem", "/none.pem has no usable"),
            ("postgres://ann@db.example/wiki?memory=a;b", "`a;b` is not the name of a memory"),
            ("postgres://ann@db.example/wiki?memory=", "`` is not the name"),
            ("postgres:///wiki", "has no host"),
            ("mysql://ann:secret@db.example/wiki", "is not an address of PostgreSQL"),
            ("postgres://ann:secret@db.example:port/wiki", "is not an address of PostgreSQL"),
        ] {
            let error = parse(url, false).map(|_| ()).unwrap_err();
            assert!(error.contains(expected), "{url}: {error}");
            assert!(!error.contains("secret"), "{error}");
        }
    }
}
