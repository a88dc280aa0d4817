//! Tests of a memory on three servers: unreachable servers, wrong addresses, and commits that were
//! made on some of the servers only.

use std::time::Duration;

use crate::server::{FORMAT, TestServer, add, create_on, ids, nearest, open_on, rows, urls};
use crate::support::*;
use engram_memory_postgres::{Connect, GraphSettings, PostgresStore};

#[test]
#[ignore = "needs ENGRAM_POSTGRES: see server/mod.rs"]
fn a_server_that_is_away_is_an_error_or_a_named_partial_answer() {
    let servers = TestServer::start_three();
    create_on(&servers, "away", FORMAT, &rows(0..300));
    let urls = urls(&servers, "away");
    let whole = Connect { patience: Duration::from_millis(300), ..Connect::default() };
    let partial = Connect { partial: true, ..whole };
    let [store, partial_store] =
        [whole, partial].map(|connect| PostgresStore::open(&urls, connect).unwrap());
    let snapshot = store.snapshot();
    let expected = nearest(snapshot.as_ref()).unwrap();
    assert_eq!(nearest(partial_store.snapshot().as_ref()).unwrap(), expected);
    assert!(partial_store.snapshot().missing().is_empty());

    servers[1].command("kill");
    let url = servers[1].url("away");
    for error in [
        nearest(snapshot.as_ref()).map(drop),
        snapshot.rows().map(drop),
        store.reload().map(drop),
        store.begin().map(drop),
        partial_store.begin().map(drop),
        PostgresStore::open(&urls, whole).map(drop),
    ] {
        let error = error.unwrap_err();
        assert!(
            matches!(&error, MemoryError::Remote { location, .. } if *location == url),
            "{error}"
        );
    }
    let others: Vec<i64> = expected.iter().copied().filter(|id| id % 3 != 1).collect();
    let opened = PostgresStore::open(&urls, partial).unwrap();
    for store in [&partial_store, &opened] {
        let snapshot = store.snapshot();
        assert_eq!(nearest(snapshot.as_ref()).unwrap(), others);
        assert_eq!(snapshot.missing(), std::slice::from_ref(&url));
        let found = snapshot.search_texts(&["text"], 1000, &Filter::default()).unwrap();
        assert_eq!(found.hits[0].len(), others.len());
    }
    assert_eq!(opened.snapshot().description().entries, 200);

    servers[1].command("start");
    assert_eq!(nearest(snapshot.as_ref()).unwrap(), expected);
    std::thread::sleep(Duration::from_secs(5));
    for store in [&partial_store, &opened] {
        store.reload().unwrap();
        assert_eq!(nearest(store.snapshot().as_ref()).unwrap(), expected);
    }
    assert!(opened.snapshot().missing().is_empty());
}

#[test]
#[ignore = "needs ENGRAM_POSTGRES: see server/mod.rs"]
fn the_addresses_of_all_servers_are_needed_in_their_first_order() {
    let servers = TestServer::shared_three();
    create_on(servers, "order", FORMAT, &rows(0..30));
    let [a, b, c] = [0, 1, 2].map(|index| servers[index].url("order"));
    for (urls, reason) in [
        (a.clone(), "is server 1 of the 3 servers"),
        (format!("{b} {c} {a}"), "is server 2 of the 3 servers"),
        (format!("{a} {c} {b}"), "is server 3 of the 3 servers"),
        (format!("{a} {b}"), "is server 1 of the 3 servers"),
        (format!("{a} {b} {b}"), "is given twice"),
    ] {
        assert_refused(PostgresStore::open(&urls, Connect::default()), [reason]);
    }
    // Another memory of the same name on the third server.
    let alone = TestServer::start();
    alone.create("order", FORMAT, &rows(0..30));
    let urls = format!("{a},{b},{}", alone.url("order"));
    assert_refused(PostgresStore::open(&urls, Connect::default()), ["the other servers do not"]);
    assert_eq!(ids(open_on(servers, "order").snapshot().as_ref()), (0..30).collect::<Vec<_>>());
}

