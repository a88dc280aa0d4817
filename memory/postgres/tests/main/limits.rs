//! Time limits, connections that are cut, slow servers and full disks.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::server::front::Front;
use crate::server::{FORMAT, TestServer, add, nearest, rows};
use crate::support::*;
use engram_memory_postgres::{Connect, PostgresStore};

/// Short limits.
const SHORT: Connect = Connect {
    insecure: true,
    partial: false,
    connections: 2,
    patience: Duration::from_millis(500),
    connect_limit: Duration::from_millis(500),
    limit: Duration::from_millis(500),
};

/// Checks that a call ends soon, with an error that has these texts.
fn fails_soon<T>(call: impl FnOnce() -> Result<T, MemoryError>, texts: &[&str]) {
    let start = Instant::now();
    let error = call().map(drop).unwrap_err();
    let elapsed = start.elapsed();
    assert!(elapsed < Duration::from_secs(10), "{elapsed:?}: {error}");
    assert!(matches!(error, MemoryError::Remote { .. }), "{error}");
    let error = error.to_string();
    assert!(texts.iter().all(|text| error.contains(text)), "{error}");
}

#[test]
#[ignore = "needs ENGRAM_POSTGRES: see server/mod.rs"]
fn a_paused_server_is_an_error_after_the_time_limit() {
    let server = TestServer::start();
    server.create("paused", FORMAT, &rows(0..100));
    let url = server.url("paused");
    let store = PostgresStore::open(&url, SHORT).unwrap();
    let expected = nearest(store.snapshot().as_ref()).unwrap();
    let mut transaction = store.begin().unwrap();
    transaction.delete(&[1]).unwrap();
    server.command("pause");
    let texts = [url.as_str(), "no answer within", "check that the server runs"];
    fails_soon(|| nearest(store.snapshot().as_ref()), &texts);
    fails_soon(|| PostgresStore::open(&url, SHORT), &texts);
    fails_soon(|| store.reload(), &texts);
    fails_soon(|| store.begin(), &texts);
    // A long statement of a writer is waited for only as long as the server accepts connections.
    fails_soon(|| transaction.delete(&[2]), &texts);
    fails_soon(|| PostgresStore::open(&url, SHORT), &texts);
    server.command("continue");
    assert_eq!(nearest(store.snapshot().as_ref()).unwrap(), expected);
    assert!(!store.reload().unwrap());
}

