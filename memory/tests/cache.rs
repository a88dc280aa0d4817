//! Values read through the cache equal the values in the files, or are reported as missing.
#![allow(clippy::unwrap_used)]

mod plain;

use std::io::{Seek, SeekFrom, Write};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use engram_memory::cache::{CacheSettings, StoredValue, ValueCache, ValueKey, ValueSource};
use engram_memory::{Generation, MemoryError, MemoryFormat, Row, ValueDtype, ValueFormat, Writer};
use plain::{Rng, batch, folder};

const ROWS: usize = 200;

/// A memory with f16 values of 2 tokens of width 8.
fn memory(folder: &std::path::Path) -> Writer {
    memory_with_dtype(folder, ValueDtype::F16)
}

/// A memory with values of 2 tokens of width 8.
fn memory_with_dtype(folder: &std::path::Path, dtype: ValueDtype) -> Writer {
    let values = Some(ValueFormat { tokens: 2, width: 8, dtype });
    let format = MemoryFormat { width: 4, normalised: true, values };
    let rows = batch(&mut Rng::new(1), format, &(0..ROWS as i64).collect::<Vec<_>>());
    Writer::create(folder, format, ROWS, [Ok(rows)].into_iter()).unwrap()
}

fn rows(generation: &Generation, ids: impl IntoIterator<Item = i64>) -> Vec<Row> {
    ids.into_iter().map(|id| generation.row_of(id).unwrap().unwrap()).collect()
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
    for (dtype, bytes) in ValueDtype::ALL.into_iter().zip([32, 24, 12]) {
        check_cached_values(dtype, bytes);
    }
}

/// Compares cached values with the files. `value_bytes` is the size of a cached value.
fn check_cached_values(dtype: ValueDtype, value_bytes: u64) {
    let temporary = folder();
    let mut writer = memory_with_dtype(&temporary.path().join("m"), dtype);
    // The cache can hold a quarter of the values.
    let capacity_bytes = ROWS as u64 / 4 * value_bytes;
    let cache = ValueCache::new(CacheSettings { capacity_bytes, background_from: None });
    let mut rng = Rng::new(2);
    for round in 0..300 {
        if round % 60 == 59 {
            // Gives the next generation other values.
            let negated = |mut batch: engram_memory::Batch| {
                batch.values.iter_mut().for_each(|number| *number = -*number);
                Ok(batch)
            };
            writer.refresh(negated).unwrap();
        }
        let generation = writer.generation();
        let rows = rows(generation, skewed_ids(&mut rng));
        let values = cache.read(generation, &rows).unwrap();
        assert!(values.present.iter().all(|present| *present));
        assert_eq!(values.values, generation.values(&rows).unwrap());
        assert!(cache.statistics().bytes <= capacity_bytes);
    }
    let statistics = cache.statistics();
    assert!(statistics.hit_rate() > 0.6, "{statistics:?}");
    assert_eq!((statistics.masked, statistics.bytes), (0, statistics.values * value_bytes));
}

#[test]
fn values_that_differ_only_in_scales_are_distinct() {
    for dtype in [ValueDtype::Int8, ValueDtype::Int4] {
        check_doubled_values(dtype);
    }
}

/// Doubles all values of a memory, which changes only the scales.
fn check_doubled_values(dtype: ValueDtype) {
    let temporary = folder();
    let values = Some(ValueFormat { tokens: 2, width: 8, dtype });
    let format = MemoryFormat { width: 4, normalised: true, values };
    let batch = batch(&mut Rng::new(1), format, &(0..ROWS as i64).collect::<Vec<_>>());
    let mut writer =
        Writer::create(temporary.path().join("m"), format, ROWS, [Ok(batch)].into_iter()).unwrap();
    let cache = ValueCache::new(CacheSettings { capacity_bytes: 1 << 20, background_from: None });
    cache.read(writer.generation(), &rows(writer.generation(), 0..10)).unwrap();
    let doubled = |mut batch: engram_memory::Batch| {
        batch.values.iter_mut().for_each(|number| *number *= 2.0);
        Ok(batch)
    };
    writer.refresh(doubled).unwrap();
    let generation = writer.generation();
    let rows = rows(generation, 0..10);
    let expected = generation.values(&rows).unwrap();
    assert_eq!(cache.read(generation, &rows).unwrap().values, expected);
}

