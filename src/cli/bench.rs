//! `engram bench`: timings beside the tools that people use otherwise, in one run.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Instant;

use anyhow::Context;
use clap::{Args, Subcommand};
use engram_memory::search::exact::Exact;
use engram_memory::search::hnsw::{GraphSettings, Hnsw};
use engram_memory::search::{Filter, Found, Index, Queries};
use engram_memory::vectors::npy_bytes;
use engram_memory::{Batch, Entry, Memory, MemoryFormat, Row, ValueFormat, ValueNumber, Writer};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::Deserialize;

use super::{Outcome, output};

/// Centres that keys and queries lie around.
const CENTRES: usize = 1000;
/// How far they lie from them, in each direction.
const SPREAD: f32 = 1.0;
/// A value of 32 KB: 16 tokens of 1,024 halves.
const VALUE: ValueFormat = ValueFormat { tokens: 16, width: 1024, number: ValueNumber::F16 };
/// Values that are gathered at once.
const GATHERED: usize = 100;

/// Time the toolkit beside the tools that people use otherwise.
#[derive(Debug, Subcommand)]
pub enum Bench {
    /// Search and values of a memory, beside faiss and usearch
    Memory(MemoryBench),
}

impl Bench {
    /// Runs the command.
    pub fn run(self) -> anyhow::Result<Outcome> {
        match self {
            Self::Memory(command) => command.run(),
        }
    }
}

/// Search and values of a memory, beside faiss and usearch.
#[derive(Debug, Args)]
#[command(after_help = "\
Keys are unit vectors around 1,000 centres. All take their turns in each round, and the medians are
printed. Peers are timed where PYTHON has them: pip install numpy faiss-cpu usearch.
Examples:
  engram bench memory --python /tmp/peers/bin/python
  engram bench memory --rows 20000 --hnsw --python /tmp/peers/bin/python")]
pub struct MemoryBench {
    /// Keys
    #[arg(long, default_value_t = 100_000)]
    rows: usize,
    /// Numbers of a key
    #[arg(long, default_value_t = 384)]
    width: usize,
    /// Queries of a search
    #[arg(long, default_value_t = 1000)]
    queries: usize,
    /// Entries wanted for each query
    #[arg(short, value_delimiter = ',', default_value = "10,100")]
    k: Vec<usize>,
    /// Values of 32 KB in the memory that is opened and read; 131072 are 4 GB
    #[arg(long, default_value_t = 4000)]
    values: usize,
    /// Rounds
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Graphs too, which take minutes to make
    #[arg(long)]
    hnsw: bool,
    /// A Python with numpy, faiss-cpu and usearch
    #[arg(long, value_name = "PYTHON", default_value = "python3")]
    python: String,
}

