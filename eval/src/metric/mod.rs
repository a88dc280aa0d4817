//! The metrics: one metric, one file, each equal to its reference tool.
//!
//! A metric is a plain function of slices. Beside it stands a `Weighted…` form, prepared once and then
//! evaluated for many bootstrap resamples, where row `i` counts `counts[i]` times.

pub mod caption;
mod input;
pub mod kendall;
pub mod mean;
pub mod mean_absolute_error;
pub mod pearson;
mod range;
pub mod rank;
pub mod spearman;

pub(crate) use input::undefined_reason;
pub use input::{InputWarning, Side, input_warning};
pub(crate) use range::honest;

use thiserror::Error;

/// Why a metric cannot be computed at all. Undefined values (constant input, NaN) are not errors but NaN.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum MetricError {
    /// The two inputs do not have one value per row each.
    #[error(
        "{metric}: the first input has {first} values, the second {second}; give one pair per row"
    )]
    LengthMismatch {
        /// Name of the metric.
        metric: &'static str,
        /// Length of the first input.
        first: usize,
        /// Length of the second input.
        second: usize,
    },
    /// The metric is not defined for so few rows.
    #[error("{metric}: needs at least {needed} rows, got {found}")]
    TooFewRows {
        /// Name of the metric.
        metric: &'static str,
        /// Number of rows given.
        found: usize,
        /// Smallest number of rows allowed.
        needed: usize,
    },
    /// An image has nothing to compare its caption with.
    #[error("captions: image {image} (from 0) has no reference; give at least one")]
    NoReference {
        /// Position of the image.
        image: usize,
    },
}

/// The name, version and direction that are stored with every figure of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MetricInfo {
    /// Stable name, as in the JSON results.
    pub name: &'static str,
    /// Raised whenever the same input would give another value.
    pub version: u32,
    /// Direction; `None` for a description that is neither good nor bad.
    pub higher_is_better: Option<bool>,
}

/// Refuses inputs of unequal length.
fn check_lengths(metric: &'static str, x: &[f64], y: &[f64]) -> Result<(), MetricError> {
    if x.len() == y.len() {
        Ok(())
    } else {
        Err(MetricError::LengthMismatch { metric, first: x.len(), second: y.len() })
    }
}