#[test]
fn values_read_in_the_background_are_missing_at_first() {
    let temporary = folder();
    let writer = memory(&temporary.path().join("m"));
    let generation = writer.generation();
    let settings = CacheSettings { capacity_bytes: 1 << 20, background_from: Some(0.5) };
    let cache = ValueCache::new(settings);
    // The cache is empty: the hit rate is below the limit, so the lookup waits.
    let first = rows(generation, 0..10);
    assert!(cache.read(generation, &first).unwrap().present.iter().all(|present| *present));
    // Above the limit, misses are reported as missing, with zeros.
    let second = rows(generation, (0..10).chain([50, 51, 50]));
    let values = cache.read(generation, &second).unwrap();
    assert_eq!(values.present.iter().filter(|present| !**present).count(), 3);
    assert!(values.values[10 * 16..].iter().all(|number| *number == 0.0));
    assert_eq!(values.values[..10 * 16], generation.values(&first).unwrap());
    cache.wait();
    let values = cache.read(generation, &second).unwrap();
    assert!(values.present.iter().all(|present| *present));
    assert_eq!(values.values, generation.values(&second).unwrap());
    let statistics = cache.statistics();
    assert_eq!((statistics.hits, statistics.misses, statistics.masked), (10 + 12, 10 + 2, 2));
}

#[test]
fn the_next_lookup_returns_the_error_of_a_background_read() {
    let temporary = folder();
    let path = temporary.path().join("m");
    // The values span several blocks; opening checks only the first.
    let values = Some(ValueFormat { tokens: 1, width: 8192, dtype: ValueDtype::F16 });
    let format = MemoryFormat { width: 4, normalised: true, values };
    let batch = batch(&mut Rng::new(1), format, &(0..ROWS as i64).collect::<Vec<_>>());
    let writer = Writer::create(&path, format, ROWS, [Ok(batch)].into_iter()).unwrap();
    let file = path.join("gen-000001/values.safetensors");
    let mut file = std::fs::File::options().write(true).open(file).unwrap();
    file.seek(SeekFrom::End(-1)).unwrap();
    file.write_all(&[77]).unwrap();
    let generation = writer.generation();
    let settings = CacheSettings { capacity_bytes: 1 << 20, background_from: Some(0.0) };
    let cache = ValueCache::new(settings);
    let last = rows(generation, [ROWS as i64 - 1]);
    assert_eq!(cache.read(generation, &last).unwrap().present, [false]);
    cache.wait();
    let error = cache.read(generation, &last).unwrap_err().to_string();
    assert!(error.contains("values.safetensors: was changed"), "{error}");
    // After the error, intact values can still be read.
    let first = rows(generation, [0]);
    cache.read(generation, &first).unwrap();
    cache.wait();
    assert_eq!(cache.read(generation, &first).unwrap().present, [true]);
}

#[test]
fn a_row_of_another_memory_is_refused() {
    let temporary = folder();
    let writer = memory(&temporary.path().join("m"));
    let format = MemoryFormat { width: 4, normalised: true, values: None };
    let no_batches = std::iter::empty();
    let other = Writer::create(temporary.path().join("other"), format, 0, no_batches).unwrap();
    let cache = ValueCache::new(CacheSettings { capacity_bytes: 1 << 20, background_from: None });
    let rows = rows(writer.generation(), [3]);
    let error = cache.read(other.generation(), &rows).unwrap_err().to_string();
    assert!(error.contains("a row is 3, but must be a row of this generation"), "{error}");
}

/// A generation that records the batches of rows whose values are read.
struct Recorded {
    generation: Arc<Generation>,
    batches: Mutex<Vec<Vec<Row>>>,
    /// Whether the last value of each batch is missing.
    is_broken: bool,
}

impl ValueSource for Recorded {
    fn value_len(&self) -> usize {
        self.generation.value_len()
    }

    fn value_key(&self, row: Row) -> Result<ValueKey, MemoryError> {
        self.generation.value_key(row)
    }

    fn stored_values(&self, rows: &[Row]) -> Result<Vec<StoredValue<'static>>, MemoryError> {
        self.batches.lock().unwrap().push(rows.to_vec());
        let mut values = self.generation.stored_values(rows)?;
        values.truncate(rows.len() - usize::from(self.is_broken));
        Ok(values)
    }
}

