//! The costs of a memory as it grows.
//!
//! ```text
//! cargo bench --bench scale -- --keys 10000,100000,1000000
//! cargo bench --bench scale --features postgres -- --servers postgres://ann@db1/x,postgres://ann@db2/x
//! ```
//!
//! The costs of building and of one query are measured at each number of keys. Keys are random unit
//! vectors in 1,000 clusters, so the recall on other keys may differ. `--servers` names databases
//! with pgvector, each on its own server. Temporary memories on the first server and on all servers
//! are then measured, too.

#[path = "../measure/mod.rs"]
mod measure;
mod memory;
#[cfg(feature = "postgres")]
mod servers;

use std::path::Path;

use clap::Parser;
use engram_memory::Method;

use memory::{Point, Vectors};

#[derive(Parser)]
struct Options {
    /// Numbers of keys to measure
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
    /// Databases with pgvector; needs the feature `postgres`
    #[arg(long, value_delimiter = ',')]
    servers: Vec<String>,
    /// Given by cargo.
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> anyhow::Result<()> {
    let options = Options::parse();
    let folder = tempfile::tempdir()?;
    let memory = folder.path().join("memory");
    // The first server alone, and all servers.
    let groups: Vec<&[String]> = match options.servers.as_slice() {
        [] => Vec::new(),
        [_] => vec![&options.servers],
        [first, ..] => vec![std::slice::from_ref(first), &options.servers],
    };
    let graph = Method::Graph { candidates: options.candidates };
    println!("| memory | keys | build | bytes per key | query, median | p95 | recall |");
    println!("|---|---|---|---|---|---|---|");
    for keys in &options.keys {
        let vectors = Vectors::new(options.width, *keys, options.queries);
        for (name, method) in [("local, exact", Method::Exact), ("local, graph", graph)] {
            let point = vectors.local(&memory, options.k, method)?;
            std::fs::remove_dir_all(&memory)?;
            println!("| {name} | {keys} | {point} |");
        }
        for urls in &groups {
            let point = on_servers(&vectors, urls, &memory, &options)?;
            std::fs::remove_dir_all(&memory)?;
            println!("| PostgreSQL, graph, {} servers | {keys} | {point} |", urls.len());
        }
    }
    Ok(())
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
