//! Ranks that keep a memory in shards answer as a single memory, and train to the same bytes.

use std::path::Path;

use engram_memory::refresh::{Adoption, ENTRIES_PER_DRIFT_SUM, Refresh, RefreshSteps, mean_drift};
use engram_memory::search::{Filter, Gates, Queries, SearchResults};
use engram_memory::{
    Batch, Entry, Memory, MemoryFormat, Method, Row, Snapshot, Store, ValueDtype, ValueFormat,
    Writer,
};
use engram_train::distributed::Ranks;
use engram_train::distributed::sharded_memory::{ShardedMemory, shard_of};
use engram_train::studies::reveal::run::train_reveal;
use engram_train::{Recipe, RecipeOptions, RunOptions, Stop, StudyError, TrainError};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::reveal_values::SETTINGS;
use crate::runs::{self, assert_equal_runs, crash_at_checkpoint, finished, lasting_files};

const WIDTH: usize = 8;
const VALUES: ValueFormat = ValueFormat { tokens: 2, width: 4, dtype: ValueDtype::F16 };
/// The entries of four shards. One shard is empty, and one has fewer entries than a search returns.
const SHARDS: [usize; 4] = [300, 0, 3, 700];
const ENTRIES: usize = 1003;

/// Calls `work` on each rank, on a thread of its own. Returns the results by rank.
fn on_ranks<T: Send>(size: usize, work: impl Fn(Ranks) -> T + Sync) -> Vec<T> {
    crate::threads::on_ranks(size, |rank| work(Ranks::new(rank)))
}

/// The entries `range`. Some keys are equal, so that ids decide their order. The last source has
/// entries in the last shard only.
fn batch(range: std::ops::Range<usize>, seed: u64) -> Batch {
    let mut batch = Batch::default();
    for i in range {
        let mut rng = ChaCha8Rng::seed_from_u64(seed + (i % 400) as u64);
        let mut entry = Entry::bare((i * 7919 % 10007) as i64);
        entry.source = ["kg", "pairs", "late"][if i > 900 { 2 } else { i / 3 % 2 }].to_owned();
        entry.document = (i % 5 > 0).then(|| format!("document {}", i % 11));
        batch.entries.push(entry);
        batch.keys.extend((0..WIDTH).map(|_| rng.random_range(-1f32..1.0)));
        let values = 0..VALUES.tokens * VALUES.width;
        batch.values.extend(values.map(|value| (i * 16 + value) as f32 / 32.0));
    }
    batch
}

fn write(folder: &Path, range: std::ops::Range<usize>, normalised: bool) {
    let format = MemoryFormat { width: WIDTH, normalised, values: Some(VALUES) };
    let rows = range.len();
    let batches = (rows > 0).then(|| Ok(batch(range, 1)));
    Writer::create(folder, format, rows, batches.into_iter()).expect("a memory");
}

/// The entries of a rank.
fn shard(rank: usize) -> std::ops::Range<usize> {
    let start = SHARDS[..rank].iter().sum();
    start..start + SHARDS[rank]
}

/// Opens a memory of four shards within `folder`.
fn open(folder: &Path, ranks: &Ranks, normalised: bool) -> ShardedMemory {
    let own = folder.join(format!("shard-{}-{normalised}", ranks.rank()));
    write(&own, shard(ranks.rank()), normalised);
    ShardedMemory::open(&own, ranks).expect("a memory of all ranks")
}

/// Filters with everything that a training run and an evaluation use.
fn filters(queries: usize) -> Vec<Filter> {
    let gates = Gates {
        sources: ["late", "kg", "pairs"].map(str::to_owned).to_vec(),
        weights: (0..3 * queries).map(|i| 0.2 + (i % 7) as f32 / 5.0).collect(),
    };
    let excluded = (0..queries).map(|query| match query % 3 {
        0 => Vec::new(),
        query => (0..5 * query).map(|i| format!("document {i}")).collect(),
    });
    let source = |name: &str| Some(vec![name.to_owned()]);
    let every_third = batch(0..ENTRIES, 1).entries.into_iter().map(|entry| entry.id).step_by(3);
    let one_shard = batch(shard(2), 1).entries.into_iter().map(|entry| entry.id);
    let plain = Filter::default;
    vec![
        plain(),
        Filter { gates: Some(gates.clone()), ..plain() },
        Filter { sources: source("late"), ..plain() },
        Filter { sources: source("pairs"), gates: Some(gates.clone()), ..plain() },
        Filter { sources: Some(Vec::new()), ..plain() },
        Filter { excluded_documents: excluded.clone().collect(), ..plain() },
        Filter { ids: Some(every_third.collect()), sources: source("kg"), ..plain() },
        Filter { ids: Some(one_shard.collect()), gates: Some(gates.clone()), ..plain() },
        Filter { ids: Some(Vec::new()), ..plain() },
        Filter { excluded_documents: excluded.collect(), gates: Some(gates), ..plain() },
    ]
}

