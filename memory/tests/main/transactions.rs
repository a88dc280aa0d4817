//! Tests of transactions of local memories that the conformance suite does not make: many new
//! entries, long texts, and parts that exclude each other.

use tempfile::TempDir;

use crate::support::*;

const FORMAT: MemoryFormat = MemoryFormat { width: 2, normalised: true, values: None };

/// A memory with the entries 0 to 9, and its folder.
fn memory() -> (TempDir, Memory) {
    let (folder, _) = temporary(FORMAT, batch(&mut Rng::new(1), FORMAT, 0..10));
    let memory = Memory::open(folder.path()).unwrap();
    (folder, memory)
}

/// Batches of new entries, each with a text of this length.
fn batches(
    ids: std::ops::Range<i64>,
    text_length: usize,
) -> impl Iterator<Item = Result<Batch, MemoryError>> {
    let end = ids.end;
    ids.step_by(1000).map(move |first| {
        let mut rows = batch(&mut Rng::new(2), FORMAT, first..end.min(first + 1000));
        for entry in &mut rows.entries {
            entry.payload.insert("text".to_owned(), "x".repeat(text_length).into());
        }
        Ok(rows)
    })
}

#[test]
fn many_entries_or_long_texts_are_written_at_once_with_deletions() {
    for (count, text_length) in [(70_000, 1), (5000, 10_000)] {
        let (folder, memory) = memory();
        let path = folder.path();
        let mut transaction = memory.begin().unwrap();
        transaction.delete(&[3]).unwrap();
        transaction.add(count, &mut batches(100..100 + count as i64, text_length)).unwrap();
        transaction.delete(&[4]).unwrap();
        // A second addition is refused, and spoils the transaction.
        let snapshot = if text_length == 1 {
            transaction.commit().unwrap()
        } else {
            assert_refused(transaction.add(1, &mut batches(90..91, 1)), ["in several"]);
            assert_refused(transaction.commit(), ["begin a new transaction"]);
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
        let segments = Memory::open(path).unwrap().generation().manifest().segments.clone();
        assert!(segments.last().unwrap().pack.is_none() && segments.last().unwrap().rows == count);
        assert!(Memory::verify(path).unwrap().is_empty());
    }
}

#[test]
fn encoding_all_entries_again_excludes_other_parts() {
    let (folder, memory) = memory();
    let path = folder.path();
    let mut same = |batch: Batch| Ok(batch);
    let one = || [Ok(batch(&mut Rng::new(3), FORMAT, [50]))].into_iter();
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
    assert_eq!(file_names(path), ["CURRENT", "LOCK", "gen-000001"]);
}

#[test]
fn the_next_transaction_begins_under_the_same_lock() {
    let (folder, memory) = memory();
    let path = folder.path();
    let mut transaction = memory.begin().unwrap();
    transaction.delete(&[1]).unwrap();
    let mut next = transaction.commit_and_begin().unwrap();
    assert!(matches!(Writer::open(path), Err(MemoryError::Locked { .. })));
    assert_eq!(next.base().description().entries, 9);
    next.delete(&[2]).unwrap();
    assert_eq!(next.commit().unwrap().description().entries, 8);
    assert_eq!(Writer::open(path).unwrap().generation().len(), 8);
    add(&mut Writer::open(path).unwrap(), bare(1, vec![1.0, 0.0], 2));
}
