//! Times of a memory on one server and on three: COPY, indexes and graphs, searches and small
//! changes.
//!
//! Usage: `cargo bench -p engram-memory-postgres -- ROWS WIDTH QUERIES`, with `ENGRAM_POSTGRES` as
//! for the tests. The servers run on this machine, on Unix sockets.
#![allow(clippy::unwrap_used)]

#[allow(dead_code)]
#[path = "../../benches/measure/mod.rs"]
mod measure;
#[allow(clippy::unwrap_used, dead_code)]
#[path = "../tests/main/server/mod.rs"]
mod server;
#[path = "../../tests/support/mod.rs"]
mod support;

use std::sync::Arc;
use std::time::Instant;

use engram_memory::search::{Filter, Gates, Queries, SearchResults};
use engram_memory::{
    Batch, Entry, Generation, Memory, MemoryFormat, Method, Snapshot, Store, Writer,
};
use engram_memory_postgres::{Connect, GraphSettings, Progress, PushOptions, push};
use measure::{BATCH_ROWS, CENTRES, Normal};
use server::{TestServer, open_on, urls};

/// The sources, with their shares of the entries in percent.
const SOURCES: [(&str, usize); 3] = [("wiki", 75), ("vqa", 20), ("kg", 5)];

/// Returns keys in clusters, of unit length.
fn vectors(random: &mut Normal, centres: &[f32], width: usize, count: usize) -> Vec<f32> {
    let mut vectors = Vec::with_capacity(count * width);
    for _ in 0..count {
        let centre = (random.uniform() * CENTRES as f64) as usize * width;
        let centre = &centres[centre..centre + width];
        let vector: Vec<f32> = centre.iter().map(|number| random.next() + number).collect();
        let length = vector.iter().map(|number| number * number).sum::<f32>().sqrt();
        vectors.extend(vector.iter().map(|number| number / length));
    }
    vectors
}

fn entry(id: usize) -> Entry {
    let mut entry = Entry::bare(id as i64);
    let mut share = id % 100;
    for (name, percent) in SOURCES {
        if share < percent {
            entry.source = name.to_owned();
            break;
        }
        share -= percent;
    }
    entry.payload.insert("text".to_owned(), format!("the text of entry {id}").into());
    entry
}

fn seconds(start: Instant) -> f64 {
    start.elapsed().as_secs_f64()
}

/// Searches for one query at a time. Prints the mean, the median and the 95th percentile of the
/// time, and the recall. Exact results must equal those of the local memory.
fn time(
    (local, remote): (&dyn Snapshot, &dyn Snapshot),
    name: &str,
    (method, k): (Method, usize),
    (queries, width): (&[f32], usize),
    filter: &Filter,
) {
    let (mut times, mut recall) = (Vec::new(), 0.0);
    for query in queries.chunks(width) {
        let queries = Queries { keys: query, k };
        let start = Instant::now();
        let found = remote.search(method, queries, filter).unwrap();
        times.push(1000.0 * seconds(start));
        let exact = local.search(Method::Exact, queries, filter).unwrap();
        if method == Method::Exact {
            let ids = |results: &SearchResults| -> Vec<i64> {
                results.hits[0].iter().map(|hit| hit.id).collect()
            };
            assert_eq!(ids(&found), ids(&exact));
        }
        let exact_ids: Vec<i64> = exact.hits[0].iter().map(|hit| hit.id).collect();
        let hits = found.hits[0].iter().filter(|hit| exact_ids.contains(&hit.id)).count();
        recall += hits as f64 / exact_ids.len() as f64;
    }
    let count = times.len();
    let mean = times.iter().sum::<f64>() / count as f64;
    times.sort_by(f64::total_cmp);
    let (median, p95) = (times[count / 2], times[count * 95 / 100]);
    let recall = recall / count as f64;
    println!(
        "{name}, k {k}: mean {mean:.2} ms, median {median:.2} ms, p95 {p95:.2} ms, recall {recall:.4}"
    );
}

