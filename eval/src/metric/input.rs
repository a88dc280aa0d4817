//! What is wrong with the input of a correlation: the reason behind a NaN, or behind a doubtful figure.

use super::pearson::centred_norm;

/// Which of the two inputs a warning is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The first argument, by convention the gold values.
    First,
    /// The second argument, by convention the predictions.
    Second,
}

/// A property of the input that makes a correlation undefined or doubtful.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum InputWarning {
    /// A value is NaN: every correlation is NaN.
    NotANumber {
        /// The input that holds it.
        side: Side,
        /// Its first position, from 0.
        row: usize,
    },
    /// All values are equal (`0.0` equals `-0.0`): every correlation is NaN.
    Constant {
        /// The constant input.
        side: Side,
        /// The value that it repeats.
        value: f64,
    },
    /// The spread is lost in the rounding of the mean: Pearson is a number, but perhaps a wrong one.
    NearlyConstant {
        /// The nearly constant input.
        side: Side,
    },
}

impl InputWarning {
    /// True when the correlation is NaN for this reason, false when it is only doubtful.
    pub fn is_undefined(&self) -> bool {
        !matches!(self, Self::NearlyConstant { .. })
    }

    /// One sentence for a reader, with the caller's names for the first and the second input.
    pub fn message(&self, first: &str, second: &str) -> String {
        let name = |side: Side| if side == Side::First { first } else { second };
        match *self {
            Self::NotANumber { side, row } => {
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

/// Explains a NaN, or a doubtful value, of [`pearson`](super::pearson::pearson) and the rank correlations.
///
/// The most serious finding is given: NaN, then constant, then nearly constant; the first input before the second.
/// The test for "nearly constant" is scipy's: the norm of the centred values is below `eps^0.75` times the mean.
///
/// # Source   `scipy.stats.pearsonr` 1.17 (`ConstantInputWarning`, `NearConstantInputWarning`)
pub fn input_warning(x: &[f64], y: &[f64]) -> Option<InputWarning> {
    let sides = [(Side::First, x), (Side::Second, y)];
    let not_a_number = sides.iter().find_map(|&(side, values)| {
        let row = values.iter().position(|v| v.is_nan())?;
        Some(InputWarning::NotANumber { side, row })
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
            let doubtful = norm < f64::EPSILON.powf(0.75) * mean.abs();
            doubtful.then_some(InputWarning::NearlyConstant { side })
        })
    };
    not_a_number.or_else(constant).or_else(nearly_constant)
}

/// Why a correlation of `x` and `y` came out as NaN, with the caller's names for the two.
pub(crate) fn undefined_reason(x: &[f64], y: &[f64], first: &str, second: &str) -> String {
    match input_warning(x, y).filter(InputWarning::is_undefined) {
        Some(warning) => warning.message(first, second),
        None => "undefined: a value is infinite or too large".to_owned(),
    }
}

/// The value that all of `values` equal; `None` if they differ or there are none.
pub(super) fn constant_value(values: &[f64]) -> Option<f64> {
    let (&first, rest) = values.split_first()?;
    rest.iter().all(|&v| v == first).then_some(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_serious_finding_is_given() {
        let varied = [1.0, 2.0, 3.0];
        assert_eq!(input_warning(&varied, &varied), None);
        assert_eq!(
            input_warning(&[1.0, 1.0, 1.0], &[0.0, f64::NAN, 1.0]),
            Some(InputWarning::NotANumber { side: Side::Second, row: 1 })
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
    fn messages_name_the_caller_s_inputs() {
        let warning = InputWarning::Constant { side: Side::Second, value: 0.5 };
        assert!(warning.is_undefined());
        assert_eq!(
            warning.message("gold", "prediction"),
            "undefined: prediction is constant (always 0.5)"
        );
    }
}
