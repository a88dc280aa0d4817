//! Runs the fuzz targets without the fuzzer: on every corpus input, and on good files truncated at
//! each length and with random changes.

use std::fs;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use crate::support::*;

#[path = "../../fuzz/targets.rs"]
mod targets;

/// The number of inputs with random changes per target.
const CHANGED_INPUTS: usize = 1000;

fn corpus() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus")
}

/// Returns the corpus inputs of a target, with their names.
fn corpus_inputs(name: &str) -> Vec<(String, Vec<u8>)> {
    let entries = fs::read_dir(corpus().join(name)).unwrap();
    let mut inputs: Vec<_> = entries
        .map(|entry| {
            let entry = entry.unwrap();
            (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap())
        })
        .collect();
    inputs.sort();
    inputs
}

#[test]
fn every_corpus_input_is_read_or_refused() {
    let mut failed = Vec::new();
    for (name, _) in targets::TARGETS {
        let inputs = corpus_inputs(name);
        assert!(inputs.len() >= 6, "{name} has {} inputs", inputs.len());
        for (file, bytes) in inputs {
            if catch_unwind(|| targets::run(name, &bytes)).is_err() {
                failed.push(format!("{name}/{file}"));
            }
        }
    }
    assert!(failed.is_empty(), "{failed:#?}");
}

#[test]
fn every_corpus_has_a_target() {
    for entry in fs::read_dir(corpus()).unwrap() {
        let name = entry.unwrap().file_name();
        assert!(
            targets::TARGETS.iter().any(|(known, _)| name.to_str() == Some(*known)),
            "{name:?}"
        );
        let program = format!("fuzz/fuzz_targets/{}.rs", name.display());
        assert!(Path::new(env!("CARGO_MANIFEST_DIR")).join(&program).exists(), "{program}");
    }
}

