//! `engram bench scale`: the costs of a memory as it grows, extrapolated to sizes that were not
//! measured.

mod fit;
mod measure;
mod report;

use std::time::Instant;

use anyhow::{Context, ensure};
use clap::Args;
use engram_memory::search::Hit;
use engram_memory::{Memory, Method};
use serde::Serialize;

use super::super::environment::machine;
use super::super::{Outcome, output};
use fit::PowerLaw;
use measure::{Point, Vectors, quantile};

/// Measure the costs of a memory as it grows, and extrapolate them.
#[derive(Debug, Args)]
#[command(after_help = "\
The costs of building and of one query are measured at each number of keys, and fitted by power laws.
Keys are random unit vectors in 1,000 clusters, so the recall on other keys may differ. Shards are
simulated: each shard is searched alone, and a query takes the time of the slowest shard, of the
network and of the merge.

Examples:
  engram bench scale
  engram bench scale --keys 10000,100000,1000000 --width 256 --targets 20000000
  engram bench scale --machine-price 0.4 --machine-memory 128 --json")]
pub struct ScaleBench {
    /// Numbers of keys to measure, comma-separated; at least two
    #[arg(long, value_delimiter = ',', default_value = "10000,30000,100000")]
    keys: Vec<usize>,
    /// Dimension of a key
    #[arg(long, default_value_t = 384)]
    width: usize,
    /// Number of entries to find for each query
    #[arg(short, default_value_t = 100)]
    k: usize,
    /// Number of queries
    #[arg(long, default_value_t = 100)]
    queries: usize,
    /// Number of candidates of the graph, at least twice -k
    #[arg(long, value_name = "N", default_value_t = 1000)]
    candidates: usize,
    /// Numbers of shards to simulate at the largest number of keys
    #[arg(long, value_delimiter = ',', default_value = "1,2,4")]
    shards: Vec<usize>,
    /// Time of a request to a shard and its answer over the network, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 0.5)]
    network: f64,
    #[command(flatten)]
    assumptions: Assumptions,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The assumptions of the extrapolation.
#[derive(Debug, Clone, Args, Serialize)]
#[command(next_help_heading = "Extrapolation")]
struct Assumptions {
    /// Numbers of entries to extrapolate to
    #[arg(long, value_delimiter = ',', default_value = "20000000,1000000000")]
    targets: Vec<u64>,
    /// Bytes of a value; the default is 32 tokens of 768 numbers of 16 bits
    #[arg(long, value_name = "BYTES", default_value_t = 49_152)]
    value_bytes: u64,
    /// Memory of a machine for keys and graphs, in GB
    #[arg(long, value_name = "GB", default_value_t = 64)]
    machine_memory: u64,
    /// Price of a machine per hour
    #[arg(long, value_name = "PRICE", default_value_t = 0.25)]
    machine_price: f64,
    /// Price of a GB of stored values per month
    #[arg(long, value_name = "PRICE", default_value_t = 0.023)]
    storage_price: f64,
}

/// The measurements of one kind of memory, with their power laws.
#[derive(Debug, Serialize)]
struct Series {
    name: String,
    points: Vec<Point>,
    build: PowerLaw,
    query: PowerLaw,
    bytes_per_key: f64,
}

/// A query over simulated shards.
#[derive(Debug, Serialize)]
struct ShardedQuery {
    shards: usize,
    keys: usize,
    /// The median over the queries, of the slowest shard, the network and the merge.
    query_ms: f64,
    merge_ms: f64,
}

/// The costs at a size that was not measured.
#[derive(Debug, Serialize)]
struct Extrapolation {
    name: String,
    entries: u64,
    key_bytes: f64,
    value_bytes: f64,
    machines: u64,
    /// On one machine for each shard, at the same time.
    build_hours: f64,
    query_ms: f64,
    price_per_month: f64,
}

#[derive(Debug, Serialize)]
struct ScaleReport {
    machine: String,
    threads: usize,
    k: usize,
    width: usize,
    candidates: usize,
    network_ms: f64,
    series: Vec<Series>,
    shards: Vec<ShardedQuery>,
    assumptions: Assumptions,
    extrapolations: Vec<Extrapolation>,
}

impl ScaleBench {
    pub(super) fn run(mut self) -> anyhow::Result<Outcome> {
        self.keys.sort_unstable();
        self.keys.dedup();
        let positive = self.width > 0 && self.k > 0 && self.queries > 0;
        ensure!(positive, "--width, -k and --queries must be above 0");
        ensure!(self.candidates >= 2 * self.k, "--candidates must be at least {}", 2 * self.k);
        ensure!(
            self.keys.len() >= 2 && self.keys[0] > 0,
            "--keys: give at least two different numbers above 0, for the power laws"
        );
        ensure!(
            self.shards.iter().all(|shards| (1..=self.keys[0]).contains(shards)),
            "--shards: a number of shards must be from 1 to the smallest number of keys"
        );
        ensure!(self.assumptions.machine_memory > 0, "--machine-memory must be above 0");
        let folder = tempfile::tempdir().context("cannot create a temporary folder")?;
        let names = ["local, exact", "local, graph"];
        let mut points = [Vec::new(), Vec::new()];
        let mut shards = Vec::new();
        for (index, keys) in self.keys.iter().enumerate() {
            output::note(&format!("measuring {keys} keys"));
            let vectors = Vectors::new(self.width, *keys, self.queries);
            let methods = [Method::Exact, Method::Graph { candidates: self.candidates }];
            for (method, points) in methods.into_iter().zip(&mut points) {
                let memory = folder.path().join("memory");
                points.push(vectors.local(&memory, self.k, method)?);
                std::fs::remove_dir_all(&memory)?;
            }
            if index + 1 == self.keys.len() {
                for count in &self.shards {
                    let memory = folder.path().join(format!("shards-{count}"));
                    shards.push(self.sharded(&vectors, &memory, *count)?);
                }
            }
        }
        let series: Vec<Series> = names
            .into_iter()
            .zip(points)
            .map(|(name, points)| series(name, points))
            .collect::<anyhow::Result<_>>()?;
        let extrapolations = self.extrapolations(&series);
        let report = ScaleReport {
            machine: machine(),
            threads: rayon::current_num_threads(),
            k: self.k,
            width: self.width,
            candidates: self.candidates,
            network_ms: self.network,
            series,
            shards,
            assumptions: self.assumptions,
            extrapolations,
        };
        output::print_report(self.json, &report, || report.to_text())?;
        Ok(Outcome::Done)
    }

