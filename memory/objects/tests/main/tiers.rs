//! Memories whose values were moved to a store: reads, changes, readers, faults.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::store::{Faulty, SMALL, add, connect, memory};
use crate::support::*;
use engram_memory::ValueStorage;
use engram_memory::refresh::{Adoption, Refresh, RefreshSteps};
use engram_memory_objects::{
    Connect, ObjectStorage, RemoteValues, SweepSettings, TierSettings, ValueTiers, sweep,
};

/// Tiers of a store in main memory. The address of the store is `test://a/b`.
fn tiers(faulty: &Arc<Faulty>, target: Option<&str>) -> Arc<ValueTiers> {
    let settings = TierSettings {
        push: SMALL,
        memory_bytes: 1 << 20,
        target: target.map(str::to_owned),
        ..TierSettings::default()
    };
    Arc::new(ValueTiers::new(settings).with_store(faulty.storage(connect())))
}

fn open(folder: &Path, tiers: &Arc<ValueTiers>) -> Memory {
    Memory::open_with(folder, Some(Arc::clone(tiers) as Arc<dyn ValueStorage>)).unwrap()
}

/// The ids and values of all entries, sorted by id.
fn content(snapshot: &dyn Snapshot) -> Vec<(i64, Vec<u32>)> {
    let rows = snapshot.rows().unwrap();
    snapshot.prefetch(&rows).unwrap();
    let values = snapshot.values(&rows).unwrap();
    let size = values.len() / rows.len();
    let entries = snapshot.entries(&rows).unwrap();
    let bits = |value: &[f32]| value.iter().map(|number| number.to_bits()).collect();
    let mut content: Vec<_> =
        entries.iter().zip(values.chunks(size)).map(|(e, value)| (e.id, bits(value))).collect();
    content.sort();
    content
}

fn values_files(folder: &Path) -> usize {
    let folders = std::fs::read_dir(folder).unwrap().flatten().map(|entry| entry.path());
    folders.filter(|path| path.join("values.safetensors").is_file()).count()
}

fn search(snapshot: &dyn Snapshot) -> Vec<Vec<(i64, u32)>> {
    let keys: Vec<f32> = (0..40).map(|i| (i as f32).sin()).collect();
    let queries = Queries { keys: &keys, k: 9 };
    let results = snapshot.search(Method::Exact, queries, &Filter::default()).unwrap();
    let hits = results.hits.into_iter();
    hits.map(|hits| hits.iter().map(|hit| (hit.id, hit.score.to_bits())).collect()).collect()
}

#[test]
fn a_memory_with_moved_values_equals_the_local_one_through_changes() {
    for dtype in ValueDtype::ALL {
        let (_temporary, path) = new_path();
        let faulty = Faulty::new();
        drop(memory(&path, dtype, 900, 1));
        let local = Memory::open(&path).unwrap();
        let (before, hits) =
            (content(local.snapshot().as_ref()), search(local.snapshot().as_ref()));
        let bytes = local.generation().bytes();
        let tiers = tiers(&faulty, None);
        let at = Writer::open(&path).unwrap().move_values(tiers.as_ref(), "test://a/b").unwrap();
        assert_eq!((at.address.as_str(), at.generation), ("test://a/b", 1));
        // The reader that holds the old generation still has its files.
        assert_eq!(content(local.snapshot().as_ref()), before);
        assert_eq!(values_files(&path), 1);
        drop(local);
        let moved = open(&path, &tiers);
        assert_eq!(content(moved.snapshot().as_ref()), before);
        assert_eq!(search(moved.snapshot().as_ref()), hits);
        assert!(moved.generation().bytes() < bytes);
        assert!(Memory::verify(&path).unwrap().is_empty());
        // The next writer removes the files.
        drop(moved.begin().unwrap());
        assert_eq!(values_files(&path), 0);
        assert_eq!(content(moved.snapshot().as_ref()), before);

        // Searches and deletions need no values, so they need no store.
        let plain = Memory::open(&path).unwrap();
        assert_eq!(search(plain.snapshot().as_ref()), hits);
        assert_refused(
            plain.snapshot().values(&[Row::new(3)]),
            ["test://a/b: has the values of", "object stores"],
        );
        let mut writer = Writer::open(&path).unwrap();
        writer.delete(&[5]).unwrap();
        add(&mut writer, dtype, 2000, 3);
        drop(writer);
        assert!(moved.reload().unwrap());
        let changed = content(moved.snapshot().as_ref());
        assert_eq!(changed.len(), before.len() - 1 + 3);
        assert!(changed.iter().all(|value| value.0 >= 2000 || before.contains(value)));
        // A compaction reads all values, and writes them into the folder.
        let mut all = moved.begin().unwrap();
        all.re_encode(Vec::new(), 4, &mut Ok).unwrap();
        all.commit().unwrap();
        assert!(moved.reload().unwrap());
        assert_eq!(content(moved.snapshot().as_ref()).len(), changed.len());
        assert_eq!(values_files(&path), 1);
    }
}

