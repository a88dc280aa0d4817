//! Shared code of the reader tests.

use std::collections::BTreeMap;
use std::io::Cursor;
use std::path::Path;

use engram_data::DataError;
use engram_data::knowledge::{Collector, Counts, DataSet, EntryLine, Input, Open, Reason};

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

/// Reads a data set with the arguments of a command line. Files are those with these names and
/// contents, or files on disk.
pub fn read_line(
    data_set: &DataSet,
    skip_malformed: bool,
    line: &str,
    files: &[(&str, &[u8])],
) -> Result<(Vec<String>, Counts), String> {
    let open: Open<'_> = &|path| match files.iter().find(|file| path == Path::new(file.0)) {
        Some((_, content)) => Ok(Input::new(path, Cursor::new(content.to_vec()))?),
        None => Ok(Input::open(path)?),
    };
    let request = data_set.request(line, open);
    read(skip_malformed, |collector| (data_set.read)(&request, collector))
}

pub fn skip_counts<const N: usize>(reasons: [(Reason, u64); N]) -> BTreeMap<Reason, u64> {
    reasons.into()
}

#[track_caller]
pub fn assert_refused(result: Result<(Vec<String>, Counts), String>, expected: &str) {
    let error = result.unwrap_err();
    assert!(error.contains(expected) && error.contains("; "), "{error}");
}
