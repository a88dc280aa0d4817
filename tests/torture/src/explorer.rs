//! The explorer under load, and unauthorised requests.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::inputs;
use crate::program::{Engram, checkout};
use crate::random::Random;
use crate::report::Report;
use crate::scratch::Scratch;
use crate::subjects::Shared;

/// Memory limit of the explorer in megabytes, for any requests.
const MAX_MEGABYTES: u64 = 500;

/// A running explorer.
struct Explorer {
    child: Child,
    address: SocketAddr,
    /// `token=HEX` from the printed address; empty if it has no token.
    token: String,
}

impl Drop for Explorer {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Explorer {
    fn start(folders: &[&str]) -> Result<Self> {
        let mut command = Engram::new(["explore"]).into_command();
        let mut child =
            command.args(folders).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
        let mut line = String::new();
        let stdout = child.stdout.take().context("no output")?;
        BufReader::new(stdout).read_line(&mut line)?;
        let url = line.trim().strip_prefix("http://").context("no address is printed")?;
        let (address, rest) = url.split_once('/').context("no address is printed")?;
        let token = rest.trim_start_matches('?').to_owned();
        Ok(Self { address: address.parse()?, token, child })
    }

    /// Adds the token to the path of a page.
    fn path(&self, path: &str) -> String {
        format!("{path}{}{}", if path.contains('?') { '&' } else { '?' }, self.token)
    }

    fn connect(&self, timeout: Duration) -> Result<TcpStream> {
        let stream = TcpStream::connect_timeout(&self.address, timeout)?;
        stream.set_read_timeout(Some(timeout))?;
        stream.set_write_timeout(Some(timeout))?;
        Ok(stream)
    }

    /// Sends bytes. Returns the response, as far as it arrived.
    fn send(&self, bytes: &[u8], timeout: Duration) -> Vec<u8> {
        let Ok(mut stream) = self.connect(timeout) else { return Vec::new() };
        let mut response = Vec::new();
        // A refusal may arrive before all bytes are sent.
        let _ = stream.write_all(bytes);
        let _ = stream.take(1 << 20).read_to_end(&mut response);
        response
    }

    /// Sends a request. Returns its status, or 0 without a response, and the response.
    fn request(&self, request: &Request) -> (u32, String) {
        let host = self.address.to_string();
        let mut header =
            format!("{} {} HTTP/1.1\r\nConnection: close\r\n", request.method, request.path);
        if !request.headers.to_ascii_lowercase().contains("host:") {
            header += &format!("Host: {host}\r\n");
        }
        if !request.body.is_empty() {
            header += &format!(
                "Content-Type: application/json\r\nContent-Length: {}\r\n",
                request.body.len()
            );
        }
        let bytes = format!("{header}{}\r\n{}", request.headers, request.body);
        let response =
            String::from_utf8_lossy(&self.send(bytes.as_bytes(), Duration::from_secs(60)))
                .into_owned();
        let status = response.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0);
        (status, response)
    }

    fn get(&self, path: &str, headers: &str) -> (u32, String) {
        self.request(&Request { method: "GET", path: path.to_owned(), headers, body: "" })
    }

    fn is_alive(&self) -> bool {
        self.get(&self.path("/api/runs"), "").0 == 200
    }

    /// Peak resident memory in megabytes; `None` if the process has ended.
    fn peak_megabytes(&self) -> Option<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
        Some(line.trim().split(' ').next()?.parse::<u64>().ok()? / 1024)
    }
}

struct Request<'a> {
    method: &'a str,
    path: String,
    headers: &'a str,
    body: &'a str,
}

pub fn attack(report: &Report) -> Result<()> {
    let scratch = Scratch::new("explorer")?;
    let shared = Shared::make(&scratch)?;
    let bundled = checkout().join("train/bundled");
    let memory = scratch.join("memory");
    // `{r}` is the checkout, `{s}` the folder of the shared inputs, `{o}` the new memory.
    let line = "memory build --model {r}/train/bundled/clip --entries {s}/images.jsonl --images \
        {s}/seen/frames --out {o} --quiet";
    shared.engram(&line.replace("{o}", &memory.to_string_lossy()))?;
    let explorer = Explorer::start(&[&memory.to_string_lossy(), &bundled.to_string_lossy()])?;
    anyhow::ensure!(explorer.is_alive(), "the explorer does not respond");
    if explorer.token.is_empty() {
        report.loss("the printed address has no token", explorer.address);
    }
    type Part = fn(&Report, &Explorer) -> Result<()>;
    let parts: [(&str, Part); 6] = [
        ("unauthorised requests", unauthorised_requests),
        ("malformed requests", malformed_requests),
        ("many requests", many_requests),
        ("slow requests", slow_requests),
        ("large bodies", large_bodies),
        ("image bombs", image_bombs),
    ];
    for (name, part) in parts {
        part(report, &explorer)?;
        match explorer.peak_megabytes() {
            Some(megabytes) if megabytes > MAX_MEGABYTES => {
                report.hang("too much memory", format!("{megabytes} MB after {name}"));
            }
            Some(_) => {}
            None => {
                report.loss("the explorer ended", name);
                return Ok(());
            }
        }
        if !explorer.is_alive() {
            report.hang("the explorer does not respond any more", name);
        }
    }
    Ok(())
}

