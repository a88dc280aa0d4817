//! A running `engram explore` and its responses.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::LazyLock;

use engram::train::studies::reveal::evaluation::restore_missing_memory;
use serde_json::Value;

use crate::running::{Folder, command, copy};

/// A running explorer with its address and token; killed on drop.
pub struct Explorer {
    pub program: Child,
    pub address: String,
    pub token: String,
}

/// An HTTP response.
pub struct Response {
    pub status: u16,
    pub headers: String,
    /// The body as text.
    pub body: String,
    /// The body.
    pub bytes: Vec<u8>,
}

impl Response {
    /// The JSON of a successful response.
    #[track_caller]
    pub fn json(&self) -> Value {
        assert_eq!(self.status, 200, "{}", self.body);
        serde_json::from_str(&self.body).unwrap()
    }

    /// Checks that the request was refused with this status, and that the body contains `part`.
    #[track_caller]
    pub fn is_refused(&self, status: u16, part: &str) {
        assert!(self.status == status && self.body.contains(part), "{} {}", self.status, self.body);
    }
}

impl Explorer {
    pub fn open(folder: &Path, arguments: &[&str]) -> Self {
        let mut command = command(folder, "explore");
        command.args(arguments);
        let mut program = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(program.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let (address, token) =
            line.trim().trim_start_matches("http://").split_once("/?token=").unwrap();
        assert!(address.starts_with("127.0.0.1:"), "{line}");
        assert!(token.len() == 32 && token.bytes().all(|byte| byte.is_ascii_hexdigit()), "{line}");
        Self { program, address: address.to_owned(), token: token.to_owned() }
    }

    /// The cookie that identifies the browser.
    pub fn cookie(&self) -> String {
        let (_, port) = self.address.split_once(':').unwrap();
        format!("Cookie: other=1; engram-{port}={}", self.token)
    }

    /// Sends a request with the cookie of the browser that opened the page, and these header lines.
    pub fn request(&self, request: &str, headers: &[&str], body: &str) -> Response {
        let cookie = self.cookie();
        self.send(request, &[headers, &[cookie.as_str()]].concat(), body)
    }

    /// Sends a request with these header lines; `Host` is the address unless they contain one.
    pub fn send(&self, request: &str, headers: &[&str], body: &str) -> Response {
        let host = format!("Host: {}", self.address);
        let mut lines = vec![format!("{request} HTTP/1.1"), "Connection: close".to_owned()];
        if !headers.iter().any(|header| header.starts_with("Host")) {
            lines.push(host);
        }
        lines.extend(headers.iter().map(|header| header.to_string()));
        lines.push(format!("Content-Length: {}\r\n\r\n{body}", body.len()));
        let mut stream = TcpStream::connect(&self.address).unwrap();
        // A response may come before the whole body is read.
        let _ = stream.write_all(lines.join("\r\n").as_bytes());
        let mut bytes = Vec::new();
        let _ = stream.read_to_end(&mut bytes);
        let end = bytes.windows(4).position(|window| window == b"\r\n\r\n").unwrap();
        let headers = String::from_utf8_lossy(&bytes[..end]).to_lowercase();
        let bytes = bytes.split_off(end + 4);
        let status = headers.split(' ').nth(1).unwrap().parse().unwrap();
        let body = String::from_utf8_lossy(&bytes).into_owned();
        Response { status, headers, body, bytes }
    }

    pub fn get(&self, path: &str) -> Response {
        self.request(&format!("GET {path}"), &[], "")
    }

    /// Sends JSON.
    pub fn post(&self, path: &str, body: &str) -> Response {
        self.request(&format!("POST {path}"), &["Content-Type: application/json"], body)
    }

    pub fn search(&self, request: &str) -> Response {
        self.post("/api/memories/0/search", request)
    }
}

impl Drop for Explorer {
    fn drop(&mut self) {
        let _ = self.program.kill();
        let _ = self.program.wait();
    }
}

/// Copies the bundled REVEAL run, with its memory, to a folder.
pub fn copy_reveal(to: &Path) {
    // The memory is built once for all tests of a file.
    static MEMORY: LazyLock<Folder> = LazyLock::new(|| {
        let folder = Folder::new();
        let bundled = Path::new(env!("CARGO_MANIFEST_DIR")).join("train/bundled/reveal");
        for entry in fs::read_dir(bundled).unwrap().flatten().filter(|entry| entry.path().is_file())
        {
            fs::copy(entry.path(), folder.join(entry.file_name())).unwrap();
        }
        restore_missing_memory(&folder, true).unwrap();
        folder
    });
    copy(&MEMORY, to);
}
