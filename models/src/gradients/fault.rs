//! Faults of gradients.

use std::fmt;

/// A fault of a parameter's gradient.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GradientFault {
    /// The loss does not depend on the parameter.
    Missing,
    /// The gradient contains NaN or infinity.
    NotFinite,
    /// The gradient is zero everywhere.
    Zero,
}

impl fmt::Display for GradientFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Missing => "no gradient reaches it",
            Self::NotFinite => "its gradient is not finite",
            Self::Zero => "its gradient is all zero",
        })
    }
}
