//! The processor time of exact search, for `docs/results/memory.md`. `benches/exact_faiss.py`
//! measures faiss in the same way.
//!
//! Usage: `cargo bench -p engram-memory --bench exact -- ROWS WIDTH KIND ROUNDS`. `KIND` is
//! `random`, `clustered` or `unnormalised`. `RAYON_NUM_THREADS` and `ENGRAM_MEMORY_KERNEL` select
//! the threads and the instructions.

mod measure;

use std::error::Error;
use std::time::Instant;

use engram_memory::search::{Filter, Queries};
use engram_memory::{
    Batch, Entry, Generation, MemoryError, MemoryFormat, Method, Snapshot, Writer,
};
use measure::{BATCH_ROWS, CENTRES, Normal, QUERIES, processor_seconds};

/// Returns the smallest wall-clock and processor time of searches, in milliseconds.
fn time<'a>(
    generation: &Generation,
    searches: impl Iterator<Item = Queries<'a>>,
) -> Result<(f64, f64), Box<dyn Error>> {
    let mut best = (f64::INFINITY, f64::INFINITY);
    for queries in searches {
        let (start, processor) = (Instant::now(), processor_seconds()?);
        generation.search(Method::Exact, queries, &Filter::default())?;
        best.0 = best.0.min(1000.0 * start.elapsed().as_secs_f64());
        best.1 = best.1.min(1000.0 * (processor_seconds()? - processor));
    }
    Ok(best)
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
    let [rows, width, kind, rounds] = arguments.as_slice() else {
        println!("usage: exact ROWS WIDTH random|clustered|unnormalised ROUNDS");
        return Ok(());
    };
    let (rows, width, rounds): (usize, usize, usize) =
        (rows.parse()?, width.parse()?, rounds.parse()?);
    let (clustered, normalised) = (kind == "clustered", kind != "unnormalised");
    let mut random = Normal(3);
    let centres: Vec<f32> = (0..CENTRES * width).map(|_| random.next()).collect();
    let mut vectors = |count: usize| -> Vec<f32> {
        let mut vectors = Vec::with_capacity(count * width);
        for _ in 0..count {
            let centre = (random.uniform() * CENTRES as f64) as usize * width;
            let norm = if normalised { 1.0 } else { 0.5 + random.uniform() as f32 };
            let centre = &centres[centre..centre + width];
            let vector: Vec<f32> = centre
                .iter()
                .map(|number| random.next() + if clustered { *number } else { 0.0 })
                .collect();
            let length = vector.iter().map(|number| number * number).sum::<f32>().sqrt();
            vectors.extend(vector.iter().map(|number| number * norm / length));
        }
        vectors
    };
    let queries = vectors(QUERIES);
    let batches = (0..rows).step_by(BATCH_ROWS).map(|first| {
        let count = BATCH_ROWS.min(rows - first);
        let entries = (first as i64..(first + count) as i64).map(Entry::bare).collect();
        Ok::<_, MemoryError>(Batch { entries, keys: vectors(count), values: Vec::new() })
    });
    let folder = tempfile::tempdir()?;
    let format = MemoryFormat { width, normalised, values: None };
    let writer = Writer::create(folder.path().join("memory"), format, rows, batches)?;
    for k in [10, 100] {
        let all = (0..rounds).map(|_| Queries { keys: &queries, k });
        let (wall, processor) = time(writer.generation(), all)?;
        println!("{kind}, k {k}, {QUERIES} queries: {wall:.0} ms, processor {processor:.0} ms");
        let single = queries.chunks(width).take(40).map(|keys| Queries { keys, k });
        let (wall, processor) = time(writer.generation(), single)?;
        println!("{kind}, k {k}, 1 query: {wall:.2} ms, processor {processor:.2} ms");
    }
    Ok(())
}
