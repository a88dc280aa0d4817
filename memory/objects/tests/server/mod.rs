//! S3 servers for tests. `ENGRAM_OBJECTS` is a virtual environment with both servers:
//!
//! ```sh
//! python3 -m venv venv && venv/bin/pip install 'moto[server,s3]==5.2.5' localbucket==1.2.1
//! export ENGRAM_OBJECTS=$PWD/venv
//! ```
#![allow(clippy::unwrap_used, dead_code)]

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;

use engram_memory_objects::Connect;
use tempfile::TempDir;

/// A running server. It ends when this value is dropped, or when the test ends.
pub struct TestServer {
    process: Child,
    /// The server ends with its standard input.
    input: Option<ChildStdin>,
    endpoint: String,
    key: String,
    secret: String,
    _folder: Option<TempDir>,
}

/// `None` without `ENGRAM_OBJECTS`.
fn environment() -> Option<PathBuf> {
    let environment = std::env::var_os("ENGRAM_OBJECTS").map(PathBuf::from);
    if environment.is_none() {
        // Past the capture of the test's output.
        let message = "SKIPPED: set ENGRAM_OBJECTS to a virtual environment with moto and \
                       localbucket to test values on S3 (tests/server/mod.rs)\n";
        std::io::stderr().write_all(message.as_bytes()).unwrap();
    }
    environment
}

impl TestServer {
    /// Starts moto, which checks conditions and signatures.
    pub fn moto() -> Option<Self> {
        let python = environment()?.join("bin/python");
        let mut process = Command::new(python)
            .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/server/s3.py"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let words: Vec<&str> = line.split_whitespace().collect();
        let [port, key, secret] = words[..] else { panic!("the server failed: {line:?}") };
        let endpoint = format!("http://127.0.0.1:{port}");
        let (key, secret) = (key.to_owned(), secret.to_owned());
        Some(Self { input: process.stdin.take(), process, endpoint, key, secret, _folder: None })
    }

    /// Starts localbucket, a server with one kind of condition: "create if missing".
    pub fn localbucket() -> Option<Self> {
        let program = environment()?.join("bin/localbucket");
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("engram")).unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let process = Command::new(program)
            .arg(folder.path())
            .args(["--port", &port.to_string()])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let endpoint = format!("http://127.0.0.1:{port}");
        let (key, secret) = ("any".to_owned(), "any".to_owned());
        let server = Self { process, input: None, endpoint, key, secret, _folder: Some(folder) };
        for _ in 0..600 {
            if TcpStream::connect(("127.0.0.1", port)).is_ok() {
                return Some(server);
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        panic!("localbucket did not start");
    }

    /// The options of the store, with a key and its secret.
    pub fn options(&self, key: &str, secret: &str) -> Vec<(String, String)> {
        let options = [
            ("aws_endpoint", self.endpoint.as_str()),
            ("aws_region", "us-east-1"),
            ("aws_access_key_id", key),
            ("aws_secret_access_key", secret),
            ("aws_allow_http", "true"),
        ];
        options.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec()
    }

    pub fn connect(&self) -> Connect {
        self.connect_with(&self.key, &self.secret)
    }

    pub fn connect_with(&self, key: &str, secret: &str) -> Connect {
        let patience = Duration::from_secs(5);
        Connect { options: self.options(key, secret), patience, ..Connect::default() }
    }

    pub fn key(&self) -> &str {
        &self.key
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        if self.input.take().is_none() {
            self.process.kill().unwrap();
        }
        self.process.wait().unwrap();
    }
}
