//! The metrics of numbers, texts and captions, and the list of all metrics: [`registry`].
//!
//! Each metric has its own file and equals its reference tool. A metric is a function of slices.
//! The correlations also have a type `Weighted…`: it is built once and then computes the metric on
//! many bootstrap resamples, in which row `i` occurs `counts[i]` times.

pub mod caption;
pub mod chrf;
mod info;
mod input;
pub mod kendall;
pub mod mean;
pub(crate) mod mean_absolute_error;
pub mod pearson;
mod range;
pub mod rank;
pub mod registry;
pub mod spearman;

pub use info::{MetricInfo, Unit};
pub(crate) use input::{input_warning, undefined_reason};
pub use range::Range;
pub(crate) use range::{exact_p_value, interval_or_exact, is_difference};

use std::borrow::Cow;

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
        metric: Cow<'static, str>,
        /// Length of the first input.
        first: usize,
        /// Length of the second input.
        second: usize,
    },
    /// The metric needs more rows.
    #[error("{metric}: needs at least {needed} rows, got {found}; add rows")]
    TooFewRows {
        /// Name of the metric.
        metric: Cow<'static, str>,
        /// Number of rows given.
        found: usize,
        /// Smallest number of rows allowed.
        needed: usize,
    },
    /// No metric has this name and this number of sums.
    #[error(
        "`{metric}` cannot be computed from {sums} sums; check the metric's name and the program \
         that wrote the items"
    )]
    UnknownSums {
        /// Name of the metric.
        metric: String,
        /// Number of sums given.
        sums: usize,
    },
    /// An image has no reference caption.
    #[error("captions: image {image} (from 0) has no reference; give at least one caption")]
    NoReference {
        /// Index of the image, from 0.
        image: usize,
    },
}

/// Returns an error if the inputs differ in length.
fn check_lengths(metric: &MetricInfo, x: &[f64], y: &[f64]) -> Result<(), MetricError> {
    if x.len() == y.len() {
        return Ok(());
    }
    let metric = metric.name.clone();
    Err(MetricError::LengthMismatch { metric, first: x.len(), second: y.len() })
}
