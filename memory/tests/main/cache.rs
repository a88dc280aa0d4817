//! Values read through the cache equal the values in the files.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use engram_memory::cache::{StoredValue, ValueCache, ValueKey, ValueSource};

use tempfile::TempDir;

use crate::support::*;

const ROWS: usize = 200;

/// A memory with values of 2 tokens of width 8.
fn memory(dtype: ValueDtype) -> (TempDir, Writer) {
    let values = Some(ValueFormat { tokens: 2, width: 8, dtype });
    let format = MemoryFormat { width: 4, normalised: true, values };
    temporary(format, batch(&mut Rng::new(1), format, 0..ROWS as i64))
}

fn rows(generation: &Generation, ids: impl IntoIterator<Item = i64>) -> Vec<Row> {
    ids.into_iter().map(|id| generation.row_of(id).unwrap().unwrap()).collect()
}

fn keys(generation: &Generation, ids: impl IntoIterator<Item = i64>) -> Vec<ValueKey> {
    generation.value_keys(&rows(generation, ids)).unwrap()
}

/// The components of cached values.
fn components(values: &[Arc<StoredValue<'static>>]) -> Vec<f32> {
    let mut components = vec![0.0; values.len() * 16];
    values.iter().zip(components.chunks_mut(16)).for_each(|(value, out)| value.read(out));
    components
}

/// The components of the values in the files.
fn expected(generation: &Generation, ids: impl IntoIterator<Item = i64>) -> Vec<f32> {
    generation.values(&rows(generation, ids)).unwrap()
}

/// Returns random ids, most of them among the first 20.
fn skewed_ids(rng: &mut Rng) -> Vec<i64> {
    let id = |rng: &mut Rng| match rng.below(10) {
        0 => rng.below(ROWS as u64) as i64,
        _ => rng.below(20) as i64,
    };
    (0..30).map(|_| id(rng)).collect()
}

#[test]
fn cached_values_equal_the_files() {
    // Cached values have as many bytes as in the files: f16, int8 with a scale per token, or int4
    // with a scale per group.
    for (dtype, value_bytes) in ValueDtype::ALL.into_iter().zip([32, 24, 12]) {
        let (_folder, mut writer) = memory(dtype);
        // The cache can hold a quarter of the values.
        let capacity_bytes = ROWS as u64 / 4 * value_bytes;
        let cache = ValueCache::new(capacity_bytes);
        let mut rng = Rng::new(2);
        for round in 0..300 {
            if round % 60 == 59 {
                // Gives the next generation other values. A factor of 2 leaves integers unchanged
                // and only changes their scales.
                let doubled = |mut batch: Batch| {
                    batch.values.iter_mut().for_each(|number| *number *= 2.0);
                    Ok(batch)
                };
                encode_again(&mut writer, doubled);
            }
            let (generation, ids) = (writer.generation(), skewed_ids(&mut rng));
            let values = cache.read(generation, &keys(generation, ids.iter().copied())).unwrap();
            assert_eq!(components(&values), expected(generation, ids));
            assert!(cache.statistics().bytes <= capacity_bytes);
        }
        let statistics = cache.statistics();
        assert!(statistics.hit_rate() > 0.6, "{statistics:?}");
        assert_eq!(statistics.bytes, statistics.values * value_bytes);
    }
}

#[test]
fn a_value_of_another_memory_is_refused() {
    let (_folder, writer) = memory(ValueDtype::F16);
    let format = MemoryFormat { width: 4, normalised: true, values: None };
    let (_other_folder, other) = temporary(format, Batch::default());
    let keys = keys(writer.generation(), [3]);
    assert_refused(
        ValueCache::new(1 << 20).read(other.generation(), &keys),
        ["must be a value of this generation"],
    );
}

/// A source that counts the values that are read, and can be slow or broken.
#[derive(Default)]
struct Source {
    generation: Option<Arc<Generation>>,
    batches: Mutex<Vec<Vec<ValueKey>>>,
    pause: Duration,
    /// The number of the next reads that fail.
    failures: AtomicUsize,
    /// Whether the last value of each batch is missing.
    is_broken: bool,
}

impl Source {
    fn new(writer: &Writer) -> Self {
        Self { generation: Some(Arc::clone(writer.generation())), ..Self::default() }
    }

    fn read(&self) -> usize {
        self.batches.lock().unwrap().iter().map(Vec::len).sum()
    }
}

impl ValueSource for Source {
    fn stored_values(&self, keys: &[ValueKey]) -> Result<Vec<StoredValue<'static>>, MemoryError> {
        std::thread::sleep(self.pause);
        self.batches.lock().unwrap().push(keys.to_vec());
        let fails = |left: usize| left.checked_sub(1);
        if self.failures.fetch_update(Ordering::SeqCst, Ordering::SeqCst, fails).is_ok() {
            return Err(MemoryError::RefreshCancelled);
        }
        let mut values = self.generation.as_ref().unwrap().stored_values(keys)?;
        values.truncate(keys.len() - usize::from(self.is_broken));
        Ok(values)
    }
}

#[test]
fn a_value_of_a_row_that_its_segment_lacks_is_refused() {
    let (_folder, mut writer) = memory(ValueDtype::F16);
    let values = writer.generation().manifest().values;
    let format = MemoryFormat { width: 4, normalised: true, values };
    add(&mut writer, batch(&mut Rng::new(2), format, [900, 901]));
    let generation = writer.generation();
    let segments: Vec<(u64, usize)> = generation.value_segments().collect();
    assert_eq!(segments.len(), 2);
    for (id, rows) in segments {
        let stored_values = |row: usize| generation.stored_values(&[(id, row as u32)]);
        assert!(stored_values(rows - 1).is_ok());
        assert_refused(stored_values(rows), ["must be a value of this generation"]);
    }
}

