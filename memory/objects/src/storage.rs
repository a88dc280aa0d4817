//! An object store with time limits, retries and a limited number of requests at the same time.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

use bytes::Bytes;
use engram_memory::MemoryError;
use futures_util::TryStreamExt;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{
    GetOptions, ObjectMeta, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload,
};
use rand::Rng;
use tokio::runtime::Runtime;
use tokio::sync::Semaphore;

use crate::address::{self, Connect, Opened};
use crate::failure::{Failure, printable, remote};

/// The pause before the first repetition of a request. It doubles up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(3);
/// A manifest has fewer bytes.
const MAX_BYTES: u64 = 256 << 20;
/// The threads for requests. The requests of a thread wait for the network together.
const THREADS: usize = 2;

/// An object store, or a part of one below a prefix. Cheap to clone.
#[derive(Clone)]
pub struct ObjectStorage {
    pub(crate) client: Arc<Client>,
    runtime: Arc<Background>,
}

impl fmt::Debug for ObjectStorage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ObjectStorage").field(&self.client.location).finish()
    }
}

/// The numbers of requests of a storage so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct RequestStatistics {
    /// The requests, including repeated ones.
    pub requests: u64,
    /// The requests that were repeated after an error.
    pub retries: u64,
    /// The bytes of the objects and ranges that were read.
    pub bytes_read: u64,
}

impl ObjectStorage {
    /// Opens a folder, `s3://bucket/prefix`, `gs://bucket/prefix` or `az://container/prefix`. Sends
    /// no request.
    ///
    /// # Errors
    /// [`MemoryError::InvalidOption`] for an address or an option that is not valid;
    /// [`MemoryError::Remote`] if the store lacks an option
    pub fn open(address: &str, connect: Connect) -> Result<Self, MemoryError> {
        Self::new(address::open(address, &connect)?, connect)
    }

    /// Uses the objects of another store below a prefix. `location` names them in messages.
    ///
    /// # Errors
    /// [`MemoryError::InvalidOption`], [`MemoryError::Remote`]
    pub fn of_store(
        store: Arc<dyn ObjectStore>,
        prefix: Path,
        location: &str,
        connect: Connect,
    ) -> Result<Self, MemoryError> {
        Self::new(Opened { store, prefix, location: location.to_owned(), local: None }, connect)
    }

    fn new(opened: Opened, connect: Connect) -> Result<Self, MemoryError> {
        if connect.parallel == 0 || connect.slowest_transfer == 0 {
            return Err(MemoryError::invalid(
                "`parallel` or `slowest_transfer`",
                "0",
                "at least 1",
            ));
        }
        let Opened { store, prefix, location, local } = opened;
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        runtime.worker_threads(THREADS).thread_name("engram-objects").enable_all();
        let runtime = runtime.build().map_err(|error| {
            remote(&location, printable(&error), "raise the limit on the number of threads")
        })?;
        let permits = Arc::new(Semaphore::new(connect.parallel.min(Semaphore::MAX_PERMITS)));
        let (requests, retries, bytes_read) = Default::default();
        let client = Client {
            store,
            prefix,
            location,
            local,
            connect,
            permits,
            requests,
            retries,
            bytes_read,
        };
        Ok(Self { client: Arc::new(client), runtime: Arc::new(Background(Some(runtime))) })
    }

    /// The address of the storage.
    pub fn location(&self) -> &str {
        &self.client.location
    }

    /// The numbers of requests so far.
    pub fn statistics(&self) -> RequestStatistics {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let Client { requests, retries, bytes_read, .. } = self.client.as_ref();
        RequestStatistics {
            requests: count(requests),
            retries: count(retries),
            bytes_read: count(bytes_read),
        }
    }

