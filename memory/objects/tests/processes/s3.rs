//! Values on an S3 server.

use std::sync::Arc;

use crate::server::TestServer;
use crate::store::{Faulty, SMALL, add, assert_equal, memory, read};
use crate::support::*;
use engram_memory_objects::object_store::aws::AmazonS3Builder;
use engram_memory_objects::object_store::path::Path;
use engram_memory_objects::object_store::{ObjectStore, ObjectStoreExt};
use engram_memory_objects::{
    ObjectStorage, PushSettings, RemoteValues, SweepSettings, push, sweep,
};
use futures_util::TryStreamExt;

/// Few shards, because the servers are slow.
const SHARDS: PushSettings = PushSettings { shard_bytes: 4000, block_bytes: 200, ..SMALL };

/// The same bucket, for damages.
fn bucket(server: &TestServer) -> Arc<dyn ObjectStore> {
    let mut builder = AmazonS3Builder::new().with_bucket_name("engram");
    for (key, value) in server.connect().options {
        builder = builder.with_config(key.parse().unwrap(), value);
    }
    Arc::new(builder.with_disable_bulk_delete(true).build().unwrap())
}

/// Pushes, reads, changes and sweeps.
#[test]
#[ignore = "needs ENGRAM_OBJECTS: see server/mod.rs"]
fn values_on_moto() {
    let server = TestServer::moto();
    let temporary = folder();
    let mut writer = memory(&temporary.path().join("m"), ValueDtype::F16, 400, 1);
    writer.identify(None).unwrap();
    let storage = ObjectStorage::open("s3://engram/some/facts", server.connect()).unwrap();
    let pushed = push(&storage, writer.generation(), SHARDS).unwrap();
    assert!(pushed.sent >= 3, "{pushed:?}");
    add(&mut writer, ValueDtype::F16, 400, 5);
    assert_eq!(push(&storage, writer.generation(), SHARDS).unwrap().sent, 1);
    assert_equal(&RemoteValues::open(&storage, 2).unwrap(), writer.generation());
    let newest = SweepSettings { keep: Some(1), ..SweepSettings::default() };
    let swept = sweep(&storage, newest).unwrap();
    assert_eq!((swept.generations, swept.shards), (1, 0));
    assert_refused(RemoteValues::open(&storage, 1), ["is missing"]);

    // Another process pushes at the last moment.
    let faulty = Faulty::of(bucket(&server));
    let path = Path::from("some/facts");
    let slower = ObjectStorage::of_store(faulty.clone(), path, "slower", server.connect()).unwrap();
    add(&mut writer, ValueDtype::F16, 500, 1);
    let generation = Arc::clone(writer.generation());
    let other = storage.clone();
    faulty.set(|faults| {
        faults.before_manifest = Some(Box::new(move || {
            assert_eq!(push(&other, &generation, SHARDS).unwrap().generation, 3);
        }));
    });
    let parts = ["slower/generations/0000000003: another process pushed", "push again"];
    assert_refused(push(&slower, writer.generation(), SHARDS), parts);
    assert_refused(RemoteValues::open(&storage, 4), ["is missing"]);
}

#[test]
#[ignore = "needs ENGRAM_OBJECTS: see server/mod.rs"]
fn damaged_objects_and_wrong_credentials_are_errors() {
    let server = TestServer::moto();
    let temporary = folder();
    let writer = memory(&temporary.path().join("m"), ValueDtype::F16, 100, 1);
    let open = |connect| ObjectStorage::open("s3://engram/facts", connect).unwrap();
    let storage = open(server.connect());
    push(&storage, writer.generation(), SHARDS).unwrap();
    let rows: Vec<Row> = writer.generation().live_rows().collect();
    let values = || RemoteValues::open(&storage, 1).unwrap();
    let read_all = || read(&values(), writer.generation(), &rows);

    let (store, runtime) = (bucket(&server), tokio::runtime::Builder::new_current_thread());
    let runtime = { runtime }.enable_all().build().unwrap();
    let shards = store.list(Some(&Path::from("facts/shards"))).try_collect::<Vec<_>>();
    let shard = runtime.block_on(shards).unwrap().remove(0).location;
    let get = async { store.get(&shard).await.unwrap().bytes().await.unwrap() };
    let intact = runtime.block_on(get);
    let put = |bytes: Vec<u8>| runtime.block_on(store.put(&shard, bytes.into())).unwrap();
    let name = format!("s3://engram/{shard}");

    let mut changed = intact.to_vec();
    *changed.last_mut().unwrap() ^= 1;
    put(changed);
    assert_refused(read_all(), [&name, "block", "was changed", "recheck"]);
    for length in [0, 10, intact.len() - 1] {
        put(intact[..length].to_vec());
        let size = format!("{length} bytes instead of {}", intact.len());
        assert_refused(read_all(), [&name, &size, "recheck"]);
    }
    runtime.block_on(store.delete(&shard)).unwrap();
    assert_refused(read_all(), [&name, "is missing"]);
    put(intact.to_vec());
    assert_eq!(read_all().unwrap(), writer.generation().values(&rows).unwrap());

    for (key, secret) in [(server.key(), "wrong"), ("AKIAUNKNOWN", "wrong")] {
        let storage = open(server.connect_with(key, secret));
        let parts = ["s3://engram/facts/", "access was denied", "check the credentials"];
        assert_refused(RemoteValues::open(&storage, 1), parts);
        assert_refused(push(&storage, writer.generation(), SHARDS), parts);
        assert_eq!(storage.statistics().retries, 0);
    }
    let elsewhere = ObjectStorage::open("s3://no-such-bucket/facts", server.connect()).unwrap();
    assert_refused(RemoteValues::open(&elsewhere, 1), ["s3://no-such-bucket/facts", "is missing"]);
}