/// Pushes the memory, and searches on the servers.
fn measure(servers: &[TestServer], local: &Arc<Generation>, queries: (&[f32], usize)) {
    println!("servers: {}", servers.len());
    let (start, mut copied) = (Instant::now(), 0.0);
    let options = PushOptions { graph: Some(GraphSettings::default()), ..PushOptions::default() };
    push(local, &urls(servers, "bench"), Connect::default(), options, &mut |progress| {
        if progress == Progress::Indexes {
            copied = seconds(start);
        }
    })
    .unwrap();
    let rows = local.len();
    println!("COPY without indexes: {copied:.1} s, {:.0} rows/s", rows as f64 / copied);
    println!("indexes and graphs: {:.1} s", seconds(start) - copied);
    let store = open_on(servers, "bench");
    let snapshot = store.snapshot();
    println!("{:.0} bytes per entry", snapshot.info().unwrap().bytes_per_row);

    let both = (local.as_ref() as &dyn Snapshot, snapshot.as_ref());
    let all = Filter::default();
    for (k, candidates) in [(10, 100), (100, 200), (100, 250), (100, 300)] {
        let name = format!("graph, {candidates} candidates");
        time(both, &name, (Method::Graph { candidates }, k), queries, &all);
    }
    let searched =
        |name: &str| Filter { sources: Some(vec![name.to_owned()]), ..Filter::default() };
    let gates = Gates {
        sources: SOURCES.map(|(name, _)| name.to_owned()).to_vec(),
        weights: vec![0.5, 0.3, 0.2],
    };
    let gated = Filter { gates: Some(gates), ..Filter::default() };
    let graph = (Method::Graph { candidates: 200 }, 100);
    time(both, "graph, 200 candidates, 75 % source", graph, queries, &searched("wiki"));
    time(both, "graph, 200 candidates, 5 % source", graph, queries, &searched("kg"));
    time(both, "graph, 200 candidates, gates", graph, queries, &gated);
    time(both, "exact", (Method::Exact, 100), queries, &all);
    time(both, "exact, gates", (Method::Exact, 100), queries, &gated);

    let (start, changes) = (Instant::now(), 100);
    for change in 0..changes {
        let key = queries.0[..queries.1].to_vec();
        let entries = vec![entry(rows + change)];
        let batch = Batch { entries, keys: key, values: Vec::new() };
        let mut transaction = store.begin().unwrap();
        transaction.add(1, &mut std::iter::once(Ok(batch))).unwrap();
        transaction.delete(&[change as i64]).unwrap();
        transaction.commit().unwrap();
        store.reload().unwrap();
    }
    println!("a change of two entries: {:.2} ms", 1000.0 * seconds(start) / changes as f64);
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
    let [rows, width, count] = arguments.as_slice() else {
        println!("usage: search ROWS WIDTH QUERIES");
        return;
    };
    let [rows, width, count]: [usize; 3] = [rows, width, count].map(|text| text.parse().unwrap());
    let mut random = Normal(3);
    let centres: Vec<f32> = (0..CENTRES * width).map(|_| random.next()).collect();
    let queries = vectors(&mut random, &centres, width, count);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("memory");
    let format = MemoryFormat { width, normalised: true, values: None };
    let batches = (0..rows).step_by(BATCH_ROWS).map(|first| {
        let entries: Vec<Entry> = (first..rows.min(first + BATCH_ROWS)).map(entry).collect();
        let keys = vectors(&mut random, &centres, width, entries.len());
        Ok(Batch { entries, keys, values: Vec::new() })
    });
    Writer::create(&path, format, rows, batches).unwrap();
    let local = Memory::open(&path).unwrap().generation();
    // All pages fit into the servers' memory.
    let start = || TestServer::start_with("1GB");
    measure(&[start()], &local, (&queries, width));
    let servers: Vec<TestServer> = (0..3).map(|_| start()).collect();
    measure(&servers, &local, (&queries, width));
}
