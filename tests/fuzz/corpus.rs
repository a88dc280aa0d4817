//! Replays a crate's fuzz corpus through its targets, without the fuzzer.

use std::fs;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use crate::targets;

/// The number of inputs with random changes per target.
const CHANGED_INPUTS: usize = 1000;
/// Each byte of an input of at most this size is changed.
const SMALL_BYTES: usize = 600;

pub fn fuzz_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz")
}

/// Returns the corpus inputs of a target, with their names.
fn inputs(target: &str) -> Vec<(String, Vec<u8>)> {
    let files = fs::read_dir(fuzz_folder().join("corpus").join(target)).expect("a corpus");
    let input = |file: fs::DirEntry| {
        (file.file_name().display().to_string(), fs::read(file.path()).expect("an input"))
    };
    let mut inputs: Vec<_> = files.map(|file| input(file.expect("a file"))).collect();
    inputs.sort();
    inputs
}

#[test]
fn every_stored_input_is_read_or_refused() {
    let mut failed = Vec::new();
    for (target, _) in targets::TARGETS {
        let inputs = inputs(target);
        assert!(inputs.len() >= 6, "{target} has {} inputs", inputs.len());
        for (name, bytes) in inputs {
            if catch_unwind(|| targets::run(target, &bytes)).is_err() {
                failed.push(format!("{target}/{name}"));
            }
        }
    }
    assert!(failed.is_empty(), "{failed:#?}");
}

#[test]
fn every_corpus_has_a_target_and_a_program() {
    let programs = fs::read_to_string(fuzz_folder().join("Cargo.toml")).expect("the manifest");
    for folder in fs::read_dir(fuzz_folder().join("corpus")).expect("a corpus") {
        let name = folder.expect("a folder").file_name().display().to_string();
        assert!(targets::TARGETS.iter().any(|(target, _)| name == *target), "{name}");
        assert!(programs.contains(&format!("name = \"{name}\"\npath = \"target.rs\"")), "{name}");
    }
}

/// Runs the targets on their good inputs: truncated at each length, with random changes, and small
/// ones with a flipped bit in each byte.
#[test]
fn truncated_and_changed_inputs_are_read_or_refused() {
    let next = AtomicUsize::new(0);
    let check = || {
        while let Some((target, _)) = targets::TARGETS.get(next.fetch_add(1, Ordering::Relaxed)) {
            run_changed_inputs(target);
        }
    };
    thread::scope(|scope| {
        let threads = thread::available_parallelism().map_or(1, usize::from);
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(check)).collect();
        threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
    });
}

fn run_changed_inputs(target: &str) {
    let mut good = inputs(target);
    good.retain(|(name, _)| name.starts_with("good"));
    for (_, bytes) in &good {
        for index in 0..bytes.len() {
            targets::run(target, &bytes[..index]);
            if bytes.len() <= SMALL_BYTES {
                let mut flipped = bytes.clone();
                flipped[index] ^= 1 << (index % 8);
                targets::run(target, &flipped);
            }
        }
    }
    let mut state = 35u64;
    let mut below = |bound: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) as usize % bound
    };
    for (_, bytes) in good.iter().cycle().take(if good.is_empty() { 0 } else { CHANGED_INPUTS }) {
        let mut bytes = bytes.clone();
        for _ in 0..=below(3) {
            let index = below(bytes.len());
            match below(4) {
                0 => bytes.insert(index, b"{}[]\"',:09-\n\0"[below(13)]),
                1 => {
                    let end = bytes.len().min(index + below(40));
                    let repeated = bytes[index..end].to_vec();
                    drop(bytes.splice(index..index, repeated));
                }
                _ => bytes[index] ^= 1 << below(8),
            }
        }
        targets::run(target, &bytes);
    }
}
