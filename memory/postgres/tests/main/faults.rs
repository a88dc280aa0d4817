//! Tests of killed servers, broken connections and simultaneous writers.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use crate::server::{FORMAT, TestServer, add, commit, delete, ids, nearest, rows};
use crate::support::*;

#[test]
#[ignore = "needs ENGRAM_POSTGRES: see server/mod.rs"]
fn searches_go_on_after_the_server_was_killed() {
    let server = TestServer::start();
    let store = server.create("searched", FORMAT, &rows(0..1000));
    let snapshot = store.snapshot();
    let expected = nearest(snapshot.as_ref()).unwrap();
    // Between searches.
    server.command("kill");
    server.command("start");
    assert_eq!(nearest(snapshot.as_ref()).unwrap(), expected);
    assert!(!store.reload().unwrap());
    // During searches.
    let (is_done, searches) = (AtomicBool::new(false), AtomicUsize::new(0));
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !is_done.load(Ordering::Relaxed) {
                    assert_eq!(nearest(snapshot.as_ref()).unwrap(), expected);
                    searches.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        for _ in 0..3 {
            let before = searches.load(Ordering::Relaxed);
            while searches.load(Ordering::Relaxed) < before + 20 {
                thread::sleep(Duration::from_millis(5));
            }
            server.command("kill");
            thread::sleep(Duration::from_millis(200));
            server.command("start");
        }
        is_done.store(true, Ordering::Relaxed);
    });
    // The snapshot is held again, so its rows stay when others remove them.
    store.reload().unwrap();
    let other = server.open("searched");
    let snapshot_after = delete(&other, &expected);
    for id in 1000..1003 {
        add(&other, id..id + 1).unwrap();
    }
    assert_eq!(nearest(snapshot.as_ref()).unwrap(), expected);
    assert_ne!(nearest(snapshot_after.as_ref()).unwrap(), expected);
}

#[test]
#[ignore = "needs ENGRAM_POSTGRES: see server/mod.rs"]
fn acknowledged_changes_are_made_while_the_server_is_killed_again_and_again() {
    let server = TestServer::start();
    let store = server.create("acknowledged", FORMAT, &rows(0..1));
    let is_done = AtomicBool::new(false);
    let (made, unknown) = thread::scope(|scope| {
        let changing = scope.spawn(|| {
            let (mut made, mut unknown) = (vec![0], Vec::new());
            for id in 1.. {
                if is_done.load(Ordering::Relaxed) {
                    break;
                }
                match add(&store, id..id + 1) {
                    Ok(_) => made.push(id),
                    Err(_) => unknown.push(id),
                }
            }
            (made, unknown)
        });
        for pause in 0..10 {
            thread::sleep(Duration::from_millis(100 + 7 * pause));
            server.command("kill");
            server.command("start");
        }
        is_done.store(true, Ordering::Relaxed);
        changing.join().unwrap()
    });
    store.reload().unwrap();
    let found = ids(store.snapshot().as_ref());
    println!("{} changes were made, {} had an error", made.len(), unknown.len());
    assert!(made.iter().all(|id| found.contains(id)));
    assert!(found.iter().all(|id| made.contains(id) || unknown.contains(id)));
    assert!(made.len() > 10);
}

#[test]
#[ignore = "needs ENGRAM_POSTGRES: see server/mod.rs"]
fn a_connection_that_breaks_in_a_commit_does_not_hide_the_outcome() {
    let server = TestServer::start();
    let store = server.create("cut", FORMAT, &rows(0..10));
    let mut admin = server.admin("memories");
    let cut = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity \
               WHERE usename = 'app' AND state LIKE 'idle in transaction%'";
    let mut transaction = store.begin().unwrap();
    transaction.add(1, &mut std::iter::once(Ok(rows(50..51)))).unwrap();
    assert_eq!(admin.query_one(cut, &[]).unwrap().get::<_, i64>(0), 1);
    assert!(matches!(transaction.commit(), Err(MemoryError::Remote { .. })));
    store.reload().unwrap();
    assert_eq!(store.snapshot().description().entries, 10);
    // The lock ended with the connection.
    add(&store, 50..51).unwrap();
}

