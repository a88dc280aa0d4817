//! The costs of a memory as it grows, extrapolated to sizes that were not measured.
//!
//! ```text
//! cargo bench --bench scale -- --keys 10000,100000,1000000
//! cargo bench --bench scale --features postgres -- --servers postgres://ann@db1/x,postgres://ann@db2/x
//! ```
//!
//! The costs of building and of one query are measured at each number of keys, and fitted by power
//! laws. Keys are random unit vectors in 1,000 clusters, so the recall on other keys may differ. Shards
//! are simulated: each shard is searched alone, and a query takes the time of the slowest shard, of the
//! network and of the merge. With `--servers` (databases with pgvector, each on its own server), a
//! memory on the first server and one on all of them are measured, too: in each database, a temporary
//! memory is created and removed.

mod fit;
#[path = "../measure/mod.rs"]
mod measure;
mod memory;
#[cfg(feature = "postgres")]
mod servers;

use std::path::Path;

use anyhow::{Context, ensure};
use clap::Parser;
use engram_memory::Method;

use fit::PowerLaw;
use measure::median;
use memory::{Point, Vectors};

#[derive(Parser)]
struct Options {
    /// Numbers of keys to measure: at least two
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
    /// Number of candidates of the graph
    #[arg(long, default_value_t = 1000)]
    candidates: usize,
    /// Numbers of shards to simulate at the largest number of keys
    #[arg(long, value_delimiter = ',', default_value = "1,2,4")]
    shards: Vec<usize>,
    /// Time of a request and its answer over the network, in milliseconds
    #[arg(long, default_value_t = 0.5)]
    network: f64,
    /// Databases with pgvector; needs the feature `postgres`
    #[arg(long, value_delimiter = ',')]
    servers: Vec<String>,
    /// Numbers of entries to extrapolate to
    #[arg(long, value_delimiter = ',', default_value = "20000000,1000000000")]
    targets: Vec<u64>,
    /// Bytes of a value; the default is 32 tokens of 768 numbers of 16 bits
    #[arg(long, default_value_t = 49_152)]
    value_bytes: u64,
    /// Memory of a machine for keys and graphs, in GB
    #[arg(long, default_value_t = 64.0)]
    machine_memory: f64,
    /// Price of a machine per hour
    #[arg(long, default_value_t = 0.25)]
    machine_price: f64,
    /// Price of a GB of stored values per month
    #[arg(long, default_value_t = 0.023)]
    storage_price: f64,
    /// Given by cargo.
    #[arg(long, hide = true)]
    bench: bool,
}

/// The measurements of one kind of memory, with their power laws.
struct Series {
    name: String,
    /// The number of PostgreSQL servers; 1 for a local memory.
    servers: usize,
    points: Vec<Point>,
}

fn main() -> anyhow::Result<()> {
    let mut options = Options::parse();
    options.keys.sort_unstable();
    options.keys.dedup();
    ensure!(options.keys.len() >= 2, "give at least two numbers of keys, for the power laws");
    let folder = tempfile::tempdir()?;
    let memory = folder.path().join("memory");
    // The first server alone, and all servers.
    let groups: Vec<&[String]> = match options.servers.as_slice() {
        [] => Vec::new(),
        [_] => vec![&options.servers],
        [first, ..] => vec![std::slice::from_ref(first), &options.servers],
    };
    let mut series = vec![
        Series { name: "local, exact".to_owned(), servers: 1, points: Vec::new() },
        Series { name: "local, graph".to_owned(), servers: 1, points: Vec::new() },
    ];
    series.extend(groups.iter().map(|urls| {
        let name = format!("PostgreSQL, graph, {} servers", urls.len());
        Series { name, servers: urls.len(), points: Vec::new() }
    }));
    println!("| memory | keys | build | bytes per key | query, median | p95 | recall |");
    println!("|---|---|---|---|---|---|---|");
    let graph = Method::Graph { candidates: options.candidates };
    let mut vectors = Vectors::new(options.width, 0, 0);
    for keys in &options.keys {
        vectors = Vectors::new(options.width, *keys, options.queries);
        for (index, series) in series.iter_mut().enumerate() {
            let point = match index {
                0 => vectors.local(&memory, options.k, Method::Exact)?,
                1 => vectors.local(&memory, options.k, graph)?,
                _ => on_servers(&vectors, groups[index - 2], &memory, &options)?,
            };
            std::fs::remove_dir_all(&memory)?;
            println!("| {} | {keys} | {point} |", series.name);
            series.points.push(point);
        }
    }
    println!();
    for series in &series {
        let (build, query) = series.laws()?;
        println!("{}: build ~ keys^{build}, query ~ keys^{query}", series.name);
    }
    for shards in &options.shards {
        let times = vectors.sharded(&memory, *shards, options.k)?;
        let network = if *shards > 1 { options.network } else { 0.0 };
        println!("{shards} shards, simulated, exact: {:.2} ms", median(times) + network);
    }
    print_extrapolations(&options, &series)
}

#[cfg(feature = "postgres")]
fn on_servers(
    vectors: &Vectors,
    urls: &[String],
    copy: &Path,
    options: &Options,
) -> anyhow::Result<Point> {
    servers::measure(vectors, urls, copy, (options.k, options.candidates))
}

#[cfg(not(feature = "postgres"))]
fn on_servers(_: &Vectors, _: &[String], _: &Path, _: &Options) -> anyhow::Result<Point> {
    anyhow::bail!("--servers needs `cargo bench --features postgres`")
}

impl Series {
    /// The power laws of building and of one query.
    fn laws(&self) -> anyhow::Result<(PowerLaw, PowerLaw)> {
        let law = |cost: fn(&Point) -> f64| {
            let costs: Vec<(usize, f64)> =
                self.points.iter().map(|point| (point.keys, cost(point))).collect();
            PowerLaw::fit(&costs).context("the numbers of keys are equal")
        };
        Ok((law(|point| point.build_seconds)?, law(|point| point.query_ms)?))
    }
}

/// Prints the costs of each kind of memory at each target.
fn print_extrapolations(options: &Options, series: &[Series]) -> anyhow::Result<()> {
    const HOURS_PER_MONTH: f64 = 730.0;
    const GB: f64 = 1e9;
    println!("\nExtrapolated, if the power laws hold and every machine is as fast as this one:\n");
    println!("| memory | entries | keys | values | machines | build | query | price per month |");
    println!("|---|---|---|---|---|---|---|---|");
    for target in &options.targets {
        for series in series {
            let (build, query) = series.laws()?;
            let entries = *target as f64;
            let bytes_per_key = series.points.last().map_or(0.0, Point::bytes_per_key);
            let (keys, values) = (bytes_per_key * entries, options.value_bytes as f64 * entries);
            let servers = series.servers as f64;
            let machines = (keys / (options.machine_memory * GB)).ceil().max(servers);
            // As many servers as were measured together.
            let keys_per_machine = entries / machines * servers;
            let network = if machines > 1.0 { options.network } else { 0.0 };
            println!(
                "| {} | {target} | {:.0} GB | {:.1} TB | {machines} | {:.2} h | {:.0} ms | {:.0} |",
                series.name,
                keys / GB,
                values / 1e12,
                build.at(keys_per_machine) / 3600.0,
                query.at(keys_per_machine) + network,
                machines * options.machine_price * HOURS_PER_MONTH
                    + values / GB * options.storage_price
            );
        }
    }
    Ok(())
}
