//! The metrics. Each metric has its own file and equals its reference tool.
//!
//! A metric is a plain function of slices. Most have a `Weighted…` type as well: prepared once,
//! then evaluated for many bootstrap resamples, in which row `i` counts `counts[i]` times.

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
pub(crate) use range::interval_or_exact;

use thiserror::Error;

/// Errors of a metric. An undefined value (constant input, NaN) is not an error: the metric returns
/// NaN.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum MetricError {
    /// The two inputs have different lengths.
    #[error(
        "{metric}: the first input has {first} values, the second {second}; give equal lengths"
    )]
    LengthMismatch {
        /// Name of the metric.
        metric: &'static str,
        /// Length of the first input.
        first: usize,
        /// Length of the second input.
        second: usize,
    },
    /// The metric needs more rows.
    #[error("{metric}: needs at least {needed} rows, got {found}")]
    TooFewRows {
        /// Name of the metric.
        metric: &'static str,
        /// Number of rows given.
        found: usize,
        /// Smallest number of rows allowed.
        needed: usize,
    },
    /// An image has no reference caption.
    #[error("captions: image {image} (from 0) has no reference; give at least one caption")]
    NoReference {
        /// Index of the image, from 0.
        image: usize,
    },
}

/// Name, version and direction of a metric, stored with every value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MetricInfo {
    /// Stable name, as in the JSON results.
    pub name: &'static str,
    /// Version of the definition, raised whenever the value for the same input changes.
    pub version: u32,
    /// Whether higher is better; `None` for a descriptive value without a direction.
    pub higher_is_better: Option<bool>,
}

/// Returns an error if the inputs differ in length.
fn check_lengths(metric: &'static str, x: &[f64], y: &[f64]) -> Result<(), MetricError> {
    if x.len() == y.len() {
        Ok(())
    } else {
        Err(MetricError::LengthMismatch { metric, first: x.len(), second: y.len() })
    }
}