fn queries(count: usize, seed: u64) -> Vec<f32> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    (0..count * WIDTH).map(|_| rng.random_range(-1f32..1.0)).collect()
}

fn search(snapshot: &dyn Snapshot, count: usize, k: usize, filter: &Filter) -> SearchResults {
    let keys = queries(count, count as u64);
    snapshot.search(Method::Exact, Queries { keys: &keys, k }, filter).expect("results")
}

#[test]
fn four_ranks_sharding_a_memory_answer_as_one() {
    let folder = tempfile::tempdir().expect("a folder");
    for normalised in [false, true] {
        let whole = folder.path().join(format!("whole-{normalised}"));
        write(&whole, 0..ENTRIES, normalised);
        let whole = Memory::open(&whole).expect("a memory");
        let whole = Store::snapshot(&whole);
        on_ranks(4, |ranks| {
            let memory = open(folder.path(), &ranks, normalised);
            let snapshot = memory.snapshot();
            let (description, expected) = (snapshot.description(), whole.description());
            assert_eq!(description.sources, expected.sources);
            assert_eq!(
                (description.entries, description.next_id, description.values),
                (expected.entries, expected.next_id, expected.values)
            );
            assert_eq!(snapshot.info().unwrap().sources, whole.info().unwrap().sources);
            let read = || {
                // Each rank makes another number of searches: rank 0 makes none.
                for count in 0..ranks.rank() {
                    for (filter, k) in filters(count).iter().zip([1, 5, 50, 400].iter().cycle()) {
                        let found = search(snapshot.as_ref(), count, *k, filter);
                        assert_eq!(found, search(whole.as_ref(), count, *k, filter), "{filter:?}");
                    }
                    // Rows of all shards, some twice.
                    let rows = (0..40).map(|i| Row::new((i * 83 + count as u32 * 401) % 1003));
                    let rows: Vec<Row> = rows.collect();
                    assert_eq!(snapshot.keys(&rows).unwrap(), whole.keys(&rows).unwrap());
                    assert_eq!(snapshot.values(&rows).unwrap(), whole.values(&rows).unwrap());
                    assert_eq!(snapshot.entries(&rows).unwrap(), whole.entries(&rows).unwrap());
                    let ids: Vec<i64> = (0..60).map(|i| i * 7919 * 17 % 10007).collect();
                    let found = snapshot.find(&ids).unwrap();
                    assert!(found == whole.find(&ids).unwrap() && found.contains(&None));
                    assert_eq!(snapshot.rows().unwrap(), whole.rows().unwrap());
                }
                Ok::<_, StudyError>(())
            };
            ranks.share_reads(read).expect("all ranks");
        });
    }
}

#[test]
fn invalid_searches_are_the_errors_of_a_single_memory() {
    let folder = tempfile::tempdir().expect("a folder");
    let whole = folder.path().join("whole");
    write(&whole, 0..ENTRIES, false);
    let whole = Store::snapshot(&Memory::open(&whole).expect("a memory"));
    on_ranks(4, |ranks| {
        let memory = open(folder.path(), &ranks, false);
        let snapshot = memory.snapshot();
        let read = || {
            let unknown_source = Some(vec!["wikidata".to_owned()]);
            let gates = Some(Gates { sources: vec!["kg".to_owned()], weights: vec![1.0] });
            for (k, length, filter) in [
                (0, WIDTH, Filter::default()),
                (1, WIDTH - 1, Filter::default()),
                (1, WIDTH, Filter { sources: unknown_source, ..Filter::default() }),
                (1, WIDTH, Filter { ids: Some(vec![0, 9999]), ..Filter::default() }),
                (1, WIDTH, Filter { gates, ..Filter::default() }),
            ] {
                let keys = &queries(1, 1)[..length];
                let error = |snapshot: &dyn Snapshot| {
                    let result = snapshot.search(Method::Exact, Queries { keys, k }, &filter);
                    result.expect_err("an invalid search").to_string()
                };
                assert_eq!(error(snapshot.as_ref()), error(whole.as_ref()));
            }
            assert!(snapshot.keys(&[Row::new(ENTRIES as u32)]).is_err());
            Ok::<_, StudyError>(())
        };
        ranks.share_reads(read).expect("all ranks");
        // The other ranks would never answer.
        let error = snapshot.find(&[1]).expect_err("outside of the rounds").to_string();
        assert!(error.contains("do not answer reads at this time"), "{error}");
    });
}

