//! Readers that open new generations as soon as they are made.
#![allow(clippy::unwrap_used)]

#[path = "../../tests/plain/mod.rs"]
mod plain;
mod server;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use engram_memory::search::{Filter, Queries};
use engram_memory::{Batch, MemoryFormat, Method, Store};
use plain::{Rng, batch};
use server::TestServer;

const FORMAT: MemoryFormat = MemoryFormat { width: 3, normalised: true, values: None };

fn rows(ids: std::ops::Range<i64>) -> Batch {
    batch(&mut Rng::new(ids.start as u64), FORMAT, &ids.collect::<Vec<_>>())
}

fn add(store: &dyn Store, id: i64) -> u64 {
    let mut transaction = store.begin().unwrap();
    transaction.add(1, &mut std::iter::once(Ok(rows(id..id + 1)))).unwrap();
    transaction.commit().unwrap().description().generation
}

#[test]
fn readers_switch_to_new_generations_without_a_failing_search() {
    let Some(server) = TestServer::start() else { return };
    let writer = server.create("watched", FORMAT, &rows(0..100));
    let reader = server.open("watched");
    let (is_done, searches) = (AtomicBool::new(false), AtomicUsize::new(0));
    let newest = thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !is_done.load(Ordering::Relaxed) {
                    let snapshot = reader.snapshot();
                    let entries = snapshot.description().entries;
                    let queries = Queries { keys: &[1.0, 0.2, -0.7], k: 1000 };
                    let found =
                        snapshot.search(Method::Exact, queries, &Filter::default()).unwrap();
                    // Each change adds an entry.
                    assert_eq!(found.hits[0].len(), entries);
                    assert_eq!(found.generation, entries as u64 - 99);
                    searches.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let watching = scope.spawn(|| {
            let mut watch = reader.watch();
            let mut seen = 1;
            while seen < 31 {
                let number = watch.wait(Duration::from_secs(20)).unwrap().unwrap();
                assert!(number > seen);
                assert!(
                    reader.reload().unwrap()
                        || reader.snapshot().description().generation >= number
                );
                seen = number;
            }
            seen
        });
        let newest = (100..130).map(|id| add(&writer, id)).last().unwrap();
        assert_eq!(watching.join().unwrap(), newest);
        is_done.store(true, Ordering::Relaxed);
        newest
    });
    assert_eq!(newest, 31);
    assert!(searches.into_inner() > 0);
}

#[test]
fn a_wait_ends_in_time_and_misses_no_generation() {
    let Some(server) = TestServer::start() else { return };
    let writer = server.create("missed", FORMAT, &rows(0..10));
    let mut watch = server.open("missed").watch();
    let start = Instant::now();
    assert_eq!(watch.wait(Duration::from_millis(300)).unwrap(), None);
    assert!((300..3000).contains(&start.elapsed().as_millis()));
    // While nobody waits.
    let number = add(&writer, 10);
    assert_eq!(watch.wait(Duration::from_secs(10)).unwrap(), Some(number));
    assert_eq!(watch.wait(Duration::from_millis(10)).unwrap(), None);
    // While the connection is broken.
    server.command("kill");
    server.command("start");
    let number = add(&writer, 11);
    assert_eq!(watch.wait(Duration::from_secs(10)).unwrap(), Some(number));
    // While it waits.
    thread::scope(|scope| {
        let waiting = scope.spawn(|| watch.wait(Duration::from_secs(20)).unwrap());
        thread::sleep(Duration::from_millis(300));
        let start = Instant::now();
        let number = add(&writer, 12);
        assert_eq!(waiting.join().unwrap(), Some(number));
        assert!(start.elapsed() < Duration::from_secs(5));
    });
}
