//! REVEAL with its memory on PostgreSQL servers: `memory.server`, and `engram answer --memory`.
//! Needs the feature `postgres`, and `ENGRAM_POSTGRES` as in
//! memory/postgres/tests/main/server/mod.rs.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::equal_runs::reproducible_files;
use crate::postgres_server::Server;
use crate::running::{
    Folder, command, copy, engram, errors, json, read_json, refusal, refused, send_signal,
    succeeds, until_logged,
};
use engram::memory::search::{Filter, Queries};
use engram::memory::{Method, Row, Store};
use engram_memory_postgres::{Connect, PostgresStore};
use serde_json::Value;

/// Two phases read the memory, and it is refreshed several times in the second one.
const SETTINGS: [&str; 10] = [
    "checkpoint.every_steps=4",
    "memory.refresh_every=6",
    "memory.refresh_lag=3",
    "phase.images.steps=1",
    "phase.warm-start.steps=1",
    "phase.questions.steps=5",
    "phase.questions.feed.knowledge=retrieved",
    "phase.fine-tune.steps=14",
    "log.every_steps=1",
    "check.loss_at_most=100.0",
];

/// The arguments that train a run.
fn train(run: &Path, options: &str) -> String {
    let set: String = SETTINGS.iter().map(|set| format!(" --set {set}")).collect();
    let run = run.display();
    format!("train reveal --recipe reveal/laptop --tiny --quiet --run {run}{set} {options}")
}

fn server(url: &str) -> String {
    format!("--set memory.server={url}")
}

/// A run with its memory in its folder, and questions.
struct Local(Folder);

static LOCAL: LazyLock<Local> = LazyLock::new(|| {
    let folder = Folder::new();
    succeeds(&folder, "data world --out world --images 60");
    let questions = fs::read_to_string(folder.join("world/questions.jsonl")).unwrap();
    let few: Vec<&str> = questions.lines().take(40).collect();
    fs::write(folder.join("world/few.jsonl"), few.join("\n")).unwrap();
    let local = Local(folder);
    succeeds(&local.0, &train(&local.run(), ""));
    local
});

impl Local {
    fn run(&self) -> PathBuf {
        self.0.join("run")
    }

    /// The answers of a run, with the options `options`.
    fn answers(&self, run: &Path, options: &str) -> Vec<u8> {
        let out = &Folder::new();
        let file = out.join("answers.jsonl");
        succeeds(&self.0, &self.answer(run, &file, options));
        fs::read(file).unwrap()
    }

    fn answer(&self, run: &Path, out: &Path, options: &str) -> String {
        let (run, out) = (run.display(), out.display());
        format!("answer {run} --questions world/few.jsonl --out {out} --quiet {options}")
    }
}

/// Checks that a run with its memory on a server wrote the same as the local run.
#[track_caller]
fn assert_equal(local: &Path, run: &Path) {
    for file in ["model.safetensors", "metrics.jsonl", "test.jsonl"] {
        let read = |run: &Path| fs::read(run.join(file)).unwrap();
        assert!(read(local) == read(run), "{file} differs");
    }
    let summary = |run: &Path| -> Value {
        let mut summary = read_json(&run.join("summary.json"));
        summary["recipe_hash"] = Value::Null;
        summary
    };
    assert_eq!(summary(local), summary(run));
    // The finished run has a copy of its memory.
    let memory = |run: &Path| reproducible_files(&run.join("memory"), |_| true);
    assert!(memory(local) == memory(run), "the memory differs");
}

