//! Random sequences of changes and searches, compared with a plain list in memory. The long sequences
//! merge segments several times.
#![allow(clippy::unwrap_used)]

mod plain;

use engram_memory::cache::{CacheSettings, ValueCache};
use engram_memory::search::exact::Exact;
use engram_memory::search::{Filter, Gates, Index, Queries};
use engram_memory::{Batch, Memory, MemoryFormat, ValueDtype, ValueFormat, Writer};
use plain::{PlainMemory, Rng, batch};
use rayon::prelude::*;

const SEQUENCES: u64 = 10_000;
/// One of this many sequences is long.
const LONG_STEP: u64 = 20;
const WIDTH: usize = 3;

#[test]
fn sequences_of_changes_agree_with_a_plain_list() {
    let folder = plain::folder();
    (0..SEQUENCES).into_par_iter().for_each(|seed| {
        let memory = folder.path().join(seed.to_string());
        run_sequence(seed, &memory);
        std::fs::remove_dir_all(&memory).unwrap();
    });
}

/// Makes random changes to a memory and to a plain list, and compares their searches.
fn run_sequence(seed: u64, folder: &std::path::Path) {
    let mut rng = Rng::new(seed);
    let values = match rng.below(3) {
        0 => None,
        1 => Some(ValueFormat { tokens: 2, width: 3, dtype: ValueDtype::F16 }),
        _ => Some(ValueFormat { tokens: 2, width: 3, dtype: ValueDtype::Int8 }),
    };
    let format = MemoryFormat { width: WIDTH, normalised: rng.below(2) == 0, values };
    let mut plain = PlainMemory::new(format);
    let first = random_rows(&mut rng, &mut plain, format, false);
    let mut writer = Some(
        Writer::create(folder, format, first.entries.len(), [Ok(first.clone())].into_iter())
            .unwrap(),
    );
    plain.put(&first);
    let reader = Memory::open(folder).unwrap();
    let settings = CacheSettings { capacity_bytes: 1 << 20, background_from: None };
    let cache = ValueCache::new(settings);
    // Long sequences have few compactions and refreshes, so that segments accumulate.
    let (steps, kinds) = if seed.is_multiple_of(LONG_STEP) { (100, 50) } else { (6, 7) };
    for _ in 0..steps {
        let open_writer = writer.get_or_insert_with(|| Writer::open(folder).unwrap());
        match rng.below(kinds) {
            0 => {
                let rows = random_rows(&mut rng, &mut plain, format, false);
                open_writer.add(rows.entries.len(), [Ok(rows.clone())].into_iter()).unwrap();
                plain.put(&rows);
            }
            1 => {
                let rows = random_rows(&mut rng, &mut plain, format, true);
                open_writer.update(rows.entries.len(), [Ok(rows.clone())].into_iter()).unwrap();
                plain.put(&rows);
            }
            2 => {
                let ids: Vec<i64> = plain.ids().into_iter().filter(|_| rng.below(3) == 0).collect();
                open_writer.delete(&ids).unwrap();
                plain.delete(&ids);
            }
            3 => open_writer.compact(|_| ()).unwrap(),
            4 => {
                // New keys for the same entries, as from a refreshed encoder.
                let rotated = |mut batch: Batch| {
                    batch.keys.chunks_mut(WIDTH).for_each(|key| key.rotate_left(1));
                    Ok(batch)
                };
                open_writer.refresh(rotated).unwrap();
                plain.refresh(|key| key.rotate_left(1));
            }
            5 => writer = None,
            6..20 => {
                reader.reload().unwrap();
                compare_search(seed, &mut rng, (&reader, &cache), &plain);
            }
            20..35 => {
                let id = plain.new_id(&mut rng);
                let rows = batch(&mut rng, format, &[id]);
                open_writer.add(1, [Ok(rows.clone())].into_iter()).unwrap();
                plain.put(&rows);
            }
            kind => {
                let ids = plain.ids();
                let Some(id) = ids.get(rng.below(ids.len().max(1) as u64) as usize) else {
                    continue;
                };
                if kind < 45 {
                    let rows = batch(&mut rng, format, &[*id]);
                    open_writer.update(1, [Ok(rows.clone())].into_iter()).unwrap();
                    plain.put(&rows);
                } else {
                    open_writer.delete(&[*id]).unwrap();
                    plain.delete(&[*id]);
                }
            }
        }
    }
    drop(writer);
    reader.reload().unwrap();
    compare_search(seed, &mut rng, (&reader, &cache), &plain);
    assert!(reader.generation().verify().is_empty(), "seed {seed}");
}

