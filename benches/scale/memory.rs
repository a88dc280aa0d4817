//! Measured costs of memories.

use std::fmt;
use std::path::Path;
use std::time::Instant;

use engram_memory::search::graph::GraphSettings;
use engram_memory::search::{Filter, Queries, SearchResults};
use engram_memory::{Batch, Entry, Memory, MemoryFormat, Method, Snapshot, Writer};

use crate::measure::keys::ClusteredKeys;

/// The costs of one memory.
pub struct Point {
    pub keys: usize,
    pub build_seconds: f64,
    /// The bytes of the memory, without values.
    pub bytes: u64,
    /// The median time of one query.
    pub query_ms: f64,
    /// The time that 95 % of the queries do not exceed.
    pub query_p95_ms: f64,
    /// The share of the exact results that were found.
    pub recall: f64,
}

/// Keys and queries of one size.
pub struct Vectors {
    width: usize,
    keys: Vec<f32>,
    queries: Vec<f32>,
}

impl fmt::Display for Point {
    /// Formats the cells of a Markdown table.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { keys, build_seconds, bytes, query_ms, query_p95_ms, recall } = self;
        let bytes = *bytes as f64 / *keys as f64;
        write!(
            f,
            "{build_seconds:.1} s | {bytes:.0} | {query_ms:.2} ms | {query_p95_ms:.2} ms | {recall:.4}"
        )
    }
}

impl Vectors {
    pub fn new(width: usize, keys: usize, queries: usize) -> Self {
        let mut clustered = ClusteredKeys::new(width);
        let queries = clustered.rows(queries);
        Self { width, keys: clustered.rows(keys), queries }
    }

    fn len(&self) -> usize {
        self.keys.len() / self.width
    }

    /// Builds a memory of the keys.
    pub fn write(&self, folder: &Path) -> anyhow::Result<Writer> {
        let batches = self.keys.chunks(1000 * self.width).zip(0..).map(|(keys, number)| {
            let first = 1000 * number;
            let entries = (first..first + (keys.len() / self.width) as i64).map(Entry::bare);
            Ok(Batch { entries: entries.collect(), keys: keys.to_vec(), values: Vec::new() })
        });
        let format = MemoryFormat { width: self.width, normalised: true, values: None };
        Ok(Writer::create(folder, format, self.len(), batches)?)
    }

    /// Measures a local memory. For [`Method::Graph`], it has a Vamana graph.
    pub fn local(&self, folder: &Path, k: usize, method: Method) -> anyhow::Result<Point> {
        let start = Instant::now();
        let mut writer = self.write(folder)?;
        if let Method::Graph { .. } = method {
            writer.index(GraphSettings::default(), || {})?;
        }
        let build_seconds = start.elapsed().as_secs_f64();
        drop(writer);
        self.point(Memory::open(folder)?.generation().as_ref(), build_seconds, k, method)
    }

    /// Measures the queries of a memory.
    pub fn point(
        &self,
        snapshot: &dyn Snapshot,
        build_seconds: f64,
        k: usize,
        method: Method,
    ) -> anyhow::Result<Point> {
        let (times, found) = self.search_one_by_one(snapshot, k, method)?;
        let recall = match method {
            Method::Exact => 1.0,
            Method::Graph { .. } => {
                let (_, exact) = self.search_one_by_one(snapshot, k, Method::Exact)?;
                let recalls = found.iter().zip(&exact).map(|(found, exact)| found.recall(exact));
                recalls.sum::<f64>() / exact.len().max(1) as f64
            }
        };
        Ok(Point {
            keys: self.len(),
            build_seconds,
            bytes: snapshot.info()?.bytes,
            query_ms: quantile(&times, 0.5),
            query_p95_ms: quantile(&times, 0.95),
            recall,
        })
    }

    /// The time of each query in milliseconds, and its results. The first query warms up and is
    /// repeated.
    fn search_one_by_one(
        &self,
        snapshot: &dyn Snapshot,
        k: usize,
        method: Method,
    ) -> anyhow::Result<(Vec<f64>, Vec<SearchResults>)> {
        let k = k.min(snapshot.description().entries);
        let search =
            |query: &[f32]| snapshot.search(method, Queries { keys: query, k }, &Filter::default());
        if let Some(first) = self.queries.chunks(self.width).next() {
            search(first)?;
        }
        let (mut times, mut results) = (Vec::new(), Vec::new());
        for query in self.queries.chunks(self.width) {
            let start = Instant::now();
            results.push(search(query)?);
            times.push(1000.0 * start.elapsed().as_secs_f64());
        }
        Ok((times, results))
    }
}

/// The smallest time that this share of the times does not exceed.
fn quantile(times: &[f64], share: f64) -> f64 {
    let mut sorted = times.to_vec();
    sorted.sort_by(f64::total_cmp);
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied().unwrap_or(f64::NAN)
}
