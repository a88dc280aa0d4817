//! A refresh needs main memory for a batch, not for a generation.
#![allow(clippy::unwrap_used)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use engram_memory::{Batch, Entry, MemoryFormat, ValueDtype, ValueFormat, Writer};

/// Counts the allocated bytes, and their maximum.
struct Counting;

static NOW: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is forwarded to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let now = NOW.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        PEAK.fetch_max(now, Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of the trait.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of the trait.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn a_refresh_allocates_only_a_batch() {
    let folder = tempfile::tempdir().unwrap();
    let (rows, width, values) =
        (6000, 64, ValueFormat { tokens: 16, width: 256, dtype: ValueDtype::F16 });
    let format = MemoryFormat { width, normalised: true, values: Some(values) };
    let size = values.tokens * values.width;
    let batches = (0..rows).step_by(100).map(|first| {
        let entries = (first as i64..first as i64 + 100).map(Entry::bare).collect();
        Ok(Batch { entries, keys: vec![1.0; 100 * width], values: vec![0.5; 100 * size] })
    });
    let mut writer = Writer::create(folder.path().join("m"), format, rows, batches).unwrap();
    let before = NOW.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    let mut largest = 0;
    let bytes = |batch: &Batch| 4 * (batch.keys.len() + batch.values.len());
    writer
        .refresh(|batch| {
            largest = largest.max(bytes(&batch));
            // As with an encoder, the new batch exists before the old one is freed.
            Ok(Batch {
                entries: batch.entries,
                keys: batch.keys.iter().map(|x| -x).collect(),
                values: batch.values.iter().map(|x| x + 1.0).collect(),
            })
        })
        .unwrap();
    let grown = PEAK.load(Ordering::Relaxed) - before;
    let generation = 4 * rows * (width + size);
    eprintln!(
        "{grown} more bytes at the peak, {largest} in a batch, {generation} in all values as f32"
    );
    // The old and the new batch, its values in their stored format, a buffer per file, and a few
    // numbers per row.
    assert!(grown < 3 * largest + (4 << 20) + 100 * rows, "{grown} bytes, {largest} in a batch");
    assert!(largest <= 4 << 20, "a batch of {largest} bytes");
    assert!(grown < generation / 5);
}
