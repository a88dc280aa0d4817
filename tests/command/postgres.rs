//! `engram memory push`, `pull`, `info`, `search` and `remove`, with memories on PostgreSQL. Needs
//! the feature `postgres`, and `ENGRAM_POSTGRES` as in memory/postgres/tests/main/server/mod.rs.

use std::fs;
use std::path::Path;

use crate::explorer::Explorer;
use crate::postgres_server::Server;
use crate::running::{Folder, engram, errors, json, refusal, refused, succeeds, write_npy};
use serde_json::Value;

/// Builds a memory of 1000 entries of two sources, with values.
fn build(folder: &Path) {
    let numbers = |count: usize, seed: u32| -> Vec<f32> {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 23) as f32 - 1.0
        };
        (0..count).map(|_| next()).collect()
    };
    write_npy(folder, "keys.npy", &numbers(8000, 1), 8);
    write_npy(folder, "values.npy", &numbers(4000, 2), 4);
    write_npy(folder, "queries.npy", &numbers(80, 3), 8);
    let entries = (0..1000).map(|id| {
        let source = if id % 3 == 0 { "kg" } else { "wit" };
        format!(r#"{{"id": {}, "source": "{source}", "text": "entry {id}"}}"#, 7 * id)
    });
    let entries = entries.collect::<Vec<_>>().join("\n");
    fs::write(folder.join("entries.jsonl"), entries).unwrap();
    succeeds(
        folder,
        "memory build --keys keys.npy --values values.npy --entries entries.jsonl --out m",
    );
    succeeds(folder, "memory index m");
}

#[test]
#[ignore = "needs ENGRAM_POSTGRES: the folder of PostgreSQL's binaries"]
fn a_memory_is_pushed_searched_and_pulled() {
    let [first, second] = Server::shared();
    let folder = &Folder::new();
    build(folder);
    let search = |memory: &str, options: &str| {
        let command = format!("memory search {memory} --queries queries.npy {options}");
        let mut report = json(folder, &command);
        report["generation"] = Value::Null;
        if report["graph"].is_object() {
            report["graph"] = Value::Null;
        }
        report
    };
    for (urls, name) in
        [(first.url("one"), "one"), (format!("{},{}", first.url("two"), second.url("two")), "two")]
    {
        let pushed = json(folder, &format!("memory push m {urls}"));
        assert_eq!((&pushed["generation"], &pushed["entries"]), (&1.into(), &1000.into()));
        refused(folder, &format!("memory push m {urls}"), "--replace");
        let replaced = succeeds(folder, &format!("memory push m {urls} --replace"));
        assert!(replaced.contains("generation 2, 1000 entries"), "{replaced}");
        for options in ["", "-k 50 --source kg", "-k 3 --min-score 0.2", "--mmr 0.5"] {
            assert_eq!(search(&urls, options), search("m", options), "{options}");
        }
        let graph = format!("memory search {urls} --queries queries.npy --index graph");
        let recall = json(folder, &graph)["graph"]["recall"].as_f64().unwrap();
        assert!(recall > 0.95, "{recall}");
        let info = succeeds(folder, &format!("memory info {urls}"));
        assert!(info.contains("1000 entries in generation 2") && info.contains("334  k"), "{info}");
        succeeds(folder, &format!("memory pull {urls} pulled-{name}"));
        assert_eq!(search(&format!("pulled-{name}"), "-k 20"), search("m", "-k 20"));
        let graph = format!("memory search pulled-{name} --queries queries.npy --index graph");
        let recall = json(folder, &graph)["graph"]["recall"].as_f64().unwrap();
        assert!(recall > 0.95, "{recall}");
        refused(folder, &format!("memory pull {urls} pulled-{name}"), "already exists");
        // A pull that was killed left a lock and an unfinished generation.
        fs::create_dir_all(folder.join(format!("again-{name}/gen-000001.partial"))).unwrap();
        fs::write(folder.join(format!("again-{name}/LOCK")), "").unwrap();
        succeeds(folder, &format!("memory pull {urls} again-{name} --graph hnsw"));
        assert_eq!(search(&format!("again-{name}"), "-k 20"), search("m", "-k 20"));
        refused(folder, &format!("memory verify {urls}"), "PostgreSQL checks its own");
    }
    refused(
        folder,
        &format!("memory search {} --queries queries.npy", first.url("two")),
        "is server 1 of the 2",
    );
    let remove = |urls: &str| format!("memory remove {urls}");
    let two = format!("{},{}", first.url("two"), second.url("two"));
    refused(folder, &remove(&two), "a memory of 1000 entries");
    refused(folder, &remove(&format!("{} --yes", first.url("two"))), "is server 1 of the 2");
    let removed = succeeds(folder, &remove(&format!("{two} --yes")));
    assert!(removed.ends_with("memory=two, a memory of 1000 entries\n"), "{removed}");
    refused(folder, &remove(&format!("{two} --yes")), "has no memory; check the address");
    refused(folder, &remove("m --yes"), "must be an address");
    assert_eq!(search(&first.url("one"), ""), search("m", ""));
    // A schema of someone else stays, whatever its name is.
    let create = "CREATE SCHEMA engram_mine AUTHORIZATION app CREATE TABLE notes (note text)";
    first.sql("memories", create);
    refused(folder, &remove(&format!("{} --yes", first.url("mine"))), "has no memory");
    assert_eq!(first.sql("memories", "SELECT count(*) FROM engram_mine.notes").trim(), "0");
}