/// All ranks make a refresh. A snapshot of the old state is never answered with new entries.
#[test]
fn ranks_refresh_their_shards_with_the_drift_of_a_single_memory() {
    let folder = tempfile::tempdir().expect("a folder");
    let items = 5 * ENTRIES_PER_DRIFT_SUM + 77;
    let refresh = |memory: &dyn Store| {
        let steps = RefreshSteps { start: 1, lag: 0 };
        let encode = |new: Batch| {
            let keys = new.keys.iter().map(|key| key * key + 0.1).collect();
            Ok(Batch { keys, ..new })
        };
        let refresh = Refresh::start(memory.begin().expect("a change"), Vec::new(), steps, encode);
        let Adoption::Now(adopted) = refresh.adopt(1, memory).expect("adopted") else {
            panic!("the refresh is due")
        };
        adopted.drift_sums.clone()
    };
    let path = folder.path().join("whole");
    write(&path, 0..items, false);
    let whole = Memory::open(&path).expect("a memory");
    let expected = mean_drift(&refresh(&whole), items);
    let whole = Store::snapshot(&whole);
    assert!(expected > 0.01);
    for size in [2, 4, 8] {
        let sums = on_ranks(size, |ranks| {
            let own = folder.path().join(format!("{}-of-{size}", ranks.rank()));
            write(&own, shard_of(items, ENTRIES_PER_DRIFT_SUM, &ranks), false);
            let memory = ShardedMemory::open(&own, &ranks).expect("a memory of all ranks");
            let old = memory.snapshot();
            let sums = refresh(&memory);
            let new = memory.snapshot();
            let read = || {
                let found = search(new.as_ref(), 3, 20, &Filter::default());
                assert_eq!(found.hits, search(whole.as_ref(), 3, 20, &Filter::default()).hits);
                let last = Row::new(items as u32 - 1 - ranks.rank() as u32);
                assert_eq!(new.keys(&[last]).unwrap(), whole.keys(&[last]).unwrap());
                if ranks.rank() == 0 {
                    let error = old.keys(&[last]).expect_err("the old state").to_string();
                    assert!(error.contains("the memory was changed after"), "{error}");
                }
                Ok::<_, StudyError>(())
            };
            ranks.share_reads(read).expect("all ranks");
            sums
        });
        assert_eq!(mean_drift(&sums.concat(), items).to_bits(), expected.to_bits());
    }
}

#[test]
fn a_rank_that_fails_in_a_round_ends_the_others() {
    let folder = tempfile::tempdir().expect("a folder");
    for failing in 0..4 {
        let results = on_ranks(4, |ranks| {
            let own = folder.path().join(failing.to_string());
            std::fs::create_dir_all(&own).expect("a folder");
            let memory = open(&own, &ranks, false);
            let snapshot = memory.snapshot();
            ranks.share_reads(|| {
                for round in 0..6 {
                    if ranks.rank() == failing && round == 3 {
                        return Err(StudyError::from("the model failed"));
                    }
                    // Some ranks finish before the others fail.
                    if round < 2 + ranks.rank() || ranks.rank() == failing {
                        snapshot.find(&[round as i64])?;
                    }
                }
                Ok(())
            })
        });
        for (rank, result) in results.into_iter().enumerate() {
            let error = result.expect_err("a failed rank").to_string();
            let expected = if rank == failing { "the model failed" } else { "has ended" };
            assert!(error.contains(expected), "rank {rank}: {error}");
        }
    }
}

