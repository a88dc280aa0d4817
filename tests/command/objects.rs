//! `engram memory push` to an object store, and commands on a memory whose values were moved. Needs
//! the feature `objects`.

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

use crate::explorer::{Explorer, copy_reveal};
use crate::running::{Folder, copy, engram, errors, json, printed, refused, succeeds, write_npy};
use base64::Engine;
use engram::memory::{Memory, Snapshot};

/// Writes `NAME.npy`, `NAME-values.npy` and `NAME.jsonl` with entries of these ids.
fn write_rows(folder: &Path, name: &str, ids: Range<usize>) {
    let numbers = |width: usize| -> Vec<f32> {
        (width * ids.start..width * ids.end).map(|number| (number as f32).sin()).collect()
    };
    write_npy(folder, &format!("{name}.npy"), &numbers(8), 8);
    write_npy(folder, &format!("{name}-values.npy"), &numbers(4), 4);
    let entry = |id| format!(r#"{{"id": {id}, "source": "a", "text": "{id}"}}"#);
    let entries: Vec<String> = ids.clone().map(entry).collect();
    fs::write(folder.join(format!("{name}.jsonl")), entries.join("\n")).unwrap();
}

/// Builds a memory of 1000 entries with values.
fn build(folder: &Path) {
    write_rows(folder, "m", 0..1000);
    write_rows(folder, "queries", 0..10);
    succeeds(folder, "memory build --keys m.npy --values m-values.npy --entries m.jsonl --out m");
}

/// All values of a memory that has them in its folder.
fn values(memory: &Path) -> Vec<f32> {
    let generation = Memory::open(memory).unwrap().generation();
    generation.values(&generation.live_rows().collect::<Vec<_>>()).unwrap()
}

#[test]
fn values_are_copied_and_moved() {
    let folder = &Folder::new();
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
    // The memory got an identity, and then the address of its values.
    let first = |text: &str| text.replace("\"generation\": 3", "\"generation\": 1");
    assert_eq!(first(&succeeds(folder, search)), hits);
    let verified = engram(folder, "memory verify m");
    assert!(verified.status.success() && errors(&verified).is_empty());

    // The folder names the address, so a copy there would be confusing. Moved values stay.
    refused(folder, &format!("memory push m {address}"), "add --move");
    let again = succeeds(folder, &format!("memory push m {address} --move"));
    assert!(again.contains("generation 1, values of 1000 entries"), "{again}");

    // A compaction reads the values. Keys alone answer a search.
    let shard = fs::read_dir(folder.join("store/shards")).unwrap().next().unwrap().unwrap().path();
    let bytes = fs::read(&shard).unwrap();
    let is_refused = |parts: &[&str]| {
        refused(folder, "memory compact m", parts);
        assert_eq!(first(&succeeds(folder, search)), hits);
        let verified = engram(folder, "memory verify m");
        let faults = String::from_utf8(verified.stdout).unwrap();
        assert_eq!(verified.status.code(), Some(1), "{faults}");
        assert!(faults.contains("/store/shards/") && faults.contains(parts[0]), "{faults}");
    };
    let again = format!("memory push m {address} --move");
    fs::write(&shard, &bytes[..bytes.len() / 2]).unwrap();
    is_refused(&["truncated or changed", "restore a copy"]);
    refused(folder, &again, "truncated or changed");
    let mut changed = bytes.clone();
    changed[100] ^= 1;
    fs::write(&shard, changed).unwrap();
    is_refused(&["changed", "restore a copy"]);
    fs::remove_file(&shard).unwrap();
    is_refused(&["is missing", "check the address"]);
    refused(folder, &again, &["is missing", "restore a copy"]);

    // It writes the values into the folder.
    fs::write(&shard, bytes).unwrap();
    succeeds(folder, "memory compact m");
    fs::remove_dir_all(folder.join("store")).unwrap();
    assert_eq!(values(&folder.join("m")), expected);
}

#[test]
fn damaged_values_are_sent_again_and_old_generations_are_removed() {
    let folder = &Folder::new();
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
    assert!(swept.contains("removed 0 generations and 0 objects, 0 bytes"), "{swept}");
    assert_eq!(json(folder, "memory sweep ./store --keep 2")["generations"], 1);
    refused(folder, "memory push m ./store --insecure", "leave it out");
    assert_eq!(json(folder, "memory sweep ./store --keep 1")["generations"], 1);
    succeeds(folder, "memory push m ./store --move");

    // Values of a small change stay in the folder.
    write_rows(folder, "more", 1000..1002);
    let more = "memory add m --keys more.npy --values more-values.npy --entries more.jsonl";
    succeeds(folder, more);
    let pushed = engram(folder, "memory push m ./store --move");
    let notes = errors(&pushed);
    assert!(printed(&pushed, "push").contains("values of 998 entries"));
    assert!(notes.contains("the values of 2 entries stay in m"), "{notes}");
    succeeds(folder, "memory compact m");
}

#[test]
fn a_sweep_keeps_the_values_of_copies_and_of_other_memories() {
    let folder = &Folder::new();
    build(folder);
    write_rows(folder, "b", 5000..5900);
    succeeds(folder, "memory build --keys b.npy --values b-values.npy --entries b.jsonl --out b");
    let expected = ["m", "b"].map(|memory| values(&folder.join(memory)));
    succeeds(folder, "memory push m ./store --move");
    copy(&folder.join("m"), &folder.join("backup"));
    let parts = ["/store: has the values of another memory", "push --replace"];
    refused(folder, "memory push b ./store", &parts);
    refused(folder, "memory push b ./store --move", &parts);
    for id in [3, 4] {
        succeeds(folder, &format!("memory delete m --ids {id}"));
        succeeds(folder, "memory compact m");
        succeeds(folder, "memory push m ./store --move");
    }
    succeeds(folder, "memory push b ./store --move --replace");
    succeeds(folder, "memory sweep ./store");
    copy(&folder.join("backup"), &folder.join("restored"));
    succeeds(folder, "memory compact restored");
    assert_eq!(values(&folder.join("restored")), expected[0]);

    // If it keeps one generation of each memory, the copy loses its values.
    assert_eq!(json(folder, "memory sweep ./store --keep 1")["generations"], 2);
    let verified = engram(folder, "memory verify backup");
    let faults = String::from_utf8(verified.stdout).unwrap();
    let gone = "/generations/0000000001: is missing, because a sweep";
    assert!(verified.status.code() == Some(1) && faults.contains(gone), "{faults}");
    refused(folder, "memory compact backup", gone);
    refused(folder, "memory push backup ./store --move", gone);
    succeeds(folder, "memory verify m");
    succeeds(folder, "memory compact b");
    assert_eq!(values(&folder.join("b")), expected[1]);
}

#[test]
fn a_run_answers_with_moved_values() {
    let folder = &Folder::new();
    copy_reveal(&folder.join("run"));
    succeeds(folder, "data world --out world --images 40");
    let questions = fs::read_to_string(folder.join("world/questions.jsonl")).unwrap();
    let few: String = questions.lines().take(5).map(|line| format!("{line}\n")).collect();
    fs::write(folder.join("world/few.jsonl"), few).unwrap();
    let answer = "answer run --questions world/few.jsonl --quiet --evidence --out";
    let question = || -> serde_json::Value {
        let explorer = Explorer::open(folder, &["run"]);
        let question = explorer.get("/api/runs/0/example").json()["question"].clone();
        let image = explorer.get(&format!("/api/runs/0/questions/{}/image", question["id"]));
        let image = base64::engine::general_purpose::STANDARD.encode(&image.bytes);
        let request = serde_json::json!({"question": question["text"], "image": image});
        let mut answer = explorer.post("/api/runs/0/answer", &request.to_string()).json();
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
    let folder = &Folder::new();
    build(folder);
    for (arguments, part) in [
        ("push m elsewhere", "must be an address"),
        ("push m ftp://host/values", "address of an object store"),
        ("push m postgres://host/db --recheck", "leave it out"),
        ("sweep ./elsewhere", "has no values of a memory; check the address"),
    ] {
        refused(folder, &format!("memory {arguments}"), part);
    }
    assert!(!folder.join("elsewhere").exists());
    let expected = values(&folder.join("m"));
    succeeds(folder, "memory push m ./store --move");
    // The memory knows the whole path.
    fs::create_dir(folder.join("other")).unwrap();
    succeeds(&folder.join("other"), "memory compact ../m");
    assert_eq!(values(&folder.join("m")), expected);
}