#[test]
#[ignore = "needs ENGRAM_POSTGRES: the folder of PostgreSQL's binaries"]
fn answers_from_servers_equal_the_answers_from_the_folder() {
    let [first, second] = Server::shared();
    let (local, folder) = (&*LOCAL, &Folder::new());
    let run = local.run();
    let memory = run.join("memory").display().to_string();
    let expected = local.answers(&run, "--evidence");
    for urls in
        [first.url("run"), format!("{},{}", first.url("runs"), second.url("runs"))].as_slice()
    {
        succeeds(folder, &format!("memory push {memory} {urls}"));
        assert!(local.answers(&run, &format!("--evidence --memory {urls}")) == expected);
        // The record of the model comes back.
        let pulled = folder.join(urls.len().to_string());
        succeeds(folder, &format!("memory pull {urls} {}", pulled.display()));
        let options = format!("--evidence --memory {}", pulled.display());
        assert!(local.answers(&run, &options) == expected);
    }
    let haystack = |options: &str| {
        let out = folder.join("replies.jsonl");
        let (run, out) = (run.display(), out.display());
        let command = format!("answer {run} --haystack world/haystack.jsonl --out {out} --force");
        succeeds(&local.0, &format!("{command} --quiet {options}"));
        fs::read(folder.join("replies.jsonl")).unwrap()
    };
    assert!(haystack(&format!("--memory {}", first.url("run"))) == haystack(""));

    // Memories of other models.
    let made_by = read_json(&run.join("memory/made-by.json"));
    let answer =
        |url: &str| local.answer(&run, &folder.join("x.jsonl"), &format!("--memory {url}"));
    for (field, name, part) in [
        ("weights_sha256", "weights", "was built with another model"),
        ("tokenizer_sha256", "tokenizer", "was built with another tokenizer"),
        ("inputs_sha256", "inputs", "was built with another tokenizer, image preprocessing"),
    ] {
        let (copied, url) = (folder.join(name), first.url(name));
        copy(Path::new(&memory), &copied);
        let mut changed = made_by.clone();
        changed[field] = "0".repeat(64).into();
        fs::write(copied.join("made-by.json"), changed.to_string()).unwrap();
        succeeds(folder, &format!("memory push {name} {url}"));
        refused(&local.0, &answer(&url), &[&*url, part, "use the memory of this run"]);
    }
    fs::remove_file(folder.join("weights/made-by.json")).unwrap();
    let url = first.url("nobody");
    succeeds(folder, &format!("memory push weights {url}"));
    refused(&local.0, &answer(&url), "has neither made-by.json");

    // No memory, no server, a password in the address.
    refused(&local.0, &answer(&first.url("none")), "is not a memory");
    let away = "postgres://app@/memories?host=/nowhere";
    refused(&local.0, &answer(away), &["/nowhere", "the server runs"]);
    let secret = format!("{} --verbose", answer("postgres://app:secret@localhost/memories"));
    let output = engram(&local.0, &secret.replace("--quiet", ""));
    refusal(&output, "a password", &["localhost", "put it in PGPASSWORD"]);
    assert!(!errors(&output).contains("secret"));
}

/// Searches every new state of a memory until `is_done`, and returns the number of states. Each
/// must be whole: it has all entries, and their keys and values are of the same parameters.
fn follow(url: &str, entries: usize, is_done: &AtomicBool) -> usize {
    let store = loop {
        // Before the first copy is finished, there is no memory.
        match PostgresStore::open(url, Connect::default()) {
            Ok(store) => break store,
            Err(_) if !is_done.load(Ordering::Relaxed) => thread::sleep(Duration::from_millis(5)),
            Err(error) => panic!("{error}"),
        }
    };
    let mut states = 0;
    let mut previous: BTreeMap<i64, Vec<u32>> = BTreeMap::new();
    loop {
        let snapshot = store.snapshot();
        let memory = snapshot.description();
        assert_eq!((memory.entries, memory.deleted), (entries, 0));
        let keys: Vec<f32> = (0..memory.width).map(|i| (i as f32).sin()).collect();
        let queries = Queries { keys: &keys, k: entries };
        let hits = snapshot.search(Method::Exact, queries, &Filter::default()).unwrap().hits;
        assert_eq!(hits[0].len(), entries);
        let rows: Vec<Row> = hits[0].iter().map(|hit| hit.row).collect();
        let (stored_keys, stored_values) =
            (snapshot.keys(&rows).unwrap(), snapshot.values(&rows).unwrap());
        let value_len = stored_values.len() / entries;
        let mut current = BTreeMap::new();
        for ((hit, key), value) in hits[0]
            .iter()
            .zip(stored_keys.chunks(memory.width))
            .zip(stored_values.chunks(value_len))
        {
            let score: f32 = key.iter().zip(&keys).map(|(a, b)| a * b).sum();
            assert!((hit.score - score).abs() < 1e-3, "{} {score}", hit.score);
            current.insert(hit.id, key.iter().chain(value).map(|x| x.to_bits()).collect());
        }
        if !previous.is_empty() {
            // New parameters change the keys and values of all entries.
            let changed = current.iter().filter(|(id, row)| previous[*id] != **row).count();
            assert!(changed == 0 || changed == entries, "{changed} of {entries} rows changed");
        }
        (previous, states) = (current, states + 1);
        while !store.reload().unwrap() {
            if is_done.load(Ordering::Relaxed) {
                return states;
            }
            thread::sleep(Duration::from_millis(50));
        }
    }
}

