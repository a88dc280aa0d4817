//! AVFormer's study on frozen recognisers of random weights.

#![allow(clippy::unwrap_used)]

mod clips;
mod frozen;
mod grid;
mod study;