/// A shard that cannot be read is an error on the rank that asks.
#[test]
fn a_damaged_shard_is_an_error_with_its_rank() {
    let folder = tempfile::tempdir().expect("a folder");
    let results = on_ranks(2, |ranks| {
        let own = folder.path().join(ranks.rank().to_string());
        write(&own, 0..300, false);
        if ranks.rank() == 1 {
            let files = lasting_files(&own);
            let entries = files.into_iter().find(|(name, _)| {
                name.file_name().is_some_and(|n| n.to_string_lossy().contains("entries"))
            });
            let (name, mut bytes) = entries.expect("a file of entries");
            let end = bytes.len() - 1;
            bytes[end] ^= 1;
            std::fs::write(own.join(name), bytes).expect("written");
        }
        let memory = ShardedMemory::open(&own, &ranks).expect("a memory of all ranks");
        let snapshot = memory.snapshot();
        ranks.share_reads(|| {
            if ranks.rank() == 0 {
                snapshot.entries(&[Row::new(599)]).map_err(StudyError::from)?;
            }
            Ok::<_, StudyError>(())
        })
    });
    let error = results[0].as_ref().expect_err("a damaged shard").to_string();
    assert!(error.contains("rank 1: ") && error.contains("memory verify"), "{error}");
    assert!(results[1].is_err());
}

#[test]
fn shares_are_whole_batches_and_all_items() {
    for items in [0, 1, 255, 256, 257, 1000, 5000] {
        for size in 1..6 {
            let shares = on_ranks(size, |ranks| shard_of(items, 256, &ranks));
            assert_eq!(shares.iter().cloned().flatten().count(), items);
            let mut start = 0;
            for share in shares {
                assert!(share.start == start && (share.is_empty() || start % 256 == 0));
                start = share.end;
            }
        }
    }
}

/// Trains REVEAL on `size` ranks; rank 0 in the folder `run`, with these options.
fn train(size: usize, run: &Path, resume: bool, stop: &Stop) -> Vec<Result<(), TrainError>> {
    runs::train_on(size, run, |options| {
        let set = SETTINGS.iter().chain(&MICRO_BATCHES).map(|set| (*set).to_owned()).collect();
        let recipe_options = RecipeOptions { tiny: true, set };
        let mut recipe = Recipe::built_in("reveal/laptop", &recipe_options).expect("a recipe");
        let options = RunOptions { resume, stop: stop.clone(), ..options };
        train_reveal(&mut recipe, &options).map(drop)
    })
}

/// The last step of an epoch has fewer micro-batches.
const MICRO_BATCHES: [&str; 3] = ["batch.examples=4", "batch.accumulate=4", "checkpoint.keep=9"];

fn complete(size: usize, run: &Path, resume: bool) {
    finished(train(size, run, resume, &Stop::default()));
}

#[test]
fn one_two_and_four_ranks_train_to_the_same_bytes() {
    let folder = tempfile::tempdir().expect("a folder");
    let reference = folder.path().join("1");
    complete(1, &reference, false);
    let metrics = std::fs::read_to_string(reference.join("metrics.jsonl")).expect("metrics");
    let drifts = metrics.lines().filter(|line| {
        let line: serde_json::Value = serde_json::from_str(line).expect("JSON");
        let drift = line.as_object().and_then(|line| {
            line.iter().find(|(name, _)| name.ends_with("memory_key_drift"))?.1.as_f64()
        });
        drift.is_some_and(|drift| drift > 0.0)
    });
    assert!(drifts.count() > 3);
    // Each of four ranks has a shard.
    let memory = Memory::open(reference.join("memory")).expect("a memory");
    assert!(memory.generation().len() > 3 * ENTRIES_PER_DRIFT_SUM);
    for size in [2, 4] {
        let run = folder.path().join(size.to_string());
        complete(size, &run, false);
        assert_equal_runs(&reference, &run);
    }
    // The run continues from step 19, within the refresh that starts before step 18 and is adopted
    // before step 21.
    let crashed = folder.path().join("crashed");
    crash_at_checkpoint(&crashed, 21, |options| {
        let mut results = train(3, &crashed, options.resume, &options.stop);
        assert!(results.iter().all(Result::is_err));
        results.swap_remove(0)
    });
    complete(2, &crashed, true);
    assert_equal_runs(&reference, &crashed);
}
