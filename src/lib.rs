//! Engram: research on models that read from a memory or from a second sense.
//!
//! This crate re-exports the toolkit's parts, so that a program or a notebook needs one
//! dependency:
//!
//! - [`models`]: differentiable models with fused kernels and proven gradients
//! - [`memory`]: a key/value memory: generations on the disk, edits, search (builds without candle)
//! - [`data`]: readers, tokens, folds, weights from the hub, the embedded world
//! - [`train`]: recipes, the one training loop, the studies
//! - [`eval`]: metrics with intervals (builds without candle)
//!
//! - [`plot`]: plots as SVG, and [`notebook`]: what the cells of a notebook show
//!
//! [`candle`] is the version of candle-core whose tensors they take.
//!
//! The command `engram` is glue over the same parts.

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

pub mod notebook;
pub mod plot;

pub use candle_core as candle;
pub use engram_data as data;
pub use engram_eval as eval;
pub use engram_memory as memory;
pub use engram_models as models;
pub use engram_train as train;