    /// Starts a task on the threads for requests.
    pub(crate) fn start<T: Send + 'static>(
        &self,
        future: impl Future<Output = Result<T, MemoryError>> + Send + 'static,
    ) -> Task<T> {
        let (sender, receiver) = sync_channel(1);
        if let Some(runtime) = &self.runtime.0 {
            runtime.spawn(async move {
                // Nobody may wait for the result any more.
                let _ = sender.send(future.await);
            });
        }
        Task { receiver, location: self.client.location.clone() }
    }

    /// Runs a task and waits for its result. Unlike `Runtime::block_on`, callers may be in another
    /// runtime.
    pub(crate) fn wait<T: Send + 'static>(
        &self,
        future: impl Future<Output = Result<T, MemoryError>> + Send + 'static,
    ) -> Result<T, MemoryError> {
        self.start(future).result()
    }
}

/// A started task.
pub(crate) struct Task<T> {
    receiver: std::sync::mpsc::Receiver<Result<T, MemoryError>>,
    location: String,
}

impl<T> Task<T> {
    /// Waits for the result.
    pub(crate) fn result(self) -> Result<T, MemoryError> {
        self.receiver.recv().unwrap_or_else(|_| {
            let reason = "a task for requests has ended without a result";
            Err(remote(&self.location, reason, "report this as an error of Engram"))
        })
    }
}

/// The runtime. It may be dropped in a task of another runtime, so its threads are not awaited.
struct Background(Option<Runtime>);

impl Drop for Background {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

/// Sends requests.
pub(crate) struct Client {
    store: Arc<dyn ObjectStore>,
    prefix: Path,
    location: String,
    local: Option<LocalFileSystem>,
    connect: Connect,
    /// One for each request at the same time.
    permits: Arc<Semaphore>,
    requests: AtomicU64,
    retries: AtomicU64,
    bytes_read: AtomicU64,
}

impl Client {
    fn path(&self, name: &str) -> Path {
        self.prefix.parts().chain(Path::from(name).parts()).collect()
    }

    /// The address of an object, for messages.
    pub(crate) fn address(&self, name: &str) -> String {
        format!("{}/{name}", self.location)
    }

    /// Repeats a request that fails with an error that may be temporary.
    async fn request<T, F>(&self, bytes: u64, request: impl Fn() -> F) -> Result<T, Failure>
    where
        F: Future<Output = Result<T, Failure>>,
    {
        let Connect { request_limit, slowest_transfer, patience, .. } = self.connect;
        let limit = request_limit + Duration::from_millis(bytes * 1000 / slowest_transfer);
        let (start, mut pause) = (Instant::now(), FIRST_PAUSE);
        loop {
            let permit = self.permits.acquire().await;
            self.requests.fetch_add(1, Ordering::Relaxed);
            let failure = match tokio::time::timeout(limit, request()).await {
                Ok(Ok(result)) => return Ok(result),
                Ok(Err(failure)) => failure,
                Err(_) => Failure::Late(limit),
            };
            drop(permit);
            if !failure.is_transient() || start.elapsed() + pause > patience {
                return Err(failure);
            }
            self.retries.fetch_add(1, Ordering::Relaxed);
            // Requests that failed together are not repeated together.
            let part = rand::rng().random_range(0.5..1.0);
            tokio::time::sleep(pause.mul_f64(part)).await;
            pause = (2 * pause).min(LONGEST_PAUSE);
        }
    }

    /// Reads a part of an object of `expected` bytes, or a manifest.
    async fn read(
        &self,
        path: &Path,
        options: GetOptions,
        expected: Option<u64>,
    ) -> Result<Bytes, Failure> {
        // A pipe or a socket in a folder would wait for bytes.
        let file = self.local.as_ref().and_then(|local| local.path_to_filesystem(path).ok());
        if file.and_then(|file| file.metadata().ok()).is_some_and(|file| !file.is_file()) {
            return Err(Failure::Damaged("is not a regular file".to_owned()));
        }
        let object = self.store.get_opts(path, options).await?;
        match (expected, object.meta.size) {
            (Some(expected), found) if expected != found => Err(Failure::of_size(expected, found)),
            (None, found @ MAX_BYTES..) => {
                Err(Failure::Damaged(format!("is too large for a manifest: {found} bytes")))
            }
            _ => Ok(object.bytes().await?),
        }
    }

