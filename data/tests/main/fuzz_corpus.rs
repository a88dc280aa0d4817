//! Replays every stored fuzzer input through the fuzzer's functions, without the fuzzer.

use std::fs;
use std::panic::catch_unwind;
use std::path::Path;

use crate::targets;

#[test]
fn every_stored_input_is_read_or_refused() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus");
    let mut panicked = Vec::new();
    for (name, _) in targets::TARGETS {
        let entries = fs::read_dir(corpus.join(name)).expect("a corpus for each target");
        let mut paths: Vec<_> = entries.map(|entry| entry.expect("an entry").path()).collect();
        paths.sort();
        assert!(paths.len() >= 10, "{name} has {} inputs", paths.len());
        for path in paths {
            let bytes = fs::read(&path).expect("a readable input");
            if catch_unwind(|| targets::run(name, &bytes)).is_err() {
                panicked.push(path);
            }
        }
    }
    assert!(panicked.is_empty(), "{panicked:#?}");
}

#[test]
fn every_corpus_has_a_target() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus");
    for entry in fs::read_dir(corpus).expect("a corpus") {
        let name = entry.expect("an entry").file_name();
        assert!(
            targets::TARGETS.iter().any(|(target_name, _)| name.to_str() == Some(*target_name)),
            "{name:?}"
        );
        let program = format!("fuzz/fuzz_targets/{}.rs", name.display());
        assert!(Path::new(env!("CARGO_MANIFEST_DIR")).join(&program).exists(), "{program}");
    }
}
