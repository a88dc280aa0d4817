//! Explains why a correlation is NaN or may be inaccurate, from its input.

use super::pearson::centred_norm;

/// A property of the input that makes a correlation NaN or inaccurate.
#[derive(Debug, PartialEq)]
pub(crate) struct InputWarning {
    /// Whether the correlation is NaN; otherwise it may be inaccurate.
    pub(crate) is_undefined: bool,
    /// One sentence for a report.
    pub(crate) message: String,
}

/// Explains a NaN or an inaccurate value of [`pearson`](super::pearson::pearson) and of the rank
/// correlations; `None` if the input has no such property. `names` are the names of the inputs.
///
/// Returns the most serious property: NaN, then constant, then nearly constant; the first input
/// before the second. An input is nearly constant if the norm of the centred values is below
/// `eps^0.75` times the mean, as in scipy.
///
/// # Source   `scipy.stats.pearsonr` 1.17 (`ConstantInputWarning`, `NearConstantInputWarning`)
pub(crate) fn input_warning(inputs: [&[f64]; 2], names: [&str; 2]) -> Option<InputWarning> {
    let sides = || names.into_iter().zip(inputs);
    let undefined = |message| Some(InputWarning { is_undefined: true, message });
    let not_a_number = sides().find_map(|(name, values)| {
        let row = values.iter().position(|value| value.is_nan())? + 1;
        undefined(format!("undefined: {name} is NaN in row {row}"))
    });
    let constant = || {
        sides().find_map(|(name, values)| {
            let value = constant_value(values)?;
            undefined(format!("undefined: {name} is constant (always {value})"))
        })
    };
    let nearly_constant = || {
        let is_nearly_constant = |(_, values): &(&str, &[f64])| {
            let (mean, norm) = centred_norm(values);
            norm < f64::EPSILON.powf(0.75) * mean.abs()
        };
        sides().find(is_nearly_constant).map(|(name, _)| {
            let message = format!("{name} is nearly constant: the correlation may be inaccurate");
            InputWarning { is_undefined: false, message }
        })
    };
    not_a_number.or_else(constant).or_else(nearly_constant)
}

/// The reason why a correlation of the inputs is NaN.
pub(crate) fn undefined_reason(inputs: [&[f64]; 2], names: [&str; 2]) -> String {
    match input_warning(inputs, names).filter(|warning| warning.is_undefined) {
        Some(warning) => warning.message,
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
        for (x, y, expected) in [
            (varied, varied, None),
            ([1.0; 3], [0.0, f64::NAN, 1.0], Some((true, "undefined: y is NaN in row 2"))),
            (varied, [0.0, -0.0, 0.0], Some((true, "undefined: y is constant (always 0)"))),
            (
                [1e9, 1e9 + 1e-7, 1e9],
                varied,
                Some((false, "x is nearly constant: the correlation may be inaccurate")),
            ),
        ] {
            let warning = input_warning([&x, &y], ["x", "y"]);
            let warning = warning.map(|warning| (warning.is_undefined, warning.message));
            assert_eq!(warning.as_ref().map(|(undefined, text)| (*undefined, &**text)), expected);
        }
    }
}
