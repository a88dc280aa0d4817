//! Tests of graph search: recall, filters, and the switch to exact search.
#![allow(clippy::unwrap_used)]

mod plain;

use engram_memory::search::exact::Exact;
use engram_memory::search::graph::GraphSettings;
use engram_memory::search::hnsw::Hnsw;
use engram_memory::search::{Filter, Index, Queries, SearchResults};
use engram_memory::{Generation, MemoryFormat, Writer};
use plain::{Numbers, batch, folder};

const GRAPH: [&str; 3] =
    ["graph-0-offsets.safetensors", "graph-0-neighbours.safetensors", "graph-0-upper.safetensors"];
const ROWS: i64 = 4000;
const WIDTH: usize = 24;
const QUERIES: usize = 100;

/// A memory with clustered keys in two segments; only the first has a graph.
fn memory(folder: &std::path::Path) -> Writer {
    let format = MemoryFormat { width: WIDTH, normalised: true, values: None };
    let mut next = Numbers::new(4);
    let centres: Vec<f32> = (0..40 * WIDTH).map(|_| next.uniform()).collect();
    let mut rows = |ids: std::ops::Range<i64>| {
        let mut rows = batch(&mut next, format, &ids.collect::<Vec<_>>());
        for (row, entry) in rows.entries.iter_mut().enumerate() {
            let centre = next.below(40) as usize;
            for at in 0..WIDTH {
                rows.keys[row * WIDTH + at] = centres[centre * WIDTH + at] + 0.4 * next.uniform();
            }
            if row % 200 == 0 {
                entry.source = "rare".to_owned();
            }
        }
        rows
    };
    let first = rows(0..ROWS);
    let mut writer =
        Writer::create(folder, format, ROWS as usize, [Ok(first)].into_iter()).unwrap();
    let settings = GraphSettings { connections: 16, ef_construction: 100 };
    writer.index(settings, || ()).unwrap();
    writer.add(50, [Ok(rows(ROWS..ROWS + 50))].into_iter()).unwrap();
    writer.delete(&(0..ROWS).filter(|id| id % 9 == 0).collect::<Vec<_>>()).unwrap();
    writer
}

fn queries() -> Vec<f32> {
    let mut next = Numbers::new(11);
    (0..QUERIES * WIDTH).map(|_| 3.0 * next.uniform()).collect()
}

/// Returns the recall relative to the exact result, and checks that scores equal the exact scores.
fn recall(found: &SearchResults, exact: &SearchResults) -> f64 {
    let (mut correct, mut all) = (0, 0);
    for (found, exact) in found.hits.iter().zip(&exact.hits) {
        assert_eq!(found.len(), exact.len());
        for hit in exact {
            all += 1;
            if let Some(same) = found.iter().find(|found| found.id == hit.id) {
                assert_eq!(same, hit);
                correct += 1;
            }
        }
    }
    correct as f64 / all as f64
}

fn both(generation: &Generation, filter: &Filter, k: usize) -> f64 {
    let keys = queries();
    let queries = Queries { keys: &keys, k };
    let graph = Hnsw::open(generation, Hnsw::EF_SEARCH).unwrap();
    assert!(graph.has_graphs());
    let found = graph.search(generation, queries, filter).unwrap();
    let exact = Exact.search(generation, queries, filter).unwrap();
    recall(&found, &exact)
}

#[test]
fn recall_is_high_with_every_filter() {
    let temporary = folder();
    let writer = memory(&temporary.path().join("m"));
    let generation = writer.generation();
    let sources = generation.manifest().sources.clone();
    let rare = sources.iter().position(|name| name == "rare").unwrap();
    let of_sources = |names: &[&str]| Filter {
        sources: Some(names.iter().map(|name| name.to_string()).collect()),
        ..Filter::default()
    };
    let documents = (0..QUERIES).map(|query| vec![format!("d{}", query % 3)]).collect();
    let gates =
        |query: usize| (0..sources.len()).map(move |s| 0.1 + ((query + s) % 4) as f32 / 4.0);
    for (name, filter) in [
        ("everything", Filter::default()),
        ("two sources", of_sources(&["wit", "kg"])),
        ("documents", Filter { excluded_documents: documents, ..Filter::default() }),
        (
            "gates",
            Filter { gates: Some((0..QUERIES).flat_map(gates).collect()), ..Filter::default() },
        ),
    ] {
        for k in [1, 10, 100] {
            let recall = both(generation, &filter, k);
            println!("{name}, k {k}: recall {recall:.4}");
            assert!(recall >= 0.95, "{name}, k {k}: recall {recall}");
        }
    }
    // If few rows remain, or a gate is 0 or below, the search is exact.
    assert_eq!(both(generation, &of_sources(&["rare"]), 10), 1.0);
    let mut zeros = vec![0.0; QUERIES * sources.len()];
    zeros.iter_mut().skip(rare).step_by(sources.len()).for_each(|gate| *gate = 1.0);
    assert_eq!(both(generation, &Filter { gates: Some(zeros), ..Filter::default() }, 10), 1.0);
    // `k` exceeds the number of entries.
    assert_eq!(both(generation, &Filter::default(), 5000), 1.0);
}

