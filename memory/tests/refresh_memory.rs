//! Tests that a refresh needs main memory for a batch, not for a generation.
#![allow(clippy::unwrap_used)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use engram_memory::{Batch, Entry, MemoryFormat, ValueDtype, ValueFormat, Writer};

/// An allocator that counts the allocated bytes, and their maximum.
struct CountingAllocator;

/// The number of allocated bytes.
static ALLOCATED: AtomicUsize = AtomicUsize::new(0);
/// The maximum of [`ALLOCATED`].
static PEAK: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is forwarded to the system's allocator.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let allocated = ALLOCATED.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        PEAK.fetch_max(allocated, Ordering::Relaxed);
        // SAFETY: the caller upholds the contract of the trait.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        ALLOCATED.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller upholds the contract of the trait.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

#[test]
fn a_refresh_allocates_memory_for_batches_only() {
    let folder = tempfile::tempdir().unwrap();
    let (rows, width, values) =
        (6000, 64, ValueFormat { tokens: 16, width: 256, dtype: ValueDtype::F16 });
    let format = MemoryFormat { width, normalised: true, values: Some(values) };
    let value_len = values.tokens * values.width;
    let batches = (0..rows).step_by(100).map(|first| {
        let entries = (first as i64..first as i64 + 100).map(Entry::bare).collect();
        Ok(Batch { entries, keys: vec![1.0; 100 * width], values: vec![0.5; 100 * value_len] })
    });
    let mut writer = Writer::create(folder.path().join("m"), format, rows, batches).unwrap();
    let allocated_before = ALLOCATED.load(Ordering::Relaxed);
    PEAK.store(allocated_before, Ordering::Relaxed);
    let mut largest_batch = 0;
    let bytes = |batch: &Batch| 4 * (batch.keys.len() + batch.values.len());
    writer
        .re_encode(Vec::new(), width, |batch| {
            largest_batch = largest_batch.max(bytes(&batch));
            // As with an encoder, the new batch exists before the old one is freed.
            Ok(Batch {
                entries: batch.entries,
                keys: batch.keys.iter().map(|x| -x).collect(),
                values: batch.values.iter().map(|x| x + 1.0).collect(),
            })
        })
        .unwrap();
    let growth = PEAK.load(Ordering::Relaxed) - allocated_before;
    let generation_bytes = 4 * rows * (width + value_len);
    eprintln!(
        "{growth} more bytes at the peak, {largest_batch} in a batch, {generation_bytes} in all \
         keys and values as f32"
    );
    // The old batch, the new batch, the new values in their stored format, a buffer per file, and a
    // few numbers per row.
    let limit = 3 * largest_batch + (4 << 20) + 100 * rows;
    assert!(growth < limit, "{growth} bytes, {largest_batch} in a batch");
    assert!(largest_batch <= 4 << 20, "a batch of {largest_batch} bytes");
    assert!(growth < generation_bytes / 5);
}
