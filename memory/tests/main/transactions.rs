//! Tests of transactions of local memories that the conformance suite does not make: many new
//! entries, long texts, and parts that exclude each other.

use crate::support::*;

const FORMAT: MemoryFormat = MemoryFormat { width: 2, normalised: true, values: None };

/// A memory with the entries 0 to 9.
fn memory(folder: &std::path::Path) -> Memory {
    let rows = batch(&mut Rng::new(1), FORMAT, &(0..10).collect::<Vec<_>>());
    create(folder, FORMAT, rows);
    Memory::open(folder).unwrap()
}

/// Batches of new entries, each with a text of this length.
fn batches(
    ids: std::ops::Range<i64>,
    text_length: usize,
) -> impl Iterator<Item = Result<Batch, MemoryError>> {
    let ids: Vec<i64> = ids.collect();
    let chunks: Vec<Vec<i64>> = ids.chunks(1000).map(<[i64]>::to_vec).collect();
    chunks.into_iter().map(move |ids| {
        let mut rows = batch(&mut Rng::new(2), FORMAT, &ids);
        for entry in &mut rows.entries {
            entry.payload.insert("text".to_owned(), "x".repeat(text_length).into());
        }
        Ok(rows)
    })
}

#[test]
fn many_entries_or_long_texts_are_written_at_once_with_deletions() {
    for (count, text_length) in [(70_000, 1), (5000, 10_000)] {
        let temporary = folder();
        let path = temporary.path().join("m");
        let memory = memory(&path);
        let mut transaction = memory.begin().unwrap();
        transaction.delete(&[3]).unwrap();
        transaction.add(count, &mut batches(100..100 + count as i64, text_length)).unwrap();
        transaction.delete(&[4]).unwrap();
        // A second addition is refused, and spoils the transaction.
        let snapshot = if text_length == 1 {
            transaction.commit().unwrap()
        } else {
            let error = transaction.add(1, &mut batches(90..91, 1)).map(|()| 0).unwrap_err();
            assert!(error.to_string().contains("in several transactions"), "{error}");
            let error = transaction.commit().unwrap_err().to_string();
            assert!(error.contains("begin a new transaction"), "{error}");
            assert!(!memory.reload().unwrap());
            let mut transaction = memory.begin().unwrap();
            transaction.delete(&[3, 4]).unwrap();
            transaction.add(count, &mut batches(100..100 + count as i64, text_length)).unwrap();
            transaction.commit().unwrap()
        };
        assert_eq!(snapshot.description().entries, 8 + count);
        assert_eq!(snapshot.find(&[3, 4]).unwrap(), [None, None]);
        let row = snapshot.find(&[100]).unwrap()[0].unwrap();
        assert_eq!(snapshot.entry(row).unwrap().text().len(), text_length);
        let segments = Memory::open(&path).unwrap().generation().manifest().segments.clone();
        assert!(segments.last().unwrap().pack.is_none() && segments.last().unwrap().rows == count);
        assert!(Memory::verify(&path).unwrap().is_empty());
    }
}

#[test]
fn encoding_all_entries_again_excludes_other_parts() {
    let temporary = folder();
    let path = temporary.path().join("m");
    let memory = memory(&path);
    let mut same = |batch: Batch| Ok(batch);
    let one = || [Ok(batch(&mut Rng::new(3), FORMAT, &[50]))].into_iter();
    let is_refused = |result: Result<(), MemoryError>| {
        assert!(matches!(result, Err(MemoryError::Transaction { .. })), "{result:?}");
    };
    for part in 0..3 {
        let mut transaction = memory.begin().unwrap();
        transaction.re_encode(Vec::new(), 2, &mut same).unwrap();
        is_refused(match part {
            0 => transaction.delete(&[5]),
            1 => transaction.add(1, &mut one()),
            _ => transaction.re_encode(Vec::new(), 2, &mut same),
        });
        assert!(transaction.commit().is_err());
        let mut transaction = memory.begin().unwrap();
        match part {
            0 => transaction.delete(&[5]).unwrap(),
            _ => transaction.add(1, &mut one()).unwrap(),
        }
        is_refused(transaction.re_encode(Vec::new(), 2, &mut same));
    }
    assert!(!memory.reload().unwrap());
    let folders = std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().file_name());
    let mut names: Vec<String> = folders.map(|name| name.to_string_lossy().into_owned()).collect();
    names.sort();
    assert_eq!(names, ["CURRENT", "LOCK", "gen-000001"]);
}

#[test]
fn the_next_transaction_begins_under_the_same_lock() {
    let temporary = folder();
    let path = temporary.path().join("m");
    let memory = memory(&path);
    let mut transaction = memory.begin().unwrap();
    transaction.delete(&[1]).unwrap();
    let mut next = transaction.commit_and_begin().unwrap();
    assert!(matches!(Writer::open(&path), Err(MemoryError::Locked { .. })));
    assert_eq!(next.base().description().entries, 9);
    next.delete(&[2]).unwrap();
    assert_eq!(next.commit().unwrap().description().entries, 8);
    assert_eq!(Writer::open(&path).unwrap().generation().len(), 8);
    let bare = Batch { entries: vec![Entry::bare(1)], keys: vec![1.0, 0.0], values: Vec::new() };
    Writer::open(&path).unwrap().add(1, [Ok(bare)].into_iter()).unwrap();
}
