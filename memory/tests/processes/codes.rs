//! Exact search by codes equals brute force, for all kinds of keys, on all kernels.

use std::path::Path;
use std::process::Command;

use crate::support::{Rng, *};
use proptest::prelude::*;

/// Builds a memory with these keys.
fn build(folder: &Path, width: usize, normalised: bool, keys: &[f32]) -> Writer {
    let rows = keys.len() / width;
    let batches = keys.chunks(700 * width).enumerate().map(|(number, keys)| {
        let ids = number * 700..number * 700 + keys.len() / width;
        // The ids descend, so that equal scores are not in the order of the rows.
        let entries = ids.map(|id| Entry::bare((rows - id) as i64)).collect();
        Ok(Batch { entries, keys: keys.to_vec(), values: Vec::new() })
    });
    let format = MemoryFormat { width, normalised, values: None };
    Writer::create(folder, format, rows, batches).unwrap()
}

/// Compares a search with brute force in double precision.
fn check(generation: &Generation, queries: &[f32], k: usize) {
    let width = generation.manifest().width;
    let rows: Vec<(i64, Vec<f32>)> = generation
        .live_rows()
        .map(|row| (generation.entry(row).unwrap().id, generation.key(row).unwrap().to_vec()))
        .collect();
    let results = exact(generation, queries, k, &Filter::default());
    for (query, hits) in queries.chunks(width).zip(&results.hits) {
        let product = |key: &[f32]| product(query, key);
        let mut expected: Vec<(f64, i64)> =
            rows.iter().map(|(id, key)| (product(key) + 0.0, *id)).collect();
        expected.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        expected.truncate(k);
        let tolerance = 1e-12 * expected.iter().fold(0f64, |max, (score, _)| max.max(score.abs()));
        let found: Vec<i64> = hits.iter().map(|hit| hit.id).collect();
        let ids: Vec<i64> = expected.iter().map(|(_, id)| *id).collect();
        if found != ids {
            // The order of summation may change the order of scores that differ in the last bit.
            let score = |id: i64| product(&rows.iter().find(|(other, _)| *other == id).unwrap().1);
            assert_eq!(found.len(), ids.len());
            for (found, (score_of_expected, _)) in found.iter().zip(&expected) {
                let difference = score(*found) - score_of_expected;
                assert!(difference.abs() <= tolerance, "{difference}, k {k}, width {width}");
            }
        }
    }
}

/// A random vector of this size.
fn uniform(rng: &mut Rng, count: usize, size: f32) -> Vec<f32> {
    (0..count).map(|_| size * rng.uniform()).collect()
}

#[test]
fn a_search_after_a_sample_equals_brute_force() {
    let (width, rows) = (24, 9500);
    let mut rng = Rng::new(1);
    let centres = uniform(&mut rng, 20 * width, 1.0);
    let near = |rng: &mut Rng, centre: usize, spread: f32| -> Vec<f32> {
        let centre = &centres[centre % 20 * width..][..width];
        centre.iter().map(|number| number + spread * rng.uniform()).collect()
    };
    let random = uniform(&mut rng, rows * width, 1.0);
    let clustered: Vec<f32> = (0..rows).flat_map(|row| near(&mut rng, row * 7, 0.1)).collect();
    // The sample does not represent the other rows, because the first rows have the best scores.
    let mut sorted = random.clone();
    sorted[..64 * width].iter_mut().zip(centres.iter().cycle()).for_each(|(a, b)| *a = 9.0 * b);
    let norms = |mut keys: Vec<f32>| {
        let scale = |row: usize| 1e-3 + (row % 89) as f32;
        keys.chunks_mut(width).enumerate().for_each(|(row, key)| {
            key.iter_mut().for_each(|number| *number *= scale(row));
        });
        keys
    };
    // Most of these keys have equal codes.
    let nearly_equal: Vec<f32> = (0..rows).flat_map(|_| near(&mut rng, 0, 1e-4)).collect();
    let equal: Vec<f32> =
        (0..rows).flat_map(|row| centres[row % 3 * width..][..width].to_vec()).collect();
    for (name, keys) in [
        ("unnormalised", norms(random.clone())),
        ("random", random),
        ("clustered", clustered),
        ("sorted", sorted),
        ("nearly equal", nearly_equal),
        ("equal", equal),
    ] {
        for normalised in [true, false] {
            eprintln!("{name}, normalised {normalised}");
            let temporary = folder();
            let mut writer = build(&temporary.path().join("m"), width, normalised, &keys);
            writer.delete(&(1..rows as i64).step_by(9).collect::<Vec<_>>()).unwrap();
            let queries: Vec<f32> = (0..23).flat_map(|i| near(&mut rng, i, 0.3)).collect();
            for k in [1, 10, 100, 20_000] {
                check(writer.generation(), &queries, k);
            }
            check(writer.generation(), &queries[..width], 10);
        }
    }
}

