//! A store that can be slow, fail or lie, and memories to push.
#![allow(clippy::unwrap_used, dead_code)]

use std::fmt;
use std::path::Path as FilePath;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use engram_memory_objects::object_store::memory::InMemory;
use engram_memory_objects::object_store::path::Path;
use engram_memory_objects::object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use engram_memory_objects::{Connect, ObjectStorage, PushSettings, RemoteValues};
use futures_util::stream::{self, BoxStream, StreamExt};
use tempfile::TempDir;

use crate::support::{
    Generation, MemoryError, MemoryFormat, Rng, Row, Snapshot, ValueDtype, ValueFormat, Writer,
    batch, create,
};

/// Small shards and blocks.
pub const SMALL: PushSettings =
    PushSettings { shard_bytes: 2000, block_bytes: 100, recheck: false, replace: false };

/// Builds a memory with values of 2 tokens of width 8.
pub fn memory(folder: &FilePath, dtype: ValueDtype, rows: usize, seed: u64) -> Writer {
    let format = format(dtype);
    create(folder, format, batch(&mut Rng::new(seed), format, 0..rows as i64))
}

pub fn format(dtype: ValueDtype) -> MemoryFormat {
    let values = Some(ValueFormat { tokens: 2, width: 8, dtype });
    MemoryFormat { width: 4, normalised: true, values }
}

/// Adds rows with ids from `first`.
pub fn add(writer: &mut Writer, dtype: ValueDtype, first: i64, rows: i64) {
    let rows = batch(&mut Rng::new(first as u64), format(dtype), first..first + rows);
    crate::support::add(writer, rows);
}

/// A memory in the folder `m` of a temporary folder, and a store in its folder `store`.
pub fn with_store(dtype: ValueDtype, rows: usize) -> (TempDir, Writer, ObjectStorage) {
    let temporary = crate::support::folder();
    let writer = memory(&temporary.path().join("m"), dtype, rows, 1);
    let store = temporary.path().join("store").display().to_string();
    (temporary, writer, ObjectStorage::open(&store, connect()).unwrap())
}

/// Reads the values of rows of a local generation from a store, without a cache.
pub fn read(
    values: &RemoteValues,
    local: &Generation,
    rows: &[Row],
) -> std::result::Result<Vec<f32>, MemoryError> {
    use engram_memory::cache::ValueSource;
    let size = local.manifest().values.map_or(0, |format| format.tokens * format.width);
    let mut read = vec![0.0; rows.len() * size];
    let stored = values.stored_values(&local.value_keys(rows).unwrap())?;
    read.chunks_mut(size).zip(stored).for_each(|(out, value)| value.read(out));
    Ok(read)
}

/// Compares values with the values of the local generation: all, then random ones in random order.
pub fn assert_equal(values: &RemoteValues, local: &Generation) {
    let all: Vec<Row> = local.live_rows().collect();
    assert_eq!(read(values, local, &all).unwrap(), local.values(&all).unwrap());
    let mut rng = Rng::new(5);
    for _ in 0..20 {
        let rows: Vec<Row> = (0..30).map(|_| all[rng.below(all.len() as u64) as usize]).collect();
        assert_eq!(read(values, local, &rows).unwrap(), local.values(&rows).unwrap());
    }
}

/// Settings for fast tests.
pub fn connect() -> Connect {
    Connect { patience: Duration::from_secs(5), ..Connect::default() }
}

/// The faults of a [`Faulty`].
#[derive(Default)]
pub struct Faults {
    /// The time of a request.
    pub delay: Duration,
    /// The number of the next requests that fail with a temporary error.
    pub failures: usize,
    /// Whether access is denied.
    pub is_denied: bool,
    /// The number of writes before access is denied.
    pub writes: Option<usize>,
    /// Whether the condition "if missing" is ignored.
    pub ignores_conditions: bool,
    /// Called before the next manifest is created.
    pub before_manifest: Option<Box<dyn FnOnce() + Send>>,
    /// Whether the answer to the next creation of a manifest is lost.
    pub loses_answer: bool,
}

/// A store with faults.
pub struct Faulty {
    inner: Arc<dyn ObjectStore>,
    faults: Mutex<Faults>,
    pub requests: AtomicUsize,
    running: AtomicUsize,
    /// The largest number of requests at the same time.
    pub most_running: AtomicUsize,
}

impl Faulty {
    /// A store in main memory.
    pub fn new() -> Arc<Self> {
        Self::of(Arc::new(InMemory::new()))
    }

    pub fn of(inner: Arc<dyn ObjectStore>) -> Arc<Self> {
        let (faults, requests, running, most_running) = Default::default();
        Arc::new(Self { inner, faults, requests, running, most_running })
    }

    pub fn set(&self, change: impl FnOnce(&mut Faults)) {
        change(&mut self.faults.lock().unwrap());
    }

    pub fn storage(self: &Arc<Self>, connect: Connect) -> ObjectStorage {
        let store = Arc::clone(self) as Arc<dyn ObjectStore>;
        ObjectStorage::of_store(store, Path::from("a/b"), "test://a/b", connect).unwrap()
    }

    async fn request(&self) -> Result<()> {
        self.requests.fetch_add(1, Ordering::SeqCst);
        let running = self.running.fetch_add(1, Ordering::SeqCst) + 1;
        self.most_running.fetch_max(running, Ordering::SeqCst);
        let delay = self.faults.lock().unwrap().delay;
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        self.running.fetch_sub(1, Ordering::SeqCst);
        let mut faults = self.faults.lock().unwrap();
        if faults.is_denied {
            return Err(denied("no right"));
        }
        match faults.failures.checked_sub(1) {
            None => Ok(()),
            Some(left) => {
                faults.failures = left;
                Err(Error::Generic { store: "test", source: "503 Slow Down".into() })
            }
        }
    }
}

fn denied(reason: &str) -> Error {
    Error::PermissionDenied { path: "x".into(), source: reason.into() }
}

impl fmt::Debug for Faulty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Faulty")
    }
}

impl fmt::Display for Faulty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Faulty")
    }
}

#[async_trait]
impl ObjectStore for Faulty {
    async fn put_opts(
        &self,
        path: &Path,
        payload: PutPayload,
        mut options: PutOptions,
    ) -> Result<PutResult> {
        self.request().await?;
        let is_manifest = path.as_ref().contains("generations/");
        let mut loses_answer = false;
        let before = {
            let mut faults = self.faults.lock().unwrap();
            if let Some(writes) = faults.writes {
                let denied = || denied("no more writes");
                faults.writes = Some(writes.checked_sub(1).ok_or_else(denied)?);
            }
            if faults.ignores_conditions {
                options.mode = PutMode::Overwrite;
            }
            if is_manifest {
                loses_answer = std::mem::take(&mut faults.loses_answer);
            }
            faults.before_manifest.take_if(|_| is_manifest)
        };
        if let Some(before) = before {
            before();
        }
        let result = self.inner.put_opts(path, payload, options).await;
        match loses_answer {
            true => Err(Error::Generic { store: "test", source: "connection reset".into() }),
            false => result,
        }
    }

    async fn put_multipart_opts(
        &self,
        path: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.inner.put_multipart_opts(path, options).await
    }

    async fn get_opts(&self, path: &Path, options: GetOptions) -> Result<GetResult> {
        self.request().await?;
        self.inner.get_opts(path, options).await
    }

    fn delete_stream(
        &self,
        paths: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        self.inner.delete_stream(paths)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        if self.faults.lock().unwrap().is_denied {
            return stream::iter([Err(denied("no right"))]).boxed();
        }
        self.inner.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}
