//! Tests of Vamana graphs: recall, determinism, unusual keys, edits, and old memories.
#![allow(clippy::unwrap_used)]

mod plain;

use std::fs;
use std::path::Path;

use engram_memory::search::exact::Exact;
use engram_memory::search::graph::{GraphKind, GraphSettings};
use engram_memory::search::graph_search::GraphSearch;
use engram_memory::search::{Filter, Gates, Index, Queries, SearchResults};
use engram_memory::{Batch, Entry, Generation, Memory, MemoryError, MemoryFormat, Writer};
use plain::{Rng, folder};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

/// A width with codes.
const WIDTH: usize = 70;
const QUERIES: usize = 100;

/// Keys around 30 centres, and queries around the same centres.
fn clustered(rows: usize, width: usize) -> (Vec<f32>, Vec<f32>) {
    let mut rng = Rng::new(5);
    let centres: Vec<f32> = (0..30 * width).map(|_| rng.uniform()).collect();
    let mut vectors = |count: usize| {
        let mut vectors = Vec::with_capacity(count * width);
        for _ in 0..count {
            let centre = rng.below(30) as usize * width;
            let centre = &centres[centre..centre + width];
            vectors.extend(centre.iter().map(|number| number + 0.5 * rng.uniform()));
        }
        vectors
    };
    (vectors(rows), vectors(QUERIES))
}

fn rows(first_id: i64, keys: &[f32], width: usize) -> Batch {
    let ids = first_id..first_id + (keys.len() / width) as i64;
    let entry = |id: i64| {
        let mut entry = Entry::bare(id);
        entry.source = ["kg", "wit"][id as usize % 2].to_owned();
        entry
    };
    Batch { entries: ids.map(entry).collect(), keys: keys.to_vec(), values: Vec::new() }
}

fn build(folder: &Path, keys: &[f32], width: usize) -> Writer {
    let format = MemoryFormat { width, normalised: true, values: None };
    let batch = rows(0, keys, width);
    let mut writer =
        Writer::create(folder, format, batch.entries.len(), [Ok(batch)].into_iter()).unwrap();
    writer.index(GraphSettings::default(), || ()).unwrap();
    writer
}

fn search(
    generation: &Generation,
    ef_search: usize,
    queries: Queries<'_>,
    filter: &Filter,
) -> (SearchResults, SearchResults) {
    let graphs = GraphSearch::open(generation, ef_search).unwrap();
    (
        graphs.search(generation, queries, filter).unwrap(),
        Exact.search(generation, queries, filter).unwrap(),
    )
}

fn recall(generation: &Generation, queries: &[f32], k: usize, filter: &Filter) -> f64 {
    let queries = Queries { keys: queries, k };
    let (found, exact) = search(generation, GraphSearch::EF_SEARCH, queries, filter);
    found.recall(&exact)
}

#[test]
fn recall_is_high_for_all_widths() {
    for (width, rows) in [(1, 50), (2, 1000), (3, 1000), (63, 3000), (64, 3000), (100, 5000)] {
        let temporary = folder();
        let (keys, queries) = clustered(rows, width);
        let writer = build(&temporary.path().join("m"), &keys, width);
        for k in [1, 10, 100] {
            let recall = recall(writer.generation(), &queries, k, &Filter::default());
            println!("width {width}, k {k}: recall {recall:.4}");
            assert!(recall >= 0.97, "width {width}, k {k}: recall {recall}");
        }
    }
}

#[test]
fn wide_keys_are_found() {
    for width in [384, 1000, 4096] {
        let temporary = folder();
        let (keys, queries) = clustered(300, width);
        let writer = build(&temporary.path().join("m"), &keys, width);
        let recall = recall(writer.generation(), &queries, 10, &Filter::default());
        assert!(recall >= 0.99, "width {width}: recall {recall}");
    }
}