#[test]
fn the_values_of_a_refresh_are_moved_before_it_is_adopted() {
    let temporary = folder();
    let (path, local) = (temporary.path().join("m"), temporary.path().join("local"));
    let faulty = Faulty::new();
    drop(memory(&path, ValueDtype::F16, 700, 3));
    drop(memory(&local, ValueDtype::F16, 700, 3));
    let tiers = tiers(&faulty, Some("test://a/b"));
    Writer::open(&path).unwrap().move_values(tiers.as_ref(), "test://a/b").unwrap();
    drop(Writer::open(&path).unwrap());
    let (moved, local) = (open(&path, &tiers), Memory::open(&local).unwrap());
    let (mut next, mut next_local) = (moved.begin().unwrap(), local.begin().unwrap());
    for round in 1..4u64 {
        let held = moved.snapshot();
        let (before, stays) = (content(held.as_ref()), content(local.snapshot().as_ref()));
        assert_eq!(before, stays);
        let change = |mut batch: Batch| -> Result<_, MemoryError> {
            batch.values.iter_mut().for_each(|number| *number += 1.0);
            batch.keys.iter_mut().for_each(|number| *number = -*number);
            Ok(batch)
        };
        let steps = RefreshSteps { start: round, lag: 0 };
        let adopt = |next, store: &dyn Store| match Refresh::start(next, Vec::new(), steps, change)
            .adopt(round, store)
            .unwrap()
        {
            Adoption::Now(adopted) => adopted.next,
            Adoption::Later(_) => panic!("due"),
        };
        next = adopt(next, &moved);
        next_local = adopt(next_local, &local);
        // One generation in the store per refresh: nothing is sent at the adoption.
        let stored = |generation| RemoteValues::open(&faulty.storage(connect()), generation);
        assert!(stored(1 + round).is_ok() && stored(2 + round).is_err());
        assert_eq!(values_files(&path), 0);
        assert_eq!(content(moved.snapshot().as_ref()), content(local.snapshot().as_ref()));
        assert_eq!(search(moved.snapshot().as_ref()), search(local.snapshot().as_ref()));
        assert_eq!(content(held.as_ref()), before);
    }
}

#[test]
fn reads_of_a_batch_are_few_requests_and_known_values_are_none() {
    let (_temporary, path) = new_path();
    let faulty = Faulty::new();
    drop(memory(&path, ValueDtype::F16, 500, 1));
    let storage = faulty.storage(connect());
    let settings = TierSettings::default();
    let tiers = Arc::new(ValueTiers::new(settings).with_store(storage.clone()));
    Writer::open(&path).unwrap().move_values(tiers.as_ref(), "test://a/b").unwrap();
    let memory = open(&path, &tiers);
    let rows: Vec<Row> = (0..500).step_by(3).map(Row::new).collect();
    let before = storage.statistics().requests;
    let values = memory.snapshot().values(&rows).unwrap();
    // The manifest; the table of the only shard, and its blocks.
    assert_eq!(storage.statistics().requests - before, 3);
    assert_eq!(memory.snapshot().values(&rows).unwrap(), values);
    assert_eq!(storage.statistics().requests - before, 3);
}

#[test]
fn faults_are_errors_with_a_remedy_and_lose_nothing() {
    let (temporary, path) = new_path();
    let address = temporary.path().join("store").display().to_string();
    drop(memory(&path, ValueDtype::Int8, 800, 1));
    let expected = content(Memory::open(&path).unwrap().snapshot().as_ref());
    let tiers = || {
        let connect = Connect { patience: Duration::ZERO, ..Connect::default() };
        Arc::new(ValueTiers::new(TierSettings { connect, push: SMALL, ..TierSettings::default() }))
    };
    // A folder that cannot be written: the memory stays as it is.
    std::fs::write(temporary.path().join("file"), "").unwrap();
    let bad = temporary.path().join("file/store").display().to_string();
    let mut writer = Writer::open(&path).unwrap();
    assert!(writer.move_values(tiers().as_ref(), &bad).is_err());
    assert_eq!(content(writer.generation().as_ref()), expected);
    writer.move_values(tiers().as_ref(), &address).unwrap();
    drop(writer);
    let read = || {
        let memory = open(&path, &tiers());
        let snapshot = memory.snapshot();
        snapshot.values(&snapshot.rows().unwrap())
    };
    // A sweep keeps the generation that the memory names.
    let storage = ObjectStorage::open(&address, connect()).unwrap();
    sweep(&storage, SweepSettings { keep: Some(1), stay: Duration::ZERO }).unwrap();
    let memory = open(&path, &tiers());
    assert_eq!(content(memory.snapshot().as_ref()), expected);
    // The values of another memory are refused.
    std::fs::remove_dir_all(temporary.path().join("store")).unwrap();
    let other = temporary.path().join("other");
    let mut writer = self::memory(&other, ValueDtype::Int8, 800, 9);
    add(&mut writer, ValueDtype::Int8, 800, 1);
    writer.move_values(tiers().as_ref(), &address).unwrap();
    assert_refused(read(), ["has no values of this memory"]);
}
