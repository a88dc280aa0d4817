//! Readers of published data sets, which make the entries of a memory.
//!
//! A reader takes an [`Input`] (plain or gzip) and passes its entries to a [`Collector`], which
//! counts the skipped records by reason. This example skips a caption that is too short:
//!
//! ```
//! use engram_data::knowledge::{Collector, Input, Reason, web};
//!
//! let table = "http://a.example/1.jpg\ta dog runs\nhttp://a.example/2.jpg\ta\n";
//! let mut entries = Vec::new();
//! let mut collector = Collector::new(|entry| {
//!     entries.push(entry);
//!     Ok(())
//! });
//! let options = web::WebOptions { min_characters: 5, ..Default::default() };
//! web::read(Input::new("cc12m.tsv", table.as_bytes())?, &options, &mut collector)?;
//! assert_eq!(collector.counts().skipped[&Reason::TooShort], 1);
//! drop(collector);
//! assert_eq!(entries.len(), 1);
//! # Ok::<(), engram_data::DataError>(())
//! ```

pub mod coco;
mod collector;
pub(crate) mod json;
pub mod vqa;
pub mod web;
pub mod wikidata;
pub mod wit;

pub use engram_entry::{Entry, EntryLine, Kind};
pub use engram_textfile::Input;

pub use self::collector::{Collector, Counts, Note, Reason};

/// The separator between the parts of a text in REVEAL's released code.
pub const SEPARATOR: &str = " <extra_id_99> ";
