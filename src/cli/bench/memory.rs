//! `engram bench memory`: the speed of a memory, compared with faiss and usearch.

use std::io::{BufWriter, Write};
use std::path::Path;
use std::time::Instant;

use anyhow::Context;
use clap::Args;
use engram_data::messages::counted;
use engram_durable::create_new_file;
use engram_memory::search::exact::instructions;
use engram_memory::search::graph::GraphSettings;
use engram_memory::search::{Filter, Queries};
use engram_memory::{
    Batch, Entry, Memory, MemoryError, MemoryFormat, Method, Row, Snapshot, ValueDtype,
    ValueFormat, Writer,
};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::super::environment::machine;
use super::super::memory::GraphKindName;
use super::super::{Outcome, output};
use super::baselines::Baselines;
use super::keys::{ClusteredKeys, uniform};
use super::{median, peak_memory};

/// A value of 32 KB: 16 tokens of 1,024 f16 numbers.
const VALUE: ValueFormat = ValueFormat { tokens: 16, width: 1024, dtype: ValueDtype::F16 };
/// Number of values to gather at once.
const GATHERED_VALUES: usize = 100;

/// Measure the speed of a memory: search, compared with faiss and usearch, and reading values.
#[derive(Debug, Args)]
#[command(after_help = "\
Keys are random unit vectors in 1,000 clusters. Every round times each tool once; the report has the
medians. faiss and usearch are timed if PYTHON has them: pip install numpy faiss-cpu usearch
--threads sets the number of threads of all tools, ENGRAM_MEMORY_KERNEL the instructions of
exact search: avx512, avx2 or portable.

Examples:
  engram bench memory --python /tmp/baselines/bin/python
  engram bench memory --queries 1 --rounds 50 --python /tmp/baselines/bin/python
  engram bench memory --keys 20000 --graph vamana --python /tmp/baselines/bin/python")]
pub struct MemoryBench {
    /// Number of keys
    #[arg(long, default_value_t = 100_000)]
    keys: usize,
    /// Dimension of a key
    #[arg(long, default_value_t = 384)]
    width: usize,
    /// Number of queries in a search
    #[arg(long, default_value_t = 1000)]
    queries: usize,
    /// Numbers of entries to find for each query, comma-separated
    #[arg(short, value_delimiter = ',', default_value = "10,100")]
    k: Vec<usize>,
    /// Number of values in the memory for the reading test, 32 KB each; 0 skips this test
    #[arg(long, default_value_t = 4000)]
    values: usize,
    /// Number of rounds
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Also measure a graph of this kind, and the graphs of faiss and usearch; building these takes
    /// minutes
    #[arg(long, value_enum, value_name = "KIND")]
    graph: Option<GraphKindName>,
    /// Python interpreter with numpy, faiss-cpu and usearch
    #[arg(long, value_name = "PYTHON", default_value = "python3")]
    python: String,
}