#[test]
fn a_zero_or_negative_gate_of_a_single_source_is_applied() {
    let temporary = folder();
    let format = MemoryFormat { width: WIDTH, normalised: true, values: None };
    let mut rows = batch(&mut Numbers::new(6), format, &(0..500).collect::<Vec<_>>());
    rows.entries.iter_mut().for_each(|entry| entry.source = "wit".to_owned());
    let mut writer =
        Writer::create(temporary.path().join("m"), format, 500, [Ok(rows)].into_iter()).unwrap();
    writer.index(GraphSettings::default(), || ()).unwrap();
    for gate in [-1.0, 0.0] {
        let filter = Filter { gates: Some(vec![gate; QUERIES]), ..Filter::default() };
        assert_eq!(both(writer.generation(), &filter, 10), 1.0, "gate {gate}");
    }
}

#[test]
fn repeated_keys_have_a_graph() {
    let temporary = folder();
    let format = MemoryFormat { width: WIDTH, normalised: true, values: None };
    let mut next = Numbers::new(12);
    let different: Vec<f32> = (0..40 * WIDTH).map(|_| next.uniform()).collect();
    let mut rows = batch(&mut next, format, &(0..2000).collect::<Vec<_>>());
    for key in rows.keys.chunks_mut(WIDTH) {
        key.copy_from_slice(&different[next.below(40) as usize * WIDTH..][..WIDTH]);
    }
    let mut writer =
        Writer::create(temporary.path().join("m"), format, 2000, [Ok(rows)].into_iter()).unwrap();
    // Rounding makes the product of a key with itself exceed 1.
    writer.index(GraphSettings::default(), || ()).unwrap();
    let (generation, keys) = (writer.generation(), queries());
    let graph = Hnsw::open(generation, Hnsw::EF_SEARCH).unwrap();
    let request = Queries { keys: &keys, k: 10 };
    let found = graph.search(generation, request, &Filter::default()).unwrap();
    let exact = Exact.search(generation, request, &Filter::default()).unwrap();
    assert!(found.recall(&exact) >= 0.95, "recall {}", found.recall(&exact));
}

#[test]
fn invalid_graph_settings_are_refused() {
    let temporary = folder();
    let format = MemoryFormat { width: WIDTH, normalised: true, values: None };
    let rows = batch(&mut Numbers::new(6), format, &[1, 2]);
    let mut writer =
        Writer::create(temporary.path().join("m"), format, 2, [Ok(rows)].into_iter()).unwrap();
    for (connections, ef_construction) in [(1, 10), (257, 10), (16, 0), (16, 1 << 50)] {
        let settings = GraphSettings { connections, ef_construction };
        let error = writer.index(settings, || ()).unwrap_err().to_string();
        assert!(error.contains("must be 2 to 256, with 1 to 100,000 candidates"), "{error}");
    }
}

#[test]
fn copies_of_a_key_do_not_hide_the_others() {
    let temporary = folder();
    let format = MemoryFormat { width: 16, normalised: true, values: None };
    let mut next = Numbers::new(21);
    let keys: Vec<f32> = (0..40 * 16).map(|_| next.uniform()).collect();
    let entries = (0..4000).map(engram_memory::Entry::bare).collect();
    let batch = engram_memory::Batch { entries, keys: keys.repeat(100), values: Vec::new() };
    let folder = temporary.path().join("m");
    let mut writer = Writer::create(folder, format, 4000, [Ok(batch)].into_iter()).unwrap();
    writer.index(GraphSettings::default(), || ()).unwrap();
    let graphs = Hnsw::open(writer.generation(), Hnsw::EF_SEARCH).unwrap();
    for k in [10, 100, 250] {
        let queries = Queries { keys: &keys, k };
        let find = |index: &dyn Index| {
            index.search(writer.generation(), queries, &Filter::default()).unwrap()
        };
        assert_eq!(find(&graphs).recall(&find(&Exact)), 1.0, "k {k}");
    }
}

#[test]
fn the_same_keys_give_the_same_graph() {
    let temporary = folder();
    let files = ["a", "b"].map(|name| {
        let folder = temporary.path().join(name);
        drop(memory(&folder));
        GRAPH.map(|file| std::fs::read(folder.join("gen-000002").join(file)).unwrap())
    });
    assert!(files[0] == files[1]);
}

#[test]
fn a_damaged_graph_is_refused() {
    let temporary = folder();
    let folder = temporary.path().join("m");
    drop(memory(&folder));
    let queries = queries();
    let mut next = Numbers::new(2);
    for file in GRAPH {
        let path = folder.join("gen-000002").join(file);
        let original = std::fs::read(&path).unwrap();
        let search = || {
            let generation = engram_memory::Memory::open(&folder).unwrap().generation();
            let faults = generation.verify().len();
            let search = |graphs: Hnsw| {
                let queries = Queries { keys: &queries, k: 10 };
                graphs.search(&generation, queries, &Filter::default())
            };
            (faults, Hnsw::open(&generation, 10).and_then(search))
        };
        assert!(matches!(search(), (0, Ok(_))));
        for _ in 0..20 {
            let mut bytes = original.clone();
            bytes[next.below(original.len() as u64) as usize] ^= 1 << next.below(8);
            std::fs::write(&path, bytes).unwrap();
            let (faults, found) = search();
            let error = found.unwrap_err().to_string();
            assert!(error.contains(&format!("{file}: was changed between")), "{error}");
            assert_eq!(faults, 1);
        }
        for rest in [None, Some(&original[..original.len() - 3])] {
            std::fs::remove_file(&path).unwrap();
            rest.inspect(|bytes| std::fs::write(&path, bytes).unwrap());
            let (faults, found) = search();
            assert!(faults == 1 && found.is_err());
            std::fs::write(&path, &original).unwrap();
        }
    }
}