impl MemoryBench {
    fn run(self) -> anyhow::Result<Outcome> {
        let folder = tempfile::tempdir().context("no temporary folder could be made")?;
        let mut random = ChaCha8Rng::seed_from_u64(1);
        let centres = uniform(&mut random, CENTRES * self.width);
        let keys = clustered(&mut random, &centres, self.rows, self.width);
        let queries = clustered(&mut random, &centres, self.queries, self.width);
        let place = |name: &str| folder.path().join(name);
        output::write_whole(&place("keys.npy"), &npy_bytes(&keys, self.width)?)?;
        output::write_whole(&place("queries.npy"), &npy_bytes(&queries, self.width)?)?;

        let format = MemoryFormat { width: self.width, normalised: true, values: None };
        let entries = (0..self.rows as i64).map(Entry::bare).collect();
        let batch = Batch { entries, keys, values: Vec::new() };
        let start = Instant::now();
        let mut writer =
            Writer::create(place("memory"), format, self.rows, [Ok(batch)].into_iter())?;
        let built = start.elapsed().as_secs_f64();
        let mut lines = vec![format!("build {built:.2} s (keys normalised, written, synced)")];
        if self.hnsw {
            let bar = output::progress_bar(self.rows, "keys", false);
            let start = Instant::now();
            writer.index(GraphSettings::default(), || bar.inc(1))?;
            bar.finish_and_clear();
            lines.push(format!("hnsw build {:.1} s (one thread)", start.elapsed().as_secs_f64()));
        }
        let generation = writer.generation();
        let graphs = Hnsw::open(generation, Hnsw::EF_SEARCH)?;
        let mut ours: Vec<(&str, &dyn Index)> = vec![("engram exact", &Exact)];
        if self.hnsw {
            ours.push(("engram hnsw", &graphs));
        }
        let mut peers = Peers::start(&self.python, folder.path(), self.hnsw)?;
        let theirs = peers.as_ref().map_or_else(Vec::new, |peers| peers.indexes.clone());
        lines.extend(peers.as_ref().map(|peers| peers.about.clone()));

        lines.push(String::new());
        lines.push("| search | k | ms | queries / s | recall | time / faiss-flat |".to_owned());
        lines.push("|---|---|---|---|---|---|".to_owned());
        for k in &self.k {
            let queries = Queries { keys: &queries, k: *k };
            let exact = Exact.search(generation, queries, &Filter::default())?;
            let mut times = vec![Vec::new(); ours.len() + theirs.len()];
            let mut recalls = vec![0.0; times.len()];
            for _ in 0..self.rounds.max(1) {
                for (at, (_, index)) in ours.iter().enumerate() {
                    let start = Instant::now();
                    let found = index.search(generation, queries, &Filter::default())?;
                    times[at].push(start.elapsed().as_secs_f64());
                    recalls[at] = recall(&found, &exact);
                }
                for (at, name) in theirs.iter().enumerate() {
                    let Some(peers) = &mut peers else { continue };
                    let (seconds, recall) = peers.search(name, *k)?;
                    times[ours.len() + at].push(seconds);
                    recalls[ours.len() + at] = recall;
                }
            }
            let medians: Vec<f64> = times.into_iter().map(median).collect();
            let names = ours.iter().map(|(name, _)| *name).chain(theirs.iter().map(String::as_str));
            let flat = theirs.iter().position(|name| name == "faiss-flat");
            let flat = flat.map(|at| medians[ours.len() + at]);
            for ((name, seconds), recall) in names.zip(&medians).zip(&recalls) {
                let ratio = flat.map_or("-".to_owned(), |flat| format!("{:.2}×", seconds / flat));
                lines.push(format!(
                    "| {name} | {k} | {:.0} | {:.0} | {recall:.4} | {ratio} |",
                    1000.0 * seconds,
                    self.queries as f64 / seconds
                ));
            }
        }
        lines.push(String::new());
        lines.extend(values(&place("values"), self.values, self.rounds.max(1), &mut random)?);
        output::print(&lines.join("\n"))?;
        Ok(Outcome::Done)
    }
}

/// Opening a memory with large values, and gathering some of them.
fn values(
    folder: &Path,
    count: usize,
    rounds: usize,
    random: &mut ChaCha8Rng,
) -> anyhow::Result<Vec<String>> {
    let format = MemoryFormat { width: 64, normalised: true, values: Some(VALUE) };
    let size = VALUE.tokens * VALUE.width;
    let values = uniform(random, 100 * size);
    let batches = (0..count).step_by(100).map(|first| {
        let rows = 100.min(count - first);
        let entries = (first as i64..(first + rows) as i64).map(Entry::bare).collect();
        Ok(Batch { entries, keys: vec![1.0; rows * 64], values: values[..rows * size].to_vec() })
    });
    drop(Writer::create(folder, format, count, batches)?);
    let (mut opened, mut gathered) = (Vec::new(), Vec::new());
    let rows: Vec<Row> = {
        let generation = Memory::open(folder)?.generation();
        let all: Vec<Row> = generation.live_rows().collect();
        (0..GATHERED).map(|_| all[random.random_range(0..all.len())]).collect()
    };
    for _ in 0..rounds {
        let start = Instant::now();
        let generation = Memory::open(folder)?.generation();
        opened.push(start.elapsed().as_secs_f64());
        let mut values = generation.values(&rows)?;
        let start = Instant::now();
        generation.read_values(&rows, &mut values)?;
        gathered.push(start.elapsed().as_secs_f64());
        anyhow::ensure!(values.len() == GATHERED * size, "values are missing");
    }
    let bytes = count * size * 2;
    Ok(vec![
        format!("open a memory of {} MB: {:.2} ms", bytes / 1_000_000, 1000.0 * median(opened)),
        format!(
            "gather {GATHERED} values of {} KB as f32, warm: {:.2} ms",
            size * 2 / 1024,
            1000.0 * median(gathered)
        ),
    ])
}

