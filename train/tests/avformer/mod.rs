//! The AVFormer study on frozen ASR models with random weights.

mod clips;
mod frozen;
mod grid;
mod study;