fn unauthorised_requests(report: &Report, explorer: &Explorer) -> Result<()> {
    let port = explorer.address.port();
    let runs = explorer.path("/api/runs");
    let check_refused = |request: &str, (status, response): (u32, String)| {
        report.count_case();
        if status == 200 || response.contains("root:") {
            report.loss("an unauthorised request gets data", request);
        }
    };
    for host in [
        "evil.com",
        &format!("evil.com:{port}"),
        &format!("127.0.0.1:{port}.evil.com"),
        &format!("127.1:{port}"),
        &format!("evil@127.0.0.1:{port}"),
        &format!("0.0.0.0:{port}"),
        &format!("127.0.0.1.nip.io:{port}"),
        " ",
    ] {
        check_refused(host, explorer.get(&runs, &format!("Host: {host}\r\n")));
    }
    check_refused(
        "two hosts",
        explorer.get(&runs, &format!("Host: evil.com\r\nHost: 127.0.0.1:{port}\r\n")),
    );
    for header in [
        "Origin: http://evil.com",
        "Origin: null",
        "Sec-Fetch-Site: cross-site",
        "Sec-Fetch-Site: same-site",
    ] {
        let headers = format!("{header}\r\n");
        check_refused(header, explorer.get(&runs, &headers));
        let path = explorer.path("/api/memories/0/search");
        check_refused(
            header,
            explorer.request(&Request {
                method: "POST",
                path,
                headers: &headers,
                body: r#"{"k":1}"#,
            }),
        );
    }
    let valid_token = explorer.token.trim_start_matches("token=");
    let cut_token = valid_token.get(1..).unwrap_or_default();
    for query in [
        "",
        "?token=",
        "?token=0",
        &format!("?token={cut_token}"),
        &format!("?token={valid_token}0"),
        "?token=%00",
    ] {
        for path in ["/api/runs", "/api/memories", "/api/runs/0/curves"] {
            let path = format!("{path}{query}");
            check_refused(&path, explorer.get(&path, ""));
        }
    }
    for path in [
        "/../../../etc/passwd",
        "/%2e%2e/%2e%2e/etc/passwd",
        "/..%2f..%2fetc/passwd",
        "//etc/passwd",
        "/api/runs/0/questions/..%2f..%2f..%2fetc%2fpasswd/image",
        "/api/runs/-1/curves",
        "/api/runs/99999999999999999999/curves",
        "/api/memories/0/images/..%2f",
        "/api/memories/18446744073709551615/images/1",
        "/page/../server.rs",
    ] {
        check_refused(path, explorer.get(&explorer.path(path), ""));
    }
    Ok(())
}

