//! Values in a folder equal the values of the local memory.
#![allow(clippy::unwrap_used)]

mod store;

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use engram_memory::cache::{CacheSettings, ValueCache};
use engram_memory::{MemoryError, Row, ValueDtype, Writer};
use engram_memory_objects::object_store::local::LocalFileSystem;
use engram_memory_objects::object_store::path::Path as ObjectPath;
use engram_memory_objects::{
    Connect, DiskTier, ObjectStorage, PushSettings, RemoteValues, SweepSettings, push, sweep,
};
use store::plain::{Rng, folder};
use store::{Faulty, SMALL, add, all_rows, assert_names, connect, memory, read};

fn storage(folder: &Path) -> ObjectStorage {
    ObjectStorage::open(&folder.display().to_string(), connect()).unwrap()
}

/// Compares all values, and random ones in a random order.
fn assert_equal(values: &RemoteValues, writer: &Writer) {
    let generation = writer.generation();
    values.check_rows_of(generation).unwrap();
    let rows = all_rows(values);
    assert_eq!(read(values, &rows).unwrap(), generation.values(&rows).unwrap());
    let mut rng = Rng::new(5);
    for _ in 0..20 {
        let rows: Vec<Row> =
            (0..30).map(|_| Row::new(rng.below(values.rows() as u64) as u32)).collect();
        assert_eq!(read(values, &rows).unwrap(), generation.values(&rows).unwrap());
    }
}

#[test]
fn values_in_a_folder_equal_the_local_values() {
    for dtype in ValueDtype::ALL {
        let temporary = folder();
        let mut writer = memory(&temporary.path().join("m"), dtype, 500, 1);
        let storage = storage(&temporary.path().join("store"));
        let pushed = push(&storage, writer.generation(), SMALL).unwrap();
        assert!(pushed.shards >= 3 && pushed.sent == pushed.shards, "{pushed:?}");
        let first = RemoteValues::open(&storage, None).unwrap();
        assert_equal(&first, &writer);
        assert!(first.verify().is_empty());
        // The same generation is not pushed twice.
        let again = push(&storage, writer.generation(), SMALL).unwrap();
        assert_eq!((again.generation, again.sent), (1, 0));
        // A change sends its own values only.
        let expected = writer.generation().values(&all_rows(&first)).unwrap();
        add(&mut writer, dtype, 500, 3);
        writer.delete(&[7, 8]).unwrap();
        let pushed = push(&storage, writer.generation(), SMALL).unwrap();
        assert_eq!((pushed.generation, pushed.sent, pushed.rows), (2, 1, 503), "{pushed:?}");
        let second = RemoteValues::open(&storage, None).unwrap();
        assert_equal(&second, &writer);
        // An earlier generation stays as it is.
        assert_eq!(read(&first, &all_rows(&first)).unwrap(), expected);
        let first = RemoteValues::open(&storage, Some(1)).unwrap();
        assert_eq!(read(&first, &all_rows(&first)).unwrap(), expected);
        assert_names(
            first.check_rows_of(writer.generation()),
            &["store: generation 1 has the values of generation 1", "push the memory"],
        );
        assert_eq!(RemoteValues::generations(&storage).unwrap(), [1, 2]);
    }
}

