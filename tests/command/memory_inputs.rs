//! `engram memory` on unusual keys: right results or a refusal that names file, reason and remedy.

use std::fs;
use std::path::Path;

use crate::running::{Folder, hits, refused, succeeds};
use engram::memory::vectors::npy_bytes;

fn write_keys(folder: &Path, name: &str, keys: &[f32], width: usize) {
    fs::write(folder.join(name), npy_bytes(keys, width).unwrap()).unwrap();
}

#[test]
fn keys_and_queries_without_a_direction_are_refused() {
    let folder = &Folder::new();
    write_keys(folder, "good.npy", &[1.0, 0.0, 0.0, 1.0], 2);
    succeeds(folder, "memory build --keys good.npy --out m --quiet");
    succeeds(folder, "memory build --keys good.npy --no-normalize --out raw --quiet");
    for (name, bad, reason) in [
        ("nan.npy", f32::NAN, "row 1 contains NaN or infinity"),
        ("infinite.npy", f32::INFINITY, "row 1 contains NaN or infinity"),
        ("negative.npy", f32::NEG_INFINITY, "row 1 contains NaN or infinity"),
    ] {
        write_keys(folder, name, &[1.0, 0.0, bad, 1.0], 2);
        let expected = format!("{name}: {reason}; correct or remove that row");
        for command in ["build --out new --keys", "build --no-normalize --out new --keys"] {
            refused(folder, &format!("memory {command} {name}"), &expected);
            assert!(!folder.join("new").exists());
        }
        for memory in ["m", "raw"] {
            refused(folder, &format!("memory add {memory} --keys {name}"), &expected);
            refused(folder, &format!("memory search {memory} --queries {name}"), &expected);
        }
    }
    // A zero key has no cosine, but it has a dot product.
    write_keys(folder, "zero.npy", &[1.0, 0.0, 0.0, 0.0], 2);
    let expected = "zero.npy: row 1 is a zero vector";
    refused(folder, "memory build --keys zero.npy --out new", expected);
    refused(folder, "memory add m --keys zero.npy", expected);
    refused(folder, "memory search m --queries zero.npy", expected);
    succeeds(folder, "memory add raw --keys zero.npy --quiet");
    let found = hits(folder, "raw --queries zero.npy");
    assert_eq!(found[0], [(0, 1.0), (2, 1.0), (1, 0.0), (3, 0.0)]);
    assert_eq!(found[1], [(0, 0.0), (1, 0.0), (2, 0.0), (3, 0.0)]);
    // The largest and the smallest numbers.
    write_keys(folder, "long.npy", &[f32::MAX, f32::MAX, 1e-42, 0.0], 2);
    succeeds(folder, "memory build --keys long.npy --out long --quiet");
    write_keys(folder, "query.npy", &[1.0, 1.0, 1e-42, 0.0], 2);
    let found = hits(folder, "long --queries query.npy");
    assert_eq!((found[0][0].0, found[1][0]), (0, (1, 1.0)));
    let expected = "long.npy: row 0 has a norm above 1e18";
    refused(folder, "memory search long --queries long.npy", expected);
    refused(folder, "memory build --keys long.npy --no-normalize --out new", expected);
}

#[test]
fn memories_of_no_and_one_entry_are_searched() {
    let folder = &Folder::new();
    write_keys(folder, "none.npy", &[], 3);
    refused(folder, "memory build --keys none.npy --out m", "none.npy: is empty");
    write_keys(folder, "one.npy", &[0.0, 2.0, 0.0], 3);
    succeeds(folder, "memory build --keys one.npy --out m --quiet");
    refused(folder, "memory add m --keys none.npy", "none.npy: is empty");
    for options in ["", "-k 1000000", "--mmr 0.5 -k 7", "--index graph"] {
        assert_eq!(hits(folder, &format!("m --queries one.npy {options}")), [[(0, 1.0)]]);
    }
    succeeds(folder, "memory index m --quiet");
    assert_eq!(hits(folder, "m --queries one.npy --index graph -k 5"), [[(0, 1.0)]]);
    succeeds(folder, "memory delete m --ids 0");
    for options in ["", "-k 1000000", "--mmr 0.5", "--index graph", "--min-score 0"] {
        assert_eq!(hits(folder, &format!("m --queries one.npy {options}")), [[]]);
    }
    succeeds(folder, "memory compact m");
    assert_eq!(hits(folder, "m --queries one.npy"), [[]]);
    succeeds(folder, "memory index m --quiet");
    succeeds(folder, "memory verify m");
    assert!(succeeds(folder, "memory info m").starts_with("0 entries"));
    succeeds(folder, "memory add m --keys one.npy --quiet");
    assert_eq!(hits(folder, "m --queries one.npy -k 9"), [[(1, 1.0)]]);
}