#[test]
fn a_source_reads_only_the_missing_values_and_in_one_batch() {
    let temporary = folder();
    let writer = memory(&temporary.path().join("m"));
    let generation = Arc::clone(writer.generation());
    let [a, b, c] = rows(&generation, [1, 2, 3])[..] else { unreachable!() };
    let source = Arc::new(Recorded { generation, batches: Mutex::default(), is_broken: false });
    let settings = CacheSettings { capacity_bytes: 1 << 20, background_from: None };
    let cache = ValueCache::new(settings);
    for lookup in [vec![a, b, a], vec![b, c, c, a], vec![c, a, b]] {
        let values = cache.read(&source, &lookup).unwrap();
        assert_eq!(values.values, source.generation.values(&lookup).unwrap());
    }
    assert_eq!(*source.batches.lock().unwrap(), [vec![a, b], vec![c]]);
}

#[test]
fn a_source_that_returns_too_few_values_is_an_error() {
    let temporary = folder();
    let writer = memory(&temporary.path().join("m"));
    let generation = Arc::clone(writer.generation());
    let rows = rows(&generation, [1, 2]);
    let source = Arc::new(Recorded { generation, batches: Mutex::default(), is_broken: true });
    let settings = CacheSettings { capacity_bytes: 1 << 20, background_from: None };
    let error = ValueCache::new(settings).read(&source, &rows).unwrap_err().to_string();
    assert!(error.contains("1 values instead of 2"), "{error}");
}

#[test]
fn many_threads_share_a_cache() {
    let temporary = folder();
    let writer = memory(&temporary.path().join("m"));
    let generation = writer.generation();
    let settings = CacheSettings { capacity_bytes: 40 * 32, background_from: Some(0.9) };
    let cache = ValueCache::new(settings);
    std::thread::scope(|scope| {
        for seed in 0..6 {
            let cache = &cache;
            scope.spawn(move || {
                let mut rng = Rng::new(seed);
                for _ in 0..200 {
                    let rows = rows(generation, skewed_ids(&mut rng));
                    let values = cache.read(generation, &rows).unwrap();
                    let expected = generation.values(&rows).unwrap();
                    for (row, present) in values.present.iter().enumerate() {
                        let range = row * 16..(row + 1) * 16;
                        let zeros = values.values[range.clone()].iter().all(|n| *n == 0.0);
                        let is_equal = values.values[range.clone()] == expected[range];
                        assert!(if *present { is_equal } else { zeros });
                    }
                }
            });
        }
    });
    cache.wait();
    let statistics = cache.statistics();
    assert!(statistics.hits > 0 && statistics.masked <= statistics.misses, "{statistics:?}");
}

/// A source that makes each value from bytes: two f16 numbers.
struct Bytes;

impl ValueSource for Bytes {
    fn value_len(&self) -> usize {
        2
    }

    fn value_key(&self, _: Row) -> Result<ValueKey, MemoryError> {
        Ok((1, 1))
    }

    fn stored_values(&self, rows: &[Row]) -> Result<Vec<StoredValue<'static>>, MemoryError> {
        let format = ValueFormat { tokens: 1, width: 2, dtype: ValueDtype::F16 };
        // 1.0 and -2.0.
        let numbers = [0x00, 0x3c, 0x00, 0xc0];
        let value = |_: &Row| StoredValue::from_bytes(format, numbers.to_vec().into());
        rows.iter().map(value).collect()
    }
}

#[test]
fn a_source_can_make_values_from_bytes() {
    let temporary = folder();
    let writer = memory(&temporary.path().join("m"));
    let row = rows(writer.generation(), [1]);
    let settings = CacheSettings { capacity_bytes: 1 << 20, background_from: None };
    let read = ValueCache::new(settings).read(&Arc::new(Bytes), &row).unwrap();
    assert_eq!((read.values, read.present), (vec![1.0, -2.0], vec![true]));
    let format = ValueFormat { tokens: 1, width: 2, dtype: ValueDtype::Int8 };
    for bytes in [0, 5, 7] {
        let value = StoredValue::from_bytes(format, vec![0; bytes].into());
        assert!(matches!(value, Err(MemoryError::Count { .. })), "{value:?}");
    }
}

/// A slow source that counts the values that are read.
struct Slow {
    generation: Arc<Generation>,
    read: AtomicUsize,
    /// The number of the next reads that fail.
    failures: AtomicUsize,
}

