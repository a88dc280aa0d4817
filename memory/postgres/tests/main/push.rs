//! Tests of pushes: copies equal the source, killed pushes resume, and no part becomes current.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use crate::server::{TestServer, delete, open_on, urls};
use crate::support::*;
use engram_memory_postgres::{
    Connect, GraphSettings, PostgresStore, Progress, PushOptions, push, remove,
};

const FORMAT: MemoryFormat = MemoryFormat { width: 8, normalised: true, values: None };
/// More than two parts of a push.
const ROWS: usize = 60_000;
/// The names of variables with the folder and the addresses of a child process.
const FOLDER: &str = "ENGRAM_TEST_FOLDER";
const URLS: &str = "ENGRAM_TEST_URLS";

/// Builds a local memory, of which some entries are deleted.
fn local(folder: &Path, format: MemoryFormat, rows: usize, seed: u64) -> Arc<Generation> {
    let ids: Vec<i64> = (0..rows as i64).map(|id| (id * 7919) % 1_000_003).collect();
    create(folder, format, batch(&mut Rng::new(seed), format, &ids));
    let memory = Memory::open(folder).unwrap();
    delete(&memory, &ids.iter().copied().step_by(10).collect::<Vec<_>>());
    memory.reload().unwrap();
    memory.generation()
}

fn push_to(
    source: &Arc<Generation>,
    urls: &str,
    options: PushOptions<'_>,
) -> Result<Vec<usize>, MemoryError> {
    let mut rows = Vec::new();
    push(source, urls, Connect::default(), options, &mut |progress| {
        if let Progress::Rows(done) = progress {
            rows.push(done);
        }
    })?;
    Ok(rows)
}

/// Compares entries, keys, values and searches.
fn assert_equal(local: &dyn Snapshot, remote: &dyn Snapshot, seed: u64) {
    let (mut expected, found) = (local.description().clone(), remote.description().clone());
    (expected.location, expected.deleted) = (found.location.clone(), 0);
    (expected.generation, expected.has_graph) = (found.generation, found.has_graph);
    assert_eq!(found, expected);
    let by_id = |snapshot: &dyn Snapshot| {
        let rows = snapshot.rows().unwrap();
        let mut entries = snapshot.entries(&rows).unwrap();
        entries.sort_by_key(|entry| entry.id);
        let ids: Vec<i64> = entries.iter().map(|entry| entry.id).collect();
        let rows: Vec<_> = snapshot.find(&ids).unwrap().into_iter().map(Option::unwrap).collect();
        let bits = |numbers: Vec<f32>| numbers.into_iter().map(f32::to_bits).collect::<Vec<_>>();
        (entries, bits(snapshot.keys(&rows).unwrap()), bits(snapshot.values(&rows).unwrap()))
    };
    let (expected, found) = (by_id(local), by_id(remote));
    assert!(expected == found, "entries, keys or values differ");
    let mut rng = Rng::new(seed);
    for _ in 0..10 {
        let keys: Vec<f32> = (0..local.description().width).map(|_| rng.uniform()).collect();
        let sources = local.description().sources.clone();
        let weights = sources.iter().map(|_| rng.uniform()).collect();
        let filter = Filter { gates: Some(Gates { sources, weights }), ..Filter::default() };
        let [expected, found] = [local, remote].map(|snapshot| {
            let queries = Queries { keys: &keys, k: 50 };
            let found = snapshot.search(Method::Exact, queries, &filter).unwrap();
            let hits = found.hits[0].iter().map(|hit| (hit.id, hit.score.to_bits(), hit.source));
            hits.collect::<Vec<_>>()
        });
        assert_eq!(found, expected);
    }
}

#[test]
#[ignore = "needs ENGRAM_POSTGRES: see server/mod.rs"]
fn a_pushed_memory_equals_the_local_one_and_comes_back_the_same() {
    let servers = TestServer::shared_three();
    let folder = folder();
    for (index, dtype) in [None].into_iter().chain(ValueDtype::ALL.map(Some)).enumerate() {
        let values = dtype.map(|dtype| ValueFormat { tokens: 2, width: 5, dtype });
        let format = MemoryFormat { normalised: index % 2 == 0, values, ..FORMAT };
        let source = local(&folder.path().join(index.to_string()), format, 1000, index as u64);
        let servers = if index == 1 { &servers[..1] } else { servers };
        let name = format!("pushed{index}");
        let graph = format.normalised.then(GraphSettings::default);
        let options = PushOptions { graph, ..PushOptions::default() };
        assert_eq!(push_to(&source, &urls(servers, &name), options).unwrap(), [0, 900]);
        let remote = open_on(servers, &name);
        assert_eq!(remote.snapshot().description().has_graph, graph.is_some());
        assert_equal(source.as_ref(), remote.snapshot().as_ref(), index as u64);
        // It can be changed like any other.
        assert_eq!(delete(&remote, &[7919]).description().entries, 899);
    }
}

