//! Readers of published data sets, which make the entries of a memory.
//!
//! A reader opens each [`Input`] (plain or gzip) of a [`Request`] and passes its entries to a
//! [`Collector`], which counts the skipped records by reason. This example skips a caption that is
//! too short:
//!
//! ```
//! use engram_data::knowledge::{Collector, Input, Open, Reason, web::DATA_SET};
//!
//! let table = "http://a.example/1.jpg\ta dog runs\nhttp://a.example/2.jpg\ta\n";
//! let mut entries = Vec::new();
//! let mut collector = Collector::new(|entry| {
//!     entries.push(entry);
//!     Ok(())
//! });
//! let open: Open<'_> = &|path| Ok(Input::new(path, table.as_bytes())?);
//! let request = DATA_SET.request("cc12m.tsv --min-characters 5", open);
//! (DATA_SET.read)(&request, &mut collector)?;
//! assert_eq!(collector.counts().skipped[&Reason::TooShort], 1);
//! drop(collector);
//! assert_eq!(entries.len(), 1);
//! # Ok::<(), engram_data::DataError>(())
//! ```

pub mod coco;
mod collector;
mod data_set;
pub(crate) mod json;
pub mod kbvqa;
pub mod vqa;
pub mod web;
pub mod wikidata;
pub mod wit;

pub use engram_entry::{Entry, EntryLine, Kind};
pub use engram_textfile::Input;

pub use self::collector::{Collector, Counts, Note, Reason};
pub use self::data_set::{Argument, ArgumentKind, DataSet, Open, Request, Rule, Sample, Values};

/// All data sets, in the order of the help.
pub const DATA_SETS: &[DataSet] = &[
    wikidata::DATA_SET,
    wit::DATA_SET,
    web::DATA_SET,
    coco::DATA_SET,
    vqa::DATA_SET,
    kbvqa::DATA_SET,
];

/// The separator between the parts of a text in REVEAL's released code.
pub const SEPARATOR: &str = " <extra_id_99> ";