#[test]
fn tiers_return_the_same_values_and_count_hits() {
    let temporary = folder();
    let writer = memory(&temporary.path().join("m"), ValueDtype::Int8, 1000, 1);
    let storage = storage(&temporary.path().join("store"));
    push(&storage, writer.generation(), SMALL).unwrap();
    let tier = |values: &RemoteValues, blocks: usize| {
        let bytes = (blocks * (values.block_bytes() + 64)) as u64;
        let tier = DiskTier::open(&temporary.path().join("tier"), bytes, values.block_bytes());
        Arc::new(tier.unwrap())
    };
    let values = RemoteValues::open(&storage, None).unwrap();
    let disk = tier(&values, 100);
    let values = Arc::new(values.with_disk(Arc::clone(&disk)));
    let cache = ValueCache::new(CacheSettings { capacity_bytes: 2000, background_from: None });
    let mut rng = Rng::new(3);
    for _ in 0..200 {
        let rows: Vec<Row> = (0..20).map(|_| Row::new(rng.below(400) as u32)).collect();
        let expected = writer.generation().values(&rows).unwrap();
        assert_eq!(cache.read(&values, &rows).unwrap().values, expected);
    }
    // The disk tier holds all 100 blocks of these 400 rows, each read from the store once.
    let (ram, on_disk, remote) = (cache.statistics(), disk.statistics(), values.statistics());
    assert_eq!((on_disk.blocks, on_disk.misses, remote.blocks), (100, 100, 100));
    assert!(on_disk.hit_rate() > 0.9 && ram.hit_rate() > 0.05, "{on_disk:?} {ram:?}");
    drop((values, disk));
    // A damaged block is read from the store again.
    let file = fs::read_dir(temporary.path().join("tier")).unwrap().next().unwrap().unwrap().path();
    let mut bytes = fs::read(&file).unwrap();
    let at = bytes.len() - 1;
    bytes[at] ^= 1;
    fs::write(&file, bytes).unwrap();
    let values = RemoteValues::open(&storage, None).unwrap();
    let disk = tier(&values, 100);
    let values = values.with_disk(Arc::clone(&disk));
    let rows: Vec<Row> = (0..400).map(Row::new).collect();
    assert_eq!(read(&values, &rows).unwrap(), writer.generation().values(&rows).unwrap());
    let statistics = disk.statistics();
    assert_eq!((statistics.damaged, statistics.misses, statistics.hits), (1, 1, 99));
    assert_eq!(values.statistics().blocks, 1);
}

#[test]
fn a_sweep_removes_old_generations_and_their_shards_only() {
    let temporary = folder();
    let mut writer = memory(&temporary.path().join("m"), ValueDtype::F16, 200, 1);
    let storage = storage(&temporary.path().join("store"));
    push(&storage, writer.generation(), SMALL).unwrap();
    let first = RemoteValues::open(&storage, None).unwrap();
    let negated = |mut batch: engram_memory::Batch| {
        batch.values.iter_mut().for_each(|number| *number = -*number);
        Ok(batch)
    };
    writer.refresh(negated).unwrap();
    push(&storage, writer.generation(), SMALL).unwrap();
    let second = RemoteValues::open(&storage, None).unwrap();
    let shards = || fs::read_dir(temporary.path().join("store/shards")).unwrap().count();
    let all = shards();
    // Young shards stay, because a push may use them.
    let swept = sweep(&storage, SweepSettings { keep: 1, ..SweepSettings::default() }).unwrap();
    assert_eq!((swept.generations, swept.shards, shards()), (1, 0, all));
    let now = SweepSettings { keep: 1, stay: Duration::ZERO };
    let swept = sweep(&storage, now).unwrap();
    assert_eq!((swept.generations, swept.shards, shards()), (0, all / 2, all / 2));
    assert_equal(&second, &writer);
    assert!(second.verify().is_empty());
    assert_names(read(&first, &[Row::new(0)]), &["store/shards/", "is missing", "was swept"]);
    assert_eq!(first.verify().len(), all / 2);
    // Nothing is left to remove, and nothing else is in the store.
    assert_eq!(sweep(&storage, now).unwrap(), Default::default());
    assert_eq!(fs::read_dir(temporary.path().join("store/probes")).unwrap().count(), 0);
}

#[test]
fn an_empty_folder_is_no_memory_and_stays_empty() {
    let temporary = folder();
    let path = temporary.path().join("nothing");
    let error = RemoteValues::open(&storage(&path), None).unwrap_err();
    assert!(matches!(&error, MemoryError::NoMemory { folder } if *folder == path), "{error}");
    assert!(!path.exists());
    let address = |text: &str| ObjectStorage::open(text, Connect::default());
    assert_names(address("ftp://h/b"), &["the address of an object store"]);
    assert_names(address("https://u:secret@h/b"), &["an address with a password"]);
    assert_names(address("http://example.org/b"), &["s3://bucket/prefix"]);
}

