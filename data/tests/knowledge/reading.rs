//! Shared code of the reader tests.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;

use engram_data::DataError;
use engram_data::knowledge::{Collector, Counts, EntryLine, Input, Reason};

pub fn input(text: &(impl AsRef<[u8]> + ?Sized)) -> Input<'_> {
    Input::new("data.file", text.as_ref()).unwrap()
}

/// Returns a reader's output, as lines of `entries.jsonl`, and its counts.
pub fn read(
    skip_malformed: bool,
    read: impl FnOnce(&mut Collector<'_>) -> Result<(), DataError>,
) -> Result<(Vec<String>, Counts), String> {
    let mut lines = Vec::new();
    let mut collector = Collector::new(|entry: EntryLine| {
        lines.push(serde_json::to_string(&entry).unwrap());
        Ok(())
    })
    .skip_malformed(skip_malformed);
    let result = read(&mut collector);
    let counts = collector.counts().clone();
    drop(collector);
    result.map(|()| (lines, counts)).map_err(|error| error.to_string())
}

pub fn skip_counts<const N: usize>(reasons: [(Reason, u64); N]) -> BTreeMap<Reason, u64> {
    reasons.into()
}

#[track_caller]
pub fn assert_refused(result: Result<(Vec<String>, Counts), String>, expected: &str) {
    let error = result.unwrap_err();
    assert!(error.contains(expected) && error.contains("; "), "{error}");
}

/// Returns the folder of a real data set, if it exists.
pub fn real_folder(name: &str) -> Option<PathBuf> {
    let folder = std::env::var_os("ENGRAM_DATA").map(|root| PathBuf::from(root).join(name));
    let folder = folder.filter(|folder| folder.is_dir());
    if folder.is_none() {
        // Writes to the terminal directly: the test harness hides the output of passing tests.
        let message = format!("SKIPPED: set ENGRAM_DATA to the folder that holds {name}\n");
        let _ = std::io::stderr().write_all(message.as_bytes());
    }
    folder
}
