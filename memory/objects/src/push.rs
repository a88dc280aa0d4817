//! Sends the values of a local memory to an object store.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use engram_memory::{Generation, MemoryError, Row, ValueFormat};
use object_store::ObjectMeta;

use crate::failure::remote;
use crate::manifest::{self, Manifest, SHARDS, SegmentRecord};
use crate::shard::Shard;
use crate::storage::{Client, ObjectStorage, Task};

/// How long a shard that no manifest names stays at least, so that a running push can use it.
pub(crate) const SHORTEST_STAY: Duration = Duration::from_secs(7 * 24 * 3600);
/// The number of shards that are sent at the same time. Each is in main memory.
const SHARDS_AT_ONCE: usize = 4;
/// The number of values that are read at once from the local memory.
const ROWS_AT_ONCE: usize = 4096;

/// Settings of a push.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PushSettings {
    /// The size of a shard in bytes. Shards of another size are sent again.
    pub shard_bytes: usize,
    /// The size of a block in bytes: the smallest part of a shard that is read. A larger value is a
    /// block of its own.
    pub block_bytes: usize,
    /// Whether shards that are in the store already are read, and sent again if they were changed.
    /// A damaged manifest is then followed by a new one; otherwise it is an error.
    pub recheck: bool,
    /// Whether the memory may follow one with another identity.
    pub replace: bool,
}

impl Default for PushSettings {
    fn default() -> Self {
        Self { shard_bytes: 32 << 20, block_bytes: 16 << 10, recheck: false, replace: false }
    }
}

/// The result of a push.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct Pushed {
    /// The number of the generation in the store.
    pub generation: u64,
    /// The number of rows, including deleted rows.
    pub rows: usize,
    /// The number of shards.
    pub shards: usize,
    /// The number of shards that were sent. The others were in the store already.
    pub sent: usize,
    /// The size of the sent shards in bytes.
    pub sent_bytes: u64,
}

/// Sends the values of a generation, and makes them the current generation in the store. Shards
/// that the store already has from earlier generations or an interrupted push are not sent again.
///
/// The rows in the store have the same numbers as in the local generation.
///
/// # Errors
/// [`MemoryError::InvalidOption`] for a memory without values or a size of 0;
/// [`MemoryError::ForeignValues`] if the current generation is of a memory with another identity;
/// [`MemoryError::Remote`] if a request failed, if the store ignores conditions, or if another
/// process pushed meanwhile; [`MemoryError::ChangeMade`] if the new generation exists despite the
/// error; [`MemoryError::Corrupt`] for the local memory
pub fn push(
    storage: &ObjectStorage,
    memory: &Generation,
    settings: PushSettings,
) -> Result<Pushed, MemoryError> {
    let Some(values) = memory.manifest().values else {
        return Err(MemoryError::invalid(
            "the memory to push",
            format!("{}, without values", memory.folder().display()),
            "a memory with values",
        ));
    };
    if settings.shard_bytes == 0 || settings.block_bytes == 0 {
        return Err(MemoryError::invalid("the size of a shard or block", "0", "at least 1 byte"));
    }
    let client = Arc::clone(&storage.client);
    let start_of_push =
        storage.wait(async move { Start::read(&client, settings.recheck).await })?;
    let identity = memory.manifest().identity.clone();
    let is_foreign = |base: &Manifest| base.memory.is_some() && base.memory != identity;
    if !settings.replace && start_of_push.base.as_ref().is_some_and(is_foreign) {
        return Err(MemoryError::ForeignValues { location: storage.location().to_owned() });
    }
    let mut next = Manifest {
        format_version: Manifest::FORMAT_VERSION,
        generation: start_of_push.last.saturating_add(1),
        push: format!("{:032x}", rand::random::<u128>()),
        memory: identity,
        memory_generation: memory.manifest().generation,
        values,
        block_rows: (settings.block_bytes / values.bytes()).max(1),
        shard_rows: 0,
        segments: Vec::new(),
    };
    let blocks = (settings.shard_bytes / values.bytes()).max(1).div_ceil(next.block_rows);
    next.shard_rows = blocks * next.block_rows;
    let pushed = Pushed { generation: next.generation, ..Pushed::default() };
    let mut sender = Sender {
        storage,
        in_store: start_of_push.in_store.clone(),
        recheck: settings.recheck,
        running: VecDeque::new(),
        pushed,
    };
    let base = start_of_push.base.as_ref().filter(|_| !settings.recheck);
    let mut start = 0;
    for (id, rows) in memory.value_segments() {
        let known = base.and_then(|base| sender.known(base, &next, id, rows));
        if let Some(known) = known {
            sender.pushed.shards += known.shards.len();
            next.segments.push(known);
            start += rows;
            continue;
        }
        let mut shards = Vec::new();
        for shard in (0..rows).step_by(next.shard_rows) {
            let layout = next.layout((rows - shard).min(next.shard_rows));
            let first = start + shard;
            let made = Shard::new(layout, |bytes| {
                read_values(memory, values, first..first + layout.rows, bytes)
            })?;
            sender.send(&made.record.name(), made.bytes)?;
            shards.push(made.record);
        }
        next.segments.push(SegmentRecord { id, rows, shards });
        start += rows;
    }
    let mut pushed = sender.finish()?;
    pushed.rows = start;
    let last = start_of_push.base.as_ref().filter(|base| base.generation == start_of_push.last);
    if let Some(base) = last.filter(|base| is_same(base, &next)) {
        pushed.generation = base.generation;
        return Ok(pushed);
    }
    let client = Arc::clone(&storage.client);
    storage.wait(async move { make_current(&client, &start_of_push, &next).await })?;
    Ok(pushed)
}

