//! Runs the fuzz targets without the fuzzer on every corpus input: whole, truncated at every
//! length, and with changed bits. There must be no panic, and no large allocation for a small file.

#[path = "../fuzz/targets.rs"]
mod targets;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::fs;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

thread_local! {
    /// The largest block of memory that this thread has requested.
    static LARGEST: Cell<usize> = const { Cell::new(0) };
}

/// Allocates as the system does, and keeps the size of each thread's largest block.
struct LargestAllocation;

impl LargestAllocation {
    fn note(size: usize) {
        LARGEST.with(|largest| largest.set(largest.get().max(size)));
    }
}

// SAFETY: every call is forwarded to the system's allocator unchanged.
unsafe impl GlobalAlloc for LargestAllocation {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        Self::note(layout.size());
        // SAFETY: the caller keeps the contract of the trait.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract of the trait.
        unsafe { System.dealloc(block, layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        Self::note(size);
        // SAFETY: the caller keeps the contract of the trait.
        unsafe { System.realloc(block, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: LargestAllocation = LargestAllocation;

/// The largest allowed block as a multiple of the file's bytes: integers become floats, and tables
/// have room to grow.
const MAX_RATIO: usize = 32;
/// Bytes added to the largest allowed block, for buffers of the standard library.
const EXTRA_BYTES: usize = 1 << 16;

/// The maximum length in bytes of inputs that are truncated and changed.
const MAX_VARIED_LENGTH: usize = 1500;

/// Returns the paths and bytes of a target's inputs.
fn corpus(name: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(name);
    let entries = fs::read_dir(folder).expect("a corpus for each target");
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    paths.sort();
    let read = |path: PathBuf| {
        let bytes = fs::read(&path).expect("a readable input");
        (path, bytes)
    };
    paths.into_iter().map(read).collect()
}

/// Returns the input, its prefixes, and copies with one to three changed bits, the same in every
/// run.
fn variants(bytes: &[u8]) -> Vec<Vec<u8>> {
    let mut inputs = vec![bytes.to_vec()];
    if bytes.len() > MAX_VARIED_LENGTH {
        return inputs;
    }
    inputs.extend((0..bytes.len()).map(|end| bytes[..end].to_vec()));
    let mut state = bytes.len() as u64 + 1;
    let mut random_below = |limit: usize| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % limit
    };
    for _ in 0..if bytes.is_empty() { 0 } else { 200 } {
        let mut changed = bytes.to_vec();
        for _ in 0..=random_below(3) {
            let index = random_below(bytes.len());
            changed[index] ^= 1 << random_below(8);
        }
        inputs.push(changed);
    }
    inputs
}

#[test]
fn no_corpus_input_panics_or_allocates_much_memory() {
    let mut inputs = Vec::new();
    for (name, _) in targets::TARGETS {
        let corpus = corpus(name);
        assert!(corpus.len() >= 10, "{name} has {} inputs", corpus.len());
        inputs.extend(corpus.into_iter().map(|(path, bytes)| (name, path, bytes)));
    }
    let (next, count) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let (panicked, oversized) = (Mutex::new(Vec::new()), Mutex::new(Vec::new()));
    let check = || {
        while let Some((name, path, bytes)) = inputs.get(next.fetch_add(1, Ordering::Relaxed)) {
            for (variant, bytes) in variants(bytes).into_iter().enumerate() {
                count.fetch_add(1, Ordering::Relaxed);
                LARGEST.set(0);
                if catch_unwind(|| targets::run(name, &bytes)).is_err() {
                    panicked.lock().expect("a list").push((path, variant));
                }
                let largest = LARGEST.get();
                if largest > MAX_RATIO * bytes.len() + EXTRA_BYTES {
                    oversized.lock().expect("a list").push((path, variant, largest));
                }
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(check);
        }
    });
    let (panicked, oversized) = (panicked.into_inner(), oversized.into_inner());
    assert!(count.into_inner() > 10_000);
    assert!(panicked.as_ref().is_ok_and(Vec::is_empty), "{panicked:#?}");
    assert!(oversized.as_ref().is_ok_and(Vec::is_empty), "{oversized:#?}");
}

#[test]
fn every_corpus_has_a_target() {
    let fuzz = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz");
    for entry in fs::read_dir(fuzz.join("corpus")).expect("a corpus") {
        let name = entry.expect("an entry").file_name();
        let has_target = targets::TARGETS.iter().any(|(target, _)| name.to_str() == Some(*target));
        let program = fuzz.join(format!("fuzz_targets/{}.rs", name.display()));
        assert!(has_target && program.exists(), "{name:?}");
    }
}
