//! Tests of readers that search while a writer replaces the generation.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::support::*;

const READERS: usize = 8;

/// Sets every key to `[g, 0]` and every value to `g` for generation `g`, so that results of mixed
/// generations are detected.
fn stamped(mut batch: Batch, generation: u64) -> Batch {
    batch.keys.chunks_mut(2).for_each(|key| key.copy_from_slice(&[generation as f32, 0.0]));
    batch.values.fill(generation as f32);
    for entry in &mut batch.entries {
        entry.payload.insert("text".to_owned(), generation.into());
    }
    batch
}

/// `ENGRAM_SOAK_SECONDS` sets the duration; the default is 5 seconds.
#[test]
fn each_batch_of_results_is_from_one_generation() {
    let seconds = std::env::var("ENGRAM_SOAK_SECONDS").ok();
    let seconds = seconds.map_or(5, |seconds| seconds.parse().unwrap());
    let (_temporary, path) = new_path();
    let values = Some(ValueFormat { tokens: 1, width: 2, dtype: ValueDtype::F16 });
    let format = MemoryFormat { width: 2, normalised: false, values };
    let rows = batch(&mut Rng::new(1), format, 0..300);
    let mut writer = create(&path, format, stamped(rows, 1));
    let (is_done, searches) = (AtomicBool::new(false), AtomicU64::new(0));
    let end = Instant::now() + Duration::from_secs(seconds);
    std::thread::scope(|scope| {
        for reader in 0..READERS {
            let (path, is_done, searches) = (&path, &is_done, &searches);
            scope.spawn(move || {
                let memory = Memory::open(path).unwrap();
                let mut last = 0;
                while !is_done.load(Ordering::Relaxed) {
                    memory.reload().unwrap();
                    let generation = memory.generation();
                    let keys = [1.0, 0.0, 0.5, 0.0];
                    let results = exact(&generation, &keys, 20, &Filter::default());
                    assert!(results.generation >= last, "reader {reader} went back");
                    last = results.generation;
                    for (hits, scale) in results.hits.iter().zip([1.0, 0.5]) {
                        let rows: Vec<_> = hits.iter().map(|hit| hit.row).collect();
                        let values = generation.values(&rows).unwrap();
                        assert!(values.iter().all(|value| *value == last as f32));
                        assert!(hits.iter().all(|hit| hit.score == scale * last as f32));
                        let entry = generation.entry(rows[7]).unwrap();
                        assert_eq!(entry.payload["text"], last);
                    }
                    searches.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        while Instant::now() < end {
            // f16 represents integers up to 2,048 exactly.
            let number = writer.generation().manifest().generation + 1;
            if number > 2000 {
                break;
            }
            encode_again(&mut writer, |batch| Ok(stamped(batch, number)));
            std::thread::sleep(Duration::from_millis(30));
        }
        is_done.store(true, Ordering::Relaxed);
    });
    let generations = writer.generation().manifest().generation;
    let searches = searches.into_inner();
    println!("{searches} searches by {READERS} readers over {generations} generations");
    assert!(searches > 0 && generations > 1);
}

#[test]
fn a_removed_generation_is_an_error_but_open_readers_can_still_search_it() {
    let (_temporary, path) = new_path();
    let values = Some(ValueFormat { tokens: 1, width: 2, dtype: ValueDtype::F16 });
    let format = MemoryFormat { width: 2, normalised: false, values };
    let rows = batch(&mut Rng::new(1), format, 0..3);
    drop(create(&path, format, rows));
    let memory = Memory::open(&path).unwrap();
    let generation = path.join("gen-000001");
    assert!(generation.is_dir());
    std::fs::remove_dir_all(&generation).unwrap();
    let search = || exact(&memory.generation(), &[1.0, 0.5], 3, &Filter::default());
    assert_eq!(search().hits[0].len(), 3);
    for opened in [memory.reload().map(drop), Memory::open(&path).map(drop)] {
        assert_refused(opened, ["gen-000001 is missing", "build it"]);
    }
    // Removes the whole memory while it is read.
    std::fs::remove_dir_all(&path).unwrap();
    assert_refused(memory.reload(), ["is missing"]);
    assert_eq!(search().hits[0].len(), 3);
}