/// Appends the bytes of the values of some rows.
fn read_values(
    memory: &Generation,
    format: ValueFormat,
    rows: std::ops::Range<usize>,
    bytes: &mut Vec<u8>,
) -> Result<(), MemoryError> {
    let rows: Vec<Row> = rows.map(|row| Row::new(row as u32)).collect();
    let expected = bytes.len() + rows.len() * format.bytes();
    for rows in rows.chunks(ROWS_AT_ONCE) {
        memory.values_of_rows(rows)?.iter().for_each(|value| value.append_to(bytes));
    }
    MemoryError::check_count("bytes of values", expected, bytes.len())
}

/// Whether both generations have the same values of the same generation of a local memory.
fn is_same(base: &Manifest, next: &Manifest) -> bool {
    let Manifest { generation, push, .. } = base.clone();
    Manifest { generation, push, ..next.clone() } == *base
}

/// The state of the store before a push.
struct Start {
    /// An object that was written at the start, so its time is the start by the store's clock.
    probe: ObjectMeta,
    at: Instant,
    /// The largest number of a generation; 0 for none.
    last: u64,
    /// The current generation.
    base: Option<Manifest>,
    /// The names of its shards. They stay while it is current.
    named: HashSet<String>,
    /// The names and sizes of the shards that this push can use.
    in_store: HashMap<String, u64>,
}

impl Start {
    async fn read(client: &Client, skip_damaged: bool) -> Result<Self, MemoryError> {
        let probe = check_conditions(client).await?;
        let (last, base) = Manifest::read_current(client, skip_damaged).await?;
        let records = base.iter().flat_map(Manifest::shards);
        let named = records.map(|(record, _)| record.name()).collect();
        let (at, in_store) = (Instant::now(), HashMap::new());
        let mut start = Self { probe, at, last, base, named, in_store };
        for (file, meta) in client.list(SHARDS).await? {
            let name = format!("{SHARDS}/{file}");
            if start.stays(&name, &meta, SHORTEST_STAY / 2) {
                start.in_store.insert(name, meta.size);
            }
        }
        Ok(start)
    }

    /// Whether the shard is safe from sweeps during the push: the current generation has it, or it
    /// is younger than `age`.
    fn stays(&self, name: &str, meta: &ObjectMeta, age: Duration) -> bool {
        let now = self.probe.last_modified + self.at.elapsed();
        self.named.contains(name) || meta.last_modified + age > now
    }
}

/// Checks that the store creates an object only if it is missing. Returns the new object, whose
/// time is the present by the store's clock.
pub(crate) async fn check_conditions(client: &Client) -> Result<ObjectMeta, MemoryError> {
    let name = format!("probes/{:032x}", rand::random::<u128>());
    client.create(&name, Bytes::from_static(b"1")).await?;
    let is_replaced = client.create(&name, Bytes::from_static(b"2")).await?;
    let probe = client.head(&name).await?;
    client.delete(&name).await?;
    if is_replaced {
        let reason = "this store ignores the condition `If-None-Match` of a write, so two pushes \
                      at the same time could destroy each other";
        let remedy = "use a store with conditional writes: a folder, S3, Google Cloud Storage or \
                      Azure Blob Storage";
        return Err(remote(client.address("").trim_end_matches('/'), reason, remedy));
    }
    Ok(probe)
}

