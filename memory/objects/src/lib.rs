//! Values of a memory in an object store: a folder, S3, Google Cloud Storage or Azure Blob Storage.
//!
//! Values need far more space than keys. So a machine can hold the keys of a large memory, search
//! there, and read the values of the retrieved entries from a store.
//!
//! | module | responsibility |
//! |---|---|
//! | [`mod@push`] | sends the values of a local memory |
//! | [`values`] | reads the values of a generation, for a [`ValueCache`](engram_memory::cache::ValueCache) |
//! | [`tiers`] | main memory and store, for memories whose values were moved |
//! | [`mod@sweep`] | removes old generations |
//! | [`storage`], `address` | requests with time limits and retries; the address of a store |
//! | `manifest`, `shard` | the objects of a generation |
//! | `failure` | errors |
//!
//! # Objects
//!
//! | object | content |
//! |---|---|
//! | `shards/SHA-256` | the values of some rows, and checksums of blocks; never changed |
//! | `generations/NNNNNNNNNN` | a manifest: the names and checksums of the shards; created last |
//!
//! The generation with the largest number is current. A push is visible as a whole, or not at all.
//! An interrupted push can be repeated, which sends only the missing shards. Two generations share
//! the shards of segments that they share, so a small change sends little.
//!
//! All objects are checked when they are read: a changed byte is an error, and never a value.
//!
//! # Tiers
//!
//! As in NVIDIA's Merlin Hierarchical Parameter Server (HPS): frequent values in main memory
//! ([`ValueCache`](engram_memory::cache::ValueCache)), and all values in the store. A
//! [prefetch](engram_memory::Snapshot::prefetch) reads the values of the next batch while the
//! current one is computed.
//!
//! ```
//! use std::sync::Arc;
//!
//! use engram_memory::{
//!     Batch, Entry, Memory, MemoryFormat, Snapshot, ValueDtype, ValueFormat, Writer,
//! };
//! use engram_memory_objects::{TierSettings, ValueTiers};
//!
//! let folder = tempfile::tempdir()?;
//! let values = ValueFormat { tokens: 1, width: 2, dtype: ValueDtype::F16 };
//! let format = MemoryFormat { width: 2, normalised: true, values: Some(values) };
//! let batch = Batch {
//!     entries: vec![Entry::bare(0), Entry::bare(1)],
//!     keys: vec![1.0, 0.0, 0.0, 1.0],
//!     values: vec![0.5, 1.0, 2.0, 4.0],
//! };
//! let path = folder.path().join("memory");
//! let mut writer = Writer::create(&path, format, 2, [Ok(batch)].into_iter())?;
//!
//! // Or, for example, `s3://bucket/facts`.
//! let address = folder.path().join("store").display().to_string();
//! let tiers = Arc::new(ValueTiers::new(TierSettings::default()));
//! writer.move_values(tiers.as_ref(), &address)?;
//! drop(writer);
//!
//! let generation = Memory::open_with(&path, Some(tiers))?.generation();
//! let rows: Vec<_> = generation.live_rows().collect();
//! assert_eq!(generation.values(&rows)?, [0.5, 1.0, 2.0, 4.0]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

// Only its feature `rustls-no-provider` is used, which object_store leaves to the program.
use reqwest as _;

mod address;
mod failure;
mod manifest;
pub mod push;
mod shard;
pub mod storage;
pub mod sweep;
pub mod tiers;
pub mod values;

pub use address::Connect;
pub use object_store;
pub use push::{PushSettings, Pushed, push};
pub use storage::ObjectStorage;
pub use sweep::{SweepSettings, Swept, sweep};
pub use tiers::{TierSettings, ValueTiers};
pub use values::RemoteValues;
