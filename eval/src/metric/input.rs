//! Explains why a correlation is NaN or may be inaccurate, from its input.

use super::pearson::centred_norm;

/// The input that a warning refers to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The first argument, by convention the gold values.
    First,
    /// The second argument, by convention the predictions.
    Second,
}

/// A property of the input that makes a correlation NaN or inaccurate.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum InputWarning {
    /// A value is NaN, so every correlation is NaN.
    NaN {
        /// The input with the NaN.
        side: Side,
        /// Index of the first NaN, from 0.
        row: usize,
    },
    /// All values are equal (`0.0` equals `-0.0`), so every correlation is NaN.
    Constant {
        /// The constant input.
        side: Side,
        /// The constant value.
        value: f64,
    },
    /// The rounding of the mean hides the variation of the values: Pearson is defined, but may be
    /// inaccurate.
    NearlyConstant {
        /// The nearly constant input.
        side: Side,
    },
}

impl InputWarning {
    /// Returns true if the correlation is NaN for this reason, false if it may be inaccurate.
    pub fn is_undefined(&self) -> bool {
        !matches!(self, Self::NearlyConstant { .. })
    }

    /// One sentence for a report, with the caller's names of the first and the second input.
    pub fn message(&self, first: &str, second: &str) -> String {
        let name = |side: Side| if side == Side::First { first } else { second };
        match *self {
            Self::NaN { side, row } => {
                format!("undefined: {} is NaN in row {}", name(side), row + 1)
            }
            Self::Constant { side, value } => {
                format!("undefined: {} is constant (always {value})", name(side))
            }
            Self::NearlyConstant { side } => {
                format!("{} is nearly constant: the correlation may be inaccurate", name(side))
            }
        }
    }
}

/// Explains a NaN or an inaccurate value of [`pearson`](super::pearson::pearson) and of the rank
/// correlations; `None` if the input has none of these properties.
///
/// Returns the most serious property: NaN, then constant, then nearly constant; the first input
/// before the second. An input is nearly constant if the norm of the centred values is below
/// `eps^0.75` times the mean, as in scipy.
///
/// # Source   `scipy.stats.pearsonr` 1.17 (`ConstantInputWarning`, `NearConstantInputWarning`)
pub fn input_warning(x: &[f64], y: &[f64]) -> Option<InputWarning> {
    let sides = [(Side::First, x), (Side::Second, y)];
    let not_a_number = sides.iter().find_map(|&(side, values)| {
        let row = values.iter().position(|v| v.is_nan())?;
        Some(InputWarning::NaN { side, row })
    });
    let constant = || {
        sides.iter().find_map(|&(side, values)| {
            let value = constant_value(values)?;
            Some(InputWarning::Constant { side, value })
        })
    };
    let nearly_constant = || {
        sides.iter().find_map(|&(side, values)| {
            let (mean, norm) = centred_norm(values);
            let is_nearly_constant = norm < f64::EPSILON.powf(0.75) * mean.abs();
            is_nearly_constant.then_some(InputWarning::NearlyConstant { side })
        })
    };
    not_a_number.or_else(constant).or_else(nearly_constant)
}

/// The reason why a correlation of `x` and `y` is NaN, with the caller's names of the inputs.
pub(crate) fn undefined_reason(x: &[f64], y: &[f64], first: &str, second: &str) -> String {
    match input_warning(x, y).filter(InputWarning::is_undefined) {
        Some(warning) => warning.message(first, second),
        None => "undefined: a value is infinite or too large".to_owned(),
    }
}

/// The common value of `values`; `None` if the values differ or if there are none.
pub(super) fn constant_value(values: &[f64]) -> Option<f64> {
    let (&first, others) = values.split_first()?;
    others.iter().all(|&v| v == first).then_some(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_serious_warning_is_returned() {
        let varied = [1.0, 2.0, 3.0];
        assert_eq!(input_warning(&varied, &varied), None);
        assert_eq!(
            input_warning(&[1.0, 1.0, 1.0], &[0.0, f64::NAN, 1.0]),
            Some(InputWarning::NaN { side: Side::Second, row: 1 })
        );
        assert_eq!(
            input_warning(&varied, &[0.0, -0.0, 0.0]),
            Some(InputWarning::Constant { side: Side::Second, value: 0.0 })
        );
        assert_eq!(
            input_warning(&[1e9, 1e9 + 1e-7, 1e9], &varied),
            Some(InputWarning::NearlyConstant { side: Side::First })
        );
    }

    #[test]
    fn messages_have_the_names_that_the_caller_gives() {
        let warning = InputWarning::Constant { side: Side::Second, value: 0.5 };
        assert!(warning.is_undefined());
        assert_eq!(
            warning.message("gold", "prediction"),
            "undefined: prediction is constant (always 0.5)"
        );
    }
}
