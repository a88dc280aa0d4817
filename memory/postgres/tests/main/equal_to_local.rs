//! A memory on one server or three gives the results of a local memory with the same entries.
//!
//! ```sh
//! ENGRAM_RANDOM_QUERIES=10000 cargo test --release -p engram-memory-postgres --test main equal_to_local -- --ignored
//! ```

use crate::server::{TestServer, create_on, delete};
use crate::support::*;
use engram_memory_postgres::{Connect, GraphSettings, PostgresStore, PushOptions, push};

const ENTRIES: usize = 5000;
const WIDTH: usize = 40;

/// Entries of three sources of different sizes. Some keys are equal, and many are nearly equal in
/// single precision.
fn entries(rng: &mut Rng, normalised: bool) -> Batch {
    let mut batch = Batch::default();
    let centres: Vec<Vec<f32>> =
        (0..50).map(|_| (0..WIDTH).map(|_| rng.uniform()).collect()).collect();
    for number in 0..ENTRIES {
        let mut entry = Entry::bare((number as i64 * 7919) % 65_537);
        entry.source =
            ["wiki", "vqa", "kg"][(rng.below(20) as usize).saturating_sub(16).min(2)].to_owned();
        entry.document = (rng.below(2) == 0).then(|| format!("d{}", rng.below(30)));
        let words = ["bern", "city", "river", "the", "of", "lake", "swiss"];
        let text: Vec<&str> =
            (0..rng.below(8)).map(|_| words[rng.below(words.len() as u64) as usize]).collect();
        entry.payload.insert("text".to_owned(), text.join(" ").into());
        entry.payload.insert("size".to_owned(), 1e300.into());
        batch.entries.push(entry);
        let centre = &centres[rng.below(50) as usize];
        let scale = if normalised { 1.0 } else { 0.5 + rng.below(3) as f32 };
        // A distance of 0 gives equal keys; a distance of 1e-7 gives keys that differ in few bits.
        let distance = [0.0, 1e-7, 1e-6, 0.3, 1.0][rng.below(5) as usize];
        let key = centre.iter().map(|number| scale * (number + distance * rng.uniform()));
        batch.keys.extend(key);
        batch.values.extend((0..6).map(|_| rng.uniform()));
    }
    batch
}

fn random_filter(rng: &mut Rng, queries: usize, ids: &[i64]) -> Filter {
    let names = ["wiki", "vqa", "kg"].map(str::to_owned);
    let mut filter = Filter::default();
    if rng.below(2) == 0 {
        filter.sources = Some(names.iter().filter(|_| rng.below(2) == 0).cloned().collect());
    }
    if rng.below(4) == 0 {
        filter.ids = Some(ids.iter().copied().filter(|_| rng.below(10) == 0).collect());
    }
    if rng.below(2) == 0 {
        filter.excluded_documents = (0..queries)
            .map(|_| (0..rng.below(4)).map(|_| format!("d{}", rng.below(30))).collect())
            .collect();
    }
    if rng.below(2) == 0 {
        let weights = (0..queries * names.len()).map(|_| rng.below(6) as f32 / 4.0 - 0.25);
        filter.gates = Some(Gates { sources: names.to_vec(), weights: weights.collect() });
    }
    filter
}

/// The hits without their rows, which differ between stores.
fn without_rows(results: &SearchResults) -> Vec<Vec<(i64, u32, u32)>> {
    let hit = |hit: &Hit| (hit.id, hit.score.to_bits(), hit.source);
    results.hits.iter().map(|hits| hits.iter().map(hit).collect()).collect()
}

#[test]
#[ignore = "needs ENGRAM_POSTGRES: see server/mod.rs"]
fn exact_and_text_searches_equal_those_of_a_local_memory() {
    let server = TestServer::shared();
    searches_equal_those_of_a_local_memory(std::slice::from_ref(server), 1000);
}

#[test]
#[ignore = "needs ENGRAM_POSTGRES: see server/mod.rs"]
fn exact_and_text_searches_on_three_servers_equal_those_of_a_local_memory() {
    let servers = TestServer::shared_three();
    searches_equal_those_of_a_local_memory(servers, 400);
}

