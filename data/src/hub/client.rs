//! HTTP requests to the hub, with limits against hostile or broken servers.
//!
//! - The access token is sent only to the endpoint, never to another host, port or scheme.
//! - At most ten redirects are followed: only to http and https, and never from https to http.
//! - A redirect to an address that is not public is followed only within the network of the endpoint.
//! - Each request runs on its own thread, which touches no file. The caller waits for the thread
//!   with a time limit, so neither a slow name server nor headers that arrive byte by byte block
//!   the program.

use std::error::Error as _;
use std::io::{self, Read};
use std::net::ToSocketAddrs;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use ureq::{Agent, AgentBuilder, Request};
use url::{Host, Url};

use super::HubSettings;
use super::metadata::quoted_start;
use super::network::redirect_addresses;

const MAX_REDIRECTS: usize = 10;
/// The size of the chunks in which a body is read, in bytes.
const CHUNK_BYTES: usize = 64 << 10;
/// The response headers that are read.
const HEADERS: [&str; 8] = [
    "content-length",
    "content-range",
    "etag",
    "location",
    "x-error-code",
    "x-linked-etag",
    "x-linked-size",
    "x-repo-commit",
];

/// The reason why a request has no usable response.
#[derive(Debug)]
pub(super) enum RequestError {
    /// The hub cannot be reached, or is down.
    Unreachable(String),
    /// The hub does not respond, or is too slow.
    Slow(String),
    /// The connection broke.
    Broken(String),
    /// The response cannot be used.
    Refused(String),
}

/// Status and headers of a response.
pub(super) struct Head {
    pub(super) status: u16,
    /// Whether the endpoint itself sent the response, not a server after a redirect.
    pub(super) is_endpoint: bool,
    headers: Vec<(&'static str, String)>,
}

impl Head {
    /// Returns the value of a header in [`HEADERS`], by its lower-case name.
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| *key == name).map(|(_, value)| value.as_str())
    }

    fn is_redirect(&self) -> bool {
        matches!(self.status, 301 | 302 | 303 | 307 | 308)
    }
}

/// A response whose body is still to be read.
pub(super) struct Response {
    pub(super) head: Head,
    events: Receiver<Event>,
}

/// A message from a request's thread.
enum Event {
    Head(Head),
    Bytes(Vec<u8>),
    End,
    Failed(String),
    /// The address may not be reached.
    Refused(String),
}

impl Response {
    /// Returns the next bytes of the body, or `None` at its end.
    ///
    /// # Errors
    /// `Slow` if nothing arrives within `limit`; `Broken`
    pub(super) fn next(&self, limit: Duration) -> Result<Option<Vec<u8>>, RequestError> {
        match self.events.recv_timeout(limit) {
            Ok(Event::Bytes(bytes)) => Ok(Some(bytes)),
            Ok(Event::End) => Ok(None),
            Ok(Event::Failed(reason)) => Err(RequestError::Broken(reason)),
            Err(RecvTimeoutError::Timeout) => Err(timeout(limit)),
            Ok(Event::Head(_) | Event::Refused(_)) | Err(RecvTimeoutError::Disconnected) => {
                Err(RequestError::Broken("the connection ended".to_owned()))
            }
        }
    }
}

/// A client of one endpoint.
pub(super) struct Client<'a> {
    endpoint: Url,
    settings: &'a HubSettings,
    response_timeout: Duration,
}

impl<'a> Client<'a> {
    /// # Errors
    /// `Refused` for an endpoint that is not an http or https URL
    pub(super) fn new(
        settings: &'a HubSettings,
        response_timeout: Duration,
    ) -> Result<Self, RequestError> {
        let endpoint = Url::parse(&settings.endpoint).ok().filter(is_web);
        let endpoint = endpoint.ok_or_else(|| {
            RequestError::Refused("nothing: this is not an http or https URL".into())
        })?;
        Ok(Self {
            endpoint,
            settings,
            response_timeout: response_timeout.min(settings.stall_timeout),
        })
    }