#[test]
fn all_numbers_of_threads_build_the_same_graph() {
    for width in [8, WIDTH] {
        let temporary = folder();
        let (keys, _) = clustered(3000, width);
        let files = [1, 2, 5].map(|threads| {
            let folder = temporary.path().join(threads.to_string());
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| drop(build(&folder, &keys, width)));
            let mut files: Vec<_> = fs::read_dir(folder.join("gen-000002"))
                .unwrap()
                .map(|entry| entry.unwrap().path())
                .filter(|path| path.extension().is_some_and(|ending| ending == "safetensors"))
                .collect();
            files.sort();
            files.iter().map(|file| fs::read(file).unwrap()).collect::<Vec<_>>()
        });
        // Lists, layers and, for wide keys, codes.
        assert_eq!(files[0].len(), if width == 8 { 2 } else { 3 });
        assert!(files[0] == files[1] && files[0] == files[2], "width {width}");
    }
}

#[test]
fn memories_of_few_rows_are_searched() {
    for width in [2, WIDTH] {
        for count in [0, 1, 2, 3] {
            let temporary = folder();
            let (keys, queries) = clustered(count, width);
            let writer = build(&temporary.path().join("m"), &keys, width);
            let request = Queries { keys: &queries, k: 5 };
            let (found, exact) = search(writer.generation(), 8, request, &Filter::default());
            assert_eq!(found, exact, "{count} rows");
            assert!(found.hits.iter().all(|hits| hits.len() == count));
        }
    }
}

#[test]
fn thousands_of_equal_keys_do_not_split_the_graph() {
    for width in [16, WIDTH] {
        let temporary = folder();
        let (mut keys, queries) = clustered(6000, width);
        // Half of the rows have the same key, the others one of a thousand keys.
        let (repeated, keys_of_others) = keys.split_at_mut(3000 * width);
        let key = keys_of_others[..width].to_vec();
        repeated.chunks_mut(width).for_each(|copy| copy.copy_from_slice(&key));
        keys_of_others.copy_within(..1000 * width, 1000 * width);
        keys_of_others.copy_within(..1000 * width, 2000 * width);
        let mut writer = build(&temporary.path().join("m"), &keys, width);
        // Of some keys, the first row is deleted, but its copies stay.
        writer.delete(&(0..10).chain(3000..3100).collect::<Vec<_>>()).unwrap();
        for k in [1, 10, 100] {
            let recall = recall(writer.generation(), &queries, k, &Filter::default());
            assert!(recall >= 0.97, "width {width}, k {k}: recall {recall}");
        }
        let request = Queries { keys: &key, k: 20 };
        let (found, exact) = search(writer.generation(), 8, request, &Filter::default());
        assert_eq!(found, exact);
        assert_eq!(found.hits[0][0].id, 10);
    }
}

#[test]
fn thousands_of_nearly_equal_keys_do_not_split_the_graph() {
    for width in [16, WIDTH] {
        let temporary = folder();
        let (mut keys, queries) = clustered(6000, width);
        let mut rng = Rng::new(8);
        // Closer than codes can tell.
        let key: Vec<f32> = (0..width).map(|_| rng.uniform()).collect();
        for near in keys[..3000 * width].chunks_mut(width) {
            near.iter_mut().zip(&key).for_each(|(near, x)| *near = x + 1e-4 * rng.uniform());
        }
        let writer = build(&temporary.path().join("m"), &keys, width);
        for k in [1, 10, 100] {
            let recall = recall(writer.generation(), &queries, k, &Filter::default());
            assert!(recall >= 0.97, "width {width}, k {k}: recall {recall}");
        }
        let request = Queries { keys: &key, k: 20 };
        let (found, _) = search(writer.generation(), 64, request, &Filter::default());
        assert!(found.hits[0].iter().all(|hit| hit.id < 3000));
    }
}

