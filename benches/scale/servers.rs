//! Measured costs of memories on PostgreSQL servers.

use std::path::Path;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use engram_memory::{Memory, Method, Store};
use engram_memory_postgres::{Connect, GraphSettings, PostgresStore, PushOptions, push, remove};

use crate::memory::{Point, Vectors};

/// A memory for measurements, with a name of its own. It is removed when this value is dropped.
struct TemporaryMemory {
    name: String,
    urls: String,
}

impl Drop for TemporaryMemory {
    fn drop(&mut self) {
        if let Err(error) = remove(&self.urls, Connect::default()) {
            eprintln!("remove the schema engram_{}: {error}", self.name);
        }
    }
}

/// Measures a memory with graphs on these servers. `source` is a folder for its local copy.
pub fn measure(
    vectors: &Vectors,
    urls: &[String],
    source: &Path,
    (k, candidates): (usize, usize),
) -> anyhow::Result<Point> {
    drop(vectors.write(source)?);
    let local = Memory::open(source)?.generation();
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
    let name = format!("bench_scale_{}_{}", std::process::id(), now.as_millis());
    let addresses = urls.iter().map(|url| {
        let separator = if url.contains('?') { '&' } else { '?' };
        format!("{url}{separator}memory={name}")
    });
    let urls = addresses.collect::<Vec<_>>().join(" ");
    let start = Instant::now();
    let options = PushOptions { graph: Some(GraphSettings::default()), ..PushOptions::default() };
    // Removed also after an error, because an unfinished push stays. Nothing else has this name.
    let memory = TemporaryMemory { name, urls };
    push(&local, &memory.urls, Connect::default(), options, &mut |_| {})?;
    let build_seconds = start.elapsed().as_secs_f64();
    let snapshot = PostgresStore::open(&memory.urls, Connect::default())?.snapshot();
    vectors.point(snapshot.as_ref(), build_seconds, k, Method::Graph { candidates })
}
