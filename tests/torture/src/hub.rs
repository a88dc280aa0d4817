//! A hostile model hub: paths in headers, redirects to another host, endless bodies, wrong sizes
//! and hashes.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use flate2::Compression;
use flate2::write::GzEncoder;

use crate::inputs;
use crate::program::Engram;
use crate::report::Report;
use crate::scratch::{self, Scratch, Snapshot};

const BODY: &str = "{\"hidden_size\": 8}\n";
const COMMIT: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
/// The hub's ETag of a small file: git's SHA-1 of `BODY`.
const ETAG: &str = "bc77bf8f7cdcf1bc3b843a77809edf1d1367b78e";
const TOKEN: &str = "hf_secret_of_the_torture_suite";
/// Limit on the bytes that a client receives or stores for a file with a declared size of 19 bytes.
const MAX_BYTES: u64 = 64 << 20;
/// Time limit of a command, in seconds.
const SECONDS: u64 = 150;

/// The behaviours of the hub; the owner in a model's name selects one.
const BEHAVIOURS: [&str; 32] = [
    "good",
    "wronghash",
    "etag-absolute",
    "etag-parents",
    "etag-slash",
    "etag-empty",
    "etag-long",
    "commit-absolute",
    "commit-parents",
    "commit-dots",
    "short",
    "cut",
    "long",
    "endless",
    "huge-size",
    "negative-size",
    "overflow-size",
    "redirect-file",
    "redirect-host",
    "redirect-other-scheme",
    "redirect-loop",
    "redirect-nowhere",
    "no-location",
    "no-headers",
    "gzip",
    "control",
    "hang",
    "drip",
    "headers-endless",
    "status-204",
    "status-401",
    "status-500",
];

/// A record of the requests to both servers and of the bytes sent.
#[derive(Default)]
struct Traffic {
    /// Requests to the other host that carried the token.
    leaks: Vec<String>,
    /// Bytes sent for each behaviour.
    sent: BTreeMap<String, u64>,
}

struct Hub {
    /// The target address of redirects.
    other_host: String,
    /// A path outside all caches, which the hub tries to overwrite.
    victim: String,
    /// Whether this server is the other host.
    is_other: bool,
    traffic: Arc<Mutex<Traffic>>,
}

pub fn attack(report: &Report) -> Result<()> {
    let scratch = Scratch::new("hub")?;
    let outside = scratch.join("outside");
    scratch::empty(&outside)?;
    fs::write(outside.join("victim.txt"), "precious\n")?;
    inputs::entries(&scratch.join("entries.jsonl"), 0, 3, "a")?;
    let before = Snapshot::of(&outside)?;
    let traffic = Arc::new(Mutex::new(Traffic::default()));
    let (hub_listener, other_listener) =
        (TcpListener::bind("127.0.0.1:0")?, TcpListener::bind("127.0.0.1:0")?);
    let endpoint = format!("http://{}", hub_listener.local_addr()?);
    let other_host = format!("localhost:{}", other_listener.local_addr()?.port());
    for (listener, is_other) in [(hub_listener, false), (other_listener, true)] {
        let victim = outside.join("victim.txt").to_string_lossy().into_owned();
        let hub = Arc::new(Hub {
            other_host: other_host.clone(),
            victim,
            is_other,
            traffic: Arc::clone(&traffic),
        });
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let hub = Arc::clone(&hub);
                // A client that disconnects is not an error.
                thread::spawn(move || drop(hub.handle(stream)));
            }
        });
    }
    let fetch = "data fetch hf://BEHAVIOUR/x --file config.json";
    let build = "memory build --model hf://BEHAVIOUR/x --entries {s}/entries.jsonl --out \
        {c}-memory --quiet";
    thread::scope(|scope| {
        for behaviour in BEHAVIOURS {
            if behaviour == "drip" && !report.long {
                continue;
            }
            for (number, line) in [fetch, build].into_iter().enumerate() {
                let cache = scratch.join(&format!("cache-{behaviour}-{number}"));
                let line =
                    line.replace("BEHAVIOUR", behaviour).replace("{c}", &cache.to_string_lossy());
                let line = line.replace("{s}", &scratch.path().to_string_lossy());
                let (endpoint, traffic) = (&endpoint, &traffic);
                scope.spawn(move || {
                    if let Err(error) =
                        run_case(report, behaviour, &line, endpoint, &cache, traffic)
                    {
                        report.loss("the case could not run", format!("{behaviour}: {error:#}"));
                    }
                });
            }
        }
    });
    if Snapshot::of(&outside)? != before {
        let current = Snapshot::of(&outside)?;
        report.loss("files outside the cache were written", current.difference(&before));
    }
    for leak in &traffic.lock().expect("no thread panics").leaks {
        report.loss("the token went to another host", leak);
    }
    Ok(())
}