fn malformed_requests(report: &Report, explorer: &Explorer) -> Result<()> {
    let mut random = Random::new(report.seed, 5);
    let path = explorer.path("/api/memories/0/search");
    let valid = format!(
        "POST {path} HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\nContent-Length: \
            7\r\nConnection: close\r\n\r\n{{\"k\":1}}",
        explorer.address
    );
    for _ in 0..report.size(100, 5000) {
        let mut bytes = valid.clone().into_bytes();
        for _ in 0..1 + random.below(12) {
            let index = random.below(bytes.len());
            bytes[index] = random.below(256) as u8;
        }
        report.count_case();
        explorer.send(&bytes, Duration::from_millis(100));
    }
    let tls_hello = [b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03".to_vec(), vec![0; 500]].concat();
    for bytes in [
        tls_hello,
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
        [b"GET / HTTP/1.1\r\n".to_vec(), b"A: b\r\n".repeat(100_000)].concat(),
        [b"GET /".to_vec(), vec![b'a'; 10_000_000]].concat(),
        vec![0; 100_000],
        valid.replace("Content-Length: 7", "Content-Length: -1").into_bytes(),
        valid.replace("Content-Length: 7", "Content-Length: 99999999999999999999").into_bytes(),
        valid
            .replace("Content-Length: 7", "Content-Length: 7\r\nTransfer-Encoding: chunked")
            .into_bytes(),
        valid
            .replace("{\"k\":1}", &"[".repeat(200_000))
            .replace("Length: 7", "Length: 200000")
            .into_bytes(),
    ] {
        report.count_case();
        explorer.send(&bytes, Duration::from_secs(2));
    }
    Ok(())
}

/// Many requests at the same time; each gets a response in time.
fn many_requests(report: &Report, explorer: &Explorer) -> Result<()> {
    thread::scope(|scope| {
        for number in 0..report.size(200, 1000) {
            scope.spawn(move || {
                let path = ["/api/runs", "/api/memories", "/api/runs/0/curves", "/"][number % 4];
                report.count_case();
                let (status, _) = explorer.get(&explorer.path(path), "");
                if status != 200 {
                    report.hang(
                        "one of many requests gets no response",
                        format!("{path}: status {status}"),
                    );
                }
            });
        }
    });
    Ok(())
}

/// Headers that never end. Other requests get responses meanwhile, and these connections are
/// closed.
fn slow_requests(report: &Report, explorer: &Explorer) -> Result<()> {
    let mut streams = Vec::new();
    for _ in 0..report.size(400, 3000) {
        let Ok(mut stream) = explorer.connect(Duration::from_secs(3)) else { break };
        report.count_case();
        // A server with a connection limit closes some connections at once.
        let _ = write!(stream, "GET /api/runs HTTP/1.1\r\nHost: {}\r\nX", explorer.address);
        streams.push(stream);
    }
    let start = Instant::now();
    if !explorer.is_alive() || start.elapsed() > Duration::from_secs(15) {
        report.hang(
            "slow headers block other requests",
            format!("{} incomplete requests", streams.len()),
        );
    }
    let first = streams.first().context("no connection")?;
    first.set_read_timeout(Some(Duration::from_secs(45)))?;
    // The connection ends, with or without a response such as 408.
    if (&*first)
        .read(&mut [0; 64])
        .is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
    {
        report.hang("a slow header has no timeout", "45 s");
    }
    Ok(())
}

/// Large bodies that never end.
fn large_bodies(report: &Report, explorer: &Explorer) -> Result<()> {
    let path = explorer.path("/api/memories/0/search");
    let size = 31 << 20;
    let streams: Vec<_> = thread::scope(|scope| {
        let sending: Vec<_> = (0..report.size(24, 60))
            .map(|_| {
                let path = &path;
                scope.spawn(move || {
                    report.count_case();
                    let mut stream = explorer.connect(Duration::from_secs(5)).ok()?;
                    let host = explorer.address;
                    write!(
                        stream,
                        "POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: \
                        application/json\r\nContent-Length: {size}\r\n\r\n"
                    )
                    .ok()?;
                    // Sends until the server stops reading, or nearly the whole body.
                    let piece = [b' '; 1 << 16];
                    (1..size / piece.len()).try_for_each(|_| stream.write_all(&piece)).ok();
                    Some(stream)
                })
            })
            .collect();
        sending.into_iter().filter_map(|thread| thread.join().ok().flatten()).collect()
    });
    thread::sleep(Duration::from_secs(1));
    drop(streams);
    Ok(())
}

/// Images whose headers declare far more pixels than they contain, several at the same time.
fn image_bombs(report: &Report, explorer: &Explorer) -> Result<()> {
    let mut images = vec![
        inputs::png(30_000, 30_000, 0)?,
        inputs::png(1 << 20, 80, 80)?,
        inputs::png(9_400, 9_400, 9_400)?,
    ];
    images.push(images[2][..images[2].len() / 2].to_vec());
    for image in images {
        let text = base64(&image);
        thread::scope(|scope| {
            for number in 0..report.size(4, 8) {
                let text = &text;
                scope.spawn(move || {
                    report.count_case();
                    // An unknown field is refused before the image is decoded.
                    let field = ["image", "unknown"][number % 2];
                    let body = format!(r#"{{"{field}":"{text}","k":3}}"#);
                    let path = explorer.path("/api/memories/0/search");
                    let (status, _) = explorer.request(&Request {
                        method: "POST",
                        path,
                        headers: "",
                        body: &body,
                    });
                    if status == 0 {
                        report.hang(
                            "a request with an image gets no response",
                            format!("{} bytes of base64", text.len()),
                        );
                    }
                });
            }
        });
    }
    Ok(())
}

fn base64(bytes: &[u8]) -> String {
    let letters = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for group in bytes.chunks(3) {
        let number = group.iter().fold(0, |sum, byte| sum << 8 | u32::from(*byte))
            << (8 * (3 - group.len()));
        for index in 0..4 {
            let letter = letters[(number >> (18 - 6 * index) & 63) as usize];
            text.push(if index > group.len() { '=' } else { char::from(letter) });
        }
    }
    text
}