#[test]
#[ignore = "needs ENGRAM_POSTGRES: see server/mod.rs"]
fn a_push_that_cannot_open_its_copy_says_that_it_is_made() {
    let server = TestServer::start();
    let folder = folder();
    let source = local(&folder.path().join("m"), FORMAT, 300, 1);
    let login = |login| server.admin("memories").batch_execute(login).unwrap();
    let mut progress = |progress: Progress| {
        if progress == Progress::Indexes {
            login("ALTER ROLE app NOLOGIN");
        }
    };
    let options = PushOptions::default();
    let pushed = push(&source, &server.url("made"), Connect::default(), options, &mut progress);
    let error = pushed.map(drop).unwrap_err();
    assert!(matches!(error, MemoryError::ChangeMade { generation: 1, .. }), "{error}");
    assert_refused(Err::<(), _>(error), ["memory=made: the change is made"]);
    login("ALTER ROLE app LOGIN");
    assert_equal(source.as_ref(), server.open("made").snapshot().as_ref(), 1);
}

#[test]
#[ignore = "needs ENGRAM_POSTGRES: see server/mod.rs"]
fn a_memory_is_replaced_only_on_request_and_readers_keep_the_old_state() {
    let servers = TestServer::shared_three();
    let folder = folder();
    let [first, second] =
        [1, 2].map(|seed| local(&folder.path().join(seed.to_string()), FORMAT, 500, seed));
    let urls = urls(servers, "replaced");
    push_to(&first, &urls, PushOptions::default()).unwrap();
    let reader = open_on(servers, "replaced");
    let old = reader.snapshot();
    assert_refused(push_to(&second, &urls, PushOptions::default()), ["exists here", "replace it"]);
    let replace = PushOptions { replace: true, ..PushOptions::default() };
    for (generation, source) in [(2, &second), (3, &first)] {
        push_to(source, &urls, replace).unwrap();
        assert!(reader.reload().unwrap());
        assert_eq!(reader.snapshot().description().generation, generation);
        assert_equal(source.as_ref(), reader.snapshot().as_ref(), generation);
        assert_equal(first.as_ref(), old.as_ref(), generation);
    }
    // A server of another memory keeps it.
    let mut others = [servers[0].url("other"), servers[1].url("other"), servers[2].url("other")];
    push_to(&second, &others.join(" "), PushOptions::default()).unwrap();
    push_to(&first, &others.join(" "), replace).unwrap();
    others[0] = servers[0].url("replaced");
    assert_refused(push_to(&second, &others.join(" "), replace), ["another memory exists here"]);
    assert_equal(first.as_ref(), open_on(servers, "other").snapshot().as_ref(), 9);
    // One of these servers alone is not the memory.
    assert_refused(push_to(&first, &servers[0].url("replaced"), replace), ["memory on 3 servers"]);
    // A removed memory leaves nothing, and other ones stay.
    assert_refused(remove(&servers[0].url("other"), Connect::default()), ["of the 3 servers"]);
    assert!(remove(&urls, Connect::default()).unwrap());
    assert!(!remove(&urls, Connect::default()).unwrap());
    let opened = PostgresStore::open(&urls, Connect::default());
    assert!(matches!(opened, Err(MemoryError::NoMemory { .. })));
    assert_equal(first.as_ref(), open_on(servers, "other").snapshot().as_ref(), 9);
    push_to(&first, &urls, PushOptions::default()).unwrap();
}

/// Pushes the memory of `FOLDER`, and prints the progress.
#[test]
fn child_pushes_a_memory() {
    let (Ok(folder), Ok(urls)) = (std::env::var(FOLDER), std::env::var(URLS)) else { return };
    let source = Memory::open(&folder).unwrap().generation();
    push(&source, &urls, Connect::default(), PushOptions::default(), &mut |progress| {
        println!("PROGRESS {progress:?}");
    })
    .unwrap();
}