/// Makes commits of new generations fail on a server.
fn refuse_commits(server: &TestServer, schema: &str) {
    server
        .admin("memories")
        .batch_execute(&format!(
            "CREATE FUNCTION {schema}.refuse() RETURNS trigger LANGUAGE plpgsql AS \
             $$ BEGIN RAISE 'refused'; END $$;
             CREATE CONSTRAINT TRIGGER refuse AFTER INSERT ON {schema}.generations \
             DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION {schema}.refuse()"
        ))
        .unwrap();
}

fn allow_commits(server: &TestServer, schema: &str) {
    let sql = format!("DROP FUNCTION {schema}.refuse CASCADE");
    server.admin("memories").batch_execute(&sql).unwrap();
}

#[test]
#[ignore = "needs ENGRAM_POSTGRES: see server/mod.rs"]
fn a_change_that_the_first_server_did_not_commit_is_not_made() {
    let servers = TestServer::shared_three();
    let store = create_on(servers, "crash", FORMAT, &rows(0..60));
    store.index(GraphSettings::default()).unwrap();
    store.reload().unwrap();
    let mut expected: Vec<i64> = (0..60).collect();
    for round in 0..4 {
        let before = nearest(store.snapshot().as_ref()).unwrap();
        let change = |round| {
            let mut transaction = store.begin()?;
            if round == 2 {
                transaction.re_encode(Vec::new(), 3, &mut Ok)?;
            } else {
                let mut new = rows(100 * (round + 1)..100 * (round + 1) + 30);
                if round == 1 {
                    new.entries.iter_mut().for_each(|entry| entry.source = "new".into());
                }
                transaction.add(30, &mut std::iter::once(Ok(new)))?;
                transaction.delete(&[round])?;
            }
            transaction.commit()
        };
        refuse_commits(&servers[0], "engram_crash");
        assert_refused(change(round), ["refused", &servers[0].url("crash")]);
        // The other servers have committed.
        let mut admin = servers[1].admin("memories");
        let sql = "SELECT max(number) FROM engram_crash.generations";
        let newest: i64 = admin.query_one(sql, &[]).unwrap().get(0);
        assert_eq!(newest.cast_unsigned(), store.snapshot().description().generation + 1);
        assert!(!store.reload().unwrap());
        let opened = open_on(servers, "crash");
        for store in [&store, &opened] {
            assert_eq!(nearest(store.snapshot().as_ref()).unwrap(), before);
            assert_eq!(ids(store.snapshot().as_ref()), expected);
        }
        allow_commits(&servers[0], "engram_crash");
        change(round).unwrap();
        assert!(store.reload().unwrap());
        if round != 2 {
            expected.retain(|id| *id != round);
            expected.extend(100 * (round + 1)..100 * (round + 1) + 30);
        }
        assert_eq!(ids(store.snapshot().as_ref()), expected);
        assert_eq!(store.snapshot().description().entries, expected.len());
    }
}

#[test]
#[ignore = "needs ENGRAM_POSTGRES: see server/mod.rs"]
fn a_killed_server_leaves_changes_whole() {
    let servers = TestServer::start_three();
    let store = create_on(&servers, "killed", FORMAT, &rows(0..30));
    let mut entries = 30;
    for round in 0..9u64 {
        let next = 100 * (round as i64 + 1);
        let result = std::thread::scope(|scope| {
            let changing = scope.spawn(|| add(&store, next..next + 30));
            std::thread::sleep(Duration::from_millis(5 * round));
            let server = &servers[round as usize % 3];
            server.command("kill");
            server.command("start");
            changing.join().unwrap()
        });
        store.reload().unwrap();
        let found = ids(store.snapshot().as_ref());
        let made = found.len() == entries + 30;
        assert!(made || found.len() == entries, "{}", found.len());
        assert_eq!(found.contains(&next), made);
        assert!(made || result.is_err());
        entries = found.len();
    }
}
