//! The AVFormer study on frozen ASR models with random weights.

#![allow(clippy::unwrap_used)]

mod clips;
mod frozen;
mod grid;
mod study;
