//! Plots of speed and size for the options of a memory.
//!
//! ```text
//! cargo bench --bench tradeoffs -- docs/results/memory
//! ```
//!
//! Writes `search.svg` (time against number of keys) and `cache.svg` (hit rate and time against the
//! size of the value cache). Prints the plotted numbers, and the size and reading time of values of
//! each number type.

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::Context;
use engram::plot::{Axis, Legend, Line, draw_lines};
use engram_memory::cache::{ValueCache, ValueKey};
use engram_memory::search::graph::GraphSettings;
use engram_memory::search::{Filter, Queries};
use engram_memory::{
    Batch, Entry, Generation, MemoryFormat, Method, Row, Snapshot, ValueDtype, ValueFormat, Writer,
};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rayon::prelude::*;

#[path = "measure/mod.rs"]
mod measure;

use measure::keys::{ClusteredKeys, uniform};
use measure::{arguments, median};

/// Number of queries in a batch.
const QUERIES: usize = 1000;
/// Number of entries to find for each query.
const K: usize = 10;
/// Query batch sizes: a single user, a training batch, an evaluation.
const BATCHES: [usize; 3] = [1, 32, 1000];
/// Number of cache lookups.
const LOOKUPS: usize = 2000;
/// Number of rows in a lookup.
const ROWS_PER_LOOKUP: usize = 100;
/// The exponent of the Zipf distribution of the rows in lookups.
const ZIPF_EXPONENT: f64 = 1.0;
/// Number of values in the memory of the cache benchmark.
const CACHED_VALUES: usize = 20_000;
/// A value of 8 KB: 16 tokens of 256 f16 numbers.
const VALUE: ValueFormat = ValueFormat { tokens: 16, width: 256, dtype: ValueDtype::F16 };
/// Number of values for the comparison of number types.
const VALUES: usize = 10_000;
/// Cache sizes as shares of all values.
const SHARES: [f64; 6] = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5];

/// Numbers of keys to measure.
const KEYS: [usize; 4] = [2000, 5000, 10_000, 20_000];
/// Dimension of a key.
const WIDTH: usize = 384;
/// Number of rounds.
const ROUNDS: usize = 5;

fn main() -> anyhow::Result<()> {
    let out = PathBuf::from(arguments().next().context("give the folder for the plots")?);
    let folder = tempfile::tempdir()?;
    let exact = BATCHES.map(|batch| Line::new(format!("exact, batch {batch}"), Vec::new()));
    let mut lines: Vec<Line> = exact.into_iter().collect();
    lines.push(Line::new("graph, batch 1", Vec::new()));
    for count in KEYS {
        let mut keys = ClusteredKeys::new(WIDTH);
        let queries = keys.rows(QUERIES);
        let format = MemoryFormat { width: WIDTH, normalised: true, values: None };
        let path = folder.path().join(count.to_string());
        let mut writer = Writer::create(path, format, count, keys.batches(count, |_| Ok(())))?;
        writer.index(GraphSettings::default(), || {})?;
        let generation = writer.generation();
        let searches = BATCHES.iter().map(|batch| (*batch, Method::Exact));
        for (line, (batch, method)) in lines.iter_mut().zip(searches.chain([(1, Method::GRAPH)])) {
            let batch_queries = Queries { keys: &queries[..batch * WIDTH], k: K };
            let seconds = median_seconds(method, generation, batch_queries)?;
            line.points.push((count as f64, 1000.0 * seconds / batch as f64));
        }
    }
    plot(&out.join("search.svg"), ["keys", "ms per query"].map(Axis::logarithmic), &lines)?;
    println!("{}", value_types(folder.path())?);
    let cache = cache_lines(&folder.path().join("values"))?;
    let axes = [Axis::logarithmic("cache size, MB"), Axis::linear("share")];
    plot(&out.join("cache.svg"), axes, &cache)
}

/// The median time of a search, in seconds.
fn median_seconds(
    method: Method,
    generation: &Generation,
    queries: Queries<'_>,
) -> anyhow::Result<f64> {
    let mut times = Vec::new();
    // One small search is too short to time, so several are timed together.
    let repeats = (100 * WIDTH / queries.keys.len()).max(1);
    for _ in 0..ROUNDS {
        let start = Instant::now();
        for _ in 0..repeats {
            generation.search(method, queries, &Filter::default())?;
        }
        times.push(start.elapsed().as_secs_f64() / repeats as f64);
    }
    Ok(median(times))
}

