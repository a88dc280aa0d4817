//! How much a memory refresh in the background slows down training.
//!
//! ```text
//! cargo bench --bench refresh
//! ```
//!
//! A step searches the memory with all threads, in place of a training step. A worker re-encodes all
//! entries on its own thread (it multiplies each key by a matrix several times). The output compares
//! the slowdown of the steps with the worker's share of CPU time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

use engram_memory::refresh::{Adoption, Refresh, RefreshSteps};
use engram_memory::search::{Filter, Queries};
use engram_memory::{
    Batch, Memory, MemoryError, MemoryFormat, Method, Snapshot, Store, ValueDtype, ValueFormat,
    Writer,
};

#[path = "measure/mod.rs"]
mod measure;

use measure::keys::ClusteredKeys;
use measure::median;

/// Number of entries.
const ENTRIES: usize = 20_000;
/// Dimension of a key, and of each token of a value.
const WIDTH: usize = 256;
/// Number of matrix multiplications per key. 64 of them take half a millisecond, less than a real
/// encoder.
const MATMULS: usize = 64;
/// Number of rounds; each runs with a refresh, then equally long without.
const ROUNDS: usize = 5;

/// Number of queries in a step.
const QUERIES: usize = 512;
/// Number of entries to find for each query.
const K: usize = 10;
/// Number of tokens in a value; each token is as wide as a key.
const TOKENS: usize = 8;

/// The measurements of a round.
struct Round {
    /// Steps per second without a refresh.
    rate_without_refresh: f64,
    /// Steps per second during a refresh.
    rate_with_refresh: f64,
    /// The worker's CPU time as a share of the time of all cores.
    cpu_share: f64,
    /// The duration of the refresh.
    seconds: f64,
    /// The largest increase in anonymous memory, in bytes.
    extra_bytes: u64,
}

fn main() -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let values = ValueFormat { tokens: TOKENS, width: WIDTH, dtype: ValueDtype::F16 };
    let format = MemoryFormat { width: WIDTH, normalised: true, values: Some(values) };
    let mut keys = ClusteredKeys::new(WIDTH);
    let queries = keys.rows(QUERIES);
    let batches = keys.batches(ENTRIES, |_| Ok(())).map(|batch| {
        let batch = batch?;
        Ok(Batch { values: batch.keys.repeat(TOKENS), ..batch })
    });
    let path = folder.path().join("memory");
    Writer::create(&path, format, ENTRIES, batches)?;
    let memory = Memory::open(&path)?;
    let rounds: Vec<Round> =
        (0..ROUNDS).map(|_| measure_round(&memory, &queries)).collect::<anyhow::Result<_>>()?;
    let median_of = |value: fn(&Round) -> f64| median(rounds.iter().map(value).collect());
    let without = median_of(|round| round.rate_without_refresh);
    let with = median_of(|round| round.rate_with_refresh);
    let slowdown = median_of(|round| 1.0 - round.rate_with_refresh / round.rate_without_refresh);
    println!(
        "{ENTRIES} entries of {WIDTH} numbers with values of {} KB, {} threads; medians of {ROUNDS} \
         rounds\n\
         refresh during the steps: {:.1} s\n\
         steps/s: {without:.1} without refresh, {with:.1} with refresh ({:.1} % fewer)\n\
         share of CPU time of the worker: {:.1} %\n\
         peak additional memory: {:.0} MB",
        TOKENS * WIDTH * 2 / 1024,
        rayon::current_num_threads(),
        median_of(|round| round.seconds),
        100.0 * slowdown,
        100.0 * median_of(|round| round.cpu_share),
        rounds.iter().map(|round| round.extra_bytes).max().unwrap_or(0) as f64 / 1e6,
    );
    Ok(())
}

/// Times steps during a refresh, then equally long without.
fn measure_round(memory: &Memory, queries: &[f32]) -> anyhow::Result<Round> {
    let bytes_before = anonymous_memory();
    let (encoded_entries, cpu_nanoseconds) =
        (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicU64::new(0)));
    let encode = encoder(Arc::clone(&encoded_entries), Arc::clone(&cpu_nanoseconds));
    let start = Instant::now();
    let refresh =
        Refresh::start(memory.begin()?, Vec::new(), RefreshSteps { start: 0, lag: 0 }, encode);
    let (mut steps, mut extra_bytes) = (0, 0);
    while encoded_entries.load(Ordering::Relaxed) < ENTRIES {
        step(memory, queries)?;
        steps += 1;
        extra_bytes = extra_bytes.max(anonymous_memory().saturating_sub(bytes_before));
    }
    let seconds = start.elapsed().as_secs_f64();
    let cores = std::thread::available_parallelism()?.get() as f64;
    let cpu_share = cpu_nanoseconds.load(Ordering::Relaxed) as f64 / 1e9 / seconds / cores;
    let Adoption::Now(_) = refresh.adopt(0, memory)? else {
        anyhow::bail!("the refresh was not adopted at once")
    };
    let (start, mut steps_without_refresh) = (Instant::now(), 0);
    while start.elapsed().as_secs_f64() < seconds {
        step(memory, queries)?;
        steps_without_refresh += 1;
    }
    let rate_without_refresh = f64::from(steps_without_refresh) / start.elapsed().as_secs_f64();
    let rate_with_refresh = f64::from(steps) / seconds;
    Ok(Round { rate_without_refresh, rate_with_refresh, cpu_share, seconds, extra_bytes })
}

/// Returns an encoder that multiplies each key by a matrix several times. It stores the number
/// of encoded entries and the worker's CPU time.
fn encoder(
    encoded_entries: Arc<AtomicUsize>,
    cpu_nanoseconds: Arc<AtomicU64>,
) -> impl FnMut(Batch) -> Result<Batch, MemoryError> + Send + 'static {
    let matrix: Vec<f32> = ClusteredKeys::new(WIDTH).rows(WIDTH);
    move |mut batch| {
        for key in batch.keys.chunks_mut(WIDTH) {
            for _ in 0..MATMULS {
                let mut product = vec![0f32; WIDTH];
                for (number, row) in key.iter().zip(matrix.chunks(WIDTH)) {
                    product
                        .iter_mut()
                        .zip(row)
                        .for_each(|(product, weight)| *product += number * weight);
                }
                let length = product.iter().map(|x| x * x).sum::<f32>().sqrt().max(1e-20);
                key.iter_mut().zip(product).for_each(|(key, product)| *key = product / length);
            }
        }
        cpu_nanoseconds.store(cpu_time().unwrap_or(0), Ordering::Relaxed);
        encoded_entries.fetch_add(batch.entries.len(), Ordering::Relaxed);
        Ok(batch)
    }
}

/// One step: a search with all threads.
fn step(memory: &Memory, queries: &[f32]) -> Result<(), MemoryError> {
    let queries = Queries { keys: queries, k: K };
    memory.generation().search(Method::Exact, queries, &Filter::default())?;
    Ok(())
}

/// The CPU time of this thread in nanoseconds; `None` if the system does not report it.
fn cpu_time() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    text.split_whitespace().next()?.parse().ok()
}

/// The anonymous memory of this process in bytes; 0 if the system does not report it.
fn anonymous_memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let kilobytes =
        line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    kilobytes.unwrap_or(0) * 1024
}