/// Compares random filtered queries: this many, or as many as the variable `ENGRAM_RANDOM_QUERIES`
/// says.
fn searches_equal_those_of_a_local_memory(servers: &[TestServer], queries: usize) {
    let count = std::env::var("ENGRAM_RANDOM_QUERIES").map_or(queries, |n| n.parse().unwrap());
    for (normalised, dtype) in [(true, ValueDtype::F16), (false, ValueDtype::Int4)] {
        let mut rng = Rng::new(u64::from(normalised));
        let values = Some(ValueFormat { tokens: 2, width: 3, dtype });
        let format = MemoryFormat { width: WIDTH, normalised, values };
        let batch = entries(&mut rng, normalised);
        let (_temporary, path) = new_path();
        Writer::create(&path, format, ENTRIES, [Ok(batch.clone())].into_iter()).unwrap();
        let local = Memory::open(&path).unwrap();
        let name = format!("{}_{normalised}", servers.len());
        let remote = create_on(servers, &name, format, &batch);
        if normalised {
            // An exact search does not use graphs.
            remote.index(GraphSettings::default()).unwrap();
        }
        // Deleted entries are not found, and do not count.
        let deleted: Vec<i64> = batch.entries.iter().step_by(9).map(|entry| entry.id).collect();
        for store in [&local as &dyn Store, &remote] {
            delete(store, &deleted);
            store.reload().unwrap();
        }
        let (local, remote) = (local.generation(), remote.snapshot());
        let mut ids: Vec<i64> = batch.entries.iter().map(|entry| entry.id).collect();
        ids.retain(|id| !deleted.contains(id));
        for number in 0..count / 4 {
            let mut keys: Vec<f32> = (0..2 * WIDTH).map(|_| rng.uniform()).collect();
            if rng.below(2) == 0 {
                // A query near a key.
                let row = rng.below(ENTRIES as u64) as usize;
                keys[..WIDTH].copy_from_slice(&batch.keys[row * WIDTH..][..WIDTH]);
            }
            let k = [1, 10, 100, 6000][rng.below(40) as usize / 13];
            let filter = random_filter(&mut rng, 2, &ids);
            let queries = Queries { keys: &keys, k };
            let [expected, found] = [local.as_ref() as &dyn Snapshot, remote.as_ref()]
                .map(|snapshot| snapshot.search(Method::Exact, queries, &filter));
            let (expected, found) = (expected.unwrap(), found.unwrap());
            assert_eq!(without_rows(&found), without_rows(&expected), "{number}: {filter:?}");
            if number % 10 == 0 {
                let rows = |results: &SearchResults| -> Vec<_> {
                    results.hits.iter().flatten().map(|hit| hit.row).collect()
                };
                let (expected, found) = (rows(&expected), rows(&found));
                assert_eq!(remote.keys(&found).unwrap(), local.keys(&expected).unwrap());
                assert_eq!(remote.values(&found).unwrap(), local.values(&expected).unwrap());
                assert_eq!(remote.entries(&found).unwrap(), local.entries(&expected).unwrap());
            }
            let texts = ["the swiss city", "lake lake of nothing"];
            let [expected, found] = [local.as_ref() as &dyn Snapshot, remote.as_ref()]
                .map(|snapshot| snapshot.search_texts(&texts, k, &filter).unwrap());
            assert_eq!(without_rows(&found), without_rows(&expected), "{number}: {filter:?}");
        }
        for (filter, keys, k) in [
            (Filter { sources: Some(vec!["none".into()]), ..Filter::default() }, WIDTH, 1),
            (Filter { ids: Some(vec![ids[0], deleted[0]]), ..Filter::default() }, WIDTH, 1),
            (Filter { gates: Some(Gates::default()), ..Filter::default() }, WIDTH, 1),
            (Filter { excluded_documents: vec![vec![]; 2], ..Filter::default() }, WIDTH, 1),
            (Filter::default(), WIDTH + 1, 1),
            (Filter::default(), WIDTH, 0),
        ] {
            let queries = Queries { keys: &vec![1.0; keys], k };
            let [expected, found] = [local.as_ref() as &dyn Snapshot, remote.as_ref()]
                .map(|snapshot| snapshot.search(Method::Exact, queries, &filter).unwrap_err());
            assert_eq!(found.to_string(), expected.to_string());
        }
        let (mut expected, found) = (local.info().unwrap(), remote.info().unwrap());
        assert!(found.bytes > (ENTRIES * WIDTH * 4) as u64 && found.bytes_per_row > 160.0);
        (expected.generation, expected.bytes) = (found.generation, found.bytes);
        expected.bytes_per_row = found.bytes_per_row;
        assert_eq!(found, expected);
    }
}