/// Creates the manifest.
async fn make_current(client: &Client, start: &Start, next: &Manifest) -> Result<(), MemoryError> {
    let listed: HashMap<String, ObjectMeta> = client.list(SHARDS).await?.into_iter().collect();
    for (record, layout) in next.shards() {
        let name = record.name();
        let is_there = listed.get(&record.sha256).is_some_and(|meta| {
            meta.size == layout.bytes() && start.stays(&name, meta, SHORTEST_STAY / 4 * 3)
        });
        if !is_there {
            let reason = "was removed during the push, or will be removed soon";
            return Err(remote(&client.address(&name), reason, "push again"));
        }
    }
    let name = manifest::name(next.generation);
    let is_created = client.create(&name, next.encode()?).await?;
    // If the answer to the first attempt was lost, the manifest that exists is ours.
    let is_ours = is_created || Manifest::read(client, next.generation).await?.push == next.push;
    let current = match manifest::generations(client).await {
        Ok(generations) => generations.last().copied(),
        Err(error) if is_ours => {
            let (folder, generation) = (client.address("").into(), next.generation);
            return Err(MemoryError::ChangeMade { folder, generation, source: Box::new(error) });
        }
        Err(error) => return Err(error),
    };
    if is_ours && current == Some(next.generation) {
        return Ok(());
    }
    if is_ours {
        // A sweep had removed another manifest with this number, so ours was created in its place.
        client.delete(&name).await?;
    }
    let reason = "another process pushed this generation meanwhile";
    Err(remote(&client.address(&name), reason, "push again; only missing shards are sent"))
}

/// Sends shards, some at a time.
struct Sender<'a> {
    storage: &'a ObjectStorage,
    in_store: HashMap<String, u64>,
    recheck: bool,
    /// Each returns whether the shard was sent, and its size.
    running: VecDeque<Task<(bool, u64)>>,
    pushed: Pushed,
}

impl Sender<'_> {
    /// Returns the record of a segment whose shards the store has, so that its values need not be
    /// read.
    fn known(
        &self,
        base: &Manifest,
        next: &Manifest,
        id: u64,
        rows: usize,
    ) -> Option<SegmentRecord> {
        let shape =
            |manifest: &Manifest| (manifest.values, manifest.block_rows, manifest.shard_rows);
        if shape(base) != shape(next) {
            return None;
        }
        let record = base.segments.iter().find(|record| record.id == id && record.rows == rows)?;
        let mut shards = record.shards.iter().enumerate();
        let are_there = shards.all(|(shard, record)| {
            let layout = next.layout((rows - shard * next.shard_rows).min(next.shard_rows));
            self.in_store.get(&record.name()) == Some(&layout.bytes())
        });
        are_there.then(|| record.clone())
    }

    /// Starts to send a shard, unless the store has it.
    fn send(&mut self, name: &str, bytes: Bytes) -> Result<(), MemoryError> {
        self.pushed.shards += 1;
        let size = bytes.len() as u64;
        let is_there = self.in_store.insert(name.to_owned(), size) == Some(size);
        if is_there && !self.recheck {
            return Ok(());
        }
        if self.running.len() == SHARDS_AT_ONCE {
            self.finish_first()?;
        }
        let (client, name) = (Arc::clone(&self.storage.client), name.to_owned());
        self.running.push_back(self.storage.start(async move {
            if is_there {
                match client.get(&name, Some(size)).await {
                    Ok(found) if found == bytes => return Ok((false, 0)),
                    Ok(_) | Err(MemoryError::DamagedObject { .. }) => {}
                    Err(error) => return Err(error),
                }
            }
            client.put(&name, bytes).await?;
            Ok((true, size))
        }));
        Ok(())
    }

    fn finish_first(&mut self) -> Result<(), MemoryError> {
        if let Some(task) = self.running.pop_front() {
            let (is_sent, bytes) = task.result()?;
            self.pushed.sent += usize::from(is_sent);
            self.pushed.sent_bytes += bytes;
        }
        Ok(())
    }

    fn finish(mut self) -> Result<Pushed, MemoryError> {
        while !self.running.is_empty() {
            self.finish_first()?;
        }
        Ok(self.pushed)
    }
}

impl Drop for Sender<'_> {
    /// Waits until nothing is sent any more, also after an error.
    fn drop(&mut self) {
        for task in self.running.drain(..) {
            // The first error is returned.
            let _ = task.result();
        }
    }
}
