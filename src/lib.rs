//! Engram: retrieval-augmented and audio-visual models.
//!
//! This crate re-exports the parts of the toolkit, so that a program or a notebook needs one
//! dependency:
//!
//! - [`models`]: differentiable models with fused kernels and checked gradients
//! - [`memory`]: a key/value memory: generations on disk, edits, search (builds without candle)
//! - [`data`]: data readers, tokenizers, folds, weights from the hub, the embedded world
//! - [`infer`]: transcription and encoding with trained models
//! - [`train`]: recipes, the training loop, the studies
//! - [`eval`]: metrics with intervals (builds without candle)
//! - [`plot`]: plots as SVG, and [`notebook`]: output of notebook cells
//!
//! [`candle`] re-exports candle-core in the version that the parts use for tensors.
//!
//! The command `engram` is the module `cli`, a thin layer over the same parts.

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

#[cfg(feature = "command")]
pub mod cli;
pub mod notebook;

pub use candle_core as candle;
pub use engram_data as data;
pub use engram_eval as eval;
pub use engram_eval::html::chart as plot;
pub use engram_infer as infer;
pub use engram_memory as memory;
pub use engram_models as models;
pub use engram_train as train;
