//! `engram bench scale`: the costs of a memory as it grows, extrapolated to sizes that were not
//! measured.

mod fit;
mod measure;
mod reduction;
mod report;
#[cfg(feature = "postgres")]
mod servers;

use std::path::Path;
use std::time::Instant;

use anyhow::{Context, ensure};
use clap::Args;
use engram_data::messages::counted;
use engram_memory::search::Hit;
use engram_memory::{Memory, Method};
use serde::Serialize;

use super::super::environment::machine;
use super::super::memory::location::{self, ServerOptions};
use super::super::{Outcome, output};
use fit::PowerLaw;
use measure::{Point, Vectors, quantile};
use reduction::{Network, Reduction, addition_rate};

/// Measure the costs of a memory as it grows, and extrapolate them.
#[derive(Debug, Args)]
#[command(after_help = "\
The costs of building and of one query are measured at each number of keys, and fitted by power laws.
Keys are random unit vectors in 1,000 clusters, so the recall on other keys may differ. Shards are
simulated: each shard is searched alone, and a query takes the time of the slowest shard, of the
network and of the merge. With --servers, a memory on the first server and one on all of them are
measured, too: in each database, a temporary memory is created and removed. The sum of the gradients
of a training step is simulated for each number of ranks.

Examples:
  engram bench scale
  engram bench scale --keys 10000,100000,1000000 --width 256 --targets 20000000
  engram bench scale --servers postgres://ann@db1/wiki,postgres://ann@db2/wiki,postgres://ann@db3/wiki
  engram bench scale --ranks 2,4,8 --parameters 1000000000 --network 0.05 --bandwidth 12.5
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
    /// Time of a request and its answer over the network, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 0.5)]
    network: f64,
    /// Databases with pgvector, each on its own server, in which memories are measured; needs a program
    /// with the feature `postgres`
    #[arg(long, value_name = "URL", value_delimiter = ',')]
    servers: Vec<String>,
    #[command(flatten)]
    server: ServerOptions,
    /// Numbers of ranks to simulate
    #[arg(long, value_delimiter = ',', default_value = "1,2,4")]
    ranks: Vec<usize>,
    /// Number of trained parameters
    #[arg(long, value_name = "N", default_value_t = 100_000_000)]
    parameters: usize,
    /// Bandwidth between ranks in each direction, in GB per second
    #[arg(long, value_name = "GB", default_value_t = 1.25)]
    bandwidth: f64,
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
    /// The number of PostgreSQL servers; 1 for a local memory.
    servers: usize,
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
    /// Simulated.
    shards: Vec<ShardedQuery>,
    /// Measured additions of gradients per second.
    additions_per_second: f64,
    network: Network,
    /// Simulated.
    reductions: Vec<Reduction>,
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
        ensure!(
            self.network >= 0.0 && self.bandwidth > 0.0 && !self.ranks.contains(&0),
            "--network must be at least 0, --bandwidth and --ranks above 0"
        );
        self.check_servers()?;
        let folder = tempfile::tempdir().context("cannot create a temporary folder")?;
        let groups = self.server_groups();
        let mut points = vec![Vec::new(); 2 + groups.len()];
        let mut shards = Vec::new();
        for (index, keys) in self.keys.iter().enumerate() {
            output::note(&format!("measuring {keys} keys"));
            let vectors = Vectors::new(self.width, *keys, self.queries);
            let memory = folder.path().join("memory");
            let methods = [Method::Exact, Method::Graph { candidates: self.candidates }];
            for (method, points) in methods.into_iter().zip(&mut points) {
                points.push(vectors.local(&memory, self.k, method)?);
                std::fs::remove_dir_all(&memory)?;
            }
            for (urls, points) in groups.iter().zip(&mut points[2..]) {
                points.push(self.measure_servers(&vectors, urls, &memory)?);
                std::fs::remove_dir_all(&memory)?;
            }
            if index + 1 == self.keys.len() {
                for count in &self.shards {
                    let memory = folder.path().join(format!("shards-{count}"));
                    shards.push(self.sharded(&vectors, &memory, *count)?);
                }
            }
        }
        let local = [("local, exact".to_owned(), 1), ("local, graph".to_owned(), 1)];
        let remote = groups.iter().map(|urls| {
            (format!("PostgreSQL, graph, {}", counted(urls.len(), "server")), urls.len())
        });
        let series: Vec<Series> = local
            .into_iter()
            .chain(remote)
            .zip(points)
            .map(|((name, servers), points)| series(name, servers, points))
            .collect::<anyhow::Result<_>>()?;
        // A message needs half the time of a request and its answer.
        let network = Network { delay: self.network / 2000.0, bandwidth: 1e9 * self.bandwidth };
        let additions_per_second = addition_rate();
        let reduction =
            |ranks: &usize| Reduction::new(*ranks, self.parameters, network, additions_per_second);
        let reductions = self.ranks.iter().map(reduction).collect();
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
            additions_per_second,
            network,
            reductions,
            assumptions: self.assumptions,
            extrapolations,
        };
        output::print_report(self.json, &report, || report.to_text())?;
        Ok(Outcome::Done)
    }

    /// The servers of each measured memory: the first one, and all.
    fn server_groups(&self) -> Vec<&[String]> {
        match self.servers.as_slice() {
            [] => Vec::new(),
            [_] => vec![&self.servers],
            [first, ..] => vec![std::slice::from_ref(first), &self.servers],
        }
    }

    #[cfg(feature = "postgres")]
    fn check_servers(&self) -> anyhow::Result<()> {
        servers::check(&self.servers)
    }

    #[cfg(not(feature = "postgres"))]
    fn check_servers(&self) -> anyhow::Result<()> {
        // Otherwise, nothing reads this option without the feature.
        let _ = self.server.insecure;
        if self.servers.is_empty() { Ok(()) } else { Err(location::without_feature()) }
    }

    #[cfg(feature = "postgres")]
    fn measure_servers(
        &self,
        vectors: &Vectors,
        urls: &[String],
        source: &Path,
    ) -> anyhow::Result<Point> {
        let connect = location::connect(self.server, false);
        servers::measure(vectors, urls, connect, source, (self.k, self.candidates))
    }

    #[cfg(not(feature = "postgres"))]
    #[allow(clippy::unused_self)]
    fn measure_servers(&self, _: &Vectors, _: &[String], _: &Path) -> anyhow::Result<Point> {
        Err(location::without_feature())
    }

    /// Simulates a memory in `count` shards. They are searched exactly, one after the other.
    fn sharded(
        &self,
        vectors: &Vectors,
        folder: &Path,
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
            let servers = series.servers as f64;
            let machines = (key_bytes / (*machine_memory as f64 * GB)).ceil().max(servers);
            // As many servers as were measured together.
            let keys_per_machine = entries as f64 / machines * servers;
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
fn series(name: String, servers: usize, points: Vec<Point>) -> anyhow::Result<Series> {
    let law = |cost: fn(&Point) -> f64| {
        let costs: Vec<(usize, f64)> =
            points.iter().map(|point| (point.keys, cost(point))).collect();
        PowerLaw::fit(&costs).context("the numbers of keys are equal")
    };
    let (build, query) = (law(|point| point.build_seconds)?, law(|point| point.query_ms)?);
    let bytes_per_key = points.last().map_or(0.0, |p| p.bytes as f64 / p.keys as f64);
    Ok(Series { name, servers, points, build, query, bytes_per_key })
}
