//! A cache beside a file that must not change, and responses of a scripted hub.

use std::fs;
use std::io::Write;
use std::net::TcpStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use engram_data::DataError;
use engram_data::hub::HubSettings;
use sha2::{Digest, Sha256};
use tempfile::TempDir;

use super::model;
use super::server::{COMMIT, Request, ScriptedServer};
use crate::assert_has;

pub const BODY: &[u8] = b"{\"hidden_size\": 8}\n";

pub fn etag_of(bytes: &[u8]) -> String {
    format!("{:x}", Sha256::digest(bytes))
}

pub fn reply(
    out: &mut TcpStream,
    status: u16,
    headers: &[(&str, &str)],
    body: &[u8],
) -> std::io::Result<()> {
    write!(out, "HTTP/1.1 {status} -\r\nConnection: close\r\n")?;
    for (name, value) in headers {
        write!(out, "{name}: {value}\r\n")?;
    }
    write!(out, "\r\n")?;
    out.write_all(body)
}

/// Sends this commit, etag and size.
pub fn send_metadata(
    out: &mut TcpStream,
    commit: &str,
    etag: &str,
    size: &str,
) -> std::io::Result<()> {
    let range = format!("bytes 0-0/{size}");
    let etag = format!("\"{etag}\"");
    let headers = [("ETag", etag.as_str()), ("X-Repo-Commit", commit), ("Content-Range", &range)];
    reply(out, 206, &headers, b"{")
}

/// Sends the metadata of [`BODY`].
pub fn send_correct_metadata(out: &mut TcpStream) -> std::io::Result<()> {
    send_metadata(out, COMMIT, &etag_of(BODY), &BODY.len().to_string())
}

pub fn redirect(out: &mut TcpStream, location: &str) -> std::io::Result<()> {
    let etag = etag_of(BODY);
    reply(out, 302, &[("Location", location), ("ETag", &etag), ("X-Repo-Commit", COMMIT)], b"")
}

/// A hub without faults.
pub fn correct_hub(request: &Request, out: &mut TcpStream) -> std::io::Result<()> {
    if request.requests_metadata() {
        send_correct_metadata(out)
    } else {
        reply(out, 200, &[], BODY)
    }
}

/// A hub that sends the correct metadata, and this body.
pub fn hub_with_body(
    body: impl Fn(&Request, &mut TcpStream) -> std::io::Result<()> + Send + Sync + 'static,
) -> ScriptedServer {
    ScriptedServer::start(move |request, out| match request.requests_metadata() {
        true => send_correct_metadata(out),
        false => body(request, out),
    })
}

/// A hub that sends the correct body, and this commit, etag and size.
pub fn hub_with_metadata(commit: &str, etag: &str, size: &str) -> ScriptedServer {
    let [commit, etag, size] = [commit, etag, size].map(str::to_owned);
    ScriptedServer::start(move |request, out| match request.requests_metadata() {
        true => send_metadata(out, &commit, &etag, &size),
        false => reply(out, 200, &[], BODY),
    })
}

/// A cache, and a folder beside it with a file that must not change.
pub struct TestCache {
    pub folder: TempDir,
    pub settings: HubSettings,
}

impl TestCache {
    pub fn new(endpoint: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("outside")).unwrap();
        fs::write(folder.path().join("outside/victim"), "precious").unwrap();
        let mut settings = HubSettings::new(folder.path().join("cache"));
        settings.endpoint = endpoint.to_owned();
        settings.progress = false;
        settings.retries = 1;
        settings.retry_pause = Duration::from_millis(1);
        Self { folder, settings }
    }

    pub fn outside(&self) -> PathBuf {
        self.folder.path().join("outside")
    }

    pub fn model_folder(&self) -> PathBuf {
        self.settings.cache.join("models--owner--name")
    }

    pub fn fetch(&self) -> Result<PathBuf, DataError> {
        let result = model().file("config.json", &self.settings);
        let outside = self.outside();
        let names: Vec<_> =
            fs::read_dir(&outside).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, ["victim"], "something was written outside of the cache");
        assert_eq!(fs::read(outside.join("victim")).unwrap(), b"precious");
        result
    }

    #[track_caller]
    pub fn assert_refused(&self, parts: &[&str]) {
        let started = Instant::now();
        assert_has(&self.fetch().unwrap_err().to_string(), parts);
        assert!(started.elapsed() < Duration::from_secs(15), "{:?}", started.elapsed());
        assert!(!self.model_folder().join("snapshots").exists(), "nothing reaches the cache");
    }
}
