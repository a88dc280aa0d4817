//! A change that fails because file descriptors run out, before and after the commit point. It runs
//! in its own process, which uses up all but a few descriptors.
#![allow(clippy::unwrap_used)]

mod plain;

use std::fs::File;
use std::path::Path;
use std::process::Command;

use engram_memory::{Memory, MemoryError, MemoryFormat, Writer};
use plain::{Numbers, batch, folder};

const MEMORY: &str = "ENGRAM_TEST_MEMORY";
const FREE: &str = "ENGRAM_TEST_FREE";
const FORMAT: MemoryFormat = MemoryFormat { width: 4, normalised: true, values: None };

#[test]
fn an_error_says_whether_the_change_is_made() {
    if let Some(memory) = std::env::var_os(MEMORY) {
        let free = std::env::var(FREE).unwrap().parse().unwrap();
        return change_with_few_descriptors(Path::new(&memory), free);
    }
    let mut ended = [0; 3];
    for free in 0..12 {
        let temporary = folder();
        let memory = temporary.path().join("m");
        let rows = batch(&mut Numbers::new(5), FORMAT, &(0..20).collect::<Vec<_>>());
        let mut writer = Writer::create(&memory, FORMAT, 20, [Ok(rows)].into_iter()).unwrap();
        writer.delete(&[0]).unwrap();
        drop(writer);
        let this = std::env::current_exe().unwrap();
        let mut child = Command::new("sh");
        child.args(["-c", "ulimit -n 64 && exec \"$0\" --nocapture --test-threads 1"]).arg(this);
        let output = child.env(MEMORY, &memory).env(FREE, free.to_string()).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{free} free: {text}{errors}");
        let outcomes = ["is refused", "is made despite an error", "is made without an error"];
        let outcome = outcomes.iter().position(|outcome| text.contains(outcome)).unwrap();
        ended[outcome] += 1;
        assert!(Memory::verify(&memory).unwrap().is_empty());
        let mut left: Vec<String> = std::fs::read_dir(&memory)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        left.retain(|name| name != "CURRENT" && name != "LOCK");
        assert!(left.iter().all(|name| !name.contains('.')), "{free} free: {left:?}");
    }
    assert!(ended.iter().all(|count| *count > 0), "{ended:?}");
}

fn change_with_few_descriptors(memory: &Path, free: usize) {
    let mut writer = Writer::open(memory).unwrap();
    let mut open_files = Vec::new();
    while let Ok(file) = File::open("/dev/null") {
        open_files.push(file);
    }
    open_files.truncate(open_files.len().saturating_sub(free));
    let changed = writer.delete(&[7]);
    drop(open_files);
    let now = Memory::open(memory).unwrap().generation();
    let is_made = now.row_of(7).unwrap().is_none();
    match &changed {
        Ok(()) => println!("the change is made without an error"),
        Err(MemoryError::ChangeMade { generation, .. }) => {
            assert_eq!(*generation, now.manifest().generation);
            println!("the change is made despite an error");
        }
        Err(_) => println!("the change is refused"),
    }
    assert_eq!(
        is_made,
        matches!(changed, Ok(()) | Err(MemoryError::ChangeMade { .. })),
        "{changed:?}"
    );
    drop(now);
    // The same writer continues from the state on disk, after any number of failures.
    match writer.delete(&[7]) {
        Err(MemoryError::UnknownId { .. }) => assert!(is_made),
        again => {
            again.unwrap();
            assert!(!is_made);
        }
    }
    writer.compact(|_| ()).unwrap();
    writer.delete(&[8]).unwrap();
    let generation = Memory::open(memory).unwrap().generation();
    assert_eq!(generation.manifest(), writer.generation().manifest());
    assert_eq!(generation.len(), 17);
}