impl Slow {
    fn new(generation: &Arc<Generation>, failures: usize) -> Arc<Self> {
        let (generation, failures) = (Arc::clone(generation), failures.into());
        Arc::new(Self { generation, read: AtomicUsize::new(0), failures })
    }
}

impl ValueSource for Slow {
    fn value_len(&self) -> usize {
        self.generation.value_len()
    }

    fn value_key(&self, row: Row) -> Result<ValueKey, MemoryError> {
        self.generation.value_key(row)
    }

    fn stored_values(&self, rows: &[Row]) -> Result<Vec<StoredValue<'static>>, MemoryError> {
        std::thread::sleep(Duration::from_millis(400));
        self.read.fetch_add(rows.len(), Ordering::SeqCst);
        let fails = |left: usize| left.checked_sub(1);
        if self.failures.fetch_update(Ordering::SeqCst, Ordering::SeqCst, fails).is_ok() {
            return Err(MemoryError::RefreshCancelled);
        }
        self.generation.stored_values(rows)
    }
}

#[test]
fn a_lookup_waits_for_a_prefetch_and_reads_no_value_twice() {
    let temporary = folder();
    let writer = memory(&temporary.path().join("m"));
    let generation = writer.generation();
    let source = Slow::new(generation, 0);
    let cache = ValueCache::new(CacheSettings { capacity_bytes: 1 << 20, background_from: None });
    let [first, second] = [rows(generation, 0..20), rows(generation, 10..30)];
    let start = Instant::now();
    cache.prefetch(&source, &first).unwrap();
    cache.prefetch(&source, &second).unwrap();
    cache.prefetch(&source, &second).unwrap();
    assert!(start.elapsed() < Duration::from_millis(300), "a prefetch does not wait");
    // While both prefetches run.
    let values = cache.read(&source, &second).unwrap();
    assert!(values.present.iter().all(|present| *present));
    assert_eq!(values.values, generation.values(&second).unwrap());
    assert_eq!(cache.read(&source, &first).unwrap().values, generation.values(&first).unwrap());
    assert_eq!(source.read.load(Ordering::SeqCst), 30);
    assert_eq!(cache.statistics().prefetched, 30);
    assert_eq!(cache.statistics().hits, 20);
}

#[test]
fn after_a_failed_prefetch_the_lookup_reads_the_values() {
    let temporary = folder();
    let writer = memory(&temporary.path().join("m"));
    let generation = writer.generation();
    let source = Slow::new(generation, 1);
    let cache = ValueCache::new(CacheSettings { capacity_bytes: 1 << 20, background_from: None });
    let rows = rows(generation, 0..5);
    cache.prefetch(&source, &rows).unwrap();
    assert_eq!(cache.read(&source, &rows).unwrap().values, generation.values(&rows).unwrap());
    assert_eq!((cache.statistics().prefetched, source.read.load(Ordering::SeqCst)), (0, 10));
}

#[test]
fn prefetched_values_stay_until_their_lookup_in_a_full_cache() {
    let temporary = folder();
    let writer = memory(&temporary.path().join("m"));
    let generation = writer.generation();
    let source = Slow::new(generation, 0);
    // Room for 20 values, which are read often.
    let capacity_bytes = 20 * 32;
    let cache = ValueCache::new(CacheSettings { capacity_bytes, background_from: None });
    for _ in 0..3 {
        cache.read(generation, &rows(generation, 0..20)).unwrap();
    }
    let next = rows(generation, 100..120);
    cache.prefetch(&source, &next).unwrap();
    cache.wait();
    cache.read(generation, &rows(generation, 0..20)).unwrap();
    assert_eq!(cache.read(&source, &next).unwrap().values, generation.values(&next).unwrap());
    assert_eq!(source.read.load(Ordering::SeqCst), 20);
    // Prefetched values have a limit, too: the oldest are dropped.
    let many = rows(generation, 120..190);
    cache.prefetch(&source, &many).unwrap();
    cache.wait();
    assert_eq!(cache.read(&source, &many[50..]).unwrap().present, [true; 20]);
    assert_eq!(source.read.load(Ordering::SeqCst), 20 + 70);
    assert_eq!(cache.read(&source, &many[..50]).unwrap().present, [true; 50]);
    assert_eq!(source.read.load(Ordering::SeqCst), 20 + 70 + 50);
}
