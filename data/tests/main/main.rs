//! The tests of this crate, in one program. `image_memory` measures the memory of its process, so
//! it is a program of its own.

#![allow(clippy::unwrap_used)] // Helper functions use `unwrap` too.

mod audio_files;
mod augmentation;
mod folds;
#[path = "../../../tests/fuzz/corpus.rs"]
mod fuzz_corpus;
mod hub;
mod image;
mod knowledge;
mod patent;
mod patent_files;
mod phrase_world;
mod pictures;
mod speech_readers;
#[path = "../../fuzz/targets.rs"]
mod targets;
mod text_to_text;
mod tokenizer;
mod vectors;
mod world;
mod world_features;

use std::io::Write;
use std::path::PathBuf;

/// Checks that a message has these parts.
#[track_caller]
fn assert_has(message: &str, parts: &[&str]) {
    for part in parts {
        assert!(message.contains(part), "no {part:?} in: {message}");
    }
}

fn gzip(bytes: impl AsRef<[u8]>) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes.as_ref()).unwrap();
    encoder.finish().unwrap()
}

/// Calls `read` with the bytes of a file that is truncated at each length, or has one flipped bit.
fn for_each_damage(whole: &[u8], read: impl Fn(&[u8])) {
    for length in 0..whole.len() {
        read(&whole[..length]);
    }
    for bit in 0..whole.len() * 8 {
        let mut bytes = whole.to_vec();
        bytes[bit / 8] ^= 1 << (bit % 8);
        read(&bytes);
    }
}

/// Returns a path in the real data, for tests that run only by name.
fn real_data(path: &str) -> PathBuf {
    let root = std::env::var_os("ENGRAM_DATA").expect("ENGRAM_DATA is the folder of the real data");
    let path = PathBuf::from(root).join(path);
    assert!(path.exists(), "{} is missing", path.display());
    path
}