/// Rows with existing ids if `existing` is true, or else with new ids.
fn random_rows(
    rng: &mut Rng,
    plain: &mut PlainMemory,
    format: MemoryFormat,
    existing: bool,
) -> Batch {
    let ids: Vec<i64> = if existing {
        plain.ids().into_iter().filter(|_| rng.below(2) == 0).collect()
    } else {
        (0..rng.below(6)).map(|_| plain.new_id(rng)).collect()
    };
    batch(rng, format, &ids)
}

/// Compares a random search of a memory with the same search of a plain list. The cache has values
/// of earlier generations.
fn compare_search(
    seed: u64,
    rng: &mut Rng,
    (memory, cache): (&Memory, &ValueCache),
    plain: &PlainMemory,
) {
    let generation = memory.generation();
    assert_eq!(generation.len(), plain.ids().len(), "seed {seed}");
    let sources = generation.manifest().sources.clone();
    let mut queries: Vec<f32> = (0..3 * WIDTH).map(|_| rng.small()).collect();
    // A zero query has no cosine with a key.
    let zeros = queries.chunks_mut(WIDTH).filter(|query| query.iter().all(|n| *n == 0.0));
    zeros.for_each(|query| query[0] = 1.0);
    let k = 1 + rng.below(5) as usize;
    let mut filter = Filter::default();
    if rng.below(3) == 0 {
        let searched = sources.iter().filter(|name| plain.has_source(name) && rng.below(2) == 0);
        filter.sources = Some(searched.cloned().collect());
    }
    if rng.below(3) == 0 {
        let document = |rng: &mut Rng| vec![format!("d{}", rng.below(3))];
        filter.excluded_documents = (0..3).map(|_| document(rng)).collect();
    }
    if rng.below(3) == 0 {
        let mut sources = sources.clone();
        // Gates name their sources, in any order. A source without entries may have a gate.
        sources.push("unknown".to_owned());
        let turns = rng.below(sources.len() as u64) as usize;
        sources.rotate_left(turns);
        let weights = (0..3 * sources.len()).map(|_| rng.below(4) as f32 / 4.0).collect();
        filter.gates = Some(Gates { sources, weights });
    }
    let results = Exact.search(&generation, Queries { keys: &queries, k }, &filter).unwrap();
    let expected_ids = plain.search(&queries, k, &filter);
    for (hits, expected_ids) in results.hits.iter().zip(&expected_ids) {
        let ids: Vec<i64> = hits.iter().map(|hit| hit.id).collect();
        assert_eq!(&ids, expected_ids, "seed {seed}");
        for hit in hits {
            let (entry, expected_value) = plain.get(hit.id);
            assert_eq!(generation.entry(hit.row).unwrap(), *entry, "seed {seed}");
            let value = generation.values(&[hit.row]).unwrap();
            assert_eq!(cache.read(&generation, &[hit.row]).unwrap().values, value, "seed {seed}");
            assert_eq!(value.len(), expected_value.len(), "seed {seed}");
            for (number, expected) in value.iter().zip(expected_value) {
                assert!(
                    (number - expected).abs() < 0.05,
                    "seed {seed}: {number}, expected {expected}"
                );
            }
        }
    }
    assert_eq!(results.hits.len(), expected_ids.len());
}
