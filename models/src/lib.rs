//! Differentiable models of the Engram toolkit.

pub mod error;
pub mod finite_difference;
pub mod gradients;
pub mod kernels;
pub mod params;
pub mod weights;

pub use error::{ModelError, Result};
