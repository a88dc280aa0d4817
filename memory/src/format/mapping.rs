//! Memory-mapped files, and the lookup of the file that an address belongs to.
//!
//! If a mapped file is truncated, reading it raises the signal SIGBUS. A signal handler can call
//! [`path_at`] to report the file before the process ends.

use std::fs::File;
use std::io;
use std::ops::Deref;
use std::path::Path;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicUsize, Ordering};

use memmap2::{Mmap, MmapOptions};

/// The maximum length of a stored path in bytes. Only the end of a longer path is stored.
pub const MAX_PATH_LENGTH: usize = 512;

/// A mapped file.
#[derive(Debug)]
pub(crate) struct Mapping {
    map: Mmap,
    slot: &'static Slot,
}

impl Mapping {
    /// Maps `bytes` bytes of a file from the offset `start`. The file must have all these bytes.
    pub(crate) fn new(file: &File, path: &Path, start: u64, bytes: usize) -> io::Result<Self> {
        // SAFETY: files of a generation never change after they were written. If another program
        // truncates a mapped file, this process ends with SIGBUS; it never reads other memory.
        let map = unsafe { MmapOptions::new().offset(start).len(bytes).map(file)? };
        let slot = Slot::take();
        slot.fill(path, map.as_ptr() as usize, map.len());
        Ok(Self { map, slot })
    }
}

impl Deref for Mapping {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.map
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        self.slot.end.store(0, Ordering::Release);
        self.slot.taken.store(false, Ordering::Release);
    }
}

/// A mapping's slot in the list of all mappings. A signal handler may read it at any time, so slots
/// are never freed, only reused.
#[derive(Debug)]
struct Slot {
    taken: AtomicBool,
    /// The address of the first mapped byte.
    start: AtomicUsize,
    /// The address after the last mapped byte; 0 while nothing is mapped.
    end: AtomicUsize,
    path: [AtomicU8; MAX_PATH_LENGTH],
    path_length: AtomicUsize,
    next: *const Slot,
}

// SAFETY: `next` is set before other threads see the slot, and points to a slot that is never
// freed. All other fields are atomic.
unsafe impl Sync for Slot {}

/// The first slot of the list.
static FIRST: AtomicPtr<Slot> = AtomicPtr::new(ptr::null_mut());

/// Returns all slots, used or not.
fn slots() -> impl Iterator<Item = &'static Slot> {
    let mut next: *const Slot = FIRST.load(Ordering::Acquire);
    std::iter::from_fn(move || {
        // SAFETY: slots are never freed.
        let slot = unsafe { next.as_ref() }?;
        next = slot.next;
        Some(slot)
    })
}

impl Slot {
    /// Takes an unused slot, or adds a new slot to the list.
    fn take() -> &'static Self {
        let free = |slot: &&Self| !slot.taken.swap(true, Ordering::AcqRel);
        if let Some(slot) = slots().find(free) {
            return slot;
        }
        let slot = Box::leak(Box::new(Self {
            taken: AtomicBool::new(true),
            start: AtomicUsize::new(0),
            end: AtomicUsize::new(0),
            path: [const { AtomicU8::new(0) }; MAX_PATH_LENGTH],
            path_length: AtomicUsize::new(0),
            next: ptr::null(),
        }));
        let mut first = FIRST.load(Ordering::Acquire);
        loop {
            slot.next = first;
            match FIRST.compare_exchange_weak(first, slot, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return slot,
                Err(newer) => first = newer,
            }
        }
    }

    /// Stores the address range and the path of a mapping.
    fn fill(&self, path: &Path, start: usize, bytes: usize) {
        let path = path.as_os_str().as_encoded_bytes();
        let path = &path[path.len().saturating_sub(MAX_PATH_LENGTH)..];
        for (stored, byte) in self.path.iter().zip(path) {
            stored.store(*byte, Ordering::Relaxed);
        }
        self.path_length.store(path.len(), Ordering::Relaxed);
        self.start.store(start, Ordering::Relaxed);
        self.end.store(start + bytes, Ordering::Release);
    }
}

/// Writes the path of the file mapped at `address` to `path`, and returns the length of the path.
/// Returns `None` if no file of a memory is mapped there.
///
/// This function takes no lock and allocates nothing, so a signal handler may call it.
pub fn path_at(address: usize, path: &mut [u8; MAX_PATH_LENGTH]) -> Option<usize> {
    let slot = slots().find(|slot| {
        let end = slot.end.load(Ordering::Acquire);
        (slot.start.load(Ordering::Relaxed)..end).contains(&address)
    })?;
    path.iter_mut().zip(&slot.path).for_each(|(out, byte)| *out = byte.load(Ordering::Relaxed));
    Some(slot.path_length.load(Ordering::Relaxed).min(MAX_PATH_LENGTH))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_resolved_to_its_file_while_it_is_mapped() {
        let folder = tempfile::tempdir().unwrap();
        let file_at = |address: usize| {
            let mut path = [0; MAX_PATH_LENGTH];
            path_at(address, &mut path).map(|length| path[..length].to_vec())
        };
        let mut mapped = Vec::new();
        for round in 0..3 {
            for name in 0..4 {
                let path = folder.path().join(format!("{round}-{name}"));
                std::fs::write(&path, vec![7; 10_000]).unwrap();
                let map = Mapping::new(&File::open(&path).unwrap(), &path, 0, 10_000).unwrap();
                mapped.push((map, path));
            }
            for (map, path) in &mapped {
                let start = map.as_ptr() as usize;
                for address in [start, start + 9_999] {
                    assert_eq!(file_at(address).unwrap(), path.as_os_str().as_encoded_bytes());
                }
            }
            let (unmapped, _) = mapped.remove(1);
            let start = unmapped.as_ptr() as usize;
            drop(unmapped);
            assert_eq!(file_at(start), None);
        }
        let long = folder.path().join("x".repeat(200)).join("y".repeat(200)).join("z".repeat(200));
        std::fs::create_dir_all(&long).unwrap();
        let path = long.join("end");
        std::fs::write(&path, b"1").unwrap();
        let map = Mapping::new(&File::open(&path).unwrap(), &path, 0, 1).unwrap();
        let end = file_at(map.as_ptr() as usize).unwrap();
        assert!(end.len() == MAX_PATH_LENGTH && end.ends_with(b"/end"));
    }
}