#[test]
fn all_widths_and_extreme_norms_equal_brute_force() {
    let mut rng = Rng::new(2);
    let widths = [1, 2, 3, 5, 31, 64, 127, 256, 384, 1000, 4096];
    let many_rows = widths.map(|width| (width, if width > 400 { 260 } else { 400 }));
    let few_rows = [1, 15, 16, 17, 31, 33].map(|rows| (31, rows));
    for (width, rows) in many_rows.into_iter().chain(few_rows) {
        for size in [1e-30, 1e-20, 1.0, 1e15] {
            let temporary = folder();
            let mut keys = uniform(&mut rng, rows * width, size);
            keys[..width].fill(0.0);
            let writer = build(&temporary.path().join("m"), width, false, &keys);
            let mut queries = uniform(&mut rng, 5 * width, 1.0);
            queries[..width].fill(0.0);
            check(writer.generation(), &queries, 7);
            let queries = uniform(&mut rng, 5 * width, if size > 1.0 { 1e-30 } else { 1e15 });
            check(writer.generation(), &queries, 7);
        }
    }
}

/// Runs the other tests in processes with other kernels.
#[test]
fn all_kernels_equal_brute_force() {
    if std::env::var_os("ENGRAM_MEMORY_KERNEL").is_some() {
        return;
    }
    for kernel in ["avx512", "avx2", "portable"] {
        let mut tests = Command::new(std::env::current_exe().unwrap());
        tests.args(["brute_force", "codes::results_do_not"]).env("ENGRAM_MEMORY_KERNEL", kernel);
        let output = tests.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{kernel}: {text}");
        assert!(text.contains("4 passed") || text.contains("5 passed"), "{kernel}: {text}");
    }
}

#[test]
fn results_do_not_depend_on_the_number_of_threads() {
    let temporary = folder();
    let (width, rows) = (16, 10_000);
    let mut rng = Rng::new(3);
    let keys = uniform(&mut rng, rows * width, 1.0);
    let writer = build(&temporary.path().join("m"), width, false, &keys);
    let queries = uniform(&mut rng, 50 * width, 1.0);
    let search = |threads: usize| -> Vec<Vec<Hit>> {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| exact(writer.generation(), &queries, 20, &Filter::default()).hits)
    };
    let expected = search(1);
    for threads in [2, 3, 5] {
        assert_eq!(search(threads), expected);
    }
}

#[test]
fn codes_need_at_most_30_percent_of_the_size_of_the_keys() {
    for width in [64, 256, 384, 1024] {
        let temporary = folder();
        let keys = uniform(&mut Rng::new(5), 256 * width, 1.0);
        let writer = build(&temporary.path().join("m"), width, true, &keys);
        let segment = &writer.generation().manifest().segments[0];
        let codes = segment.columns["codes"].bytes as f64;
        assert!(codes <= 0.3 * segment.columns["keys"].bytes as f64, "width {width}: {codes}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn random_memories_equal_brute_force(
        seed in any::<u64>(),
        width in 1usize..40,
        rows in 1usize..600,
        exponent in -25i32..12,
        k in 1usize..700,
        normalised in any::<bool>(),
        small_integers in any::<bool>(),
    ) {
        let mut rng = Rng::new(seed);
        let size = 10f32.powi(exponent);
        let mut keys: Vec<f32> = (0..rows * width)
            .map(|_| if small_integers { rng.small() } else { size * rng.uniform() })
            .collect();
        if normalised {
            keys.chunks_mut(width).for_each(|key| key[0] += 2.5 * size);
            let zero = keys.chunks_mut(width).filter(|key| key.iter().all(|x| *x == 0.0));
            zero.for_each(|key| key[0] = 1.0);
        }
        let temporary = folder();
        let writer = build(&temporary.path().join("m"), width, normalised, &keys);
        let mut queries = uniform(&mut rng, 3 * width, 1.0);
        queries[0] += 0.5;
        check(writer.generation(), &queries, k);
    }
}
