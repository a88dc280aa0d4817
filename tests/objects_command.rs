//! `engram memory push` to an object store, and commands on a memory whose values were moved. Needs the
//! feature `objects`.
#![cfg(feature = "objects")]
#![allow(clippy::unwrap_used)]

mod explorer;
mod running;

use std::fs;
use std::path::{Path, PathBuf};

use base64::Engine;
use engram::memory::Memory;
use engram::memory::vectors::npy_bytes;
use explorer::{Explorer, copy_reveal};
use running::{engram, refusal, refused, succeeds};

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

/// All values of a memory that has them in its folder.
fn values(memory: &Path) -> Vec<f32> {
    let generation = Memory::open(memory).unwrap().generation();
    generation.values(&generation.live_rows().collect::<Vec<_>>()).unwrap()
}

#[test]
fn values_are_copied_and_moved() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    build(folder);
    let search = "memory search m --queries queries.npy --json";
    let (hits, expected) = (succeeds(folder, search), values(&folder.join("m")));
    let address = format!("file://{}/store", folder.display());
    let copied = succeeds(folder, &format!("memory push m {address}"));
    assert!(copied.contains("generation 1, values of 1000 entries"), "{copied}");
    let file = folder.join("m/gen-000001/values.safetensors");
    assert!(file.is_file());
    let moved = succeeds(folder, &format!("memory push m {address} --move"));
    assert!(moved.contains("generation 1"), "{moved}");
    assert!(!file.exists());
    let first = |text: &str| text.replace("\"generation\": 2", "\"generation\": 1");
    assert_eq!(first(&succeeds(folder, search)), hits);
    succeeds(folder, "memory verify m");

    // A compaction reads the values. Keys alone answer a search.
    let shard = fs::read_dir(folder.join("store/shards")).unwrap().next().unwrap().unwrap().path();
    let bytes = fs::read(&shard).unwrap();
    let is_refused = |parts: &[&str]| {
        refusal(&engram(folder, "memory compact m"), "memory compact m", parts);
        assert_eq!(first(&succeeds(folder, search)), hits);
    };
    fs::write(&shard, &bytes[..bytes.len() / 2]).unwrap();
    is_refused(&["truncated or changed", "restore a copy"]);
    let mut changed = bytes.clone();
    changed[100] ^= 1;
    fs::write(&shard, changed).unwrap();
    is_refused(&["changed", "restore a copy"]);
    fs::remove_file(&shard).unwrap();
    is_refused(&["is missing", "check the address"]);

    // It writes the values into the folder.
    fs::write(&shard, bytes).unwrap();
    succeeds(folder, "memory compact m");
    fs::remove_dir_all(folder.join("store")).unwrap();
    assert_eq!(values(&folder.join("m")), expected);
}

#[test]
fn damaged_values_are_sent_again_and_old_generations_are_removed() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    build(folder);
    let names = |part: &str| -> Vec<PathBuf> {
        let entries = fs::read_dir(folder.join("store").join(part)).unwrap();
        entries.map(|entry| entry.unwrap().path()).collect()
    };
    succeeds(folder, "memory push m ./store");
    let [shard] = &names("shards")[..] else { panic!("a shard") };
    let bytes = fs::read(shard).unwrap();
    let mut changed = bytes.clone();
    changed[100] ^= 1;
    fs::write(shard, changed).unwrap();
    succeeds(folder, "memory push m ./store");
    assert_ne!(fs::read(shard).unwrap(), bytes);
    succeeds(folder, "memory push m ./store --recheck");
    assert_eq!(fs::read(shard).unwrap(), bytes);

    for id in [3, 4] {
        succeeds(folder, &format!("memory delete m --ids {id}"));
        succeeds(folder, "memory push m ./store");
    }
    let swept = succeeds(folder, "memory sweep ./store");
    assert!(swept.contains("removed 1 generation and 0 objects, 0 bytes"), "{swept}");
    let swept = succeeds(folder, "memory sweep ./store --keep 1 --json");
    let swept: serde_json::Value = serde_json::from_str(&swept).unwrap();
    assert_eq!(swept["generations"], 1);
    succeeds(folder, "memory push m ./store --move");
    succeeds(folder, "memory compact m");
}

#[test]
fn a_run_answers_with_moved_values() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    copy_reveal(&folder.join("run"));
    succeeds(folder, "data world --out world --images 40");
    let questions = fs::read_to_string(folder.join("world/questions.jsonl")).unwrap();
    let few: String = questions.lines().take(5).map(|line| format!("{line}\n")).collect();
    fs::write(folder.join("world/few.jsonl"), few).unwrap();
    let answer = "answer run --questions world/few.jsonl --quiet --evidence --out";
    let question = || -> serde_json::Value {
        let explorer = Explorer::open(folder, &["run"]);
        let read = |response: explorer::Response| -> serde_json::Value {
            assert_eq!(response.status, 200, "{}", response.body);
            serde_json::from_str(&response.body).unwrap()
        };
        let question = read(explorer.get("/api/runs/0/example"))["question"].clone();
        let image = explorer.get(&format!("/api/runs/0/questions/{}/image", question["id"]));
        let image = base64::engine::general_purpose::STANDARD.encode(&image.bytes);
        let request = serde_json::json!({"question": question["text"], "image": image});
        let mut answer = read(explorer.post("/api/runs/0/answer", &request.to_string()));
        answer.as_object_mut().unwrap().remove("seconds");
        answer
    };
    succeeds(folder, &format!("{answer} local.jsonl"));
    let local = question();
    succeeds(folder, "memory push run/memory ./store --move");
    succeeds(folder, &format!("{answer} moved.jsonl"));
    let read = |name: &str| fs::read_to_string(folder.join(name)).unwrap();
    assert_eq!(read("moved.jsonl"), read("local.jsonl"));
    assert_eq!(question(), local);

    fs::remove_dir_all(folder.join("store")).unwrap();
    refused(folder, &format!("{answer} missing.jsonl"), "check the address");
    assert!(!folder.join("missing.jsonl").exists());
}

#[test]
fn a_folder_is_a_store_and_other_addresses_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    build(folder);
    refused(folder, "memory push m elsewhere", "must be an address");
    refused(folder, "memory push m ftp://host/values", "address of an object store");
    refused(folder, "memory push m ./store --replace", "leave it out");
    refused(folder, "memory push m postgres://host/db --recheck", "leave it out");
    refused(folder, "memory sweep ./elsewhere", "has no values of a memory; check the address");
    assert!(!folder.join("elsewhere").exists());
    let expected = values(&folder.join("m"));
    succeeds(folder, "memory push m ./store --move");
    // The memory knows the whole path.
    fs::create_dir(folder.join("other")).unwrap();
    succeeds(&folder.join("other"), "memory compact ../m");
    assert_eq!(values(&folder.join("m")), expected);
}
