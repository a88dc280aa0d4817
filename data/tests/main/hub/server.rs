//! Small test servers: one for the hub's download route, with faults on demand, and one with
//! scripted responses.

use std::collections::{HashMap, VecDeque};
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use sha2::{Digest, Sha256};

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
    requests: Vec<String>,
}

/// The server; its thread ends with the test process.
pub struct Server {
    pub endpoint: String,
    state: Arc<Mutex<State>>,
}

impl Server {
    pub fn start(files: &[(&str, &[u8])]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let files = files.iter().map(|(name, bytes)| ((*name).to_owned(), bytes.to_vec()));
        let state = Arc::new(Mutex::new(State { files: files.collect(), ..State::default() }));
        let shared = Arc::clone(&state);
        let address = endpoint.clone();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (shared, address) = (Arc::clone(&shared), address.clone());
                // Some tests hang up early on purpose.
                thread::spawn(move || respond(stream, &shared, &address).ok());
            }
        });
        Self { endpoint, state }
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
        std::mem::take(&mut self.state.lock().unwrap().requests)
    }
}

/// Responds to one request. Big files are on a CDN, as on the hub: the hub sends a redirect with
/// the metadata, and the CDN sends the bytes.
fn respond(stream: TcpStream, state: &Mutex<State>, endpoint: &str) -> std::io::Result<()> {
    let Request { path, range, authorization, .. } = Request::read(&stream)?;
    let mut out = stream;
    let mut state = state.lock().unwrap();
    state.requests.push(format!("{path} {range} {authorization}"));
    if let Some(status) = state.status {
        return write!(
            out,
            "HTTP/1.1 {status} No\r\nETag: x\r\nX-Repo-Commit: {COMMIT}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        );
    }
    let route = path.strip_prefix("/cdn").unwrap_or(&path);
    let prefixes = ["main", COMMIT].map(|revision| format!("/owner/name/resolve/{revision}/"));
    let name = prefixes.iter().find_map(|prefix| route.strip_prefix(prefix.as_str()));
    let Some(bytes) = name.and_then(|name| state.files.get(name)).cloned() else {
        let reason = match name {
            Some(_) => format!("X-Error-Code: EntryNotFound\r\nX-Repo-Commit: {COMMIT}"),
            None => "X-Error-Code: RevisionNotFound".to_owned(),
        };
        return write!(
            out,
            "HTTP/1.1 404 No\r\n{reason}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        );
    };
    let is_redirect = name == Some("big.safetensors") && !path.starts_with("/cdn");
    let is_transfer = range != "0-0" && !is_redirect;
    let fault = if is_transfer { state.faults.pop_front() } else { None };
    drop(state);

    let etag = format!("{:x}", Sha256::digest(&bytes));
    let headers = format!(
        "X-Repo-Commit: {COMMIT}\r\nX-Linked-Etag: \"{etag}\"\r\nETag: \"cdn\"\r\nConnection: close\r\n"
    );
    if is_redirect {
        return write!(
            out,
            "HTTP/1.1 302 Found\r\nLocation: {endpoint}/cdn{path}\r\nContent-Length: 0\r\n{headers}\r\n"
        );
    }
    let (start, end) = range.split_once('-').unwrap_or(("0", ""));
    let start: usize = start.parse().unwrap_or(0);
    let end = end.parse().map_or(bytes.len(), |last: usize| last + 1);
    if start >= bytes.len() {
        return write!(out, "HTTP/1.1 416 No\r\nContent-Length: 0\r\n{headers}\r\n");
    }
    let mut body = bytes[start..end].to_vec();
    let total = bytes.len();
    let last = end - 1;
    let partial =
        format!("HTTP/1.1 206 Partial\r\nContent-Range: bytes {start}-{last}/{total}\r\n{headers}");
    let length = format!("Content-Length: {}\r\n\r\n", body.len());
    match fault {
        None => write!(out, "{partial}{length}")?,
        Some(Fault::Break(count)) => {
            write!(out, "{partial}{length}")?;
            body.truncate(count);
        }
        Some(Fault::Short(count)) => {
            write!(out, "{partial}\r\n")?;
            body.truncate(count);
        }
        Some(Fault::IgnoreRange) => {
            write!(out, "HTTP/1.1 200 OK\r\n{headers}Content-Length: {total}\r\n\r\n")?;
            body = bytes;
        }
        Some(Fault::Flip) => {
            write!(out, "{partial}{length}")?;
            body[0] ^= 1;
        }
        Some(Fault::Silence) => {
            thread::sleep(Duration::from_secs(20));
            return Ok(());
        }
    }
    out.write_all(&body)
}

/// The parts of a request that the tests check.
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
                    // Some tests hang up early on purpose.
                    let result = respond(&request, &mut stream);
                    recorded.lock().unwrap().push(request);
                    result
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
