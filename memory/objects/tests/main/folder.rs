//! Values in a folder equal the values of the local memory.

use std::fs;
use std::time::Duration;

use engram_memory_objects::{
    Connect, ObjectStorage, PushSettings, RemoteValues, SweepSettings, push, sweep,
};

use crate::store::{SMALL, add, assert_equal, read, with_store};
use crate::support::*;

fn negated(mut batch: Batch) -> Result<Batch, MemoryError> {
    batch.values.iter_mut().for_each(|number| *number = -*number);
    Ok(batch)
}

#[test]
fn values_in_a_folder_equal_the_local_values() {
    for dtype in ValueDtype::ALL {
        let (_temporary, mut writer, storage) = with_store(dtype, 500);
        let pushed = push(&storage, writer.generation(), SMALL).unwrap();
        assert!(pushed.shards >= 3 && pushed.sent == pushed.shards, "{pushed:?}");
        let before = writer.generation().clone();
        let first = RemoteValues::open(&storage, 1).unwrap();
        assert_equal(&first, &before);
        // The same generation is not pushed twice.
        let again = push(&storage, writer.generation(), SMALL).unwrap();
        assert_eq!((again.generation, again.sent), (1, 0));
        // A change sends its own values only.
        add(&mut writer, dtype, 500, 3);
        writer.delete(&[7, 8]).unwrap();
        let pushed = push(&storage, writer.generation(), SMALL).unwrap();
        assert_eq!((pushed.generation, pushed.sent, pushed.rows), (2, 1, 503), "{pushed:?}");
        assert_equal(&RemoteValues::open(&storage, 2).unwrap(), writer.generation());
        // An earlier generation stays as it is.
        assert_equal(&first, &before);
        assert_equal(&RemoteValues::open(&storage, 1).unwrap(), &before);
    }
}

#[test]
fn a_sweep_removes_old_generations_and_unneeded_shards() {
    let (temporary, mut writer, storage) = with_store(ValueDtype::F16, 200);
    writer.identify(None).unwrap();
    push(&storage, writer.generation(), SMALL).unwrap();
    let (first, before) = (RemoteValues::open(&storage, 1).unwrap(), writer.generation().clone());
    encode_again(&mut writer, negated);
    push(&storage, writer.generation(), SMALL).unwrap();
    let second = RemoteValues::open(&storage, 2).unwrap();
    let shards = || fs::read_dir(temporary.path().join("store/shards")).unwrap().count();
    let all = shards();
    // All generations stay, because a copy of the memory may read them.
    let unneeded = SweepSettings { keep: None, stay: Duration::ZERO };
    assert_eq!(sweep(&storage, unneeded).unwrap(), Default::default());
    // Young shards stay, because a push may use them.
    let newest = SweepSettings { keep: Some(1), ..SweepSettings::default() };
    let swept = sweep(&storage, newest).unwrap();
    assert_eq!((swept.generations, swept.shards, shards()), (1, 0, all));
    let now = SweepSettings { keep: Some(1), stay: Duration::ZERO };
    let swept = sweep(&storage, now).unwrap();
    assert_eq!((swept.generations, swept.shards, shards()), (0, all / 2, all / 2));
    assert_equal(&second, writer.generation());
    let error = read(&first, &before, &[Row::new(0)]);
    assert_refused(error, ["store/shards/", "is missing", "was swept"]);
    // Nothing is left to remove, and nothing else is in the store.
    assert_eq!(sweep(&storage, now).unwrap(), Default::default());
    assert_eq!(fs::read_dir(temporary.path().join("store/probes")).unwrap().count(), 0);
}

#[test]
fn invalid_addresses_are_refused() {
    let address = |text: &str| ObjectStorage::open(text, Connect::default());
    assert_refused(address("ftp://h/b"), ["the address of an object store"]);
    assert_refused(address("https://u:secret@h/b"), ["an address with a password"]);
    assert_refused(address("http://example.org/b"), ["s3://bucket/prefix"]);
}

#[test]
fn settings_that_do_not_fit_are_refused() {
    let (temporary, writer, storage) = with_store(ValueDtype::F16, 10);
    let zero = PushSettings { shard_bytes: 0, ..SMALL };
    assert_refused(push(&storage, writer.generation(), zero), ["the size of a shard"]);
    let format = MemoryFormat { width: 2, normalised: true, values: None };
    let none = create(&temporary.path().join("n"), format, Batch::default());
    assert_refused(push(&storage, none.generation(), SMALL), ["a memory with values"]);
    // A value larger than a block and a shard.
    let tiny = PushSettings { shard_bytes: 1, block_bytes: 1, ..SMALL };
    assert_eq!(push(&storage, writer.generation(), tiny).unwrap().shards, 10);
    assert_equal(&RemoteValues::open(&storage, 1).unwrap(), writer.generation());
    let none = SweepSettings { keep: Some(0), ..SweepSettings::default() };
    assert_refused(sweep(&storage, none), ["at least 1"]);
}
