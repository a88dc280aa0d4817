//! Measures how much a memory refresh in the background slows down training.
//!
//! ```text
//! cargo bench --bench refresh
//! ```
//!
//! A step searches the memory with all threads, in place of a training step. A worker re-encodes
//! all entries on its own thread (it multiplies each key by a matrix several times). The output has
//! the steps per second with and without a refresh.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
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
    /// The duration of the refresh.
    seconds: f64,
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
         steps/s: {without:.1} without refresh, {with:.1} with refresh ({:.1} % fewer)",
        TOKENS * WIDTH * 2 / 1024,
        rayon::current_num_threads(),
        median_of(|round| round.seconds),
        100.0 * slowdown,
    );
    Ok(())
}

/// Times steps during a refresh, then equally long without.
fn measure_round(memory: &Memory, queries: &[f32]) -> anyhow::Result<Round> {
    let encoded_entries = Arc::new(AtomicUsize::new(0));
    let encode = encoder(Arc::clone(&encoded_entries));
    let start = Instant::now();
    let refresh =
        Refresh::start(memory.begin()?, Vec::new(), RefreshSteps { start: 0, lag: 0 }, encode);
    let mut steps = 0;
    while encoded_entries.load(Ordering::Relaxed) < ENTRIES {
        step(memory, queries)?;
        steps += 1;
    }
    let seconds = start.elapsed().as_secs_f64();
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
    Ok(Round { rate_without_refresh, rate_with_refresh, seconds })
}

/// Returns an encoder that multiplies each key by a matrix several times. It counts the encoded
/// entries.
fn encoder(
    encoded_entries: Arc<AtomicUsize>,
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
