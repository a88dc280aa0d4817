//! The tests of this crate that need no process of their own.
#![allow(clippy::unwrap_used)]

mod cache;
#[path = "../conformance/mod.rs"]
mod conformance;
mod cosines;
mod damage;
mod exact;
#[path = "../../../tests/fuzz/corpus.rs"]
mod fuzz_corpus;
mod graphs;
mod local_store;
mod mmr;
mod npy_orders;
mod re_encode;
mod readers;
mod refresh;
mod segments;
#[path = "../support/mod.rs"]
mod support;
mod sweep;
#[path = "../../fuzz/targets.rs"]
mod targets;
mod text_search;
mod transactions;
mod values;
mod write_corpus;
