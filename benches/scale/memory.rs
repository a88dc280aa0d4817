//! Measured costs of memories.

use std::fmt;
use std::path::Path;
use std::time::Instant;

use engram_memory::search::graph::GraphSettings;
use engram_memory::search::{Filter, Hit, Queries, SearchResults};
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
    pub width: usize,
    pub keys: Vec<f32>,
    pub queries: Vec<f32>,
}

impl Point {
    pub fn bytes_per_key(&self) -> f64 {
        self.bytes as f64 / self.keys as f64
    }
}

impl fmt::Display for Point {
    /// Formats the cells of a Markdown table.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { build_seconds, query_ms, query_p95_ms, recall, .. } = self;
        let bytes = self.bytes_per_key();
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

    pub fn len(&self) -> usize {
        self.keys.len() / self.width
    }

    /// Builds a memory of the keys whose index is `shard` modulo `shards`.
    pub fn write(&self, folder: &Path, shard: usize, shards: usize) -> anyhow::Result<Writer> {
        let ids: Vec<usize> = (shard..self.len()).step_by(shards).collect();
        let batches = ids.chunks(1000).map(|ids| {
            let key = |id: &usize| &self.keys[id * self.width..(id + 1) * self.width];
            let entries = ids.iter().map(|id| Entry::bare(*id as i64)).collect();
            let keys = ids.iter().map(key).collect::<Vec<_>>().concat();
            Ok(Batch { entries, keys, values: Vec::new() })
        });
        let format = MemoryFormat { width: self.width, normalised: true, values: None };
        Ok(Writer::create(folder, format, ids.len(), batches)?)
    }

    /// Measures a local memory. For [`Method::Graph`], it has a Vamana graph.
    pub fn local(&self, folder: &Path, k: usize, method: Method) -> anyhow::Result<Point> {
        let start = Instant::now();
        let mut writer = self.write(folder, 0, 1)?;
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

    /// The time of each query in a memory of `count` shards, in milliseconds: of the slowest shard and
    /// of the merge. The shards are searched exactly, one after the other.
    pub fn sharded(&self, folder: &Path, count: usize, k: usize) -> anyhow::Result<Vec<f64>> {
        let mut slowest = vec![0.0f64; self.queries.len() / self.width];
        let mut results = Vec::new();
        for shard in 0..count {
            drop(self.write(folder, shard, count)?);
            let generation = Memory::open(folder)?.generation();
            let (times, found) = self.search_one_by_one(generation.as_ref(), k, Method::Exact)?;
            for (slowest, time) in slowest.iter_mut().zip(times) {
                *slowest = slowest.max(time);
            }
            results.push(found);
            drop(generation);
            std::fs::remove_dir_all(folder)?;
        }
        for (query, time) in slowest.iter_mut().enumerate() {
            let start = Instant::now();
            let hits = results.iter().flat_map(|found| found[query].hits.iter().flatten());
            let mut hits: Vec<Hit> = hits.copied().collect();
            hits.sort_by(|a, b| b.score.total_cmp(&a.score).then(a.id.cmp(&b.id)));
            hits.truncate(k);
            std::hint::black_box(&hits);
            *time += 1000.0 * start.elapsed().as_secs_f64();
        }
        Ok(slowest)
    }

    /// The time of each query in milliseconds, and its results. The first query warms up and is
    /// repeated.
    pub fn search_one_by_one(
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
pub fn quantile(times: &[f64], share: f64) -> f64 {
    let mut sorted = times.to_vec();
    sorted.sort_by(f64::total_cmp);
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied().unwrap_or(f64::NAN)
}
