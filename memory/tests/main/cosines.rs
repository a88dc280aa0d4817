//! Scores of a normalised memory are cosines, whatever the norm of a query.

use std::path::Path;

use tempfile::TempDir;

use crate::support::*;
use engram_memory::vectors::VectorFile;

const WIDTH: usize = 24;
const ROWS: usize = 600;

/// A memory with its folder and its keys.
fn memory(normalised: bool) -> (TempDir, Writer, Vec<f32>) {
    let mut rng = Rng::new(14);
    let keys: Vec<f32> = (0..ROWS * WIDTH).map(|_| 5.0 * rng.uniform()).collect();
    let format = MemoryFormat { width: WIDTH, normalised, values: None };
    let (folder, writer) = temporary(format, bare(0, keys.clone(), WIDTH));
    (folder, writer, keys)
}

/// Returns queries of different scales, from 1e-3 to 1e3. The first is five times the first row's
/// key.
fn queries(keys: &[f32], count: usize) -> Vec<f32> {
    let mut rng = Rng::new(15);
    let mut queries: Vec<f32> = keys[..WIDTH].iter().map(|number| 5.0 * number).collect();
    for i in 1..count {
        let scale = 10f32.powi(i as i32 % 7 - 3);
        queries.extend((0..WIDTH).map(|_| scale * rng.uniform()));
    }
    queries
}

/// Checks that scores are cosines times the gate of the query.
fn check(results: &SearchResults, queries: &[f32], keys: &[f32], gate: impl Fn(usize) -> f64) {
    for (i, (hits, query)) in results.hits.iter().zip(queries.chunks(WIDTH)).enumerate() {
        assert_eq!(hits.len(), 10);
        for hit in hits {
            let key = &keys[hit.id as usize * WIDTH..][..WIDTH];
            let cosine =
                product(query, key) / product(query, query).sqrt() / product(key, key).sqrt();
            let expected = gate(i) * cosine;
            assert!(
                (f64::from(hit.score) - expected).abs() < 1e-6 * gate(i),
                "{}, expected {expected}",
                hit.score
            );
            assert!(f64::from(hit.score) <= gate(i));
        }
    }
}

#[test]
fn exact_and_graph_scores_are_cosines() {
    let (_folder, mut writer, keys) = memory(true);
    writer.index(GraphSettings::default(), || ()).unwrap();
    let generation = writer.generation();
    for count in [1, 5, 40] {
        let queries = queries(&keys, count);
        for method in [Method::Exact, Method::GRAPH] {
            let request = Queries { keys: &queries, k: 10 };
            let results = generation.search(method, request, &Filter::default()).unwrap();
            check(&results, &queries, &keys, |_| 1.0);
            assert!(results.hits[0][0].id == 0 && results.hits[0][0].score > 0.999_999);
            let filter = with_gates(&["memory".to_owned()], (0..count).map(|i| 0.5 + i as f32));
            let results = generation.search(method, request, &filter).unwrap();
            check(&results, &queries, &keys, |i| 0.5 + i as f64);
        }
    }
    let mut zero = queries(&keys, 3);
    zero[WIDTH..2 * WIDTH].fill(0.0);
    for method in [Method::Exact, Method::GRAPH] {
        let request = Queries { keys: &zero, k: 10 };
        assert_refused(generation.search(method, request, &Filter::default()), ["query 1 is a"]);
    }
}

#[test]
fn scores_of_unnormalised_keys_are_dot_products() {
    let (_folder, writer, keys) = memory(false);
    let mut queries = queries(&keys, 5);
    queries[WIDTH..2 * WIDTH].fill(0.0);
    let results = exact(writer.generation(), &queries, 10, &Filter::default());
    for (hits, query) in results.hits.iter().zip(queries.chunks(WIDTH)) {
        for hit in hits {
            let expected = product(query, &keys[hit.id as usize * WIDTH..][..WIDTH]);
            assert!((f64::from(hit.score) - expected).abs() <= 1e-6 * expected.abs());
        }
    }
    assert_eq!(ids(&results)[1], (0..10).collect::<Vec<i64>>());
}

#[test]
fn k_above_the_number_of_entries_returns_all_entries() {
    let (_folder, mut writer, keys) = memory(true);
    writer.index(GraphSettings::default(), || ()).unwrap();
    writer.delete(&[3]).unwrap();
    let generation = writer.generation();
    let queries = queries(&keys, 40);
    for method in [Method::Exact, Method::GRAPH] {
        let search = |k| {
            let request = Queries { keys: &queries, k };
            generation.search(method, request, &Filter::default()).unwrap().hits
        };
        let all_entries = search(ROWS - 1);
        assert!(all_entries.iter().all(|hits| hits.len() == ROWS - 1));
        for k in [ROWS, 1_000_000, usize::MAX] {
            assert!(search(k) == all_entries);
        }
    }
}

/// Queries with norms 1 to 3; the expected scores come from NumPy.
#[test]
fn cosines_equal_numpy() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/cosines");
    let read = |name: &str| {
        let mut file = VectorFile::open(&fixtures.join(name), "keys").unwrap();
        let (rows, width) = (file.shape()[0], file.row_len());
        (file.read_rows(rows).unwrap(), rows, width)
    };
    let (keys, _, width) = read("keys.npy");
    let (queries, count, _) = read("queries.npy");
    let (expected, _, k) = read("expected_cosines.npy");
    let format = MemoryFormat { width, normalised: true, values: None };
    let (_folder, writer) = temporary(format, bare(0, keys, width));
    let results = exact(writer.generation(), &queries, k, &Filter::default());
    assert_eq!(results.hits.len(), count);
    for (hit, expected) in results.hits.iter().flatten().zip(&expected) {
        assert!((hit.score - expected).abs() < 1e-6, "{}, expected {expected}", hit.score);
    }
}