/// Pushes in a child process, and kills it once it prints this progress.
fn push_and_kill(folder: &Path, urls: &str, progress: &str) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "push::child_pushes_a_memory", "--nocapture"])
        .envs([(FOLDER, folder.to_str().unwrap()), (URLS, urls)])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut reached = lines.map(Result::unwrap).skip_while(|line| !line.contains(progress));
    assert!(reached.next().is_some(), "{progress} was not reached");
    child.kill().unwrap();
    child.wait().unwrap();
}

/// Repeats a push until the server has noticed the end of an earlier one.
fn push_after_kill(source: &Arc<Generation>, urls: &str) -> Vec<usize> {
    loop {
        match push_to(source, urls, PushOptions::default()) {
            Err(MemoryError::Locked { .. }) => {
                std::thread::sleep(std::time::Duration::from_millis(50));
            }
            result => return result.unwrap(),
        }
    }
}

#[test]
#[ignore = "needs ENGRAM_POSTGRES: see server/mod.rs"]
fn a_killed_push_is_never_current_and_goes_on() {
    let servers = TestServer::shared_three();
    let folder = folder();
    let path = folder.path().join("source");
    let source = local(&path, FORMAT, ROWS, 1);
    let other = local(&folder.path().join("other"), FORMAT, 2000, 2);
    for (servers, name) in [(&servers[..1], "one"), (servers, "three")] {
        let urls = urls(servers, name);
        for progress in ["Rows(16384)", "Rows(32768)", "Indexes"] {
            push_and_kill(&path, &urls, progress);
            assert_refused(
                PostgresStore::open(&urls, Connect::default()),
                ["unfinished push", "push it again"],
            );
        }
        // All rows are there.
        assert_eq!(push_after_kill(&source, &urls), [54_000], "{name}");
        let remote = open_on(servers, name);
        assert_equal(source.as_ref(), remote.snapshot().as_ref(), 1);
        // Another source starts anew.
        let name = format!("{name}_other");
        let urls = crate::server::urls(servers, &name);
        push_and_kill(&path, &urls, "Rows(32768)");
        assert_eq!(push_after_kill(&other, &urls), [0, 1800]);
        assert_equal(other.as_ref(), open_on(servers, &name).snapshot().as_ref(), 1);
    }
}

#[test]
#[ignore = "needs ENGRAM_POSTGRES: see server/mod.rs"]
fn a_push_goes_on_after_the_server_was_killed_and_a_second_pusher_is_refused() {
    let servers = TestServer::start_three();
    let folder = folder();
    let source = local(&folder.path().join("source"), FORMAT, ROWS, 1);
    let urls = urls(&servers, "killed");
    let connect = Connect::default();
    let mut refused = false;
    let result = push(&source, &urls, connect, PushOptions::default(), &mut |progress| {
        if progress == Progress::Rows(16384) {
            let second = push_to(&source, &urls, PushOptions::default());
            refused = matches!(second, Err(MemoryError::Locked { .. }));
            servers[1].command("kill");
            servers[1].command("start");
        }
    });
    let error = result.map(drop).unwrap_err();
    assert!(
        matches!(&error, MemoryError::Remote { location, .. } if *location == servers[1].url("killed")),
        "{error}"
    );
    assert!(refused);
    assert_refused(PostgresStore::open(&urls, connect), ["unfinished push"]);
    let rows = push_after_kill(&source, &urls);
    assert!(rows[0] >= 16384, "{rows:?}");
    assert_equal(source.as_ref(), open_on(&servers, "killed").snapshot().as_ref(), 1);
}

#[test]
#[ignore = "needs ENGRAM_POSTGRES: see server/mod.rs"]
fn a_push_to_a_full_disk_leaves_the_memory_unchanged() {
    let server = TestServer::start();
    if !server.use_small_disk() {
        return;
    }
    let folder = folder();
    let small = local(&folder.path().join("small"), FORMAT, 1000, 1);
    let large = local(&folder.path().join("large"), FORMAT, 120_000, 2);
    let url = server.url("full");
    push_to(&small, &url, PushOptions::default()).unwrap();
    let replace = PushOptions { replace: true, ..PushOptions::default() };
    assert_refused(push_to(&large, &url, replace), ["free space on the server"]);
    let servers = std::slice::from_ref(&server);
    assert_equal(small.as_ref(), open_on(servers, "full").snapshot().as_ref(), 1);
    // A change removes the unfinished push.
    let store = server.open("full");
    store.begin().unwrap().commit().unwrap();
    push_to(&small, &url, replace).unwrap();
}