/// Pushes slowly, and prints a line for each shard. Runs in a process of its own, which is killed.
#[test]
fn slow_push() {
    let Some(parent) = std::env::var_os("ENGRAM_TEST_SLOW_PUSH").map(PathBuf::from) else { return };
    let memory = engram_memory::Memory::open(parent.join("m")).unwrap();
    let prefix = ObjectPath::from_absolute_path(parent.join("store")).unwrap();
    let slow = Faulty::of(Arc::new(LocalFileSystem::new()));
    slow.set(|faults| faults.delay = Duration::from_millis(20));
    let connect = Connect { parallel: 1, ..connect() };
    let storage = ObjectStorage::of_store(slow, prefix, "slow", connect).unwrap();
    println!("started");
    std::io::stdout().flush().unwrap();
    push(&storage, &memory.generation(), SMALL).unwrap();
}

#[test]
fn a_push_that_was_killed_goes_on() {
    let temporary = folder();
    let mut writer = memory(&temporary.path().join("m"), ValueDtype::F16, 3000, 1);
    let storage = storage(&temporary.path().join("store"));
    push(&storage, writer.generation(), SMALL).unwrap();
    let negated = |mut batch: engram_memory::Batch| {
        batch.values.iter_mut().for_each(|number| *number = -*number);
        Ok(batch)
    };
    writer.refresh(negated).unwrap();
    let shards = || fs::read_dir(temporary.path().join("store/shards")).unwrap().count();
    let before = shards();
    let mut pusher = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "slow_push", "--nocapture"])
        .env("ENGRAM_TEST_SLOW_PUSH", temporary.path())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(pusher.stdout.take().unwrap()).lines();
    assert!(lines.map(Result::unwrap).any(|line| line.contains("started")));
    while shards() < before + before / 3 {
        assert_eq!(pusher.try_wait().unwrap(), None, "the push is done or has failed");
        std::thread::sleep(Duration::from_millis(5));
    }
    pusher.kill().unwrap();
    pusher.wait().unwrap();
    // The half of a push is not visible.
    assert_eq!(RemoteValues::open(&storage, None).unwrap().generation(), 1);
    let sent_before = shards() - before;
    let pushed = push(&storage, writer.generation(), SMALL).unwrap();
    assert!(
        pushed.sent < pushed.shards && pushed.sent + sent_before >= pushed.shards,
        "{pushed:?}"
    );
    let values = RemoteValues::open(&storage, None).unwrap();
    assert_equal(&values, &writer);
    assert!(values.verify().is_empty());
}

#[test]
fn settings_that_do_not_fit_are_refused() {
    let temporary = folder();
    let writer = memory(&temporary.path().join("m"), ValueDtype::F16, 10, 1);
    let storage = storage(&temporary.path().join("store"));
    let zero = PushSettings { shard_bytes: 0, ..SMALL };
    assert_names(push(&storage, writer.generation(), zero), &["the size of a shard"]);
    let format = engram_memory::MemoryFormat { width: 2, normalised: true, values: None };
    let none = Writer::create(temporary.path().join("n"), format, 0, std::iter::empty()).unwrap();
    assert_names(push(&storage, none.generation(), SMALL), &["a memory with values"]);
    // A value larger than a block and a shard.
    let tiny = PushSettings { shard_bytes: 1, block_bytes: 1, recheck: false };
    assert_eq!(push(&storage, writer.generation(), tiny).unwrap().shards, 10);
    assert_equal(&RemoteValues::open(&storage, None).unwrap(), &writer);
    let none = SweepSettings { keep: 0, ..SweepSettings::default() };
    assert_names(sweep(&storage, none), &["at least 1"]);
}
