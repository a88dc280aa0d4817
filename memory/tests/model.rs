//! Random sequences of changes and searches, compared with a plain list in memory.
#![allow(clippy::unwrap_used)]

mod plain;

use engram_memory::search::exact::Exact;
use engram_memory::search::{Filter, Index, Queries};
use engram_memory::{Batch, Memory, MemoryFormat, ValueDtype, ValueFormat, Writer};
use plain::{Numbers, PlainMemory, batch};
use rayon::prelude::*;

const SEQUENCES: u64 = 10_000;
const WIDTH: usize = 3;

#[test]
fn sequences_of_changes_agree_with_a_plain_list() {
    let folder = plain::folder();
    (0..SEQUENCES).into_par_iter().for_each(|seed| {
        let memory = folder.path().join(seed.to_string());
        sequence(seed, &memory);
        std::fs::remove_dir_all(&memory).unwrap();
    });
}

fn sequence(seed: u64, folder: &std::path::Path) {
    let mut next = Numbers::new(seed);
    let values = match next.below(3) {
        0 => None,
        1 => Some(ValueFormat { tokens: 2, width: 3, dtype: ValueDtype::F16 }),
        _ => Some(ValueFormat { tokens: 2, width: 3, dtype: ValueDtype::Int8 }),
    };
    let format = MemoryFormat { width: WIDTH, normalised: next.below(2) == 0, values };
    let mut plain = PlainMemory::new(format);
    let first = random_rows(&mut next, &mut plain, format, false);
    let mut writer = Some(
        Writer::create(folder, format, first.entries.len(), [Ok(first.clone())].into_iter())
            .unwrap(),
    );
    plain.put(&first);
    let reader = Memory::open(folder).unwrap();
    for _ in 0..6 {
        let open = writer.get_or_insert_with(|| Writer::open(folder).unwrap());
        match next.below(7) {
            0 => {
                let rows = random_rows(&mut next, &mut plain, format, false);
                open.add(rows.entries.len(), [Ok(rows.clone())].into_iter()).unwrap();
                plain.put(&rows);
            }
            1 => {
                let rows = random_rows(&mut next, &mut plain, format, true);
                open.update(rows.entries.len(), [Ok(rows.clone())].into_iter()).unwrap();
                plain.put(&rows);
            }
            2 => {
                let ids: Vec<i64> =
                    plain.ids().into_iter().filter(|_| next.below(3) == 0).collect();
                open.delete(&ids).unwrap();
                plain.delete(&ids);
            }
            3 => open.compact(|_| ()).unwrap(),
            4 => {
                // New keys for the same entries, as from a refreshed encoder.
                let rotated = |mut batch: Batch| {
                    batch.keys.chunks_mut(WIDTH).for_each(|key| key.rotate_left(1));
                    Ok(batch)
                };
                open.refresh(rotated).unwrap();
                plain.refresh(|key| key.rotate_left(1));
            }
            5 => writer = None,
            _ => {
                reader.reload().unwrap();
                compare(seed, &mut next, &reader, &plain);
            }
        }
    }
    drop(writer);
    reader.reload().unwrap();
    compare(seed, &mut next, &reader, &plain);
    assert!(reader.generation().verify().is_empty(), "seed {seed}");
}

/// Rows with new ids, or with existing ids.
fn random_rows(
    next: &mut Numbers,
    plain: &mut PlainMemory,
    format: MemoryFormat,
    known: bool,
) -> Batch {
    let ids: Vec<i64> = if known {
        plain.ids().into_iter().filter(|_| next.below(2) == 0).collect()
    } else {
        (0..next.below(6)).map(|_| plain.new_id(next)).collect()
    };
    batch(next, format, &ids)
}

fn compare(seed: u64, next: &mut Numbers, memory: &Memory, plain: &PlainMemory) {
    let generation = memory.generation();
    assert_eq!(generation.len(), plain.ids().len(), "seed {seed}");
    let sources = generation.manifest().sources.clone();
    let mut queries: Vec<f32> = (0..3 * WIDTH).map(|_| next.small()).collect();
    // A zero query has no cosine with a key.
    let zeros = queries.chunks_mut(WIDTH).filter(|query| query.iter().all(|n| *n == 0.0));
    zeros.for_each(|query| query[0] = 1.0);
    let k = 1 + next.below(5) as usize;
    let mut filter = Filter::default();
    if next.below(3) == 0 {
        let chosen = sources.iter().filter(|name| plain.has_source(name) && next.below(2) == 0);
        filter.sources = Some(chosen.cloned().collect());
    }
    if next.below(3) == 0 {
        let document = |next: &mut Numbers| vec![format!("d{}", next.below(3))];
        filter.excluded_documents = (0..3).map(|_| document(next)).collect();
    }
    if next.below(3) == 0 {
        filter.gates = Some((0..3 * sources.len()).map(|_| next.below(4) as f32 / 4.0).collect());
    }
    let found = Exact.search(&generation, Queries { keys: &queries, k }, &filter).unwrap();
    let expected = plain.search(&queries, k, &filter, &sources);
    for (found, expected) in found.hits.iter().zip(&expected) {
        let ids: Vec<i64> = found.iter().map(|hit| hit.id).collect();
        assert_eq!(&ids, expected, "seed {seed}");
        for hit in found {
            let (entry, value) = plain.get(hit.id);
            assert_eq!(generation.entry(hit.row).unwrap(), *entry, "seed {seed}");
            let values = generation.values(&[hit.row]).unwrap();
            assert_eq!(values.len(), value.len(), "seed {seed}");
            for (found, expected) in values.iter().zip(value) {
                assert!(
                    (found - expected).abs() < 0.05,
                    "seed {seed}: {found}, expected {expected}"
                );
            }
        }
    }
    assert_eq!(found.hits.len(), expected.len());
}
