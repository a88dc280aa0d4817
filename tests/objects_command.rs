//! `engram memory push` to an object store, and commands on a memory whose values were moved. Needs the
//! feature `objects`.
#![cfg(feature = "objects")]
#![allow(clippy::unwrap_used)]

mod running;

use std::fs;
use std::path::Path;

use engram::memory::vectors::npy_bytes;
use running::{refused, succeeds};

/// Builds a memory of 1000 entries with values.
fn build(folder: &Path) {
    let numbers = |count: usize| (0..count).map(|i| (i as f32).sin()).collect::<Vec<f32>>();
    let write = |name: &str, bytes: Vec<u8>| fs::write(folder.join(name), bytes).unwrap();
    write("keys.npy", npy_bytes(&numbers(8000), 8).unwrap());
    write("values.npy", npy_bytes(&numbers(4000), 4).unwrap());
    write("queries.npy", npy_bytes(&numbers(80), 8).unwrap());
    let entries = (0..1000).map(|id| format!(r#"{{"id": {id}, "source": "a", "text": "{id}"}}"#));
    write("entries.jsonl", entries.collect::<Vec<_>>().join("\n").into_bytes());
    let memory = "memory build --keys keys.npy --values values.npy --entries entries.jsonl --out m";
    succeeds(folder, memory);
}

#[test]
fn values_are_copied_and_moved() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    build(folder);
    let search = "memory search m --queries queries.npy --json";
    let hits = succeeds(folder, search);
    let address = format!("file://{}/store", folder.display());
    let copied = succeeds(folder, &format!("memory push m {address}"));
    assert!(copied.contains("generation 1, values of 1000 entries"), "{copied}");
    let values = folder.join("m/gen-000001/values.safetensors");
    assert!(values.is_file());
    let moved = succeeds(folder, &format!("memory push m {address} --move"));
    assert!(moved.contains("generation 1"), "{moved}");
    assert!(!values.exists());
    let without = |text: &str| text.replace("\"generation\": 2", "\"generation\": 1");
    assert_eq!(without(&succeeds(folder, search)), hits);
    succeeds(folder, "memory verify m");
    // A compaction reads the values, and writes them into the folder.
    let shard = fs::read_dir(folder.join("store/shards")).unwrap().next().unwrap().unwrap().path();
    let bytes = fs::read(&shard).unwrap();
    fs::write(&shard, &bytes[..bytes.len() / 2]).unwrap();
    refused(folder, "memory compact m", "truncated or changed");
    assert_eq!(without(&succeeds(folder, search)), hits);
    refused(folder, "memory push m file:///proc/none --move", "proc");
}