    /// Requests a range of bytes of a file from the endpoint. Follows redirects, except a redirect
    /// whose own headers are enough, as `is_enough` decides. As in huggingface_hub, redirects
    /// within the endpoint are always followed.
    pub(super) fn get(
        &self,
        path: &str,
        range: &str,
        mut is_enough: impl FnMut(&Head) -> Result<bool, String>,
    ) -> Result<Response, RequestError> {
        let address = format!("{}/{path}", self.settings.endpoint);
        let mut url =
            Url::parse(&address).map_err(|error| RequestError::Refused(error.to_string()))?;
        let mut token = self.settings.token.as_deref();
        for _ in 0..=MAX_REDIRECTS {
            let response = self.send_request(&url, range, token)?;
            let head = &response.head;
            let target = head.is_redirect().then(|| redirect_target(&url, head)).transpose();
            let target = target.map_err(RequestError::Refused)?;
            let is_internal = target.as_ref().is_some_and(|target| self.is_endpoint(target));
            let is_enough = !(head.is_endpoint && is_internal)
                && is_enough(head).map_err(RequestError::Refused)?;
            let Some(target) = target.filter(|_| !is_enough) else { return Ok(response) };
            url = target;
            if !self.is_endpoint(&url) {
                // A redirect back to the endpoint does not restore the token.
                token = None;
            }
        }
        Err(RequestError::Refused(format!("more than {MAX_REDIRECTS} redirects")))
    }

    fn send_request(
        &self,
        url: &Url,
        range: &str,
        token: Option<&str>,
    ) -> Result<Response, RequestError> {
        let mut request = self.agent(url).request_url("GET", url).set("Range", range);
        request = request.set("Accept-Encoding", "identity");
        if let Some(token) = token {
            request = request.set("Authorization", &format!("Bearer {token}"));
        }
        let is_endpoint = self.is_endpoint(url);
        // The channel has no buffer, so the body is read no faster than the caller writes it.
        let (sender, events) = sync_channel(0);
        let work = move || transfer(request, is_endpoint, &sender);
        thread::Builder::new().name("download".to_owned()).spawn(work).map_err(|error| {
            RequestError::Unreachable(format!("no thread for the connection ({error})"))
        })?;
        match events.recv_timeout(self.response_timeout) {
            Ok(Event::Head(head)) => Ok(Response { head, events }),
            Ok(Event::Failed(reason)) => Err(RequestError::Unreachable(reason)),
            Ok(Event::Refused(reason)) => Err(RequestError::Refused(reason)),
            Err(RecvTimeoutError::Timeout) => Err(timeout(self.response_timeout)),
            _ => Err(RequestError::Unreachable("the connection ended".to_owned())),
        }
    }

    /// Whether a URL has the endpoint's host, port and scheme.
    fn is_endpoint(&self, url: &Url) -> bool {
        url.origin() == self.endpoint.origin()
    }

    fn agent(&self, url: &Url) -> Agent {
        let limit = self.settings.stall_timeout;
        let (is_redirect, endpoint) = (!self.is_endpoint(url), host_and_port(&self.endpoint));
        let target = host_and_port(url);
        let is_number = !matches!(url.host(), Some(Host::Domain(_)));
        AgentBuilder::new()
            .resolver(move |host: &str| {
                // With a proxy, `host` is the proxy, which looks up the names of targets itself.
                if is_redirect && (is_number || host == target) {
                    let addresses = redirect_addresses(&target, &endpoint)?;
                    if host == target {
                        return Ok(addresses);
                    }
                }
                host.to_socket_addrs().map(Iterator::collect)
            })
            .redirects(0)
            .timeout_connect(self.response_timeout)
            .timeout_read(limit)
            .timeout_write(limit)
            .try_proxy_from_env(!needs_no_proxy(url))
            .max_idle_connections(0)
            .user_agent(concat!("engram/", env!("CARGO_PKG_VERSION")))
            .build()
    }
}

