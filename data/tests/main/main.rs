//! The tests of this crate, in one program. `image_memory` measures the memory of its process, so
//! it is a program of its own.

#![allow(clippy::unwrap_used)] // Helper functions use `unwrap` too.

mod audio_files;
mod augmentation;
mod folds;
mod fuzz_corpus;
mod hub;
mod image;
mod knowledge;
mod patent;
mod patent_files;
mod phrase_world;
mod speech_readers;
#[path = "../../fuzz/targets.rs"]
mod targets;
mod text_to_text;
mod tokenizer;
mod vectors;
mod world;
mod world_features;

use std::path::PathBuf;

/// Returns a path in the real data, for tests that run only by name.
fn real_data(path: &str) -> PathBuf {
    let root = std::env::var_os("ENGRAM_DATA").expect("ENGRAM_DATA is the folder of the real data");
    let path = PathBuf::from(root).join(path);
    assert!(path.exists(), "{} is missing", path.display());
    path
}