#[test]
fn a_source_reads_only_the_missing_values_and_in_one_batch() {
    let (_folder, writer) = memory(ValueDtype::F16);
    let [a, b, c] = keys(writer.generation(), [1, 2, 3])[..] else { unreachable!() };
    let source = Arc::new(Source::new(&writer));
    let cache = ValueCache::new(1 << 20);
    for lookup in [vec![a, b, a], vec![b, c, c, a], vec![c, a, b]] {
        assert_eq!(cache.read(&source, &lookup).unwrap().len(), lookup.len());
    }
    assert_eq!(*source.batches.lock().unwrap(), [vec![a, b], vec![c]]);
}

#[test]
fn a_source_that_returns_too_few_values_is_an_error() {
    let (_folder, writer) = memory(ValueDtype::F16);
    let source = Arc::new(Source { is_broken: true, ..Source::new(&writer) });
    let keys = keys(writer.generation(), [1, 2]);
    assert_refused(ValueCache::new(1 << 20).read(&source, &keys), ["1 values instead of 2"]);
}

#[test]
fn many_threads_share_a_cache() {
    let (_folder, writer) = memory(ValueDtype::F16);
    let generation = writer.generation();
    let cache = ValueCache::new(40 * 32);
    std::thread::scope(|scope| {
        for seed in 0..6 {
            let cache = &cache;
            scope.spawn(move || {
                let mut rng = Rng::new(seed);
                for _ in 0..200 {
                    let ids = skewed_ids(&mut rng);
                    let keys = keys(generation, ids.iter().copied());
                    if rng.below(2) == 0 {
                        cache.prefetch(generation, &keys);
                    }
                    let values = cache.read(generation, &keys).unwrap();
                    assert_eq!(components(&values), expected(generation, ids));
                }
            });
        }
    });
    cache.wait();
    assert!(cache.statistics().hits > 0 && cache.statistics().prefetched > 0);
}

#[test]
fn a_value_is_made_from_bytes_of_its_size() {
    let format = ValueFormat { tokens: 1, width: 2, dtype: ValueDtype::F16 };
    // 1.0 and -2.0.
    let value = StoredValue::from_bytes(format, vec![0x00, 0x3c, 0x00, 0xc0].into()).unwrap();
    let mut components = [0.0; 2];
    value.read(&mut components);
    assert_eq!(components, [1.0, -2.0]);
    let format = ValueFormat { dtype: ValueDtype::Int8, ..format };
    for bytes in [0, 5, 7] {
        let value = StoredValue::from_bytes(format, vec![0; bytes].into());
        assert!(matches!(value, Err(MemoryError::Count { .. })), "{value:?}");
    }
}

#[test]
fn a_lookup_waits_for_a_prefetch_and_reads_no_value_twice() {
    let (_folder, writer) = memory(ValueDtype::F16);
    let generation = writer.generation();
    let pause = Duration::from_millis(400);
    let source = Arc::new(Source { pause, ..Source::new(&writer) });
    let cache = ValueCache::new(1 << 20);
    let [first, second] = [keys(generation, 0..20), keys(generation, 10..30)];
    cache.prefetch(&source, &first);
    cache.prefetch(&source, &second);
    cache.prefetch(&source, &second);
    assert_eq!(source.read(), 0, "a prefetch does not wait");
    // While both prefetches run.
    let values = cache.read(&source, &second).unwrap();
    assert_eq!(components(&values), expected(generation, 10..30));
    let values = cache.read(&source, &first).unwrap();
    assert_eq!(components(&values), expected(generation, 0..20));
    assert_eq!((source.read(), cache.statistics().prefetched), (30, 30));
}

#[test]
fn a_lookup_reads_the_values_of_a_failed_prefetch_itself() {
    let (_folder, writer) = memory(ValueDtype::F16);
    let source = Arc::new(Source { failures: 1.into(), ..Source::new(&writer) });
    let cache = ValueCache::new(1 << 20);
    let keys = keys(writer.generation(), 0..20);
    cache.prefetch(&source, &keys);
    let values = cache.read(&source, &keys).unwrap();
    assert_eq!(components(&values), expected(writer.generation(), 0..20));
    assert_eq!((source.read(), cache.statistics().prefetched), (40, 0));
}

#[test]
fn prefetched_values_stay_until_their_lookup_in_a_full_cache() {
    let (_folder, writer) = memory(ValueDtype::F16);
    let generation = writer.generation();
    let source = Arc::new(Source::new(&writer));
    // Room for 20 values, which are read often.
    let cache = ValueCache::new(20 * 32);
    for _ in 0..3 {
        cache.read(generation, &keys(generation, 0..20)).unwrap();
    }
    let next = keys(generation, 100..120);
    cache.prefetch(&source, &next);
    cache.wait();
    cache.read(generation, &keys(generation, 0..20)).unwrap();
    cache.read(&source, &next).unwrap();
    assert_eq!(source.read(), 20);
    // Prefetched values have a limit, too: the oldest are dropped.
    let many = keys(generation, 120..190);
    cache.prefetch(&source, &many);
    cache.wait();
    cache.read(&source, &many[50..]).unwrap();
    assert_eq!(source.read(), 20 + 70);
    cache.read(&source, &many[..50]).unwrap();
    assert_eq!(source.read(), 20 + 70 + 50);
}
