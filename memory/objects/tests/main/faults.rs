//! Tests of slow, failing and closed stores, of damaged objects, and of simultaneous pushes.

use std::fs;
use std::os::unix::net::UnixListener;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::store::{Faulty, SMALL, assert_equal, connect, memory, read, with_store};
use crate::support::*;
use engram_memory::cache::ValueCache;
use engram_memory_objects::{
    Connect, ObjectStorage, PushSettings, RemoteValues, SweepSettings, push, sweep,
};

/// A memory, and its values in a store with faults.
struct Setup {
    writer: Writer,
    store: Arc<Faulty>,
    storage: ObjectStorage,
    folder: tempfile::TempDir,
}

fn setup(connect: Connect) -> Setup {
    let folder = folder();
    let writer = memory(&folder.path().join("m"), ValueDtype::F16, 600, 1);
    let store = Faulty::new();
    let storage = store.storage(connect);
    push(&storage, writer.generation(), SMALL).unwrap();
    store.requests.store(0, Ordering::SeqCst);
    Setup { writer, store, storage, folder }
}

#[test]
fn damaged_objects_are_named_and_never_used() {
    let (temporary, writer, storage) = with_store(ValueDtype::F16, 100);
    let path = temporary.path().join("store");
    push(&storage, writer.generation(), SMALL).unwrap();
    let shard = fs::read_dir(path.join("shards")).unwrap().next().unwrap().unwrap().path();
    let name = format!("shards/{}", shard.file_name().unwrap().display());
    let intact = fs::read(&shard).unwrap();
    let rows: Vec<Row> = (0..100).map(Row::new).collect();
    let expected = writer.generation().values(&rows).unwrap();
    let read_all = || {
        let values = RemoteValues::open(&storage, 1).unwrap();
        read(&values, writer.generation(), &rows)
    };
    for at in 0..intact.len() {
        let mut changed = intact.clone();
        changed[at] ^= 0x10;
        fs::write(&shard, changed).unwrap();
        assert_refused(read_all(), [&name, "changed", "push it again and recheck"]);
    }
    for length in [0, 1, intact.len() / 2, intact.len() - 1] {
        fs::write(&shard, &intact[..length]).unwrap();
        let start = Instant::now();
        let size = format!("{length} bytes instead of {}", intact.len());
        assert_refused(read_all(), [&name, &size, "recheck"]);
        // Repetitions would not help.
        assert!(start.elapsed() < Duration::from_secs(1));
    }
    fs::write(&shard, [&intact[..], b"x"].concat()).unwrap();
    let size = format!("{} bytes instead of {}", intact.len() + 1, intact.len());
    assert_refused(read_all(), [&name, &size, "recheck"]);
    // A pipe and a socket are neither awaited nor tried again.
    let special = temporary.path().join("special");
    for is_socket in [false, true] {
        match is_socket {
            true => drop(UnixListener::bind(&special).unwrap()),
            false => assert!(Command::new("mkfifo").arg(&special).status().unwrap().success()),
        }
        fs::rename(&special, &shard).unwrap();
        let start = Instant::now();
        assert_refused(read_all(), [&name, "is not a regular file", "push it again and recheck"]);
        assert!(start.elapsed() < Duration::from_secs(1));
        assert_eq!(push(&storage, writer.generation(), SMALL).unwrap().sent, 1);
        assert_eq!(read_all().unwrap(), expected);
    }
    // Without `recheck`, only the size is compared.
    let mut changed = intact.clone();
    changed[0] ^= 1;
    fs::write(&shard, changed).unwrap();
    assert_eq!(push(&storage, writer.generation(), SMALL).unwrap().sent, 0);
    let recheck = PushSettings { recheck: true, ..SMALL };
    assert_eq!(push(&storage, writer.generation(), recheck).unwrap().sent, 1);
    assert_eq!(read_all().unwrap(), expected);
    fs::remove_file(&shard).unwrap();
    assert_refused(read_all(), [&name, "is missing", "push the memory again"]);
    assert_eq!(push(&storage, writer.generation(), SMALL).unwrap().sent, 1);
    assert_eq!(read_all().unwrap(), expected);

    let manifest = path.join("generations/0000000001");
    let intact = fs::read(&manifest).unwrap();
    let open = || RemoteValues::open(&storage, 1);
    for at in (0..intact.len()).step_by(7) {
        let mut changed = intact.clone();
        changed[at] ^= 1;
        fs::write(&manifest, changed).unwrap();
        assert_refused(open(), ["generations/0000000001: was changed or truncated"]);
    }
    fs::write(&manifest, &intact[..intact.len() - 1]).unwrap();
    assert_refused(open(), ["generations/0000000001: was changed or truncated"]);
    // A file that takes no room on the disk.
    fs::File::create(&manifest).unwrap().set_len(1 << 40).unwrap();
    assert_refused(open(), ["0000000001: is too large", "push it again and recheck"]);
    assert_refused(push(&storage, writer.generation(), SMALL), ["0000000001: is too large"]);
    assert_refused(sweep(&storage, SweepSettings::default()), ["0000000001", "move the object"]);
    // The next generation follows the damaged one, which stays.
    assert_eq!(push(&storage, writer.generation(), recheck).unwrap().generation, 2);
    assert_equal(&RemoteValues::open(&storage, 2).unwrap(), writer.generation());
    assert_eq!(push(&storage, writer.generation(), SMALL).unwrap().generation, 2);
    fs::remove_file(&manifest).unwrap();
    assert_refused(RemoteValues::open(&storage, 1), ["generations/0000000001: is missing"]);
    // A copied manifest stops neither sweeps nor pushes.
    fs::copy(path.join("generations/0000000002"), path.join("generations/0000000009")).unwrap();
    assert_eq!(sweep(&storage, SweepSettings::default()).unwrap(), Default::default());
    assert_refused(RemoteValues::open(&storage, 9), ["0000000009: is a copy of generation 2"]);
    assert_eq!(push(&storage, writer.generation(), SMALL).unwrap().generation, 10);
}

