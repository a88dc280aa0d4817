//! A push that is killed.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use engram_memory_objects::object_store::local::LocalFileSystem;
use engram_memory_objects::object_store::path::Path as ObjectPath;
use engram_memory_objects::{Connect, ObjectStorage, RemoteValues, push};

use crate::store::{Faulty, SMALL, assert_equal, connect, with_store};
use crate::support::*;

/// Pushes slowly, and prints a line for each shard. Runs in a process of its own, which is killed.
#[test]
fn slow_push() {
    let Some(parent) = std::env::var_os("ENGRAM_TEST_SLOW_PUSH").map(PathBuf::from) else { return };
    let memory = Memory::open(parent.join("m")).unwrap();
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
    let (temporary, mut writer, storage) = with_store(ValueDtype::F16, 3000);
    push(&storage, writer.generation(), SMALL).unwrap();
    let negated = |mut batch: Batch| {
        batch.values.iter_mut().for_each(|number| *number = -*number);
        Ok(batch)
    };
    encode_again(&mut writer, negated);
    let shards = || fs::read_dir(temporary.path().join("store/shards")).unwrap().count();
    let before = shards();
    let mut pusher = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "killed::slow_push", "--nocapture"])
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
    assert_refused(RemoteValues::open(&storage, 2), ["is missing"]);
    let sent_before = shards() - before;
    let pushed = push(&storage, writer.generation(), SMALL).unwrap();
    assert!(
        pushed.sent < pushed.shards && pushed.sent + sent_before >= pushed.shards,
        "{pushed:?}"
    );
    assert_equal(&RemoteValues::open(&storage, 2).unwrap(), writer.generation());
}