/// Runs a command against one behaviour of the hub and checks its result.
fn run_case(
    report: &Report,
    behaviour: &str,
    line: &str,
    endpoint: &str,
    cache: &Path,
    traffic: &Mutex<Traffic>,
) -> Result<()> {
    scratch::empty(cache)?;
    let ended = Engram::line(line)
        .env("HF_ENDPOINT", endpoint)
        .env("HF_HUB_CACHE", cache)
        .env("HF_HUB_OFFLINE", "0")
        .env("HF_TOKEN", TOKEN)
        .seconds(SECONDS)
        .run()?;
    report.count_case();
    let label = format!("{behaviour}: {line}");
    report.check_result(&ended, &label);
    let is_fetch = line.starts_with("data fetch");
    let may_succeed = is_fetch && ["good", "redirect-host", "drip"].contains(&behaviour);
    if behaviour == "good" && is_fetch && ended.code != Some(0) {
        report.loss("a good hub is refused", format!("{label}: {ended}"));
    } else if ended.code == Some(0) && !may_succeed {
        report.loss("a false response is accepted", format!("{label}: {}", ended.stdout.trim()));
    } else if !ended.timed_out && !matches!(ended.code, Some(0 | 2)) {
        report.loss("a wrong exit code", format!("{label}: {ended}"));
    }
    let sent = traffic.lock().expect("no thread panics").sent.get(behaviour).copied().unwrap_or(0);
    if sent > 4 * MAX_BYTES {
        report
            .loss("an endless body is read without a limit", format!("{label}: {} MB", sent >> 20));
    }
    if ended.megabytes > 500 || size(cache)? > MAX_BYTES {
        report.loss("a body fills the memory or the disk", format!("{label}: {ended}"));
    }
    check_links(report, cache, cache, &label)
}

/// The total size of all files below a folder, in bytes.
fn size(folder: &Path) -> Result<u64> {
    let mut sum = 0;
    for entry in fs::read_dir(folder)? {
        let (path, metadata) = entry.map(|entry| (entry.path(), entry.metadata()))?;
        let metadata = metadata?;
        sum += if metadata.is_dir() { size(&path)? } else { metadata.len() };
    }
    Ok(sum)
}

/// Checks that all links in the cache have targets in the cache.
fn check_links(report: &Report, cache: &Path, folder: &Path, label: &str) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let path = entry.path();
        if entry.file_type()?.is_symlink() {
            let inside = path.canonicalize().is_ok_and(|target| target.starts_with(cache));
            if !inside {
                report
                    .loss("a link leads out of the cache", format!("{label}: {}", path.display()));
            }
        } else if path.is_dir() {
            check_links(report, cache, &path, label)?;
        }
    }
    Ok(())
}

impl Hub {
    fn handle(&self, stream: TcpStream) -> Result<()> {
        let mut lines = BufReader::new(stream.try_clone()?).lines();
        let request = lines.next().transpose()?.unwrap_or_default();
        let mut headers = Vec::new();
        for line in lines {
            let line = line?.to_ascii_lowercase();
            if line.is_empty() {
                break;
            }
            headers.push(line);
        }
        if self.is_other && headers.iter().any(|line| line.contains(TOKEN)) {
            self.traffic.lock().expect("no thread panics").leaks.push(request.clone());
        }
        let is_head = request.starts_with("HEAD ");
        let is_probe =
            is_head || headers.iter().any(|line| line.replace(' ', "") == "range:bytes=0-0");
        let path = request.split(' ').nth(1).unwrap_or_default();
        let behaviour = path.trim_start_matches('/').split('/').next().unwrap_or_default();
        self.respond(stream, behaviour, path, is_head, is_probe)
    }

