//! Runs every input of the fuzz corpora through the same functions, without the fuzzer.

use std::fs;
use std::panic::catch_unwind;
use std::path::Path;

use crate::targets;

#[test]
fn every_stored_input_is_read_or_refused() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus");
    let mut failed = Vec::new();
    for (name, _) in targets::TARGETS {
        let entries = fs::read_dir(corpus.join(name)).expect("a corpus for each target");
        let mut paths: Vec<_> = entries.map(|entry| entry.expect("an entry").path()).collect();
        paths.sort();
        assert!(paths.len() >= 10, "{name} has {} inputs", paths.len());
        for path in paths {
            let bytes = fs::read(&path).expect("a readable input");
            if catch_unwind(|| targets::run(name, &bytes)).is_err() {
                failed.push(path);
            }
        }
    }
    assert!(failed.is_empty(), "{failed:#?}");
}

#[test]
fn every_corpus_has_a_target_and_a_program() {
    let fuzz = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz");
    let programs = fs::read_to_string(fuzz.join("Cargo.toml")).expect("the manifest");
    for entry in fs::read_dir(fuzz.join("corpus")).expect("a corpus") {
        let name = entry.expect("an entry").file_name().display().to_string();
        assert!(targets::TARGETS.iter().any(|(target_name, _)| name == *target_name), "{name}");
        assert!(programs.contains(&format!("name = \"{name}\"\npath = \"target.rs\"")), "{name}");
    }
}