    /// Simulates a memory in `count` shards. They are searched exactly, one after the other.
    fn sharded(
        &self,
        vectors: &Vectors,
        folder: &std::path::Path,
        count: usize,
    ) -> anyhow::Result<ShardedQuery> {
        let mut slowest = vec![0.0f64; self.queries];
        let mut results = Vec::new();
        for shard in 0..count {
            drop(vectors.write(folder, shard, count)?);
            let generation = Memory::open(folder)?.generation();
            let (times, found) =
                vectors.search_one_by_one(generation.as_ref(), self.k, Method::Exact)?;
            for (slowest, time) in slowest.iter_mut().zip(times) {
                *slowest = slowest.max(time);
            }
            results.push(found);
            drop(generation);
            std::fs::remove_dir_all(folder)?;
        }
        let mut merges = Vec::new();
        for query in 0..self.queries {
            let start = Instant::now();
            let hits = results.iter().flat_map(|found| found[query].hits.iter().flatten());
            let mut hits: Vec<Hit> = hits.copied().collect();
            hits.sort_by(|a, b| b.score.total_cmp(&a.score).then(a.id.cmp(&b.id)));
            hits.truncate(self.k);
            std::hint::black_box(&hits);
            merges.push(1000.0 * start.elapsed().as_secs_f64());
        }
        let network = if count > 1 { self.network } else { 0.0 };
        let totals: Vec<f64> =
            slowest.iter().zip(&merges).map(|(slowest, merge)| slowest + merge + network).collect();
        Ok(ShardedQuery {
            shards: count,
            keys: vectors.len(),
            query_ms: quantile(&totals, 0.5),
            merge_ms: quantile(&merges, 0.5),
        })
    }

    /// The costs of each kind of memory at each target.
    fn extrapolations(&self, series: &[Series]) -> Vec<Extrapolation> {
        const HOURS_PER_MONTH: f64 = 730.0;
        const GB: f64 = 1e9;
        let Assumptions { targets, value_bytes, machine_memory, machine_price, storage_price } =
            &self.assumptions;
        let at = |series: &Series, entries: u64| {
            let key_bytes = series.bytes_per_key * entries as f64;
            let value_bytes = (*value_bytes * entries) as f64;
            let machines = (key_bytes / (*machine_memory as f64 * GB)).ceil().max(1.0);
            let keys_per_machine = entries as f64 / machines;
            let network = if machines > 1.0 { self.network } else { 0.0 };
            Extrapolation {
                name: series.name.clone(),
                entries,
                key_bytes,
                value_bytes,
                machines: machines as u64,
                build_hours: series.build.at(keys_per_machine) / 3600.0,
                query_ms: series.query.at(keys_per_machine) + network,
                price_per_month: machines * machine_price * HOURS_PER_MONTH
                    + value_bytes / GB * storage_price,
            }
        };
        targets.iter().flat_map(|entries| series.iter().map(move |s| at(s, *entries))).collect()
    }
}

/// Fits the power laws of one kind of memory.
fn series(name: &str, points: Vec<Point>) -> anyhow::Result<Series> {
    let law = |cost: fn(&Point) -> f64| {
        let costs: Vec<(usize, f64)> =
            points.iter().map(|point| (point.keys, cost(point))).collect();
        PowerLaw::fit(&costs).context("the numbers of keys are equal")
    };
    let (build, query) = (law(|point| point.build_seconds)?, law(|point| point.query_ms)?);
    let bytes_per_key = points.last().map_or(0.0, |p| p.bytes as f64 / p.keys as f64);
    Ok(Series { name: name.to_owned(), points, build, query, bytes_per_key })
}