#[test]
fn truncated_and_changed_files_are_read_or_refused() {
    let next = AtomicUsize::new(0);
    let check = || {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let Some((name, _)) = targets::TARGETS.get(number) else { return };
            run_changed_inputs(name, &mut Rng::new(35 + number as u64));
        }
    };
    thread::scope(|scope| {
        let threads = thread::available_parallelism().map_or(1, usize::from);
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(check)).collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

/// Runs a target on its good inputs, truncated at each length and with random changes.
fn run_changed_inputs(name: &str, rng: &mut Rng) {
    let good_inputs: Vec<Vec<u8>> = corpus_inputs(name)
        .into_iter()
        .filter(|(file, _)| file.starts_with("good"))
        .map(|(_, bytes)| bytes)
        .collect();
    assert!(!good_inputs.is_empty(), "{name}");
    for bytes in &good_inputs {
        (0..bytes.len()).for_each(|end| targets::run(name, &bytes[..end]));
    }
    for round in 0..CHANGED_INPUTS {
        let mut bytes = good_inputs[round % good_inputs.len()].clone();
        for _ in 0..=rng.below(3) {
            let index = rng.below(bytes.len() as u64) as usize;
            match rng.below(4) {
                0 => bytes.insert(index, b"{}[]\"',:09-\n\0"[rng.below(13) as usize]),
                1 => {
                    let end = bytes.len().min(index + rng.below(40) as usize);
                    let repeated = bytes[index..end].to_vec();
                    drop(bytes.splice(index..index, repeated));
                }
                _ => bytes[index] ^= 1 << rng.below(8),
            }
        }
        targets::run(name, &bytes);
    }
}

/// Writes the good inputs, and some invalid inputs with valid checksums. Run this test with
/// `--ignored` after a change of the format.
#[test]
#[ignore = "writes the corpus"]
fn write_the_corpus() {
    let write = |target: &str, name: &str, bytes: &[u8]| {
        let folder = corpus().join(target);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join(name), bytes).unwrap();
    };
    targets::with_memory(|memory| {
        for (target, names) in
            [("segment", &targets::SEGMENT_FILES[..]), ("graph", &targets::GRAPH_FILES)]
        {
            for (choice, name) in names.iter().enumerate() {
                let input = |bytes: &[u8]| [&[choice as u8], bytes].concat();
                let bytes = memory.file(name).1;
                let stem = name.split('.').next().unwrap();
                let bytes = if *name == targets::SEGMENT_PACK { memory.part(name) } else { bytes };
                write(target, &format!("good_{stem}"), &input(bytes));
                write(target, &format!("empty_{stem}"), &input(b""));
                // The last 64 bytes become 0xff, so numbers are larger than allowed.
                let mut large = bytes.to_vec();
                let start = large.len().saturating_sub(64);
                large[start..].fill(0xff);
                write(target, &format!("large_{stem}"), &input(&large));
            }
        }
        let text = String::from_utf8(memory.file("manifest.json").1.to_vec()).unwrap();
        write("manifest", "good", text.as_bytes());
        for (name, from, to) in [
            ("width_0", "\"width\": 4", "\"width\": 0"),
            ("width_large", "\"width\": 4", "\"width\": 18446744073709551615"),
            ("tokens_large", "\"tokens\": 2", "\"tokens\": 9223372036854775807"),
            ("rows_0", "\"rows\": 150", "\"rows\": 0"),
            ("rows_large", "\"rows\": 150", "\"rows\": 18446744073709551615"),
            ("deleted_large", "\"rows\": 2", "\"rows\": 151"),
            ("deleted_no_hex", "\"hex\": \"", "\"hex\": \"x"),
            ("pack_elsewhere", "\"gen-000002.pack\"", "\"gen-000001.pack\""),
            ("start_large", "\"start\": 0", "\"start\": 18446744073709551552"),
            ("start_odd", "\"start\": 0", "\"start\": 8"),
            ("no_keys", "\"keys\":", "\"codes\":"),
            ("connections_large", "\"connections\": ", "\"connections\": 99999999999999999"),
            ("graph_start_large", "\"start\": ", "\"start\": 99"),
            ("layers_descend", "\"nodes\": [", "\"nodes\": [151,"),
            ("layer_large", "\"nodes\": [", "\"nodes\": [18446744073709551615,"),
            ("folder_outside", "\"gen-000001\"", "\"../../../etc\""),
            ("file_outside", "\"keys.safetensors\"", "\"../LOCK\""),
            ("length_negative", "\"longest_key\": 1.0", "\"longest_key\": -1e300"),
            ("no_source", "\"kg\",", ""),
            ("generation", "\"generation\": 4", "\"generation\": 5"),
            ("control", "\"width\": 4", "\"wid\\u0007\\nth\": 4"),
        ] {
            let changed = text.replacen(from, to, 1);
            assert_ne!(changed, text, "{name}");
            write("manifest", name, changed.as_bytes());
        }
        let pack = memory.file(targets::SEGMENT_PACK).1;
        let part = memory.part(targets::SEGMENT_PACK);
        let json = &pack[part.len()..pack.len() - 8];
        let with_json =
            |json: &[u8], length: usize| [part, json, &(length as u64).to_le_bytes()[..]].concat();
        let text = String::from_utf8(json.to_vec()).unwrap();
        // The pack of another generation with the same parts.
        let current = text.replace("gen-000002", "gen-000005");
        let current = current.replace("\"generation\":2", "\"generation\":5");
        write("pack", "good", &with_json(current.as_bytes(), current.len()));
        for (name, length) in [("length_0", 0), ("length_large", usize::MAX), ("short", 5)] {
            write("pack", name, &with_json(current.as_bytes(), length));
        }
        write("pack", "other_generation", pack);
        write("pack", "only_length", &0u64.to_le_bytes());
        write("pack", "empty", b"");
        let newer = current.replace("\"format_version\":1", "\"format_version\":2");
        write("pack", "newer", &with_json(newer.as_bytes(), newer.len()));
        let pointer = String::from_utf8(memory.file("CURRENT").1.to_vec()).unwrap();
        write("pointer", "good", pointer.as_bytes());
        for (name, from, to) in [
            ("other_generation", "gen-000004", "gen-000001"),
            ("other_pack", "gen-000004", "gen-000002.pack"),
            ("no_generation", "gen-000004", "gen-999999"),
            ("folder_outside", "gen-000004", "../memory/gen-000004"),
            ("no_space", " ", ""),
            ("number_large", "gen-000004", "gen-99999999999999999999999"),
        ] {
            write("pointer", name, pointer.replacen(from, to, 1).as_bytes());
        }
        write("pointer", "empty", b"");
        write("pointer", "not_text", b"\xff\xfe");
        write("pointer", "long", &[b'g'; 5000]);
    });
    let npy = |version: u8, header: &str, numbers: &[u8]| {
        let length = (header.len() as u32).to_le_bytes();
        let length = if version == 1 { &length[..2] } else { &length[..] };
        [b"\x93NUMPY", &[version, 0][..], length, header.as_bytes(), numbers].concat()
    };
    let header = |descr: &str, order: &str, shape: &str| {
        format!("{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}\n")
    };
    for (name, version, header) in [
        ("good", 1, header("'<f4'", "False", "(2, 3)")),
        ("good_halves", 2, header("'<f2'", "False", "(2, 3)")),
        ("good_big_endian", 3, header("'>f8'", "False", "(1, 3)")),
        ("fortran", 1, header("'<f4'", "True", "(2, 3)")),
        ("integers", 1, header("'<i4'", "False", "(2, 3)")),
        ("structured", 1, header("[('a', '<f4')]", "False", "(6,)")),
        ("rows_large", 1, header("'<f4'", "False", "(4611686018427387904, 4)")),
        ("empty_rows", 1, header("'<f4'", "False", "(0, 3)")),
        ("no_shape", 1, "{'descr': '<f4'}".to_owned()),
        ("nested", 1, "(".repeat(5000)),
        ("control", 1, header("'<\n\u{7}4'", "False", "(2, 3)")),
        ("version", 9, header("'<f4'", "False", "(2, 3)")),
    ] {
        write("npy", name, &npy(version, &header, &[1; 24]));
    }
    let tensors = |header: &str, numbers: usize| {
        let length = (header.len() as u64).to_le_bytes();
        [&length, header.as_bytes(), &vec![1; numbers]].concat()
    };
    for (name, header, numbers) in [
        ("good", r#"{"keys":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}}"#, 24),
        (
            "good_second",
            r#"{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"keys":{"dtype":"BF16","shape":[2,3],"data_offsets":[4,16]}}"#,
            16,
        ),
        ("good_only", r#"{"x":{"dtype":"F64","shape":[1,3],"data_offsets":[0,24]}}"#, 24),
        ("integers", r#"{"keys":{"dtype":"I32","shape":[2,3],"data_offsets":[0,24]}}"#, 24),
        ("longer", r#"{"keys":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}}"#, 25),
        (
            "rows_large",
            r#"{"keys":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,24]}}"#,
            24,
        ),
        ("offsets", r#"{"keys":{"dtype":"F32","shape":[2,3],"data_offsets":[24,0]}}"#, 24),
        ("empty_header", "{}", 0),
        ("not_json", "{{", 4),
    ] {
        write("tensors", name, &tensors(header, numbers));
    }
    write("tensors", "header_large", &u64::MAX.to_le_bytes());
    for (name, text) in [
        (
            "good",
            "{\"id\": 5, \"source\": \"kg\", \"document\": 7, \"text\": \"é\"}\n{}\n\n{\"answer\": [\"a\", 1e300]}\n",
        ),
        ("good_marked", "\u{feff}{\"document\": null, \"image\": \"a.jpg\"}\r\n{\"id\": 9}"),
        ("empty", ""),
        ("list", "[1]\n"),
        ("id_negative", "{\"id\": -1}\n"),
        ("id_largest", "{\"id\": 9223372036854775807}\n{}\n"),
        ("id_large", "{\"id\": 9223372036854775808}\n"),
        ("source_empty", "{\"source\": \"\"}\n"),
        ("document_list", "{\"document\": [1, \"\\n\"]}\n"),
        ("cut", "{\"id\": 1, \"te"),
        ("twice", "{\"id\": 1, \"id\": 2}\n"),
    ] {
        write("rows", name, text.as_bytes());
    }
    write("rows", "deep", "{\"a\":".repeat(5000).as_bytes());
    write("rows", "not_utf8", b"{\"text\": \"\xff\"}\n");
}