#[test]
fn temporary_errors_are_repeated_and_others_are_not() {
    let Setup { writer, store, storage, .. } = setup(connect());
    store.set(|faults| faults.failures = 6);
    let values = RemoteValues::open(&storage, 1).unwrap();
    let rows: Vec<Row> = writer.generation().live_rows().collect();
    store.set(|faults| faults.failures = 6);
    assert_equal(&values, writer.generation());
    assert!(storage.statistics().retries >= 8, "{:?}", storage.statistics());

    let patience = Duration::from_millis(300);
    let impatient = store.storage(Connect { patience, ..connect() });
    let values = RemoteValues::open(&impatient, 1).unwrap();
    store.set(|faults| faults.failures = usize::MAX);
    let start = Instant::now();
    let parts = ["test://a/b/shards/", "503 Slow Down", "check the address, the network"];
    assert_refused(read(&values, writer.generation(), &rows), parts);
    assert!(impatient.statistics().retries >= 2 && start.elapsed() < Duration::from_secs(5));

    store.set(|faults| (faults.failures, faults.is_denied) = (0, true));
    store.requests.store(0, Ordering::SeqCst);
    let parts = ["test://a/b/shards/", "access was denied", "no right", "check the credentials"];
    assert_refused(read(&values, writer.generation(), &[Row::new(0)]), parts);
    // One request for the table, one for the block.
    assert!(store.requests.load(Ordering::SeqCst) <= 2);
    assert_refused(push(&storage, writer.generation(), SMALL), ["probes/", "access was denied"]);
}

#[test]
fn requests_have_a_time_limit_and_a_limited_number() {
    let (request_limit, patience) = (Duration::from_millis(100), Duration::ZERO);
    let Setup { store, storage, writer, .. } =
        setup(Connect { request_limit, patience, parallel: 3, ..connect() });
    let values = RemoteValues::open(&storage, 1).unwrap();
    let rows: Vec<Row> = writer.generation().live_rows().collect();
    store.set(|faults| faults.delay = Duration::from_millis(5));
    assert_equal(&values, writer.generation());
    assert_eq!(store.most_running.load(Ordering::SeqCst), 3);
    store.set(|faults| faults.delay = Duration::from_secs(30));
    let start = Instant::now();
    let parts = ["shards/", "no answer within 0.1 s", "raise the time limit"];
    assert_refused(read(&values, writer.generation(), &rows), parts);
    assert!(start.elapsed() < Duration::from_secs(10));
}