#[test]
#[ignore = "needs ENGRAM_POSTGRES: the folder of PostgreSQL's binaries"]
fn a_pull_of_a_memory_with_missing_rows_is_refused() {
    let [server, _] = Server::shared();
    let folder = &Folder::new();
    build(folder);
    let url = server.url("short");
    succeeds(folder, &format!("memory push m {url}"));
    server.sql("memories", "DELETE FROM engram_short.rows_1 WHERE id % 10 = 0");
    let parts = ["memory=short: has 900 of 1000 entries", "restore a backup"];
    refused(folder, &format!("memory pull {url} pulled"), &parts);
    assert!(!folder.join("pulled").exists());
    succeeds(folder, &format!("memory push m {url} --replace"));
    succeeds(folder, &format!("memory pull {url} pulled"));
}

#[test]
#[ignore = "needs ENGRAM_POSTGRES: the folder of PostgreSQL's binaries"]
fn errors_name_the_server_the_reason_and_the_remedy() {
    let [server, _] = Server::shared();
    let folder = &Folder::new();
    build(folder);
    let host = server.folder.path().display();
    for (url, parts) in [
        (server.url("none"), ["is not a memory", "memory=none"]),
        (
            "postgres://app:secret@localhost/memories".to_owned(),
            ["put it in PGPASSWORD", "localhost"],
        ),
        (format!("postgres://app@/none?host={host}"), ["does not exist", "create the database"]),
        ("postgres://app@/memories?host=/nowhere".to_owned(), ["/nowhere", "the server runs"]),
    ] {
        let search = format!("memory search {url} --queries queries.npy");
        let output = engram(folder, &search);
        refusal(&output, &search, &parts);
        assert!(!errors(&output).contains("secret"));
    }
    refused(folder, "memory push m elsewhere", "must be an address");
}

#[test]
#[ignore = "needs ENGRAM_POSTGRES: the folder of PostgreSQL's binaries"]
fn a_partial_search_names_the_missing_server() {
    let (first, second) = (Server::start(), Server::start());
    let folder = &Folder::new();
    build(folder);
    let away = second.url("partial");
    let urls = format!("{},{away}", first.url("partial"));
    succeeds(folder, &format!("memory push m {urls}"));
    drop(second);
    let search = format!("memory search {urls} --queries queries.npy -k 5");
    refused(folder, &search, &away);
    let report = json(folder, &format!("{search} --partial"));
    assert_eq!(report["missing"], Value::from(vec![away]));
    let hits = report["queries"][0]["hits"].as_array().unwrap();
    assert!(hits.iter().all(|hit| hit["id"].as_i64().unwrap() % 2 == 0));
}

#[test]
#[ignore = "needs ENGRAM_POSTGRES: the folder of PostgreSQL's binaries"]
fn the_explorer_follows_a_memory_on_a_server() {
    let [server, _] = Server::shared();
    let folder = &Folder::new();
    build(folder);
    let url = server.url("explored");
    refused(folder, &format!("explore {url}"), "is not a memory");
    refused(folder, "explore postgres://app@/memories?host=/nowhere", "the server runs");
    succeeds(folder, &format!("memory push m {url}"));
    // A memory in a folder is shown beside it.
    let explorer = Explorer::open(folder, &["m", &url]);
    let described = explorer.get("/api/memories").json();
    assert_eq!(described[1]["name"], url);
    let search = |memory: usize, request: &str| {
        let found = explorer.post(&format!("/api/memories/{memory}/search"), request);
        found.json()
    };
    for request in [
        r#"{"k": 3, "near": 7}"#,
        r#"{"k": 3, "near": 7, "sources": ["wit"]}"#,
        r#"{"k": 3, "containing": "ENTRY 99"}"#,
        r#"{"k": 3, "sources": ["wit"]}"#,
    ] {
        let (local, remote) = (search(0, request), search(1, request));
        assert_eq!(local["hits"], remote["hits"], "{request}");
        assert_eq!(local["containing"], remote["containing"], "{request}");
        assert_eq!(local["hits"].as_array().unwrap().len(), 3);
    }
    // The page shows the next state.
    succeeds(folder, "memory delete m --ids 7");
    succeeds(folder, &format!("memory push m {url} --replace"));
    assert_eq!(explorer.get("/api/memories").json()[1]["entries"], 999);
    let found = search(1, r#"{"k": 1000, "near": 14}"#);
    assert_eq!(found["generation"], 2);
    assert!(found["hits"].as_array().unwrap().iter().all(|hit| hit["id"] != 7), "{found}");
}