#[test]
fn filters_and_deletes_keep_the_recall() {
    let temporary = folder();
    let (keys, queries) = clustered(5000, WIDTH);
    let mut writer = build(&temporary.path().join("m"), &keys, WIDTH);
    let deleted = |id: &i64| id % 5 == 2;
    writer.delete(&(0..5000).filter(deleted).collect::<Vec<_>>()).unwrap();
    let allow = |every: i64| {
        let ids = (0..5000).filter(|id| !deleted(id) && id % every == 0).collect();
        Filter { ids: Some(ids), ..Filter::default() }
    };
    let wit = Filter { sources: Some(vec!["wit".to_owned()]), ..Filter::default() };
    let weights = (0..QUERIES).flat_map(|query| [1.0, 0.5 + (query % 3) as f32 / 4.0]).collect();
    let gates = Gates { sources: writer.generation().manifest().sources.clone(), weights };
    let gates = Filter { gates: Some(gates), ..Filter::default() };
    for (name, filter, lowest) in [
        ("no filter", Filter::default(), 0.97),
        ("1 %", allow(100), 0.98),
        ("10 %", allow(10), 0.97),
        ("a source", wit, 0.97),
        ("gates", gates, 0.97),
    ] {
        for k in [1, 10] {
            let recall = recall(writer.generation(), &queries, k, &filter);
            println!("{name}, k {k}: recall {recall:.4}");
            assert!(recall >= lowest, "{name}, k {k}: recall {recall}");
        }
    }
}

#[test]
fn added_rows_are_found_before_and_after_the_next_index() {
    let temporary = folder();
    let (keys, queries) = clustered(4000, WIDTH);
    let (first, added) = keys.split_at(3000 * WIDTH);
    let mut writer = build(&temporary.path().join("m"), first, WIDTH);
    writer.add(1000, [Ok(rows(3000, added, WIDTH))].into_iter()).unwrap();
    let with_graph = |writer: &Writer| {
        let segments = &writer.generation().manifest().segments;
        segments.iter().filter(|segment| segment.graph.is_some()).count()
    };
    assert_eq!(with_graph(&writer), 1);
    assert!(recall(writer.generation(), &queries, 10, &Filter::default()) >= 0.97);
    writer.index(GraphSettings::of(GraphKind::Hnsw), || ()).unwrap();
    assert_eq!(with_graph(&writer), 2);
    assert!(recall(writer.generation(), &queries, 10, &Filter::default()) >= 0.97);
    // Each added key is its own nearest key.
    let request = Queries { keys: added, k: 1 };
    let (found, _) = search(writer.generation(), 32, request, &Filter::default());
    let correct = (3000..).zip(&found.hits).filter(|(id, hits)| hits[0].id == *id).count();
    assert!(correct >= 990, "{correct} of 1000");
}

#[test]
fn a_generation_searches_its_graph_after_its_files_are_removed() {
    let temporary = folder();
    let folder = temporary.path().join("m");
    let (keys, queries) = clustered(2000, WIDTH);
    let mut writer = build(&folder, &keys, WIDTH);
    let generation = Memory::open(&folder).unwrap().generation();
    let request = Queries { keys: &queries, k: 10 };
    let before = search(&generation, 64, request, &Filter::default());
    writer.delete(&[0, 1, 2]).unwrap();
    writer.compact(|_| ()).unwrap();
    assert_eq!(search(&generation, 64, request, &Filter::default()), before);
    fs::remove_dir_all(&folder).unwrap();
    assert_eq!(search(&generation, 64, request, &Filter::default()), before);
}

#[test]
fn only_a_memory_with_a_vamana_graph_has_the_newest_format_version() {
    let temporary = folder();
    let (keys, _) = clustered(100, 8);
    let format = MemoryFormat { width: 8, normalised: true, values: None };
    for (kind, version) in [(GraphKind::Hnsw, 1), (GraphKind::Vamana, 5)] {
        let folder = temporary.path().join(version.to_string());
        let batch = [Ok(rows(0, &keys, 8))].into_iter();
        let mut writer = Writer::create(&folder, format, 100, batch).unwrap();
        writer.index(GraphSettings::of(kind), || ()).unwrap();
        let manifest = fs::read_to_string(folder.join("gen-000002/manifest.json")).unwrap();
        assert!(manifest.contains(&format!("\"format_version\": {version},")), "{manifest}");
        assert_eq!(manifest.contains("\"connections\": 24"), kind == GraphKind::Hnsw);
        // A graph with other settings replaces it.
        let other = GraphSettings { connections: 4, ..GraphSettings::of(GraphKind::Hnsw) };
        writer.index(other, || ()).unwrap();
        let manifest = writer.generation().manifest();
        assert_eq!(manifest.format_version, 1);
        let graph = manifest.segments[0].graph.as_ref().unwrap();
        assert_eq!((GraphSettings::from(graph), graph.folder()), (other, "gen-000003"));
        writer.index(other, || ()).unwrap();
        let graph = writer.generation().manifest().segments[0].graph.as_ref().unwrap();
        assert_eq!(graph.folder(), "gen-000003");
    }
}

