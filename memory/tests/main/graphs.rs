//! Graph search with both kinds of graphs: recall, filters, determinism, unusual keys, edits,
//! damages, and the switch to exact search.

use std::fs;
use std::path::Path;

use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use tempfile::TempDir;

use crate::support::{Rng, *};

const KINDS: [GraphKind; 2] = [GraphKind::Vamana, GraphKind::Hnsw];
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

/// Entries of two sources, and of a rare one, with documents.
fn rows(first_id: i64, keys: &[f32], width: usize) -> Batch {
    let mut rows = bare(first_id, keys.to_vec(), width);
    for entry in &mut rows.entries {
        let source =
            if entry.id % 200 == 8 { "rare" } else { ["kg", "wit"][entry.id as usize % 2] };
        entry.source = source.to_owned();
        entry.document = (entry.id % 3 != 0).then(|| format!("d{}", entry.id % 5));
    }
    rows
}

/// Builds a memory with a graph in a temporary folder.
fn build(kind: GraphKind, keys: &[f32], width: usize) -> (TempDir, Writer) {
    let folder = folder();
    let writer = build_in(folder.path(), kind, keys, width);
    (folder, writer)
}

fn build_in(folder: &Path, kind: GraphKind, keys: &[f32], width: usize) -> Writer {
    let format = MemoryFormat { width, normalised: true, values: None };
    let mut writer = create(folder, format, rows(0, keys, width));
    writer.index(GraphSettings::of(kind), || ()).unwrap();
    writer
}

/// The results of a search through the graphs, and of an exact search.
fn search(
    generation: &Generation,
    candidates: usize,
    (keys, k): (&[f32], usize),
    filter: &Filter,
) -> (SearchResults, SearchResults) {
    let method = Method::Graph { candidates };
    let found = generation.search(method, Queries { keys, k }, filter).unwrap();
    (found, exact(generation, keys, k, filter))
}

/// The recall of a search through the graphs. Checks that its scores are the exact ones.
fn recall(generation: &Generation, queries: &[f32], k: usize, filter: &Filter) -> f64 {
    let (found, exact) = search(generation, Method::CANDIDATES, (queries, k), filter);
    for (hits, exact_hits) in found.hits.iter().zip(&exact.hits) {
        assert_eq!(hits.len(), exact_hits.len());
        for exact_hit in exact_hits {
            let hit = hits.iter().find(|hit| hit.id == exact_hit.id);
            assert!(hit.is_none_or(|hit| hit == exact_hit), "{hit:?}, {exact_hit:?}");
        }
    }
    found.recall(&exact)
}

fn check_recall(name: &str, writer: &Writer, queries: &[f32], filter: &Filter, lowest: f64) {
    for k in [1, 10, 100] {
        let recall = recall(writer.generation(), queries, k, filter);
        println!("{name}, k {k}: recall {recall:.4}");
        assert!(recall >= lowest, "{name}, k {k}: recall {recall}");
    }
}

#[test]
fn recall_is_high_for_all_widths() {
    for kind in KINDS {
        for (width, rows) in
            [(1, 50), (2, 1000), (3, 1000), (63, 3000), (64, 3000), (100, 5000), (4096, 300)]
        {
            let (keys, queries) = clustered(rows, width);
            let (_folder, writer) = build(kind, &keys, width);
            let name = format!("{kind:?}, width {width}");
            check_recall(&name, &writer, &queries, &Filter::default(), 0.97);
        }
    }
}