/// The script that runs faiss and usearch.
struct Peers {
    process: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    indexes: Vec<String>,
    about: String,
}

#[derive(Deserialize)]
struct Hello {
    indexes: Vec<String>,
    about: serde_json::Map<String, serde_json::Value>,
}

impl Peers {
    /// `None`, with a message, where Python or all of the peers are missing.
    fn start(python: &str, folder: &Path, hnsw: bool) -> anyhow::Result<Option<Self>> {
        let mut command = Command::new(python);
        command.arg("-c").arg(include_str!("../../memory/benches/peers.py"));
        command.args([folder.join("keys.npy"), folder.join("queries.npy")]);
        command.arg(rayon::current_num_threads().to_string());
        command.args(hnsw.then_some("hnsw"));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let skipped = || {
            let note =
                format!("SKIPPED: {python} has no numpy with faiss or usearch; give --python");
            output::note(&note, false);
        };
        let Ok(mut process) = command.spawn() else {
            skipped();
            return Ok(None);
        };
        let pipes = process.stdin.take().zip(process.stdout.take());
        let (input, output) = pipes.context("the peers have no pipes")?;
        let mut output = BufReader::new(output);
        let mut line = String::new();
        output.read_line(&mut line)?;
        let Ok(Hello { indexes, about }) = serde_json::from_str(&line) else {
            skipped();
            return Ok(None);
        };
        let about: Vec<String> =
            about.iter().map(|(name, value)| format!("{name} {value}")).collect();
        Ok(Some(Self { process, input, output, indexes, about: about.join(", ") }))
    }

    fn search(&mut self, name: &str, k: usize) -> anyhow::Result<(f64, f64)> {
        writeln!(self.input, "{name} {k}")?;
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        let mut numbers = line.split_whitespace().map(str::parse::<f64>);
        match (numbers.next(), numbers.next()) {
            (Some(Ok(seconds)), Some(Ok(recall))) => Ok((seconds, recall)),
            _ => anyhow::bail!("{name} failed in the script of the peers"),
        }
    }
}

impl Drop for Peers {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn uniform(random: &mut ChaCha8Rng, numbers: usize) -> Vec<f32> {
    (0..numbers).map(|_| random.random_range(-1.0..1.0)).collect()
}

/// Unit vectors around centres.
fn clustered(random: &mut ChaCha8Rng, centres: &[f32], rows: usize, width: usize) -> Vec<f32> {
    let mut vectors = Vec::with_capacity(rows * width);
    for _ in 0..rows {
        let centre = random.random_range(0..CENTRES) * width;
        let mut vector: Vec<f32> = centres[centre..centre + width]
            .iter()
            .map(|number| number + random.random_range(-SPREAD..SPREAD))
            .collect();
        let length = vector.iter().map(|number| number * number).sum::<f32>().sqrt();
        vector.iter_mut().for_each(|number| *number /= length);
        vectors.extend(vector);
    }
    vectors
}

/// The share of the exact result that was found.
fn recall(found: &Found, exact: &Found) -> f64 {
    let all: usize = exact.hits.iter().map(Vec::len).sum();
    let right =
        |(found, exact): (&Vec<engram_memory::search::Hit>, &Vec<engram_memory::search::Hit>)| {
            exact.iter().filter(|hit| found.iter().any(|found| found.id == hit.id)).count()
        };
    let right: usize = found.hits.iter().zip(&exact.hits).map(right).sum();
    right as f64 / all.max(1) as f64
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}