#[test]
fn thousands_of_equal_keys_are_sorted_by_id() {
    let folder = &Folder::new();
    let mut keys = [0.6f32, 0.8].repeat(9000);
    keys.extend([1.0, 0.0].repeat(1000));
    write_keys(folder, "keys.npy", &keys, 2);
    write_keys(folder, "query.npy", &[0.0, 1.0, 1.0, -1.0], 2);
    for normalise in ["", "--no-normalize"] {
        succeeds(folder, &format!("memory build --keys keys.npy --out m --quiet {normalise}"));
        for k in [1, 10, 2500] {
            let found = hits(folder, &format!("m --queries query.npy -k {k}"));
            let ids = |hits: &[(i64, f64)]| hits.iter().map(|(id, _)| *id).collect::<Vec<_>>();
            assert_eq!(ids(&found[0]), (0..k).collect::<Vec<_>>());
            let second: Vec<i64> = (9000..10_000).chain(0..9000).take(k as usize).collect();
            assert_eq!(ids(&found[1]), second);
        }
        let found = hits(folder, "m --queries query.npy -k 3 --mmr 0.3 --candidates 9500");
        assert_eq!(found[0].iter().map(|(id, _)| *id).collect::<Vec<_>>(), [0, 9000, 1]);
        fs::remove_dir_all(folder.join("m")).unwrap();
    }
}

#[test]
fn keys_of_every_width_are_searched_as_by_brute_force() {
    let folder = &Folder::new();
    let mut state = 7u64;
    let mut number = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    for width in [1, 2, 3, 7, 8, 15, 16, 17, 31, 33, 63, 64, 65, 127, 257, 1000, 4095, 4096] {
        let rows = if width < 200 { 1500 } else { 300 };
        let keys: Vec<f32> = (0..rows * width).map(|_| number()).collect();
        let queries: Vec<f32> = (0..2 * width).map(|_| number()).collect();
        write_keys(folder, "keys.npy", &keys, width);
        write_keys(folder, "queries.npy", &queries, width);
        for normalise in [true, false] {
            let option = if normalise { "" } else { "--no-normalize" };
            succeeds(folder, &format!("memory build --keys keys.npy --out m --quiet {option}"));
            let found = hits(folder, "m --queries queries.npy -k 10");
            fs::remove_dir_all(folder.join("m")).unwrap();
            for (query, hits) in queries.chunks(width).zip(&found) {
                let dot = |a: &[f32], b: &[f32]| -> f64 {
                    a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
                };
                let score = |key: &[f32]| match normalise {
                    true => dot(query, key) / (dot(query, query) * dot(key, key)).sqrt(),
                    false => dot(query, key),
                };
                let mut expected: Vec<f64> = keys.chunks(width).map(score).collect();
                for (id, found) in hits {
                    let difference = (found - expected[*id as usize]).abs();
                    assert!(difference < 1e-5 * expected[*id as usize].abs().max(1.0), "{width}");
                }
                expected.sort_by(|a, b| b.total_cmp(a));
                // The rounding of unit keys may exchange entries with nearly equal scores.
                let last = hits.last().unwrap().1;
                assert!((last - expected[9]).abs() < 1e-5 * last.abs().max(1.0), "{width}");
            }
        }
    }
}

#[test]
fn numpys_byte_orders_and_array_orders_give_the_same_memory() {
    let folder = &Folder::new();
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("memory/tests/fixtures/npy");
    let fixture = |name: &str| fixtures.join(name).display().to_string();
    let mut files = Vec::new();
    for (i, order) in ["little_C", "little_F", "big_C", "big_F"].iter().enumerate() {
        for (j, number) in ["f2", "f4", "f8"].iter().enumerate() {
            let [keys, values] =
                ["keys", "values"].map(|name| fixture(&format!("{name}_{number}_{order}.npy")));
            let name = format!("m{i}{j}");
            let build = format!("memory build --keys {keys} --values {values} --out {name}");
            succeeds(folder, &build);
            let queries = fixture(&format!("keys_{number}_{order}.npy"));
            let found = hits(folder, &format!("{name} --queries {queries} -k 2"));
            assert!(found.iter().zip(0..).all(|(hits, id)| hits[0].0 == id), "{found:?}");
            let read = |file: &str| fs::read(folder.join(&name).join("gen-000001").join(file));
            files.push((read("keys.safetensors").unwrap(), read("values.safetensors").unwrap()));
        }
    }
    assert!(files.windows(2).all(|pair| pair[0] == pair[1]));
}