#[test]
fn equal_keys_give_the_same_graph_on_any_number_of_threads() {
    for (kind, width) in [(GraphKind::Vamana, 8), (GraphKind::Vamana, WIDTH), (GraphKind::Hnsw, 8)]
    {
        let temporary = folder();
        let (keys, _) = clustered(3000, width);
        let files = [1, 2, 5].map(|threads| {
            let folder = temporary.path().join(threads.to_string());
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| drop(build_in(&folder, kind, &keys, width)));
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
        assert!(files[0] == files[1] && files[0] == files[2], "{kind:?}, width {width}");
    }
}

#[test]
fn memories_of_few_rows_are_searched() {
    for (kind, width) in KINDS.into_iter().flat_map(|kind| [(kind, 2), (kind, WIDTH)]) {
        for count in [0, 1, 2, 3] {
            let (keys, queries) = clustered(count, width);
            let (_folder, writer) = build(kind, &keys, width);
            let (found, exact) = search(writer.generation(), 8, (&queries, 5), &Filter::default());
            assert_eq!(found, exact, "{count} rows");
            assert!(found.hits.iter().all(|hits| hits.len() == count));
        }
    }
}

#[test]
fn thousands_of_equal_keys_do_not_split_the_graph_or_hide_other_keys() {
    for (kind, width) in KINDS.into_iter().flat_map(|kind| [(kind, 16), (kind, WIDTH)]) {
        let (mut keys, queries) = clustered(6000, width);
        // Half of the rows have the same key, the others one of a thousand keys.
        let (repeated, keys_of_others) = keys.split_at_mut(3000 * width);
        let key = keys_of_others[..width].to_vec();
        repeated.chunks_mut(width).for_each(|copy| copy.copy_from_slice(&key));
        keys_of_others.copy_within(..1000 * width, 1000 * width);
        keys_of_others.copy_within(..1000 * width, 2000 * width);
        let (_folder, mut writer) = build(kind, &keys, width);
        // Of some keys, the first row is deleted, but its copies stay.
        writer.delete(&(0..10).chain(3000..3100).collect::<Vec<_>>()).unwrap();
        let name = format!("{kind:?}, width {width}");
        check_recall(&name, &writer, &queries, &Filter::default(), 0.97);
        let (found, exact) = search(writer.generation(), 8, (&key, 20), &Filter::default());
        assert_eq!(found, exact);
        assert_eq!(found.hits[0][0].id, 10);
    }
}

#[test]
fn thousands_of_nearly_equal_keys_do_not_split_the_graph() {
    for width in [16, WIDTH] {
        let (mut keys, queries) = clustered(6000, width);
        let mut rng = Rng::new(8);
        // Closer than codes can tell.
        let key: Vec<f32> = (0..width).map(|_| rng.uniform()).collect();
        for near in keys[..3000 * width].chunks_mut(width) {
            near.iter_mut().zip(&key).for_each(|(near, x)| *near = x + 1e-4 * rng.uniform());
        }
        let (_folder, writer) = build(GraphKind::Vamana, &keys, width);
        check_recall(&format!("width {width}"), &writer, &queries, &Filter::default(), 0.97);
        let (found, _) = search(writer.generation(), 64, (&key, 20), &Filter::default());
        assert!(found.hits[0].iter().all(|hit| hit.id < 3000));
    }
}

#[test]
fn filters_and_deletes_keep_the_recall() {
    for kind in KINDS {
        let (keys, queries) = clustered(5000, WIDTH);
        let (_folder, mut writer) = build(kind, &keys, WIDTH);
        let deleted = |id: &i64| id % 5 == 2;
        writer.delete(&(0..5000).filter(deleted).collect::<Vec<_>>()).unwrap();
        let sources = writer.generation().manifest().sources.clone();
        let allow = |every: i64| {
            let ids = (0..5000).filter(|id| !deleted(id) && id % every == 0);
            of_ids(&ids.collect::<Vec<_>>())
        };
        let gated = |gate: &dyn Fn(usize, &str) -> f32| {
            let gates = |query| sources.iter().map(move |name| gate(query, name));
            with_gates(&sources, (0..QUERIES).flat_map(gates))
        };
        let documents = (0..QUERIES).map(|query| vec![format!("d{}", query % 5)]);
        let gate = |query: usize, name: &str| {
            if name == "kg" { 1.0 } else { 0.5 + (query % 3) as f32 / 4.0 }
        };
        for (name, filter, lowest) in [
            ("no filter", Filter::default(), 0.97),
            ("10 %", allow(10), 0.97),
            ("a source", of_sources(&["wit"]), 0.97),
            ("documents", without(documents), 0.97),
            ("gates", gated(&gate), 0.97),
            // If few rows remain, or a gate is 0 or below, the search is exact.
            ("1 %", allow(100), 1.0),
            ("a rare source", of_sources(&["rare"]), 1.0),
            ("gates of 0", gated(&|_, name| f32::from(u8::from(name == "rare"))), 1.0),
            ("negative gates", gated(&|_, _| -1.0), 1.0),
        ] {
            check_recall(&format!("{kind:?}, {name}"), &writer, &queries, &filter, lowest);
        }
        // `k` exceeds the number of entries.
        assert_eq!(recall(writer.generation(), &queries, 6000, &Filter::default()), 1.0);
    }
}

#[test]
fn added_rows_are_found_before_and_after_the_next_index() {
    let (keys, queries) = clustered(4000, WIDTH);
    let (first, added) = keys.split_at(3000 * WIDTH);
    let (_folder, mut writer) = build(GraphKind::Vamana, first, WIDTH);
    add(&mut writer, rows(3000, added, WIDTH));
    let settings = |writer: &Writer| -> Vec<(GraphSettings, String)> {
        let segments = &writer.generation().manifest().segments;
        let graphs = segments.iter().filter_map(|segment| segment.graph.as_ref());
        graphs.map(|graph| (graph.settings, graph.folder.clone())).collect()
    };
    assert_eq!(settings(&writer).len(), 1);
    assert!(recall(writer.generation(), &queries, 10, &Filter::default()) >= 0.97);
    // Graphs with other settings replace the graph.
    let other = GraphSettings::of(GraphKind::Hnsw);
    for _ in 0..2 {
        writer.index(other, || ()).unwrap();
        let expected = (other, "gen-000004".to_owned());
        assert_eq!(settings(&writer), [expected.clone(), expected]);
    }
    assert!(recall(writer.generation(), &queries, 10, &Filter::default()) >= 0.97);
    // Each added key is its own nearest key.
    let (found, _) = search(writer.generation(), 32, (added, 1), &Filter::default());
    let correct = (3000..).zip(&found.hits).filter(|(id, hits)| hits[0].id == *id).count();
    assert!(correct >= 990, "{correct} of 1000");
}

#[test]
fn a_generation_searches_its_graph_after_its_files_are_removed() {
    let (keys, queries) = clustered(2000, WIDTH);
    let (folder, mut writer) = build(GraphKind::Vamana, &keys, WIDTH);
    let generation = Memory::open(folder.path()).unwrap().generation();
    let search = || search(&generation, 64, (&queries, 10), &Filter::default());
    let before = search();
    writer.delete(&[0, 1, 2]).unwrap();
    writer.compact(|_| ()).unwrap();
    assert_eq!(search(), before);
    fs::remove_dir_all(folder.path()).unwrap();
    assert_eq!(search(), before);
}

#[test]
fn damaged_files_of_a_graph_are_detected() {
    let temporary = folder();
    let (keys, queries) = clustered(500, WIDTH);
    let mut rng = Rng::new(2);
    let request = Queries { keys: &queries, k: 10 };
    let files =
        ["graph-0-lists.safetensors", "graph-0-upper.safetensors", "graph-0-codes.safetensors"];
    for (kind, file) in KINDS.into_iter().flat_map(|kind| files.map(|file| (kind, file))) {
        let folder = temporary.path().join(format!("{kind:?}"));
        if !folder.exists() {
            drop(build_in(&folder, kind, &keys, WIDTH));
        }
        let path = folder.join("gen-000002").join(file);
        let original = fs::read(&path).unwrap();
        let mut damaged: Vec<Vec<u8>> = vec![original[..original.len() - 64].to_vec(), Vec::new()];
        for _ in 0..20 {
            let mut changed = original.clone();
            changed[rng.below(original.len() as u64) as usize] ^= 1 << rng.below(8);
            damaged.push(changed);
        }
        for bytes in damaged {
            fs::remove_file(&path).unwrap();
            fs::write(&path, bytes).unwrap();
            let generation = Memory::open(&folder).unwrap().generation();
            let searched = generation.search(Method::GRAPH, request, &Filter::default());
            assert!(matches!(&searched, Err(MemoryError::Corrupt { .. })), "{searched:?}");
            assert!(searched.unwrap_err().to_string().contains(file));
            assert_eq!(generation.verify().len(), 1);
            // Exact search needs no graph.
            exact(&generation, &queries, 10, &Filter::default());
        }
        fs::remove_file(&path).unwrap();
        assert_eq!(Memory::open(&folder).unwrap().generation().verify().len(), 1);
        fs::write(&path, &original).unwrap();
        assert!(Memory::verify(&folder).unwrap().is_empty());
    }
}

#[test]
fn invalid_settings_and_keys_that_are_not_normalised_are_refused() {
    let format = MemoryFormat { width: 2, normalised: true, values: None };
    let (_folder, mut writer) = temporary(format, rows(0, &[1.0, 2.0], 2));
    for (connections, ef_construction) in [(1, 10), (257, 10), (16, 0), (16, 1 << 50)] {
        let settings = GraphSettings { connections, ef_construction, ..GraphSettings::default() };
        assert_refused(writer.index(settings, || ()), ["must be 2 to 256, with 1 to 100,000"]);
    }
    let format = MemoryFormat { normalised: false, ..format };
    let (_folder, mut writer) = temporary(format, rows(0, &[1.0, 2.0], 2));
    assert_refused(writer.index(GraphSettings::default(), || ()), ["normalised for a graph"]);
}

proptest! {
    // Wide keys are searched by codes. The bound on their errors holds with high probability, so
    // the cases are the same in each run.
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
        let (_folder, mut writer) = temporary(format, rows(0, &keys, width));
        let settings =
            GraphSettings { connections, ef_construction: 10, ..GraphSettings::default() };
        writer.index(settings, || ()).unwrap();
        writer.delete(&(1..count as i64).filter(|id| id % 7 == 3).collect::<Vec<_>>()).unwrap();
        let queries: Vec<f32> = (0..5 * width).map(|_| 0.01 + rng.uniform()).collect();
        let filter = if filtered { of_sources(&["kg"]) } else { Filter::default() };
        let (found, exact) = search(writer.generation(), count, (&queries, k), &filter);
        prop_assert_eq!(found, exact);
    }
}
