//! Times of values in an object store whose requests take 20 ms: a push, random reads, training steps
//! with and without prefetch, and the hit rates of the tiers.
//!
//! Usage: `cargo bench -p engram-memory-objects -- ROWS`. The store is in main memory. A training
//! step is a pause of 100 ms, like that of a model on a GPU.
#![allow(clippy::unwrap_used)]

#[allow(dead_code)]
#[path = "../../benches/measure/mod.rs"]
mod measure;
mod slow_store;

use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use engram_memory::cache::{CacheSettings, ValueCache, ValueSource};
use engram_memory::{Batch, Entry, MemoryFormat, Row, ValueDtype, ValueFormat, Writer};
use engram_memory_objects::{DiskTier, PushSettings, RemoteValues, push};
use measure::{BATCH_ROWS, Normal};
use slow_store::REQUEST;

const STEP: Duration = Duration::from_millis(100);
/// The rows of a training step.
const STEP_ROWS: usize = 100;
const STEPS: usize = 30;
const KEY_WIDTH: usize = 8;
const VALUES: ValueFormat = ValueFormat { tokens: 16, width: 64, dtype: ValueDtype::F16 };

fn build(folder: &std::path::Path, rows: usize) -> Writer {
    let format = MemoryFormat { width: KEY_WIDTH, normalised: true, values: Some(VALUES) };
    let mut random = Normal(1);
    let batches = (0..rows).step_by(BATCH_ROWS).map(|start| {
        let ids = start..(start + BATCH_ROWS).min(rows);
        let mut numbers = |count: usize| (0..count).map(|_| random.next()).collect();
        Ok(Batch {
            keys: numbers(ids.len() * KEY_WIDTH),
            values: numbers(ids.len() * VALUES.tokens * VALUES.width),
            entries: ids.map(|id| Entry::bare(id as i64)).collect(),
        })
    });
    Writer::create(folder, format, rows, batches).unwrap()
}

/// Random rows of a step: all rows are as frequent.
fn uniform(random: &mut Normal, rows: usize) -> Vec<Row> {
    let row = |random: &mut Normal| Row::new((random.uniform() * rows as f64) as u32);
    (0..STEP_ROWS).map(|_| row(random)).collect()
}

/// Random rows of a step: the frequency of a row falls with its rank (Zipf's law). The ranks are
/// spread over all shards.
fn skewed(random: &mut Normal, rows: usize) -> Vec<Row> {
    let row = |random: &mut Normal| {
        let rank = (rows as f64).powf(random.uniform()) as usize - 1;
        Row::new((rank * 7919 % rows) as u32)
    };
    (0..STEP_ROWS).map(|_| row(random)).collect()
}

fn cache(values: usize) -> ValueCache {
    let capacity_bytes = (values * VALUES.bytes()) as u64;
    ValueCache::new(CacheSettings { capacity_bytes, background_from: None })
}

/// Runs training steps, and returns the mean time of a step. With `prefetches`, the values of the next
/// step are read during a step.
fn steps<S: ValueSource + 'static>(source: &Arc<S>, rows: usize, prefetches: bool) -> Duration {
    let cache = cache(10 * STEP_ROWS);
    let mut random = Normal(7);
    let batches: Vec<Vec<Row>> = (0..=STEPS).map(|_| uniform(&mut random, rows)).collect();
    // The first batch is not part of the measurement.
    cache.read(source, &batches[0]).unwrap();
    let start = Instant::now();
    for step in 0..STEPS {
        if prefetches {
            cache.prefetch(source, &batches[step + 1]).unwrap();
        }
        let values = cache.read(source, &batches[step]).unwrap();
        assert!(values.present.iter().all(|present| *present));
        sleep(STEP);
    }
    start.elapsed() / STEPS as u32
}

fn main() {
    let rows = std::env::args().filter_map(|argument| argument.parse().ok()).next();
    let rows: usize = rows.unwrap_or(50_000);
    let folder = tempfile::tempdir().unwrap();
    let writer = build(&folder.path().join("memory"), rows);
    let generation = writer.generation();
    let megabytes = (rows * VALUES.bytes()) as f64 / 1e6;
    println!("{rows} values of {VALUES}, {megabytes:.0} MB; {} ms a request", REQUEST.as_millis());

    let storage = slow_store::storage("store");
    let start = Instant::now();
    let pushed = push(&storage, generation, PushSettings::default()).unwrap();
    let seconds = start.elapsed().as_secs_f64();
    println!(
        "push: {:.0} values/s, {:.0} MB/s, {} shards",
        rows as f64 / seconds,
        megabytes / seconds,
        pushed.sent
    );

    let remote = Arc::new(RemoteValues::open(&storage, None).unwrap());
    let (mut random, mut times) = (Normal(3), Vec::new());
    for _ in 0..STEPS {
        let batch = uniform(&mut random, rows);
        let start = Instant::now();
        remote.stored_values(&batch).unwrap();
        times.push(start.elapsed().as_secs_f64());
    }
    times.sort_by(f64::total_cmp);
    let (seconds, requests) = (times.iter().sum::<f64>(), storage.statistics().requests);
    println!(
        "random reads of {STEP_ROWS} values: {:.0} ms (median), {:.0} values/s, {} requests in all",
        1e3 * times[STEPS / 2],
        (STEPS * STEP_ROWS) as f64 / seconds,
        requests
    );

    let local = steps(generation, rows, false);
    let print = |name: &str, time: Duration| {
        let ratio = time.as_secs_f64() / local.as_secs_f64();
        println!("step, {name}: {:.1} ms, {ratio:.2} × local", 1e3 * time.as_secs_f64());
    };
    print("local values", local);
    print("remote values without prefetch", steps(&remote, rows, false));
    print("remote values with prefetch", steps(&remote, rows, true));

    let disk_bytes = (rows * VALUES.bytes() / 3) as u64;
    let disk = DiskTier::open(&folder.path().join("disk"), disk_bytes, remote.block_bytes());
    let disk = Arc::new(disk.unwrap());
    let remote = RemoteValues::open(&storage, None).unwrap().with_disk(Arc::clone(&disk));
    let (remote, cache) = (Arc::new(remote), cache(rows / 10));
    let mut random = Normal(5);
    for _ in 0..10 * STEPS {
        cache.read(&remote, &skewed(&mut random, rows)).unwrap();
    }
    println!(
        "hit rates with Zipf's law: main memory (10 %) {:.2}, disk (33 %) {:.2}; {} blocks read",
        cache.statistics().hit_rate(),
        disk.statistics().hit_rate(),
        remote.statistics().blocks
    );
}
