//! Tests of the readers of published data sets, on small files written here, and on the real files
//! if `ENGRAM_DATA` is set: results and error messages.

#![allow(clippy::unwrap_used)] // Helper functions use `unwrap` too.

mod coco;
mod damaged;
mod reading;
#[path = "../../fuzz/targets.rs"]
mod targets;
mod vqa;
mod web;
mod wikidata;
mod wit;
