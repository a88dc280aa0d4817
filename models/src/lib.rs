//! Differentiable models of the Engram toolkit.
//!
//! All trainable models are built in the same way: a [`params::ParameterBuilder`] gives the
//! parameters, loaded from [`weights`] or drawn from a seed, on the device of its [`compute`].
//! [`layers`] hold the parameters, and [`kernels`] compute with them. Input sequences are packed
//! one after the other, without padding ([`packed`]).

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

pub mod adapter;
pub mod avformer;
pub mod clip;
pub mod compute;
mod config;
pub mod conformer;
pub mod ctranslate2;
#[cfg(feature = "cuda")]
pub mod cuda;
pub mod error;
pub mod finite_difference;
pub mod generation;
pub mod gradients;
#[macro_use]
pub mod kernels;
pub mod layers;
pub mod mobilenet;
pub mod packed;
pub mod params;
mod patch_embedding;
mod pre_norm;
pub mod recompute;
pub mod reveal;
pub mod similarity;
pub mod speech;
pub mod t5;
pub mod text_encoder;
pub mod transducer;
pub mod vit;
pub mod weights;
pub mod whisper;

pub use error::{ModelError, Result};