/// Sends the request and reports its progress until the receiver is dropped.
fn transfer(request: Request, is_endpoint: bool, events: &SyncSender<Event>) {
    let response = match request.call() {
        Ok(response) | Err(ureq::Error::Status(_, response)) => response,
        Err(ureq::Error::Transport(error)) => {
            let source = error.source().and_then(|source| source.downcast_ref::<io::Error>());
            if let Some(refused) = source.filter(|e| e.kind() == io::ErrorKind::PermissionDenied)
                && error.kind() == ureq::ErrorKind::Dns
            {
                let _ = events.send(Event::Refused(refused.to_string()));
                return;
            }
            // The message omits the URL, because the URL may contain a signature.
            let parts = [error.message().map(str::to_owned), source_of(&error)];
            let reason = parts.into_iter().flatten().collect::<Vec<_>>().join(": ");
            let reason = if reason.is_empty() {
                error.kind().to_string()
            } else {
                format!("{}: {reason}", error.kind())
            };
            // The send fails if the caller has given up and dropped the receiver.
            let _ = events.send(Event::Failed(reason));
            return;
        }
    };
    let header = |name: &'static str| Some((name, response.header(name)?.to_owned()));
    let headers = HEADERS.into_iter().filter_map(header).collect();
    let head = Head { status: response.status(), is_endpoint, headers };
    if events.send(Event::Head(head)).is_err() {
        return;
    }
    let mut body = response.into_reader();
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        let event = match body.read(&mut chunk) {
            Ok(0) => Event::End,
            Ok(length) => Event::Bytes(chunk[..length].to_vec()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => Event::Failed(error.to_string()),
        };
        let is_last = !matches!(event, Event::Bytes(_));
        if events.send(event).is_err() || is_last {
            return;
        }
    }
}

fn source_of(error: &dyn std::error::Error) -> Option<String> {
    error.source().map(ToString::to_string)
}

fn timeout(limit: Duration) -> RequestError {
    RequestError::Slow(format!("nothing arrived for {} s", limit.as_secs_f64()))
}

fn host_and_port(url: &Url) -> String {
    let port = url.port_or_known_default().unwrap_or_default();
    format!("{}:{port}", url.host_str().unwrap_or_default())
}

fn is_web(url: &Url) -> bool {
    matches!(url.scheme(), "http" | "https") && url.has_host()
}

/// Returns the target of a redirect.
fn redirect_target(from: &Url, head: &Head) -> Result<Url, String> {
    let location = head
        .header("location")
        .ok_or_else(|| format!("a redirect without a URL (status {})", head.status))?;
    let mut url = from.join(location).ok().filter(is_web).ok_or_else(|| {
        format!("a redirect that is not to an http or https URL ({})", quoted_start(location))
    })?;
    if from.scheme() == "https" && url.scheme() == "http" {
        return Err("a redirect from https to http".to_owned());
    }
    if url.origin() != from.origin() {
        // Otherwise the request would send the URL's user name and password. The calls cannot fail
        // for a URL with a host.
        let _ = url.set_username("");
        let _ = url.set_password(None);
    }
    Ok(url)
}

/// Whether `NO_PROXY` lists the host or a domain that contains it.
fn needs_no_proxy(url: &Url) -> bool {
    let names = std::env::var("NO_PROXY").or_else(|_| std::env::var("no_proxy"));
    let host = url.host_str().unwrap_or_default();
    names.is_ok_and(|names| is_in_domains(host, &names))
}

fn is_in_domains(host: &str, domains: &str) -> bool {
    domains.split(',').map(|domain| domain.trim().trim_start_matches('.')).any(|domain| {
        let subdomain = host.strip_suffix(domain);
        domain == "*"
            || !domain.is_empty()
                && subdomain
                    .is_some_and(|subdomain| subdomain.is_empty() || subdomain.ends_with('.'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_domain_in_no_proxy_covers_its_subdomains() {
        for (host, domains, expected) in [
            ("hub.example.org", "example.org", true),
            ("hub.example.org", "localhost, .example.org", true),
            ("example.org", "example.org", true),
            ("badexample.org", "example.org", false),
            ("example.org", "", false),
            ("example.org", "*", true),
        ] {
            assert_eq!(is_in_domains(host, domains), expected, "{host} in {domains}");
        }
    }

    #[test]
    fn redirects_lead_only_to_web_urls_without_credentials() {
        let from = Url::parse("https://hub.example/a/b?c").unwrap();
        let target = |location: &str| {
            let headers = vec![("location", location.to_owned())];
            let head = Head { status: 302, is_endpoint: true, headers };
            redirect_target(&from, &head).map(|url| url.to_string())
        };
        assert_eq!(target("/x"), Ok("https://hub.example/x".to_owned()));
        assert_eq!(target("https://u:p@other/x"), Ok("https://other/x".to_owned()));
        for invalid in
            ["file:///etc/passwd", "http://hub.example/a", "ftp://x/", "data:,x", "https://"]
        {
            assert!(target(invalid).is_err(), "{invalid}");
        }
    }
}
