//! An S3 server for tests. `ENGRAM_OBJECTS` is a virtual environment with moto:
//!
//! ```sh
//! python3 -m venv venv && venv/bin/pip install 'moto[server,s3]==5.2.5'
//! export ENGRAM_OBJECTS=$PWD/venv
//! ```
#![allow(clippy::unwrap_used, dead_code)]

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;

use engram_memory_objects::Connect;

/// A running server. It ends when this value is dropped, or when the test ends.
pub struct TestServer {
    process: Child,
    /// The server ends with its standard input.
    input: Option<ChildStdin>,
    endpoint: String,
    key: String,
    secret: String,
}

fn environment() -> PathBuf {
    std::env::var_os("ENGRAM_OBJECTS").map(PathBuf::from).expect("the variable ENGRAM_OBJECTS")
}

impl TestServer {
    /// Starts moto, which checks conditions and signatures.
    pub fn moto() -> Self {
        let python = environment().join("bin/python");
        let mut process = Command::new(python)
            .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/processes/server/s3.py"))
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
        Self { input: process.stdin.take(), process, endpoint, key, secret }
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
        drop(self.input.take());
        self.process.wait().unwrap();
    }
}
