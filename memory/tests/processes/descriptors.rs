//! Tests a change that fails because file descriptors run out, before and after the commit point.
//! The change runs in a child process, which uses up all but a few descriptors.

use std::fs::File;
use std::path::Path;
use std::process::Command;

use crate::support::*;

/// The environment variable with the memory's folder, in the child process.
const MEMORY_VARIABLE: &str = "ENGRAM_TEST_MEMORY";
/// The environment variable with the number of free file descriptors.
const FREE_VARIABLE: &str = "ENGRAM_TEST_FREE";
const FORMAT: MemoryFormat = MemoryFormat { width: 4, normalised: true, values: None };

#[test]
fn an_error_says_whether_the_change_is_made() {
    if let Some(memory) = std::env::var_os(MEMORY_VARIABLE) {
        let free = std::env::var(FREE_VARIABLE).unwrap().parse().unwrap();
        return change_with_few_descriptors(Path::new(&memory), free);
    }
    let mut outcome_counts = [0; 3];
    for free in 0..12 {
        let (_temporary, memory) = new_path();
        let rows = batch(&mut Rng::new(5), FORMAT, 0..20);
        let mut writer = create(&memory, FORMAT, rows);
        writer.delete(&[0]).unwrap();
        drop(writer);
        let test_binary = std::env::current_exe().unwrap();
        let mut child = Command::new("sh");
        child
            .args(["-c", "ulimit -n 64 && exec \"$0\" --exact --nocapture descriptors::an_error_says_whether_the_change_is_made"])
            .arg(test_binary)
            .env(MEMORY_VARIABLE, &memory)
            .env(FREE_VARIABLE, free.to_string());
        let output = child.output().unwrap();
        let stdout = String::from_utf8_lossy(&output.stdout);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{free} free: {stdout}{stderr}");
        let outcomes = ["is refused", "is made despite an error", "is made without an error"];
        let outcome = outcomes.iter().position(|outcome| stdout.contains(outcome)).unwrap();
        outcome_counts[outcome] += 1;
        assert!(Memory::verify(&memory).unwrap().is_empty());
        let mut generations = file_names(&memory);
        generations.retain(|name| name != "CURRENT" && name != "LOCK");
        // Neither unfinished generations nor temporary pointers remain.
        let are_complete =
            generations.iter().all(|name| !name.trim_end_matches(".pack").contains('.'));
        assert!(are_complete, "{free} free: {generations:?}");
    }
    assert!(outcome_counts.iter().all(|count| *count > 0), "{outcome_counts:?}");
}

/// Changes a memory while only `free` file descriptors are left, and prints the outcome.
fn change_with_few_descriptors(memory: &Path, free: usize) {
    let mut writer = Writer::open(memory).unwrap();
    let mut open_files = Vec::new();
    while let Ok(file) = File::open("/dev/null") {
        open_files.push(file);
    }
    open_files.truncate(open_files.len().saturating_sub(free));
    let result = writer.delete(&[7]);
    drop(open_files);
    let current = Memory::open(memory).unwrap().generation();
    let is_made = current.row_of(7).unwrap().is_none();
    match &result {
        Ok(()) => println!("the change is made without an error"),
        Err(MemoryError::ChangeMade { generation, .. }) => {
            assert_eq!(*generation, current.manifest().generation);
            println!("the change is made despite an error");
        }
        Err(_) => println!("the change is refused"),
    }
    let says_made = matches!(result, Ok(()) | Err(MemoryError::ChangeMade { .. }));
    assert_eq!(is_made, says_made, "{result:?}");
    drop(current);
    // The same writer continues from the state on disk, after any number of failures.
    match writer.delete(&[7]) {
        Err(MemoryError::UnknownId { .. }) => assert!(is_made),
        result => {
            result.unwrap();
            assert!(!is_made);
        }
    }
    writer.compact(|_| ()).unwrap();
    writer.delete(&[8]).unwrap();
    let generation = Memory::open(memory).unwrap().generation();
    assert_eq!(generation.manifest(), writer.generation().manifest());
    assert_eq!(generation.len(), 17);
}
