//! The tests of this crate's interface. `parity` compares the metrics with their reference tools;
//! `properties` tests them on random inputs.

mod benchmarks;
mod caption_readers;
#[path = "../../../tests/fuzz/corpus.rs"]
mod fuzz_corpus;
mod parity;
mod phrase;
mod phrase_readers;
mod properties;
#[path = "../../fuzz/targets.rs"]
mod targets;
