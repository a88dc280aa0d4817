//! The AVFormer study on frozen ASR models with random weights.

#![allow(clippy::unwrap_used)]

mod clips;
#[path = "../crash/mod.rs"]
mod crash;
mod frozen;
mod grid;
mod study;
