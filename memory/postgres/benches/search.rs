//! Times of a memory on a server: the build, the graph, searches and small changes.
//!
//! Usage: `cargo bench -p engram-memory-postgres -- ROWS WIDTH QUERIES`, with `ENGRAM_POSTGRES` as for
//! the tests. The server runs on this machine, on a Unix socket.
#![allow(clippy::unwrap_used)]

#[allow(dead_code)]
#[path = "../../benches/measure/mod.rs"]
mod measure;
#[path = "../tests/server/mod.rs"]
mod server;

use std::time::Instant;

use engram_memory::search::{Filter, Gates, Queries};
use engram_memory::{Batch, Entry, MemoryFormat, Method, Snapshot, Store};
use engram_memory_postgres::{Connect, GraphSettings, PostgresStore};
use measure::{BATCH_ROWS, CENTRES, Normal};
use server::TestServer;

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

/// Searches for one query at a time. Prints the mean and the 95th percentile of the time, and the
/// recall. Returns the hits.
fn time(
    snapshot: &dyn Snapshot,
    name: &str,
    (method, k): (Method, usize),
    (queries, width): (&[f32], usize),
    filter: &Filter,
) {
    let (mut times, mut recall) = (Vec::new(), 0.0);
    for query in queries.chunks(width) {
        let queries = Queries { keys: query, k };
        let start = Instant::now();
        let found = snapshot.search(method, queries, filter).unwrap();
        times.push(1000.0 * start.elapsed().as_secs_f64());
        if method != Method::Exact {
            recall += found.recall(&snapshot.search(Method::Exact, queries, filter).unwrap());
        }
    }
    let count = times.len();
    let mean = times.iter().sum::<f64>() / count as f64;
    times.sort_by(f64::total_cmp);
    let (median, p95) = (times[count / 2], times[count * 95 / 100]);
    let recall = if method == Method::Exact { 1.0 } else { recall / count as f64 };
    println!(
        "{name}, k {k}: mean {mean:.2} ms, median {median:.2} ms, p95 {p95:.2} ms, recall {recall:.4}"
    );
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
    let [rows, width, count] = arguments.as_slice() else {
        println!("usage: search ROWS WIDTH QUERIES");
        return;
    };
    let [rows, width, count]: [usize; 3] = [rows, width, count].map(|text| text.parse().unwrap());
    let Some(server) = TestServer::start() else { return };
    let mut random = Normal(3);
    let centres: Vec<f32> = (0..CENTRES * width).map(|_| random.next()).collect();
    let queries = vectors(&mut random, &centres, width, count);
    let keys = vectors(&mut random, &centres, width, rows);
    let format = MemoryFormat { width, normalised: true, values: None };
    let batches = (0..rows).step_by(BATCH_ROWS).map(|first| {
        let last = rows.min(first + BATCH_ROWS);
        let entries = (first..last).map(entry).collect();
        Ok(Batch { entries, keys: keys[first * width..last * width].to_vec(), values: Vec::new() })
    });
    let seconds = |start: Instant| start.elapsed().as_secs_f64();
    let start = Instant::now();
    let url = server.url("bench");
    let connect = Connect::default();
    let store = PostgresStore::create(&url, connect, format, Vec::new(), rows, batches).unwrap();
    println!(
        "build with indexes: {:.1} s, {:.0} rows/s",
        seconds(start),
        rows as f64 / seconds(start)
    );
    let start = Instant::now();
    store.index(GraphSettings::default()).unwrap();
    println!("graph: {:.1} s", seconds(start));
    store.reload().unwrap();
    let snapshot = store.snapshot();
    println!("{:.0} bytes per entry", snapshot.info().unwrap().bytes_per_row);

    let searched = |sources: &[&str]| Filter {
        sources: Some(sources.iter().map(|name| (*name).to_owned()).collect()),
        ..Filter::default()
    };
    let gated = Filter {
        gates: Some(Gates {
            sources: SOURCES.map(|(name, _)| name.to_owned()).to_vec(),
            weights: vec![0.5, 0.3, 0.2],
        }),
        ..Filter::default()
    };
    let queries = (queries.as_slice(), width);
    for (k, candidates) in [(10, 100), (100, 200), (100, 300), (100, 400)] {
        let method = (Method::Graph { candidates }, k);
        let name = format!("graph, {candidates} candidates");
        time(snapshot.as_ref(), &name, method, queries, &Filter::default());
    }
    let method = (Method::Graph { candidates: 300 }, 100);
    let large = "graph, 300 candidates, 75 % source";
    time(snapshot.as_ref(), large, method, queries, &searched(&["wiki"]));
    time(
        snapshot.as_ref(),
        "graph, 300 candidates, 5 % source",
        method,
        queries,
        &searched(&["kg"]),
    );
    time(snapshot.as_ref(), "graph, 300 candidates, gates", method, queries, &gated);
    time(snapshot.as_ref(), "exact", (Method::Exact, 100), queries, &Filter::default());
    time(snapshot.as_ref(), "exact, gates", (Method::Exact, 100), queries, &gated);

    let start = Instant::now();
    let changes = 100;
    for change in 0..changes {
        let id = rows + change;
        let key = keys[change * width..][..width].to_vec();
        let batch = Batch { entries: vec![entry(id)], keys: key, values: Vec::new() };
        let mut transaction = store.begin().unwrap();
        transaction.add(1, &mut std::iter::once(Ok(batch))).unwrap();
        transaction.delete(&[change as i64]).unwrap();
        transaction.commit().unwrap();
        store.reload().unwrap();
    }
    println!("a change of two entries: {:.2} ms", 1000.0 * seconds(start) / changes as f64);
}