#[test]
#[ignore = "needs ENGRAM_POSTGRES: the folder of PostgreSQL's binaries"]
fn a_run_on_a_server_writes_the_same_bytes_while_others_search_its_memory() {
    let [first, second] = Server::shared();
    let (local, folder) = (&*LOCAL, &Folder::new());
    let (run, url) = (folder.join("run"), first.url("trained"));
    let entries = json(&local.0, "memory info run/memory")["entries"].as_u64().unwrap();
    let is_done = AtomicBool::new(false);
    let states = thread::scope(|scope| {
        let reader = scope.spawn(|| follow(&url, entries as usize, &is_done));
        let output = engram(folder, &train(&run, &server(&url)));
        is_done.store(true, Ordering::Relaxed);
        assert!(output.status.success(), "{}", errors(&output));
        reader.join().unwrap()
    });
    // Two phases, their refreshes, and the finished memory.
    assert!(states >= 4, "{states}");
    assert_equal(&local.run(), &run);
    let expected = local.answers(&local.run(), "--evidence");
    for options in ["", &format!("--memory {url}")] {
        assert!(local.answers(&run, &format!("--evidence {options}")) == expected, "{options}");
    }
    // Another run, and a run that lost its folder, leave the memory as it is.
    let before = succeeds(folder, &format!("memory info {url} --json"));
    let other = train(&folder.join("other"), &server(&url));
    let parts = [&*url, "belongs to another run", "another name", "memory.server"];
    refused(folder, &other, &parts);
    assert!(!folder.join("other").exists());
    assert_eq!(succeeds(folder, &format!("memory info {url} --json")), before);

    // On two servers.
    let run = folder.join("two");
    let urls = format!("{},{}", first.url("trained2"), second.url("trained2"));
    succeeds(folder, &train(&run, &server(&urls)));
    assert_equal(&local.run(), &run);
}

#[test]
#[ignore = "needs ENGRAM_POSTGRES: the folder of PostgreSQL's binaries"]
fn a_killed_or_stopped_run_continues_to_the_same_bytes() {
    let [_, second] = Server::shared();
    let (local, folder) = (&*LOCAL, &Folder::new());
    for (signal, lines) in [("-KILL", 1), ("-KILL", 8), ("-INT", 12), ("-KILL", 14)] {
        let name = format!("ended{lines}");
        let (run, url) = (folder.join(&name), second.url(&name));
        let arguments = train(&run, &server(&url));
        let mut command = command(folder, &arguments);
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        until_logged(&run, lines);
        send_signal(child.id(), signal);
        assert!(!child.wait().unwrap().success());
        succeeds(folder, &format!("{arguments} --resume"));
        assert_equal(&local.run(), &run);
        let options = format!("--memory {url}");
        assert!(local.answers(&run, &options) == local.answers(&local.run(), ""), "{name}");
    }
}

#[test]
#[ignore = "needs ENGRAM_POSTGRES: the folder of PostgreSQL's binaries"]
fn other_memories_and_unusable_addresses_are_refused() {
    let [server_of_other, _] = Server::shared();
    let (local, folder) = (&*LOCAL, &Folder::new());
    let run = folder.join("run");
    let memory = local.run().join("memory").display().to_string();
    let url = server_of_other.url("foreign");
    succeeds(folder, &format!("memory push {memory} {url}"));
    let before = succeeds(folder, &format!("memory info {url} --json"));
    let is_refused = |options: &str, parts: &[&str]| {
        let command = train(&run, options);
        let output = engram(folder, &command);
        refusal(&output, &command, parts);
        assert!(!errors(&output).contains("secret"));
        assert!(!run.exists());
    };
    is_refused(&server(&url), &[&url, "belongs to another run", "another name"]);
    assert_eq!(succeeds(folder, &format!("memory info {url} --json")), before);
    let new = server(&server_of_other.url("new"));
    is_refused(&format!("{new} --set memory.values=store"), &["memory.server", "memory.values"]);
    let secret = server("postgres://app:secret@localhost/memories");
    is_refused(&secret, &["memory.server", "put it in PGPASSWORD"]);
    let away = server("postgres://app@/memories?host=/nowhere");
    is_refused(&away, &["memory.server", "/nowhere", "the server runs"]);
    is_refused(&server("nowhere"), &["memory.server", "is not an address of PostgreSQL"]);
}