#[test]
#[ignore = "needs ENGRAM_POSTGRES: see server/mod.rs"]
fn graph_search_finds_nearly_all_with_every_filter() {
    let server = TestServer::start();
    let mut rng = Rng::new(5);
    let format = MemoryFormat { width: WIDTH, normalised: true, values: None };
    let mut batch = entries(&mut rng, true);
    batch.values.clear();
    // Keys in all directions are harder than clusters.
    batch.keys.iter_mut().for_each(|number| *number += rng.uniform());
    let store = server.create("graph", format, &batch);
    assert!(!store.snapshot().description().has_graph);
    store.index(GraphSettings::default()).unwrap();
    store.reload().unwrap();
    let snapshot = store.snapshot();
    assert!(snapshot.description().has_graph);
    let ids: Vec<i64> = batch.entries.iter().map(|entry| entry.id).collect();
    let (mut recall, searches) = (0.0, 100);
    for _ in 0..searches {
        let keys: Vec<f32> = (0..2 * WIDTH).map(|_| rng.uniform()).collect();
        let filter = random_filter(&mut rng, 2, &ids);
        let queries = Queries { keys: &keys, k: 10 };
        let exact = snapshot.search(Method::Exact, queries, &filter).unwrap();
        let graph = Method::Graph { candidates: 100 };
        let found = snapshot.search(graph, queries, &filter).unwrap();
        for (found, exact) in found.hits.iter().zip(&exact.hits) {
            assert_eq!(found.len(), exact.len());
        }
        recall += found.recall(&exact) / f64::from(searches);
    }
    assert!(recall > 0.98, "{recall}");
    // The server's plans have the indexes of the graphs. Small sources are searched exactly.
    let mut admin = server.admin("memories");
    let used = "SELECT sum(idx_scan)::bigint FROM pg_stat_user_indexes \
                WHERE schemaname = 'engram_graph' AND pg_get_indexdef(indexrelid) LIKE '%hnsw%'";
    // Statistics of a connection are visible once it ends.
    drop((snapshot, store));
    std::thread::sleep(std::time::Duration::from_secs(2));
    let scans: i64 = admin.query_one(used, &[]).unwrap().get(0);
    assert!(scans >= i64::from(searches / 2), "{scans}");
}

#[test]
#[ignore = "needs ENGRAM_POSTGRES: see server/mod.rs"]
fn only_memories_on_the_server_can_be_opened() {
    let server = TestServer::start();
    let format = MemoryFormat { width: 2, normalised: true, values: None };
    let (connect, url) = (Connect::default(), server.url("none"));
    let open = |url: &str| PostgresStore::open(url, connect);
    assert!(matches!(open(&url), Err(MemoryError::NoMemory { .. })));
    let other = url.replace("/memories?", "/other?");
    assert_refused(open(&other), ["\"other\" does not exist", "create the"]);
    assert_refused(open(&url.replace("app@", "nobody@")), ["\"nobody\" does not exist"]);
    let nowhere = "postgres://app@/memories?host=/nowhere";
    assert_refused(open(nowhere), ["/nowhere", "the server runs"]);
    server.admin("memories").batch_execute("DROP EXTENSION vector CASCADE").unwrap();
    let folder = folder();
    let writer = create(folder.path(), format, batch(&mut Rng::new(1), format, [1]));
    let (url, options) = (server.url("one"), PushOptions::default());
    let pushed = push(writer.generation(), &url, connect, options, &mut |_| {});
    assert_refused(pushed, ["CREATE EXTENSION vector"]);
}
