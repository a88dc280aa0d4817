//! Tests of graph search with both kinds of graphs: recall, filters, and the switch to exact search.
#![allow(clippy::unwrap_used)]

mod plain;

use engram_memory::search::exact::Exact;
use engram_memory::search::graph::{GraphKind, GraphSettings};
use engram_memory::search::graph_search::GraphSearch;
use engram_memory::search::{Filter, Gates, Index, Queries, SearchResults};
use engram_memory::{Generation, MemoryFormat, Snapshot, Writer};
use plain::{Rng, batch, folder};

const KINDS: [GraphKind; 2] = [GraphKind::Vamana, GraphKind::Hnsw];
const ROWS: i64 = 4000;
const WIDTH: usize = 24;
const QUERIES: usize = 100;

/// The files of a graph of a narrow memory.
fn graph_files(kind: GraphKind) -> &'static [&'static str] {
    match kind {
        GraphKind::Vamana => &["graph-0-lists.safetensors", "graph-0-upper.safetensors"],
        GraphKind::Hnsw => &[
            "graph-0-offsets.safetensors",
            "graph-0-neighbours.safetensors",
            "graph-0-upper.safetensors",
        ],
    }
}

/// A memory with clustered keys in two segments; only the first has a graph.
fn memory(folder: &std::path::Path, kind: GraphKind) -> Writer {
    let format = MemoryFormat { width: WIDTH, normalised: true, values: None };
    let mut rng = Rng::new(4);
    let centres: Vec<f32> = (0..40 * WIDTH).map(|_| rng.uniform()).collect();
    let mut rows = |ids: std::ops::Range<i64>| {
        let mut rows = batch(&mut rng, format, &ids.collect::<Vec<_>>());
        for (row, entry) in rows.entries.iter_mut().enumerate() {
            let centre = rng.below(40) as usize;
            for i in 0..WIDTH {
                rows.keys[row * WIDTH + i] = centres[centre * WIDTH + i] + 0.4 * rng.uniform();
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
    let settings = GraphSettings { kind, connections: 16, ef_construction: 100 };
    writer.index(settings, || ()).unwrap();
    writer.add(50, [Ok(rows(ROWS..ROWS + 50))].into_iter()).unwrap();
    writer.delete(&(0..ROWS).filter(|id| id % 9 == 0).collect::<Vec<_>>()).unwrap();
    writer
}

fn queries() -> Vec<f32> {
    let mut rng = Rng::new(11);
    (0..QUERIES * WIDTH).map(|_| 3.0 * rng.uniform()).collect()
}

/// Returns the recall relative to the exact result, and checks that scores equal the exact scores.
fn recall(results: &SearchResults, exact: &SearchResults) -> f64 {
    let (mut correct, mut total) = (0, 0);
    for (hits, exact_hits) in results.hits.iter().zip(&exact.hits) {
        assert_eq!(hits.len(), exact_hits.len());
        for exact_hit in exact_hits {
            total += 1;
            if let Some(hit) = hits.iter().find(|hit| hit.id == exact_hit.id) {
                assert_eq!(hit, exact_hit);
                correct += 1;
            }
        }
    }
    correct as f64 / total as f64
}

/// Searches a generation through its graphs and exactly. Returns the recall.
fn graph_recall(generation: &Generation, filter: &Filter, k: usize) -> f64 {
    let keys = queries();
    let queries = Queries { keys: &keys, k };
    let graph = GraphSearch::open(generation, GraphSearch::EF_SEARCH).unwrap();
    assert!(generation.description().has_graph);
    let results = graph.search(generation, queries, filter).unwrap();
    let exact = Exact.search(generation, queries, filter).unwrap();
    recall(&results, &exact)
}

#[test]
fn recall_is_high_with_every_filter() {
    KINDS.into_iter().for_each(check_recall_with_every_filter);
}

fn check_recall_with_every_filter(kind: GraphKind) {
    let temporary = folder();
    let writer = memory(&temporary.path().join("m"), kind);
    let generation = writer.generation();
    let sources = generation.manifest().sources.clone();
    let rare_source = sources.iter().position(|name| name == "rare").unwrap();
    let of_sources = |names: &[&str]| Filter {
        sources: Some(names.iter().map(|name| name.to_string()).collect()),
        ..Filter::default()
    };
    let documents = (0..QUERIES).map(|query| vec![format!("d{}", query % 3)]).collect();
    let with_gates = |weights: Vec<f32>| Filter {
        gates: Some(Gates { sources: sources.clone(), weights }),
        ..Filter::default()
    };
    let gates =
        |query: usize| (0..sources.len()).map(move |s| 0.1 + ((query + s) % 4) as f32 / 4.0);
    for (name, filter) in [
        ("everything", Filter::default()),
        ("two sources", of_sources(&["wit", "kg"])),
        ("documents", Filter { excluded_documents: documents, ..Filter::default() }),
        ("gates", with_gates((0..QUERIES).flat_map(gates).collect())),
    ] {
        for k in [1, 10, 100] {
            let recall = graph_recall(generation, &filter, k);
            println!("{kind:?}, {name}, k {k}: recall {recall:.4}");
            assert!(recall >= 0.95, "{kind:?}, {name}, k {k}: recall {recall}");
        }
    }
    // If few rows remain, or a gate is 0 or below, the search is exact.
    assert_eq!(graph_recall(generation, &of_sources(&["rare"]), 10), 1.0);
    let mut zeros = vec![0.0; QUERIES * sources.len()];
    zeros.iter_mut().skip(rare_source).step_by(sources.len()).for_each(|gate| *gate = 1.0);
    assert_eq!(graph_recall(generation, &with_gates(zeros), 10), 1.0);
    // `k` exceeds the number of entries.
    assert_eq!(graph_recall(generation, &Filter::default(), 5000), 1.0);
}

#[test]
fn a_zero_or_negative_gate_of_a_single_source_is_applied() {
    let temporary = folder();
    let format = MemoryFormat { width: WIDTH, normalised: true, values: None };
    let mut rows = batch(&mut Rng::new(6), format, &(0..500).collect::<Vec<_>>());
    rows.entries.iter_mut().for_each(|entry| entry.source = "wit".to_owned());
    let mut writer =
        Writer::create(temporary.path().join("m"), format, 500, [Ok(rows)].into_iter()).unwrap();
    writer.index(GraphSettings::of(GraphKind::Hnsw), || ()).unwrap();
    for gate in [-1.0, 0.0] {
        let gates = Gates { sources: vec!["wit".to_owned()], weights: vec![gate; QUERIES] };
        let filter = Filter { gates: Some(gates), ..Filter::default() };
        assert_eq!(graph_recall(writer.generation(), &filter, 10), 1.0, "gate {gate}");
    }
}

#[test]
fn recall_is_high_with_repeated_keys() {
    let temporary = folder();
    let format = MemoryFormat { width: WIDTH, normalised: true, values: None };
    let mut rng = Rng::new(12);
    let distinct: Vec<f32> = (0..40 * WIDTH).map(|_| rng.uniform()).collect();
    let mut rows = batch(&mut rng, format, &(0..2000).collect::<Vec<_>>());
    for key in rows.keys.chunks_mut(WIDTH) {
        key.copy_from_slice(&distinct[rng.below(40) as usize * WIDTH..][..WIDTH]);
    }
    let mut writer =
        Writer::create(temporary.path().join("m"), format, 2000, [Ok(rows)].into_iter()).unwrap();
    // By rounding, the product of a key with itself may exceed 1.
    writer.index(GraphSettings::of(GraphKind::Hnsw), || ()).unwrap();
    let (generation, keys) = (writer.generation(), queries());
    let graph = GraphSearch::open(generation, GraphSearch::EF_SEARCH).unwrap();
    let request = Queries { keys: &keys, k: 10 };
    let results = graph.search(generation, request, &Filter::default()).unwrap();
    let exact = Exact.search(generation, request, &Filter::default()).unwrap();
    assert!(results.recall(&exact) >= 0.95, "recall {}", results.recall(&exact));
}

#[test]
fn invalid_graph_settings_are_refused() {
    let temporary = folder();
    let format = MemoryFormat { width: WIDTH, normalised: true, values: None };
    let rows = batch(&mut Rng::new(6), format, &[1, 2]);
    let mut writer =
        Writer::create(temporary.path().join("m"), format, 2, [Ok(rows)].into_iter()).unwrap();
    for (connections, ef_construction) in [(1, 10), (257, 10), (16, 0), (16, 1 << 50)] {
        let settings = GraphSettings { connections, ef_construction, ..GraphSettings::default() };
        let error = writer.index(settings, || ()).unwrap_err().to_string();
        assert!(error.contains("must be 2 to 256, with 1 to 100,000 candidates"), "{error}");
    }
}

#[test]
fn copies_of_a_key_do_not_hide_other_keys() {
    let temporary = folder();
    let format = MemoryFormat { width: 16, normalised: true, values: None };
    let mut rng = Rng::new(21);
    let keys: Vec<f32> = (0..40 * 16).map(|_| rng.uniform()).collect();
    let entries = (0..4000).map(engram_memory::Entry::bare).collect();
    let batch = engram_memory::Batch { entries, keys: keys.repeat(100), values: Vec::new() };
    let folder = temporary.path().join("m");
    let mut writer = Writer::create(folder, format, 4000, [Ok(batch)].into_iter()).unwrap();
    writer.index(GraphSettings::of(GraphKind::Hnsw), || ()).unwrap();
    let graphs = GraphSearch::open(writer.generation(), GraphSearch::EF_SEARCH).unwrap();
    for k in [10, 100, 250] {
        let queries = Queries { keys: &keys, k };
        let search = |index: &dyn Index| {
            index.search(writer.generation(), queries, &Filter::default()).unwrap()
        };
        assert_eq!(search(&graphs).recall(&search(&Exact)), 1.0, "k {k}");
    }
}

#[test]
fn equal_keys_give_equal_graphs() {
    for kind in KINDS {
        let temporary = folder();
        let files = ["a", "b"].map(|name| {
            let folder = temporary.path().join(name);
            drop(memory(&folder, kind));
            let read = |file: &&str| std::fs::read(folder.join("gen-000002").join(file)).unwrap();
            graph_files(kind).iter().map(read).collect::<Vec<_>>()
        });
        assert!(files[0] == files[1]);
    }
}

#[test]
fn a_damaged_graph_is_refused() {
    KINDS.into_iter().for_each(check_damaged_graph);
}

fn check_damaged_graph(kind: GraphKind) {
    let temporary = folder();
    let folder = temporary.path().join("m");
    drop(memory(&folder, kind));
    let queries = queries();
    let mut rng = Rng::new(2);
    for file in graph_files(kind) {
        let path = folder.join("gen-000002").join(file);
        let original = std::fs::read(&path).unwrap();
        let search = || {
            let generation = engram_memory::Memory::open(&folder).unwrap().generation();
            let damaged_files = generation.verify().len();
            let search = |graphs: GraphSearch| {
                let queries = Queries { keys: &queries, k: 10 };
                graphs.search(&generation, queries, &Filter::default())
            };
            (damaged_files, GraphSearch::open(&generation, 10).and_then(search))
        };
        assert!(matches!(search(), (0, Ok(_))));
        for _ in 0..20 {
            let mut bytes = original.clone();
            bytes[rng.below(original.len() as u64) as usize] ^= 1 << rng.below(8);
            std::fs::write(&path, bytes).unwrap();
            let (damaged_files, results) = search();
            let error = results.unwrap_err().to_string();
            assert!(error.contains(&format!("{file}: was changed between")), "{error}");
            assert_eq!(damaged_files, 1);
        }
        for content in [None, Some(&original[..original.len() - 3])] {
            std::fs::remove_file(&path).unwrap();
            content.inspect(|bytes| std::fs::write(&path, bytes).unwrap());
            let (damaged_files, results) = search();
            assert!(damaged_files == 1 && results.is_err());
            std::fs::write(&path, &original).unwrap();
        }
    }
}