#[test]
fn damaged_codes_of_a_graph_are_detected() {
    let temporary = folder();
    let folder = temporary.path().join("m");
    let (keys, queries) = clustered(500, WIDTH);
    drop(build(&folder, &keys, WIDTH));
    let path = folder.join("gen-000002/graph-0-codes.safetensors");
    let original = fs::read(&path).unwrap();
    let mut changed = original.clone();
    changed[20_000] ^= 1;
    for bytes in [changed.as_slice(), &original[..original.len() - 64], &[]] {
        fs::write(&path, bytes).unwrap();
        let generation = Memory::open(&folder).unwrap().generation();
        let request = Queries { keys: &queries, k: 10 };
        let searched = GraphSearch::open(&generation, 64)
            .and_then(|graphs| graphs.search(&generation, request, &Filter::default()));
        assert!(matches!(&searched, Err(MemoryError::Corrupt { .. })), "{searched:?}");
        assert!(searched.unwrap_err().to_string().contains("graph-0-codes.safetensors"));
        assert_eq!(generation.verify().len(), 1);
        // Exact search needs no graph.
        Exact.search(&generation, request, &Filter::default()).unwrap();
    }
}

#[test]
fn keys_that_are_not_normalised_are_refused() {
    let temporary = folder();
    let format = MemoryFormat { width: 2, normalised: false, values: None };
    let batch = [Ok(rows(0, &[1.0, 2.0], 2))].into_iter();
    let mut writer = Writer::create(temporary.path().join("m"), format, 1, batch).unwrap();
    let error = writer.index(GraphSettings::default(), || ()).unwrap_err().to_string();
    assert!(error.contains("normalised for a graph; use exact search"), "{error}");
}

proptest! {
    // Wide keys are searched by codes. The bound on their errors holds with high probability, so the
    // cases are the same in each run.
    #![proptest_config(ProptestConfig { rng_seed: RngSeed::Fixed(1), ..ProptestConfig::with_cases(60) })]

    /// A search with at least as many candidates as rows finds the exact results.
    #[test]
    fn a_search_with_all_candidates_is_exact(
        seed in 0u64..1000,
        width in prop_oneof![1usize..6, 60usize..70, Just(130)],
        count in 1usize..400,
        distinct in 1usize..400,
        connections in 2usize..6,
        k in 1usize..20,
        filtered in any::<bool>(),
    ) {
        let temporary = folder();
        let mut rng = Rng::new(seed);
        // Small integers give many equal keys and scores.
        let mut keys: Vec<f32> = (0..count * width).map(|_| rng.small()).collect();
        for row in distinct..count {
            let original = rng.below(distinct as u64) as usize * width;
            keys.copy_within(original..original + width, row * width);
        }
        for key in keys.chunks_mut(width).filter(|key| key.iter().all(|number| *number == 0.0)) {
            key[0] = 1.0;
        }
        let format = MemoryFormat { width, normalised: true, values: None };
        let batch = [Ok(rows(0, &keys, width))].into_iter();
        let mut writer =
            Writer::create(temporary.path().join("m"), format, count, batch).unwrap();
        let settings =
            GraphSettings { connections, ef_construction: 10, ..GraphSettings::default() };
        writer.index(settings, || ()).unwrap();
        writer.delete(&(1..count as i64).filter(|id| id % 7 == 3).collect::<Vec<_>>()).unwrap();
        let queries: Vec<f32> = (0..5 * width).map(|_| 0.01 + rng.uniform()).collect();
        let filter = Filter {
            sources: filtered.then(|| vec!["kg".to_owned()]),
            ..Filter::default()
        };
        let request = Queries { keys: &queries, k };
        let (found, exact) = search(writer.generation(), count, request, &filter);
        prop_assert_eq!(found, exact);
    }
}
