//! Small test servers: one for the hub's download route, with faults on demand, and one with
//! scripted responses.

use std::collections::{HashMap, VecDeque};
use std::io::{BufRead, BufReader};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use super::test_cache::{etag_of, reply};

pub const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// A fault in one transfer.
#[derive(Clone, Copy)]
pub enum Fault {
    /// Announces the whole range, and closes the connection after this many bytes.
    Break(usize),
    /// Sends this many bytes without a length, so that the file seems complete.
    Short(usize),
    /// Sends the whole file instead of the requested range.
    IgnoreRange,
    /// Flips the lowest bit of the first byte.
    Flip,
    /// Sends nothing, and keeps the connection open.
    Silence,
}

#[derive(Default)]
struct State {
    files: HashMap<String, Vec<u8>>,
    faults: VecDeque<Fault>,
    status: Option<u16>,
}

/// A hub with files, whose responses can have faults.
pub struct Server {
    pub endpoint: String,
    scripted: ScriptedServer,
    state: Arc<Mutex<State>>,
}

impl Server {
    pub fn start(files: &[(&str, &[u8])]) -> Self {
        let files = files.iter().map(|(name, bytes)| ((*name).to_owned(), bytes.to_vec()));
        let state = Arc::new(Mutex::new(State { files: files.collect(), ..State::default() }));
        let shared = Arc::clone(&state);
        let scripted = ScriptedServer::start(move |request, out| respond(request, out, &shared));
        Self { endpoint: scripted.endpoint.clone(), scripted, state }
    }

    /// Sets the faults of the next transfers, in order. Metadata requests are not counted.
    pub fn inject(&self, faults: &[Fault]) {
        self.state.lock().unwrap().faults.extend(faults);
    }

    /// Responds to every request with this status.
    pub fn respond_with(&self, status: u16) {
        self.state.lock().unwrap().status = Some(status);
    }

    /// Returns `path range authorization` for each request since the last call.
    pub fn requests(&self) -> Vec<String> {
        let line =
            |Request { path, range, authorization, .. }| format!("{path} {range} {authorization}");
        self.scripted.requests().into_iter().map(line).collect()
    }
}

/// Responds to one request. Big files are on a CDN, as on the hub: the hub sends a redirect with
/// the metadata, and the CDN sends the bytes.
fn respond(
    Request { path, range, .. }: &Request,
    out: &mut TcpStream,
    state: &Mutex<State>,
) -> std::io::Result<()> {
    let mut state = state.lock().unwrap();
    let commit = ("X-Repo-Commit", COMMIT);
    let no_body = ("Content-Length", "0");
    if let Some(status) = state.status {
        return reply(out, status, &[("ETag", "x"), commit, no_body], b"");
    }
    let route = path.strip_prefix("/cdn").unwrap_or(path);
    let prefixes = ["main", COMMIT].map(|revision| format!("/owner/name/resolve/{revision}/"));
    let name = prefixes.iter().find_map(|prefix| route.strip_prefix(prefix.as_str()));
    let Some(name) = name else {
        return reply(out, 404, &[("X-Error-Code", "RevisionNotFound"), no_body], b"");
    };
    let Some(bytes) = state.files.get(name).cloned() else {
        return reply(out, 404, &[("X-Error-Code", "EntryNotFound"), commit, no_body], b"");
    };
    let is_redirect = name == "big.safetensors" && !path.starts_with("/cdn");
    let is_transfer = range != "0-0" && !is_redirect;
    let fault = if is_transfer { state.faults.pop_front() } else { None };
    drop(state);

    let etag = format!("\"{}\"", etag_of(&bytes));
    let mut headers = vec![commit, ("X-Linked-Etag", etag.as_str()), ("ETag", "\"cdn\"")];
    let location = format!("/cdn{path}");
    if is_redirect {
        headers.extend([("Location", location.as_str()), no_body]);
        return reply(out, 302, &headers, b"");
    }
    let (start, end) = range.split_once('-').unwrap_or(("0", ""));
    let start: usize = start.parse().unwrap_or(0);
    let end = end.parse().map_or(bytes.len(), |last: usize| last + 1);
    if start >= bytes.len() {
        headers.push(no_body);
        return reply(out, 416, &headers, b"");
    }
    let range = format!("bytes {start}-{}/{}", end - 1, bytes.len());
    let mut body = bytes[start..end].to_vec();
    let mut length = Some(body.len().to_string());
    let mut status = 206;
    match fault {
        None => {}
        Some(Fault::Break(count)) => body.truncate(count),
        Some(Fault::Short(count)) => {
            length = None;
            body.truncate(count);
        }
        Some(Fault::IgnoreRange) => {
            status = 200;
            length = Some(bytes.len().to_string());
            body = bytes;
        }
        Some(Fault::Flip) => body[0] ^= 1,
        Some(Fault::Silence) => {
            thread::sleep(Duration::from_secs(20));
            return Ok(());
        }
    }
    if status == 206 {
        headers.push(("Content-Range", &range));
    }
    if let Some(length) = &length {
        headers.push(("Content-Length", length));
    }
    reply(out, status, &headers, &body)
}

/// The parts of a request that the tests check.
#[derive(Clone)]
pub struct Request {
    pub path: String,
    /// The range, without `bytes=`; `none` if there is no range.
    pub range: String,
    pub authorization: String,
    pub encoding: String,
}

impl Request {
    fn read(stream: &TcpStream) -> std::io::Result<Self> {
        let mut reader = BufReader::new(stream.try_clone()?);
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let path = line.split(' ').nth(1).unwrap_or_default().to_owned();
        let mut headers = HashMap::new();
        loop {
            line.clear();
            reader.read_line(&mut line)?;
            let Some((name, value)) = line.trim().split_once(": ") else {
                break;
            };
            headers.insert(name.to_lowercase(), value.to_owned());
        }
        let mut header = |name: &str| headers.remove(name).unwrap_or_else(|| "none".to_owned());
        Ok(Self {
            path,
            range: header("range").trim_start_matches("bytes=").to_owned(),
            authorization: header("authorization"),
            encoding: header("accept-encoding"),
        })
    }

    /// Whether this is a metadata request, not a transfer.
    pub fn requests_metadata(&self) -> bool {
        self.range == "0-0"
    }
}

/// A server whose responses are written byte by byte by a function.
pub struct ScriptedServer {
    pub endpoint: String,
    requests: Arc<Mutex<Vec<Request>>>,
}

impl ScriptedServer {
    pub fn start(
        respond: impl Fn(&Request, &mut TcpStream) -> std::io::Result<()> + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let requests = Arc::new(Mutex::new(Vec::new()));
        let (recorded, respond) = (Arc::clone(&requests), Arc::new(respond));
        thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let (recorded, respond) = (Arc::clone(&recorded), Arc::clone(&respond));
                thread::spawn(move || {
                    let request = Request::read(&stream)?;
                    recorded.lock().unwrap().push(request.clone());
                    // Some tests hang up early on purpose.
                    respond(&request, &mut stream)
                });
            }
        });
        Self { endpoint, requests }
    }

    /// Returns the requests since the last call.
    pub fn requests(&self) -> Vec<Request> {
        std::mem::take(&mut self.requests.lock().unwrap())
    }
}