    /// Reads an object of this size, or a manifest.
    pub(crate) async fn get(&self, name: &str, size: Option<u64>) -> Result<Bytes, MemoryError> {
        let path = self.path(name);
        let get = || self.read(&path, GetOptions::new(), size);
        let bytes = self.request(size.unwrap_or(0), get).await.map_err(self.error(name))?;
        self.bytes_read.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        Ok(bytes)
    }

    /// Reads a range of an object of `size` bytes.
    pub(crate) async fn get_range(
        &self,
        name: &str,
        size: u64,
        range: std::ops::Range<u64>,
    ) -> Result<Bytes, MemoryError> {
        let path = self.path(name);
        let get = || async {
            let options = GetOptions::new().with_range(Some(range.clone()));
            let failure = match self.read(&path, options, Some(size)).await {
                Ok(bytes) if bytes.len() as u64 == range.end - range.start => return Ok(bytes),
                Ok(bytes) => Failure::of_size(size, range.start + bytes.len() as u64),
                Err(failure) => failure,
            };
            // Stores report a range beyond the end of an object in many ways, so the size is
            // compared.
            if failure.is_generic()
                && let Ok(ObjectMeta { size: found, .. }) = self.store.head(&path).await
                && found != size
            {
                return Err(Failure::of_size(size, found));
            }
            Err(failure)
        };
        let bytes = self.request(range.end - range.start, get).await.map_err(self.error(name))?;
        self.bytes_read.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        Ok(bytes)
    }

    /// Reads the size and the time of an object.
    pub(crate) async fn head(&self, name: &str) -> Result<ObjectMeta, MemoryError> {
        let path = self.path(name);
        let head = || async { Ok(self.store.head(&path).await?) };
        self.request(0, head).await.map_err(self.error(name))
    }

    /// Writes or replaces an object.
    pub(crate) async fn put(&self, name: &str, bytes: Bytes) -> Result<(), MemoryError> {
        let path = self.path(name);
        let put = || async {
            self.store.put(&path, PutPayload::from_bytes(bytes.clone())).await?;
            Ok(())
        };
        self.request(bytes.len() as u64, put).await.map_err(self.error(name))
    }

    /// Creates an object. Returns whether it was missing before. The answer of an attempt may be
    /// lost: then the next attempt finds the object, and the caller compares its content.
    pub(crate) async fn create(&self, name: &str, bytes: Bytes) -> Result<bool, MemoryError> {
        let path = self.path(name);
        let create = || async {
            let options = PutOptions::from(PutMode::Create);
            let payload = PutPayload::from_bytes(bytes.clone());
            match self.store.put_opts(&path, payload, options).await {
                Ok(_) => Ok(true),
                Err(
                    object_store::Error::AlreadyExists { .. }
                    | object_store::Error::Precondition { .. },
                ) => Ok(false),
                Err(error) => Err(error.into()),
            }
        };
        self.request(bytes.len() as u64, create).await.map_err(self.error(name))
    }

    /// Lists the objects in a folder.
    pub(crate) async fn list(
        &self,
        folder: &str,
    ) -> Result<Vec<(String, ObjectMeta)>, MemoryError> {
        let path = self.path(folder);
        let list = || async { Ok(self.store.list(Some(&path)).try_collect::<Vec<_>>().await?) };
        let objects = self.request(0, list).await.map_err(self.error(folder))?;
        let named = objects.into_iter().filter_map(|meta| {
            let name = meta.location.filename()?.to_owned();
            Some((name, meta))
        });
        Ok(named.collect())
    }

    /// Deletes an object. A missing object is not an error.
    pub(crate) async fn delete(&self, name: &str) -> Result<(), MemoryError> {
        let path = self.path(name);
        let delete = || async {
            match self.store.delete(&path).await {
                Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
                Err(error) => Err(error.into()),
            }
        };
        self.request(0, delete).await.map_err(self.error(name))
    }

    /// Wraps a failure of a request for an object, for `map_err`.
    fn error(&self, name: &str) -> impl FnOnce(Failure) -> MemoryError {
        move |failure| failure.error(&self.address(name))
    }
}