impl MemoryBench {
    pub(super) fn run(self) -> anyhow::Result<Outcome> {
        let folder = tempfile::tempdir().context("cannot create a temporary folder")?;
        let path = |name: &str| folder.path().join(name);
        let mut clustered = ClusteredKeys::new(self.width);
        let queries = clustered.rows(self.queries);
        output::replace_atomic(&path("queries.f32"), &le_bytes(&queries))?;
        let mut key_file = BufWriter::new(create_new_file(&path("keys.f32"))?);
        let write_keys = |keys: &[f32]| {
            let written = key_file.write_all(&le_bytes(keys));
            written.map_err(|source| MemoryError::Write { file: path("keys.f32"), source })
        };
        let format = MemoryFormat { width: self.width, normalised: true, values: None };
        let start = Instant::now();
        let batches = clustered.batches(self.keys, write_keys);
        let mut writer = Writer::create(path("memory"), format, self.keys, batches)?;
        let build_seconds = start.elapsed().as_secs_f64();
        key_file.flush()?;
        let threads = counted(rayon::current_num_threads(), "thread");
        let mut lines = vec![
            format!("{}; {threads}, {}", machine(), instructions()),
            format!("build {build_seconds:.2} s (create, normalise, write and sync the keys)"),
        ];
        if let Some(kind) = self.graph {
            let bar = output::progress_bar(self.keys, "keys");
            let start = Instant::now();
            writer.index(GraphSettings::of(kind.into()), || bar.inc(1))?;
            bar.finish_and_clear();
            lines.push(format!("graph build {:.1} s", start.elapsed().as_secs_f64()));
        }
        let generation = writer.generation();
        let mut methods = vec![("engram exact", Method::Exact)];
        if self.graph.is_some() {
            methods.push(("engram graph", Method::GRAPH));
        }
        let mut baselines =
            Baselines::start(&self.python, folder.path(), self.width, self.graph.is_some())?;
        let baseline_indexes =
            baselines.as_ref().map_or_else(Vec::new, |baselines| baselines.indexes.clone());
        lines.extend(baselines.as_ref().map(|baselines| baselines.about.clone()));

        lines.push(String::new());
        lines.push("| search | k | ms | queries / s | recall | time / faiss-flat |".to_owned());
        lines.push("|---|---|---|---|---|---|".to_owned());
        for k in &self.k {
            let k = &(*k).min(self.keys);
            let queries = Queries { keys: &queries, k: *k };
            let exact = generation.search(Method::Exact, queries, &Filter::default())?;
            let mut times = vec![Vec::new(); methods.len() + baseline_indexes.len()];
            let mut recalls = vec![0.0; times.len()];
            for _ in 0..self.rounds.max(1) {
                for (i, (_, method)) in methods.iter().enumerate() {
                    let start = Instant::now();
                    let results = generation.search(*method, queries, &Filter::default())?;
                    times[i].push(start.elapsed().as_secs_f64());
                    recalls[i] = results.recall(&exact);
                }
                for (i, name) in baseline_indexes.iter().enumerate() {
                    let Some(baselines) = &mut baselines else { continue };
                    let (seconds, recall) = baselines.search(name, *k)?;
                    times[methods.len() + i].push(seconds);
                    recalls[methods.len() + i] = recall;
                }
            }
            let medians: Vec<f64> = times.into_iter().map(median).collect();
            let names = methods
                .iter()
                .map(|(name, _)| *name)
                .chain(baseline_indexes.iter().map(String::as_str));
            let faiss_flat = baseline_indexes.iter().position(|name| name == "faiss-flat");
            let flat_seconds = faiss_flat.map(|i| medians[methods.len() + i]);
            for ((name, seconds), recall) in names.zip(&medians).zip(&recalls) {
                let ratio =
                    flat_seconds.map_or("-".to_owned(), |flat| format!("{:.2}×", seconds / flat));
                lines.push(format!(
                    "| {name} | {k} | {:.2} | {:.0} | {recall:.4} | {ratio} |",
                    1000.0 * seconds,
                    self.queries as f64 / seconds
                ));
            }
        }
        lines.push(String::new());
        if let Some(peak) = peak_memory() {
            lines.push(format!(
                "peak memory of build and search: {} MB, including {} MB of memory-mapped keys",
                peak / 1_000_000,
                self.keys * self.width * 4 / 1_000_000
            ));
        }
        if self.values > 0 {
            lines.extend(time_values(&path("values"), self.values, self.rounds.max(1))?);
        }
        output::print(&lines.join("\n"))?;
        Ok(Outcome::Done)
    }
}

/// Times opening a memory with large values and gathering some of the values.
fn time_values(folder: &Path, count: usize, rounds: usize) -> anyhow::Result<Vec<String>> {
    let format = MemoryFormat { width: 64, normalised: true, values: Some(VALUE) };
    let size = VALUE.tokens * VALUE.width;
    let mut random = ChaCha8Rng::seed_from_u64(2);
    let values = uniform(&mut random, 100 * size);
    let batches = (0..count).step_by(100).map(|first| {
        let rows = 100.min(count - first);
        let entries = (first as i64..(first + rows) as i64).map(Entry::bare).collect();
        Ok(Batch { entries, keys: vec![1.0; rows * 64], values: values[..rows * size].to_vec() })
    });
    drop(Writer::create(folder, format, count, batches)?);
    let (mut open_seconds, mut gather_seconds) = (Vec::new(), Vec::new());
    let rows: Vec<Row> = {
        let generation = Memory::open(folder)?.generation();
        let live_rows: Vec<Row> = generation.live_rows().collect();
        (0..GATHERED_VALUES).map(|_| live_rows[random.random_range(0..live_rows.len())]).collect()
    };
    for _ in 0..rounds {
        let start = Instant::now();
        let generation = Memory::open(folder)?.generation();
        open_seconds.push(start.elapsed().as_secs_f64());
        let mut values = generation.values(&rows)?;
        let start = Instant::now();
        generation.read_values(&rows, &mut values)?;
        gather_seconds.push(start.elapsed().as_secs_f64());
        anyhow::ensure!(values.len() == GATHERED_VALUES * size, "values are missing");
    }
    let bytes = count * size * 2;
    Ok(vec![
        format!(
            "open a memory of {} MB: {:.2} ms",
            bytes / 1_000_000,
            1000.0 * median(open_seconds)
        ),
        format!(
            "gather {GATHERED_VALUES} values of {} KB as f32, warm: {:.2} ms",
            size * 2 / 1024,
            1000.0 * median(gather_seconds)
        ),
    ])
}

/// The numbers as little-endian bytes, for NumPy.
fn le_bytes(numbers: &[f32]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}