    fn respond(
        &self,
        mut stream: TcpStream,
        behaviour: &str,
        path: &str,
        is_head: bool,
        is_probe: bool,
    ) -> Result<()> {
        let victim = &self.victim;
        let (mut etag, mut commit, mut size) =
            (ETAG.to_owned(), COMMIT.to_owned(), BODY.len().to_string());
        let up = "../".repeat(20);
        match behaviour {
            "wronghash" => etag = "0".repeat(64),
            "etag-absolute" => etag = victim.clone(),
            "etag-parents" => etag = format!("{up}{victim}"),
            "etag-slash" => etag = "a/b".to_owned(),
            "etag-empty" => etag = String::new(),
            "etag-long" => etag = "a".repeat(5000),
            "control" => etag = "a\tb".to_owned(),
            "commit-absolute" => commit = format!("{victim}.folder"),
            "commit-parents" => commit = format!("{up}{victim}.folder"),
            "commit-dots" => commit = "..".to_owned(),
            "huge-size" => size = "1000000000000000".to_owned(),
            "negative-size" => size = "-5".to_owned(),
            "overflow-size" => size = "18446744073709551616".to_owned(),
            _ => {}
        }
        let file_headers = format!("ETag: \"{etag}\"\r\nX-Repo-Commit: {commit}\r\n");
        let redirect = |location: &str| {
            format!(
                "HTTP/1.1 302 Found\r\n{file_headers}Location: {location}\r\nContent-Length: \
                    0\r\nConnection: close\r\n\r\n"
            )
        };
        let host = |scheme: &str| {
            redirect(&format!(
                "{scheme}://{}/good/x{}",
                self.other_host,
                path.rsplit("/x").next().unwrap_or("")
            ))
        };
        let response = match behaviour {
            "redirect-file" => redirect("file:///etc/passwd"),
            "redirect-host" => host("http"),
            "redirect-other-scheme" => host("ftp"),
            "redirect-loop" => redirect(path),
            "redirect-nowhere" => redirect("?"),
            "no-location" => format!(
                "HTTP/1.1 302 Found\r\n{file_headers}Content-Length: 0\r\nConnection: close\r\n\r\n"
            ),
            "no-headers" => format!("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{BODY}"),
            "hang" => {
                thread::sleep(Duration::from_secs(SECONDS));
                return Ok(());
            }
            "headers-endless" => {
                return self.send_repeatedly(
                    stream,
                    behaviour,
                    b"HTTP/1.1 200 OK\r\n",
                    &b"X-More: again and again\r\n".repeat(1000),
                );
            }
            name if name.starts_with("status-") => {
                format!(
                    "HTTP/1.1 {} Status\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
                    &name[7..]
                )
            }
            _ if is_probe => {
                let status = if is_head { "200 OK" } else { "206 Partial Content" };
                let (length, body) = if is_head { (size.as_str(), "") } else { ("1", "{") };
                format!(
                    "HTTP/1.1 {status}\r\n{file_headers}Content-Range: bytes \
                        0-0/{size}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
                )
            }
            _ => String::new(),
        };
        if !response.is_empty() {
            return Ok(stream.write_all(response.as_bytes())?);
        }
        let ok = format!("HTTP/1.1 200 OK\r\n{file_headers}Connection: close\r\n");
        match behaviour {
            "short" => write!(stream, "{ok}Content-Length: 9\r\n\r\n{}", &BODY[..9])?,
            "cut" => write!(stream, "{ok}Content-Length: {}\r\n\r\n{}", BODY.len(), &BODY[..9])?,
            "long" => write!(
                stream,
                "{ok}Content-Length: {}\r\n\r\n{BODY}{}",
                BODY.len() + 5000,
                "y".repeat(5000)
            )?,
            "endless" => {
                return self.send_repeatedly(
                    stream,
                    behaviour,
                    format!("{ok}\r\n").as_bytes(),
                    &[b'z'; 1 << 16],
                );
            }
            "gzip" => {
                let mut bomb = GzEncoder::new(Vec::new(), Compression::fast());
                for _ in 0..300 {
                    bomb.write_all(&[0; 1 << 20])?;
                }
                let bomb = bomb.finish()?;
                write!(
                    stream,
                    "{ok}Content-Encoding: gzip\r\nContent-Length: {}\r\n\r\n",
                    bomb.len()
                )?;
                stream.write_all(&bomb)?;
            }
            "drip" => {
                write!(stream, "{ok}Content-Length: {}\r\n\r\n", BODY.len())?;
                for byte in BODY.bytes() {
                    thread::sleep(Duration::from_secs(4));
                    stream.write_all(&[byte])?;
                }
            }
            _ => write!(stream, "{ok}Content-Length: {}\r\n\r\n{BODY}", BODY.len())?,
        }
        Ok(())
    }

    /// Sends the same bytes repeatedly, for half a minute or up to 3 GB.
    fn send_repeatedly(
        &self,
        mut stream: TcpStream,
        behaviour: &str,
        start: &[u8],
        piece: &[u8],
    ) -> Result<()> {
        stream.write_all(start)?;
        let start_time = Instant::now();
        let mut sent = 0;
        while start_time.elapsed() < Duration::from_secs(30) && sent < 3 << 30 {
            stream.write_all(piece)?;
            sent += piece.len() as u64;
            self.traffic.lock().expect("no thread panics").sent.insert(behaviour.to_owned(), sent);
        }
        Ok(())
    }
}
