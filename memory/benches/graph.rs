//! The build time, recall and speed of graph search on clustered keys. `benches/graph_peers.py`
//! measures faiss and usearch on the same keys.
//!
//! Usage: `cargo bench -p engram-memory --bench graph -- ROWS WIDTH KIND FOLDER [CONNECTIONS
//! EF_CONSTRUCTION]`. `KIND` is `vamana` or `hnsw`. The keys and queries are written to `FOLDER`,
//! and the exact results, for `graph_peers.py`. `RAYON_NUM_THREADS` and `ENGRAM_MEMORY_KERNEL`
//! select the threads and the instructions.

mod measure;

use std::error::Error;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::Path;
use std::time::Instant;

use engram_memory::search::graph::{GraphKind, GraphSettings};
use engram_memory::search::{Filter, Queries};
use engram_memory::{Batch, Entry, MemoryError, MemoryFormat, Method, Snapshot, Writer};
use measure::{BATCH_ROWS, CENTRES, Normal, QUERIES, processor_seconds};

const K: usize = 10;
const ROUNDS: usize = 3;
/// The measured values of `ef_search`.
const EF_SEARCH: [usize; 10] = [20, 40, 64, 96, 128, 192, 256, 384, 512, 768];

/// Unit vectors around random centres. The spread around a centre equals the spread of the centres.
struct Clustered {
    random: Normal,
    centres: Vec<f32>,
    width: usize,
}

impl Clustered {
    fn rows(&mut self, count: usize) -> Vec<f32> {
        let mut vectors = Vec::with_capacity(count * self.width);
        for _ in 0..count {
            let centre = (self.random.uniform() * CENTRES as f64) as usize * self.width;
            let centre = &self.centres[centre..centre + self.width];
            let vector: Vec<f32> = centre.iter().map(|n| n + self.random.next()).collect();
            let length = vector.iter().map(|number| number * number).sum::<f32>().sqrt();
            vectors.extend(vector.iter().map(|number| number / length));
        }
        vectors
    }
}

fn write_numbers(file: &mut impl Write, numbers: &[f32]) -> std::io::Result<()> {
    numbers.iter().try_for_each(|number| file.write_all(&number.to_le_bytes()))
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
    let [rows, width, kind, folder, settings @ ..] = arguments.as_slice() else {
        println!("usage: graph ROWS WIDTH vamana|hnsw FOLDER [CONNECTIONS EF_CONSTRUCTION]");
        return Ok(());
    };
    let (rows, width): (usize, usize) = (rows.parse()?, width.parse()?);
    let kind = if kind == "hnsw" { GraphKind::Hnsw } else { GraphKind::Vamana };
    let mut graph = GraphSettings::of(kind);
    if let [connections, ef_construction] = settings {
        (graph.connections, graph.ef_construction) =
            (connections.parse()?, ef_construction.parse()?);
    }
    let folder = Path::new(folder);
    fs::create_dir_all(folder)?;
    let mut random = Normal(3);
    let centres = (0..CENTRES * width).map(|_| random.next()).collect();
    let mut keys = Clustered { random, centres, width };
    let queries = keys.rows(QUERIES);
    write_numbers(&mut BufWriter::new(File::create(folder.join("queries.f32"))?), &queries)?;
    let mut key_file = BufWriter::new(File::create(folder.join("keys.f32"))?);
    let batches = (0..rows).step_by(BATCH_ROWS).map(|first| {
        let count = BATCH_ROWS.min(rows - first);
        let entries = (first as i64..(first + count) as i64).map(Entry::bare).collect();
        let keys = keys.rows(count);
        write_numbers(&mut key_file, &keys)
            .map_err(|source| MemoryError::Write { file: folder.join("keys.f32"), source })?;
        Ok::<_, MemoryError>(Batch { entries, keys, values: Vec::new() })
    });
    let memory = tempfile::tempdir_in(folder)?;
    let format = MemoryFormat { width, normalised: true, values: None };
    let mut writer = Writer::create(memory.path().join("memory"), format, rows, batches)?;
    key_file.flush()?;
    let (start, processor) = (Instant::now(), processor_seconds()?);
    writer.index(graph, || ())?;
    println!(
        "{rows} x {width}, {graph:?}: built in {:.1} s, processor {:.1} s",
        start.elapsed().as_secs_f64(),
        processor_seconds()? - processor
    );
    let generation = writer.generation();
    let request = Queries { keys: &queries, k: K };
    let exact = generation.search(Method::Exact, request, &Filter::default())?;
    let mut file = BufWriter::new(File::create(folder.join("exact.i64"))?);
    for hit in exact.hits.iter().flatten() {
        file.write_all(&hit.id.to_le_bytes())?;
    }
    file.flush()?;
    for ef_search in EF_SEARCH {
        let method = Method::Graph { candidates: ef_search };
        let (mut recall, mut best) = (0.0, (f64::INFINITY, f64::INFINITY));
        for _ in 0..ROUNDS {
            let (start, processor) = (Instant::now(), processor_seconds()?);
            let results = generation.search(method, request, &Filter::default())?;
            best.0 = f64::min(best.0, start.elapsed().as_secs_f64());
            best.1 = f64::min(best.1, processor_seconds()? - processor);
            recall = results.recall(&exact);
        }
        println!(
            "ef_search {ef_search}: recall@{K} {recall:.4}, {:.0} queries/s, {:.0} queries per \
             processor second",
            QUERIES as f64 / best.0,
            QUERIES as f64 / best.1
        );
    }
    Ok(())
}