/// Prints the points of the lines and draws them.
fn plot(path: &Path, axes: [Axis<'_>; 2], lines: &[Line]) -> anyhow::Result<()> {
    for line in lines {
        let points = line.points.iter().map(|(x, y)| format!("({x:.4}, {y:.4})"));
        let points = points.collect::<Vec<_>>().join(" ");
        let [x, y] = axes.map(|axis| axis.name);
        println!("{}: {}: ({x}, {y}): {points}", path.display(), line.name);
    }
    Ok(engram_durable::write_file(path, draw_lines(axes, lines, Legend::LowerRight)?.as_bytes())?)
}

/// Measures the size and the reading time of values of each number type.
fn value_types(folder: &Path) -> anyhow::Result<String> {
    let mut random = ChaCha8Rng::seed_from_u64(5);
    let values: Vec<f32> = (0..VALUES * VALUE.tokens * VALUE.width)
        .map(|_| (0..12).map(|_| random.random_range(-0.5..0.5)).sum())
        .collect();
    let mut lines = Vec::new();
    for dtype in ValueDtype::ALL {
        let value = ValueFormat { dtype, ..VALUE };
        let format = MemoryFormat { width: 8, normalised: true, values: Some(value) };
        let entries = (0..VALUES as i64).map(Entry::bare).collect();
        let keys = vec![1.0; VALUES * format.width];
        let batch = Batch { entries, keys, values: values.clone() };
        let path = folder.join(dtype.name());
        let writer = Writer::create(path, format, VALUES, [Ok(batch)].into_iter())?;
        let generation = writer.generation();
        let rows: Vec<Row> = generation.live_rows().collect();
        let (mut restored, mut times) = (Vec::new(), Vec::new());
        for _ in 0..21 {
            let start = Instant::now();
            generation.read_values(&rows, &mut restored)?;
            times.push(start.elapsed().as_secs_f64());
        }
        lines.push(format!(
            "values: {dtype}: {} bytes each, {:.3} ms to read {VALUES}",
            value.bytes(),
            1000.0 * median(times)
        ));
    }
    Ok(lines.join("\n"))
}

/// Measures hit rate and lookup time for several cache sizes. Times are relative to lookups without
/// a cache.
fn cache_lines(folder: &Path) -> anyhow::Result<Vec<Line>> {
    let format = MemoryFormat { width: 8, normalised: true, values: Some(VALUE) };
    let size = VALUE.tokens * VALUE.width;
    let mut random = ChaCha8Rng::seed_from_u64(3);
    let batches = (0..CACHED_VALUES).step_by(100).map(|first| {
        let entries = (first as i64..first as i64 + 100).map(Entry::bare).collect();
        let values = uniform(&mut random, size).repeat(100);
        Ok(Batch { entries, keys: vec![1.0; 100 * format.width], values })
    });
    let writer = Writer::create(folder, format, CACHED_VALUES, batches)?;
    let generation = writer.generation();
    let rows: Vec<Row> = generation.live_rows().collect();
    // Cumulative sums of the weights 1, 1/2, 1/3, …, to draw rows from a Zipf distribution.
    let mut cumulative_weights = Vec::with_capacity(CACHED_VALUES);
    (1..=CACHED_VALUES).fold(0.0, |sum, rank| {
        cumulative_weights.push(sum + (rank as f64).powf(-ZIPF_EXPONENT));
        sum + (rank as f64).powf(-ZIPF_EXPONENT)
    });
    let mut random = ChaCha8Rng::seed_from_u64(4);
    let mut draw = || {
        let target = random.random_range(0.0..cumulative_weights[CACHED_VALUES - 1]);
        rows[cumulative_weights.partition_point(|sum| *sum < target).min(CACHED_VALUES - 1)]
    };
    let lookups: Vec<Vec<Row>> =
        (0..LOOKUPS).map(|_| (0..ROWS_PER_LOOKUP).map(|_| draw()).collect()).collect();
    let keys = lookups.iter().map(|rows| generation.value_keys(rows));
    let keys = keys.collect::<Result<Vec<_>, _>>()?;
    let mut values = Vec::new();
    for rows in &lookups[..LOOKUPS / 2] {
        generation.read_values(rows, &mut values)?;
    }
    let start = Instant::now();
    for rows in &lookups[LOOKUPS / 2..] {
        generation.read_values(rows, &mut values)?;
    }
    let uncached_seconds = start.elapsed().as_secs_f64();
    let (mut hits, mut times) = (Vec::new(), Vec::new());
    for share in SHARES {
        let capacity_bytes = (share * (CACHED_VALUES * size * 2) as f64) as u64;
        let cache = ValueCache::new(capacity_bytes);
        let mut read = |keys: &[ValueKey]| -> anyhow::Result<()> {
            let outputs = values.par_chunks_mut(size).zip(cache.read(generation, keys)?);
            outputs.for_each(|(output, value)| value.read(output));
            Ok(())
        };
        let (warm_up, timed) = keys.split_at(LOOKUPS / 2);
        for keys in warm_up {
            read(keys)?;
        }
        let statistics_before = cache.statistics();
        let start = Instant::now();
        for keys in timed {
            read(keys)?;
        }
        let megabytes = capacity_bytes as f64 / 1e6;
        let statistics = cache.statistics();
        let (hit_count, miss_count) = (
            statistics.hits - statistics_before.hits,
            statistics.misses - statistics_before.misses,
        );
        hits.push((megabytes, hit_count as f64 / (hit_count + miss_count) as f64));
        times.push((megabytes, start.elapsed().as_secs_f64() / uncached_seconds));
    }
    Ok(vec![
        Line::new("hit rate of the cache", hits),
        Line::new("time / time of the memory-mapped file, in RAM", times),
    ])
}
