//! Tests of refreshes during training: adoption at a fixed step, drift, collapse.

use std::sync::mpsc::channel;
use std::time::Duration;

use tempfile::TempDir;

use crate::support::*;
use engram_memory::refresh::{Adoption, CollapseLimit, Refresh, RefreshSteps, RetrievalLog};

const WIDTH: usize = 6;
const ROWS: usize = 500;

/// A memory, and its folder.
fn memory() -> (TempDir, Memory) {
    let format = MemoryFormat { width: WIDTH, normalised: true, values: None };
    let (folder, _) = temporary(format, batch(&mut Rng::new(8), format, 0..ROWS as i64));
    let memory = Memory::open(folder.path()).unwrap();
    (folder, memory)
}

/// Starts a refresh that is adopted `lag` steps after step 0.
fn start(
    memory: &Memory,
    lag: u64,
    encode: impl FnMut(Batch) -> Result<Batch, MemoryError> + Send + 'static,
) -> Refresh {
    let steps = RefreshSteps { start: 0, lag };
    Refresh::start(memory.begin().unwrap(), Vec::new(), steps, encode)
}

/// An encoder whose keys depend on the entry and on parameters.
fn encode(parameters: f32) -> impl FnMut(Batch) -> Result<Batch, MemoryError> + Send + 'static {
    move |mut batch| {
        for (entry, key) in batch.entries.iter().zip(batch.keys.chunks_mut(WIDTH)) {
            let component = |i: usize| (entry.id as f32 * (i + 1) as f32 * parameters).sin();
            key.iter_mut().enumerate().for_each(|(i, number)| *number = component(i) + 0.1);
        }
        Ok(batch)
    }
}

fn search(memory: &Memory) -> SearchResults {
    let keys: Vec<f32> = (0..5 * WIDTH).map(|i| (i as f32).cos()).collect();
    exact(&memory.generation(), &keys, 7, &Filter::default())
}

/// Returns the search results of each training step. The refresh of step 3 is adopted at step 7.
/// Encoding a batch takes at least `delay`.
fn train(delay: Duration) -> Vec<SearchResults> {
    let (_folder, memory) = memory();
    let (mut is_adopted, mut running) = (false, None);
    let mut results = Vec::new();
    for step in 0..12 {
        if step == 3 {
            let steps = RefreshSteps { start: step, lag: 4 };
            let mut encode = encode(0.37);
            let delayed = move |batch| {
                std::thread::sleep(delay);
                encode(batch)
            };
            running = Some(Refresh::start(memory.begin().unwrap(), Vec::new(), steps, delayed));
        }
        if let Some(refresh) = running.take() {
            match refresh.adopt(step, &memory).unwrap() {
                Adoption::Later(refresh) => running = Some(refresh),
                Adoption::Now(adopted) => {
                    assert_eq!((step, adopted.staleness), (7, 4));
                    assert_eq!(adopted.snapshot.description().generation, 2);
                    assert!(adopted.drift.mean > 0.1 && adopted.drift.largest <= 2.0);
                    assert!(adopted.waited + Duration::from_millis(50) > delay);
                    is_adopted = true;
                }
            }
        }
        results.push(search(&memory));
    }
    assert!(is_adopted && running.is_none());
    results
}

#[test]
fn the_results_of_a_step_do_not_depend_on_the_speed_of_the_worker() {
    let (fast, slow) = (train(Duration::ZERO), train(Duration::from_millis(200)));
    assert_eq!(fast, slow);
    assert!(fast[..7].iter().all(|results| *results == fast[0]));
    assert!(fast[7..].iter().all(|results| *results == fast[7]));
    assert_ne!(fast[0].hits, fast[7].hits);
}

#[test]
fn readers_continue_while_the_worker_writes() {
    let (folder, memory) = memory();
    let before = search(&memory);
    let (resume, resumed) = channel::<()>();
    let mut encode = encode(2.0);
    let waiting = move |batch| {
        resumed.recv().unwrap();
        encode(batch)
    };
    let refresh = start(&memory, 1, waiting);
    for _ in 0..20 {
        assert!(!memory.reload().unwrap());
        assert_eq!(search(&memory), before);
    }
    assert!(matches!(Writer::open(folder.path()), Err(MemoryError::Locked { .. })));
    resume.send(()).unwrap();
    let Adoption::Now(_) = refresh.adopt(1, &memory).unwrap() else { panic!("not adopted") };
    assert_ne!(search(&memory), before);
}

#[test]
fn a_failed_refresh_leaves_the_memory_unchanged() {
    let (folder, memory) = memory();
    let before = search(&memory);
    let not_finite = |mut batch: Batch| {
        batch.keys[9] = f32::INFINITY;
        Ok(batch)
    };
    let refresh = start(&memory, 0, not_finite);
    assert_refused(refresh.adopt(0, &memory), ["the key of row 1 contains NaN or infinity"]);
    memory.reload().unwrap();
    assert_eq!(search(&memory), before);
    assert!(Writer::open(folder.path()).unwrap().generation().verify().is_empty());
}

#[test]
fn a_dropped_refresh_stops_and_removes_its_files() {
    let (folder, memory) = memory();
    let before = search(&memory);
    let (started, has_started) = channel::<()>();
    let mut encode = encode(2.0);
    let slow = move |batch| {
        started.send(()).unwrap();
        std::thread::sleep(Duration::from_millis(100));
        encode(batch)
    };
    let refresh = start(&memory, 1, slow);
    has_started.recv().unwrap();
    drop(refresh);
    // The worker may have written its last batch before the drop.
    let names = file_names(folder.path());
    assert!(names.iter().all(|name| !name.contains("partial")), "{names:?}");
    assert!(Writer::open(folder.path()).unwrap().generation().verify().is_empty());
    assert_eq!(search(&memory), before);
}

#[test]
fn collapse_is_an_error_with_a_remedy() {
    let (folder, _) = memory();
    let mut writer = Writer::open(folder.path()).unwrap();
    let limit = CollapseLimit { queries: 50, largest_share: 0.9 };
    let log_of_queries = |writer: &Writer| {
        let mut log = RetrievalLog::default();
        let mut rng = Rng::new(3);
        let keys: Vec<f32> = (0..60 * WIDTH).map(|_| rng.uniform()).collect();
        log.record(&exact(writer.generation(), &keys, 2, &Filter::default()));
        log
    };
    let log = log_of_queries(&writer);
    assert!(log.check(limit, 2, ROWS).is_ok());
    let statistics = log.statistics();
    assert!(statistics.distinct > 40 && statistics.largest_share < 0.3, "{statistics:?}");
    // If an encoder gives all entries the same key, ties go to the lowest ids.
    let equal_keys = |mut batch: Batch| {
        batch.keys.fill(1.0);
        Ok(batch)
    };
    encode_again(&mut writer, equal_keys);
    let mut log = log_of_queries(&writer);
    assert_refused(
        log.check(limit, 2, ROWS),
        ["100 % of 60 queries retrieved the same entry", "warm up the retriever longer"],
    );
    // No collapse: too few queries for a decision, or each query retrieves most entries anyway.
    assert!(log.check(CollapseLimit::default(), 2, ROWS).is_ok());
    assert!(log.check(limit, 2, 5).is_ok());
    log.clear();
    assert_eq!(log.statistics().queries, 0);
}
