//! A memory of keys and values for retrieval-augmented models, with search, edits and refreshes.
//!
//! A memory is a folder of entries. Each entry has a key, by which it is found, and may have a
//! value, which a model reads. One state of the memory is a [`Generation`]. A change writes a new
//! generation beside the old one and then makes it current, so readers always see one complete
//! state, and a killed writer leaves the memory unchanged.
//!
//! | module | responsibility |
//! |---|---|
//! | [`store`] | the traits of a memory: store, snapshot, transaction and server |
//! | [`stored_rows`] | rows for stores outside of this crate |
//! | [`memory`] | a memory in a local folder |
//! | [`writer`] | changes a memory: build, add, update, delete, compact, re-encode |
//! | `edit` | applies a change of some rows to the segments |
//! | `encoded`, `segment`, `segment_writer` | rows in main memory; read and written segments |
//! | `values` | the number types of values, and their columns in a segment |
//! | `merge` | the policy of merging segments |
//! | `keep_graphs` | graphs of new segments, so that a memory keeps its graph |
//! | `change` | collects the parts of a change |
//! | `commit` | writes a generation and makes it current |
//! | `transaction` | transactions of a memory in a local folder |
//! | `sweep` | removes unneeded files from a memory's folder |
//! | [`generation`] | one state of the memory: entries, keys, values, statistics |
//! | [`search`] | queries, filters, gates; exact search and graph search |
//! | [`retrieval`] | diverse results, BM25 search in texts, and its fusion with a search by keys |
//! | [`cache`] | keeps frequently used values of slow sources in main memory |
//! | [`external_values`] | values outside of the memory's folder |
//! | [`refresh`] | computes new keys and values during training; detects collapsed retrieval |
//! | `codes` | the keys in 8 bits per component, with bounds on the error |
//! | `document` | hashes of document names, by which searches exclude documents |
//! | [`vectors`] | keys, values and queries from `.npy` and safetensors files |
//! | [`rows`] | rows from these files, with entries from JSON lines, text files or a CSV |
//! | [`mod@format`] | the files of a generation, and their checksums |
//!
//! ```
//! use engram_memory::search::{Filter, Queries};
//! use engram_memory::{Batch, Entry, MemoryFormat, Method, Snapshot, Writer};
//!
//! let folder = tempfile::tempdir()?;
//! let format = MemoryFormat { width: 2, normalised: true, values: None };
//! let entries = (0..3).map(Entry::bare).collect();
//! let batch = Batch { entries, keys: vec![1.0, 0.0, 3.0, 4.0, 0.0, 1.0], values: vec![] };
//! let batches = [Ok(batch)].into_iter();
//! let mut writer = Writer::create(folder.path().join("memory"), format, 3, batches)?;
//! writer.delete(&[2])?;
//!
//! let queries = Queries { keys: &[0.0, 1.0], k: 2 };
//! let results = writer.generation().search(Method::Exact, queries, &Filter::default())?;
//! let hits: Vec<(i64, f32)> = results.hits[0].iter().map(|hit| (hit.id, hit.score)).collect();
//! assert_eq!(hits, [(1, 0.8), (0, 0.0)]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

#[cfg(target_endian = "big")]
compile_error!("memories are read in place, which needs a little-endian machine");

pub mod cache;
mod change;
mod codes;
mod commit;
mod document;
mod edit;
mod encoded;
pub mod error;
pub mod external_values;
pub mod format;
pub mod generation;
mod keep_graphs;
pub mod memory;
mod merge;
pub mod refresh;
pub mod retrieval;
pub mod rows;
pub mod search;
mod segment;
mod segment_writer;
pub mod store;
pub mod stored_rows;
mod sweep;
mod transaction;
mod values;
pub mod vectors;
pub mod writer;

pub use engram_entry::{DEFAULT_SOURCE, Entry, EntryLine, Kind};
pub use error::MemoryError;
pub use external_values::{SegmentValues, ValueStorage, ValuesLocation};
pub use format::manifest::EncoderRecord;
pub use generation::{Generation, Row};
pub use memory::Memory;
pub use segment::Batch;
pub use store::{Batches, Description, MemoryServer, Method, Snapshot, Store, Transaction};
pub use sweep::is_own_generation;
pub use values::{ValueDtype, ValueFormat};
pub use writer::{MemoryFormat, Writer};