#[test]
#[ignore = "needs ENGRAM_POSTGRES: see server/mod.rs"]
fn a_held_snapshot_stays_through_many_changes() {
    let server = TestServer::start();
    let store = server.create("held", FORMAT, &rows(0..100));
    let reader = server.open("held");
    let held = reader.snapshot();
    let (expected, expected_ids) = (nearest(held.as_ref()).unwrap(), ids(held.as_ref()));
    let rows_of_tables = || -> i64 {
        let mut admin = server.admin("memories");
        let tables = "SELECT oid::regclass::text FROM pg_class \
                      WHERE relname ~ '^rows_[0-9]+$' AND relkind = 'p'";
        let tables = admin.query(tables, &[]).unwrap();
        let mut count = |table: &str| -> i64 {
            admin.query_one(&format!("SELECT count(*) FROM {table}"), &[]).unwrap().get(0)
        };
        tables.iter().map(|row| count(row.get(0))).sum()
    };
    for round in 0..30i64 {
        let changed = commit(&store, |transaction| {
            transaction.delete(&[round])?;
            transaction.update(1, &mut std::iter::once(Ok(rows(round + 50..round + 51))))
        });
        changed.unwrap();
        if round % 10 == 9 {
            commit(&store, |transaction| transaction.re_encode(Vec::new(), 3, &mut Ok)).unwrap();
        }
        assert_eq!(nearest(held.as_ref()).unwrap(), expected);
    }
    assert_eq!(ids(held.as_ref()), expected_ids);
    let text = held.search_texts(&["text 1"], 200, &Filter::default()).unwrap();
    assert_eq!(text.hits[0].len(), 100);
    assert!(rows_of_tables() > 170);
    // Once it is released, only the rows of the current generation stay.
    drop(held);
    reader.reload().unwrap();
    store.reload().unwrap();
    for _ in 0..2 {
        store.begin().unwrap().commit().unwrap();
        reader.reload().unwrap();
        store.reload().unwrap();
    }
    assert_eq!(rows_of_tables(), 70);
}

#[test]
#[ignore = "needs ENGRAM_POSTGRES: see server/mod.rs"]
fn a_generation_that_was_removed_is_not_read_in_part() {
    let server = TestServer::start();
    let store = server.create("removed", FORMAT, &rows(0..30));
    let snapshot = store.snapshot();
    // The snapshot's lock ends with the server, and a writer comes before the reader reconnects.
    server.command("kill");
    server.command("start");
    let other = server.open("removed");
    for id in 0..3 {
        delete(&other, &[id]);
        other.reload().unwrap();
    }
    for read in [
        nearest(snapshot.as_ref()).map(drop),
        snapshot.rows().map(drop),
        snapshot.find(&[20]).map(drop),
        snapshot.search_texts(&["text"], 1, &Filter::default()).map(drop),
    ] {
        assert!(matches!(read, Err(MemoryError::MissingGeneration { .. })), "{read:?}");
    }
    assert!(store.reload().unwrap());
    assert_eq!(ids(store.snapshot().as_ref()), (3..30).collect::<Vec<_>>());
}

#[test]
#[ignore = "needs ENGRAM_POSTGRES: see server/mod.rs"]
fn a_memory_has_one_writer_and_none_of_its_readers_waits() {
    let server = TestServer::start();
    let store = server.create("written", FORMAT, &rows(0..10));
    let other = server.open("written");
    let mut transaction = store.begin().unwrap();
    assert!(matches!(other.begin(), Err(MemoryError::Locked { .. })));
    transaction.delete(&[1]).unwrap();
    // A reader sees the change after the commit.
    assert!(!other.reload().unwrap());
    assert_eq!(other.snapshot().description().entries, 10);
    let mut next = transaction.commit_and_begin().unwrap();
    assert!(other.reload().unwrap());
    assert!(matches!(other.begin(), Err(MemoryError::Locked { .. })));
    assert_eq!(next.base().description().entries, 9);
    next.delete(&[2]).unwrap();
    assert_eq!(next.commit().unwrap().description().entries, 8);
    // The locks of different memories are independent.
    let third = server.create("third", FORMAT, &rows(0..1));
    let (first, second) = (other.begin().unwrap(), third.begin().unwrap());
    drop((first, second));
    // All writers that wait for their turn make their changes.
    let made = AtomicUsize::new(0);
    thread::scope(|scope| {
        for writer in 0..4 {
            let (server, made) = (&server, &made);
            scope.spawn(move || {
                let store = server.open("written");
                for number in 0..5 {
                    let id = 100 + 10 * writer + number;
                    while let Err(error) = add(&store, id..id + 1) {
                        assert!(matches!(error, MemoryError::Locked { .. }), "{error}");
                        thread::sleep(Duration::from_millis(3));
                    }
                    made.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    assert_eq!(made.into_inner(), 20);
    other.reload().unwrap();
    assert_eq!(other.snapshot().description().entries, 28);
}
