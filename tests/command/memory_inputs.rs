//! `engram memory` on unusual keys: right results or a refusal that names file, reason and remedy.

use std::fs;

use crate::running::{Folder, engram, errors, hits, refused, succeeds, write_npy};

#[test]
fn keys_and_queries_without_a_direction_are_refused() {
    let folder = &Folder::new();
    write_npy(folder, "good.npy", &[1.0, 0.0, 0.0, 1.0], 2);
    succeeds(folder, "memory build --keys good.npy --out m --quiet");
    succeeds(folder, "memory build --keys good.npy --no-normalize --out raw --quiet");
    for (name, bad, reason) in [
        ("nan.npy", f32::NAN, "row 1 contains NaN or infinity"),
        ("infinite.npy", f32::INFINITY, "row 1 contains NaN or infinity"),
        ("negative.npy", f32::NEG_INFINITY, "row 1 contains NaN or infinity"),
    ] {
        write_npy(folder, name, &[1.0, 0.0, bad, 1.0], 2);
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
    write_npy(folder, "zero.npy", &[1.0, 0.0, 0.0, 0.0], 2);
    let expected = "zero.npy: row 1 is a zero vector";
    refused(folder, "memory build --keys zero.npy --out new", expected);
    refused(folder, "memory add m --keys zero.npy", expected);
    refused(folder, "memory search m --queries zero.npy", expected);
    succeeds(folder, "memory add raw --keys zero.npy --quiet");
    let found = hits(folder, "raw --queries zero.npy");
    assert_eq!(found[0], [(0, 1.0), (2, 1.0), (1, 0.0), (3, 0.0)]);
    assert_eq!(found[1], [(0, 0.0), (1, 0.0), (2, 0.0), (3, 0.0)]);
    // The largest and the smallest numbers.
    write_npy(folder, "long.npy", &[f32::MAX, f32::MAX, 1e-42, 0.0], 2);
    succeeds(folder, "memory build --keys long.npy --out long --quiet");
    write_npy(folder, "query.npy", &[1.0, 1.0, 1e-42, 0.0], 2);
    let found = hits(folder, "long --queries query.npy");
    assert_eq!((found[0][0].0, found[1][0]), (0, (1, 1.0)));
    let expected = "long.npy: row 0 has a norm above 1e18";
    refused(folder, "memory search long --queries long.npy", expected);
    refused(folder, "memory build --keys long.npy --no-normalize --out new", expected);
}

#[test]
fn a_refused_build_leaves_no_folder() {
    let folder = &Folder::new();
    write_npy(folder, "keys.npy", &[1.0, 0.0, 0.0, 1.0], 2);
    let keys = fs::read(folder.join("keys.npy")).unwrap();
    fs::write(folder.join("short.npy"), &keys[..keys.len() - 4]).unwrap();
    fs::write(folder.join("broken.jsonl"), "{\"text\": \"a\"}\n{\"text\": \"b\"\n").unwrap();
    fs::write(folder.join("one.jsonl"), "{\"text\": \"a\"}\n").unwrap();
    fs::write(folder.join("facts.csv"), "id,text,,\n1,a,,\n2,b,,x\n").unwrap();
    for (inputs, part) in [
        ("--keys short.npy", "short.npy: ends before its last row"),
        ("--keys keys.npy --entries broken.jsonl", "broken.jsonl:2: "),
        ("--keys keys.npy --entries one.jsonl", "one.jsonl: ends"),
        ("--keys keys.npy --entries facts.csv", "begin with {; --csv reads a table with a header"),
        ("--keys keys.npy --csv one.jsonl", "one.jsonl: is JSON, not a table; --entries"),
    ] {
        refused(folder, &format!("memory build {inputs} --out m"), part);
        assert!(!folder.join("m").exists(), "{inputs}");
    }
    let output = engram(folder, "memory build --keys keys.npy --csv facts.csv --out m");
    let note = "columns not read: column 4, which has no name, but a value in line 3; --columns";
    assert!(output.status.success() && errors(&output).contains(note), "{}", errors(&output));
    let unknown =
        "m: has keys of an unknown model, because they were given as vectors; give the keys";
    refused(folder, "memory add m --entries one.jsonl", unknown);
}

#[test]
fn memories_of_no_and_one_entry_are_searched() {
    let folder = &Folder::new();
    write_npy(folder, "none.npy", &[], 3);
    refused(folder, "memory build --keys none.npy --out m", "none.npy: is empty");
    write_npy(folder, "one.npy", &[0.0, 2.0, 0.0], 3);
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
