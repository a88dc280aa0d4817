//! Tests of the readers of published data sets: their entries and error messages, on small files
//! written by the tests. If `ENGRAM_DATA` is set, the real files are read, too.

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
