//! A PostgreSQL server for tests of the command. `ENGRAM_POSTGRES` is as in
//! memory/postgres/tests/main/server/mod.rs.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

use tempfile::TempDir;

use crate::running::folder_of;

/// A running server. It ends when this value is dropped.
pub struct Server {
    process: Child,
    binaries: PathBuf,
    pub folder: TempDir,
}

impl Server {
    /// Starts a server.
    pub fn start() -> Self {
        let binaries = folder_of("ENGRAM_POSTGRES");
        let folder = tempfile::Builder::new().prefix("engram-pg").tempdir_in("/tmp").unwrap();
        fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
        let script =
            concat!(env!("CARGO_MANIFEST_DIR"), "/memory/postgres/tests/main/server/server.sh");
        let mut process = Command::new(script)
            .args([&*binaries, folder.path()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        let server = Self { process, binaries, folder };
        server.sql("postgres", "CREATE ROLE app LOGIN");
        server.sql("postgres", "CREATE DATABASE memories OWNER app");
        server.sql("memories", "CREATE EXTENSION vector");
        server
    }

    /// Two servers for all tests that do not stop them. Each test needs memories of its own.
    pub fn shared() -> &'static [Self; 2] {
        static SERVERS: OnceLock<[Server; 2]> = OnceLock::new();
        SERVERS.get_or_init(|| [Self::start(), Self::start()])
    }

    /// Runs SQL, and returns its rows.
    pub fn sql(&self, database: &str, sql: &str) -> String {
        let psql = Command::new(self.binaries.join("psql"))
            .args(["-X", "-q", "-t", "-A", "-h", self.folder.path().to_str().unwrap()])
            .args(["-U", "engram", "-d", database, "-c", sql])
            .output()
            .unwrap();
        assert!(psql.status.success(), "{sql}");
        String::from_utf8(psql.stdout).unwrap()
    }

    pub fn url(&self, name: &str) -> String {
        format!("postgres://app@/memories?host={}&memory={name}", self.folder.path().display())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.process.stdin.take());
        self.process.wait().unwrap();
    }
}