#[test]
fn one_of_two_pushes_gets_an_error() {
    let Setup { writer, store, storage, folder } = setup(connect());
    let other = memory(&folder.path().join("other"), ValueDtype::F16, 50, 2);
    let mine = memory(&folder.path().join("mine"), ValueDtype::F16, 60, 3);
    let other_storage = store.storage(connect());
    let generation = Arc::clone(other.generation());
    store.set(|faults| {
        faults.before_manifest = Some(Box::new(move || {
            assert_eq!(push(&other_storage, &generation, SMALL).unwrap().generation, 2);
        }));
    });
    let error = push(&storage, mine.generation(), SMALL);
    let parts = ["generations/0000000002", "another process pushed", "push again"];
    assert_refused(error, parts);
    assert_equal(&RemoteValues::open(&storage, 2).unwrap(), other.generation());
    // All shards of the lost push are used by the next one.
    let pushed = push(&storage, mine.generation(), SMALL).unwrap();
    assert_eq!((pushed.generation, pushed.sent), (3, 0));
    assert_equal(&RemoteValues::open(&storage, 3).unwrap(), mine.generation());
    assert_equal(&RemoteValues::open(&storage, 1).unwrap(), writer.generation());
}

#[test]
fn a_push_whose_last_answer_was_lost_has_succeeded() {
    let Setup { store, storage, folder, .. } = setup(connect());
    let next = memory(&folder.path().join("next"), ValueDtype::F16, 60, 3);
    store.set(|faults| faults.loses_answer = true);
    assert_eq!(push(&storage, next.generation(), SMALL).unwrap().generation, 2);
    assert_equal(&RemoteValues::open(&storage, 2).unwrap(), next.generation());
}

#[test]
fn a_push_that_failed_after_its_commit_says_that_it_is_made() {
    let Setup { store, storage, folder, .. } = setup(connect());
    let next = memory(&folder.path().join("next"), ValueDtype::F16, 60, 3);
    let closing = Arc::clone(&store);
    store.set(|faults| {
        faults.before_manifest =
            Some(Box::new(move || closing.set(|faults| faults.is_denied = true)));
    });
    let error = push(&storage, next.generation(), SMALL).unwrap_err();
    assert!(matches!(error, MemoryError::ChangeMade { generation: 2, .. }), "{error}");
    store.set(|faults| faults.is_denied = false);
    assert_eq!(push(&storage, next.generation(), SMALL).unwrap().generation, 2);
}

#[test]
fn a_store_that_ignores_conditions_is_refused() {
    let Setup { writer, store, storage, .. } = setup(connect());
    store.set(|faults| faults.ignores_conditions = true);
    let parts = ["test://a/b: this store ignores the condition", "use a store with conditional"];
    assert_refused(push(&storage, writer.generation(), SMALL), parts);
}

#[test]
fn a_push_that_failed_goes_on_and_is_not_visible_before() {
    let Setup { store, storage, folder, .. } = setup(connect());
    let next = memory(&folder.path().join("next"), ValueDtype::F16, 900, 3);
    // The probe needs two writes.
    store.set(|faults| faults.writes = Some(2 + 5));
    assert_refused(push(&storage, next.generation(), SMALL), ["access was denied"]);
    store.set(|faults| faults.writes = None);
    assert_refused(RemoteValues::open(&storage, 2), ["is missing"]);
    let pushed = push(&storage, next.generation(), SMALL).unwrap();
    assert_eq!((pushed.generation, pushed.shards - pushed.sent), (2, 5), "{pushed:?}");
    assert_equal(&RemoteValues::open(&storage, 2).unwrap(), next.generation());
}

#[test]
fn a_prefetch_reads_the_values_of_a_lookup_before_it() {
    let Setup { writer, store, storage, .. } = setup(connect());
    let values = Arc::new(RemoteValues::open(&storage, 1).unwrap());
    let cache = ValueCache::new(1 << 20);
    let keys = |rows: &[u32]| {
        let rows: Vec<Row> = rows.iter().copied().map(Row::new).collect();
        writer.generation().value_keys(&rows).unwrap()
    };
    let first = keys(&(0..600).step_by(7).collect::<Vec<_>>());
    cache.prefetch(&values, &first);
    cache.wait();
    store.set(|faults| faults.is_denied = true);
    assert_eq!(cache.read(&values, &first).unwrap().len(), first.len());
    assert_eq!(cache.statistics().hit_rate(), 1.0);
    // A prefetch that fails does not fail later lookups of other values.
    cache.prefetch(&values, &keys(&[1]));
    cache.wait();
    cache.read(&values, &first).unwrap();
    assert_refused(cache.read(&values, &keys(&[1])), ["access was denied"]);
}