#[test]
#[ignore = "needs ENGRAM_POSTGRES: see server/mod.rs"]
fn a_commit_on_a_paused_server_has_an_unknown_outcome() {
    let server = TestServer::start();
    server.create("commit", FORMAT, &rows(0..100));
    let store = PostgresStore::open(&server.url("commit"), SHORT).unwrap();
    let mut transaction = store.begin().unwrap();
    transaction.delete(&[1]).unwrap();
    server.command("pause");
    fails_soon(|| transaction.commit(), &["no answer within"]);
    server.command("continue");
    // The lock of the writer ends with its connection.
    let deadline = Instant::now() + Duration::from_secs(20);
    let base = loop {
        match store.begin() {
            Ok(transaction) => break transaction.base(),
            Err(error) => assert!(Instant::now() < deadline, "{error}"),
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    assert!([99, 100].contains(&base.description().entries));
}

#[test]
#[ignore = "needs ENGRAM_POSTGRES: see server/mod.rs"]
fn a_locked_table_is_an_error_after_the_time_limit() {
    let server = TestServer::shared();
    server.create("locked", FORMAT, &rows(0..100));
    let store = PostgresStore::open(&server.url("locked"), SHORT).unwrap();
    let mut admin = server.admin("memories");
    let mut locked = admin.transaction().unwrap();
    locked.batch_execute("LOCK TABLE engram_locked.rows_1 IN ACCESS EXCLUSIVE MODE").unwrap();
    let snapshot = store.snapshot();
    fails_soon(|| nearest(snapshot.as_ref()), &["timeout (SQLSTATE"]);
    locked.rollback().unwrap();
    nearest(snapshot.as_ref()).unwrap();
}

#[test]
#[ignore = "needs ENGRAM_POSTGRES: see server/mod.rs"]
fn searches_through_cut_connections_are_repeated() {
    let server = TestServer::shared();
    server.create("cut", FORMAT, &rows(0..2000));
    let front = Front::start(server.socket(), None);
    let connect = Connect { insecure: true, connections: 1, ..Connect::default() };
    let store = PostgresStore::open(&front.url("localhost", "cut"), connect).unwrap();
    let snapshot = store.snapshot();
    let expected = nearest(snapshot.as_ref()).unwrap();
    let entries = snapshot.entries(&snapshot.rows().unwrap()).unwrap();
    let state = front.state();
    let before = state.connections.load(Ordering::SeqCst);
    for round in 0..30 {
        state.cut_after.store(1 + 97 * round, Ordering::SeqCst);
        assert_eq!(nearest(snapshot.as_ref()).unwrap(), expected, "{round}");
        assert_eq!(snapshot.entries(&snapshot.rows().unwrap()).unwrap(), entries, "{round}");
    }
    assert!(state.connections.load(Ordering::SeqCst) >= before + 30);
    // All connections at once, also the one with the locks.
    state.cut();
    assert_eq!(nearest(snapshot.as_ref()).unwrap(), expected);
    assert!(!store.reload().unwrap());
}

#[test]
#[ignore = "needs ENGRAM_POSTGRES: see server/mod.rs"]
fn changes_through_cut_connections_are_made_as_a_whole_or_not_at_all() {
    let server = TestServer::shared();
    server.create("changed", FORMAT, &rows(0..100));
    let front = Front::start(server.socket(), None);
    let store = PostgresStore::open(&front.url("localhost", "changed"), SHORT).unwrap();
    let state = front.state();
    let (mut entries, mut next) = (100, 100);
    let (mut made, mut not_made) = (0, 0);
    for round in 0..40 {
        state.cut_after.store(1 + 61 * round, Ordering::SeqCst);
        let result = add(&store, next..next + 50);
        state.cut_after.store(-1, Ordering::SeqCst);
        // Until the server has noticed the end of the connection, another writer may be refused.
        while let Err(MemoryError::Locked { .. }) = store.begin() {
            std::thread::sleep(Duration::from_millis(20));
        }
        store.reload().unwrap();
        let found = store.snapshot().description().entries;
        match result {
            Ok(_) => assert_eq!(found, entries + 50),
            Err(error) => {
                assert!(found == entries || found == entries + 50, "{round}: {found}, {error}");
            }
        }
        *(if found > entries { &mut made } else { &mut not_made }) += 1;
        (entries, next) = (found, next + 50);
    }
    println!("{made} changes were made, {not_made} were not");
    assert!(made > 0 && not_made > 0);
}

#[test]
#[ignore = "needs ENGRAM_POSTGRES: see server/mod.rs"]
fn a_slow_server_is_waited_for_up_to_the_time_limit() {
    let server = TestServer::shared();
    server.create("slow", FORMAT, &rows(0..500));
    let front = Front::start(server.socket(), None);
    let url = front.url("localhost", "slow");
    let store = PostgresStore::open(&url, SHORT).unwrap();
    let expected = nearest(store.snapshot().as_ref()).unwrap();
    front.state().delay.store(100, Ordering::SeqCst);
    assert_eq!(nearest(store.snapshot().as_ref()).unwrap(), expected);
    front.state().delay.store(3000, Ordering::SeqCst);
    fails_soon(|| nearest(store.snapshot().as_ref()), &["no answer within", "@localhost:"]);
    front.state().delay.store(0, Ordering::SeqCst);
    assert_eq!(nearest(store.snapshot().as_ref()).unwrap(), expected);
}

#[test]
#[ignore = "needs ENGRAM_POSTGRES: see server/mod.rs"]
fn a_full_disk_leaves_the_memory_unchanged() {
    let server = TestServer::start();
    if !server.use_small_disk() {
        return;
    }
    let store = server.create("full", FORMAT, &rows(0..1000));
    let mut transaction = store.begin().unwrap();
    let mut batches = (0..).map(|batch| Ok(rows(1000 * (batch + 1)..1000 * (batch + 2))));
    fails_soon(
        || transaction.add(1_000_000, &mut batches),
        &["No space left on device", "free space on the server"],
    );
    assert!(matches!(transaction.commit(), Err(MemoryError::Transaction { .. })));
    store.reload().unwrap();
    assert_eq!(store.snapshot().description().entries, 1000);
    assert_eq!(nearest(store.snapshot().as_ref()).unwrap().len(), 1000);
}
