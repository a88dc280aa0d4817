//! Axes and their tick labels.

use std::ops::Range;

use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};
use plotters::coord::types::RangedCoordf64;

/// Approximate number of tick labels on an axis.
pub(super) const LABELS: usize = 6;

/// An axis of a plot.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Axis<'a> {
    /// The measured quantity and its unit.
    pub name: &'a str,
    /// Whether the axis is logarithmic.
    pub logarithmic: bool,
}

impl<'a> Axis<'a> {
    /// A linear axis.
    pub fn linear(name: &'a str) -> Self {
        Self { name, logarithmic: false }
    }

    /// A logarithmic axis.
    pub fn logarithmic(name: &'a str) -> Self {
        Self { name, logarithmic: true }
    }
}

/// The range of an axis: all values of the plot, with a margin on both sides.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Scale {
    /// The range; in decimal logarithms on a logarithmic axis.
    bounds: Range<f64>,
    logarithmic: bool,
}

impl Scale {
    pub(super) fn new(axis: Axis<'_>, numbers: impl Iterator<Item = f64>) -> Self {
        let logarithmic = axis.logarithmic;
        let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
        for number in numbers {
            let position = if logarithmic { number.log10() } else { number };
            (low, high) = (low.min(position), high.max(position));
        }
        let margin = (0.05 * (high - low)).max(0.01);
        Self { bounds: low - margin..high + margin, logarithmic }
    }

    /// Tick values of a logarithmic axis: 1, 2 and 5 times each power of ten, or only the powers of
    /// ten if there are more than [`LABELS`] of these.
    fn logarithmic_ticks(&self) -> Vec<f64> {
        let powers = self.bounds.start.floor() as i32..=self.bounds.end.ceil() as i32;
        let within = |number: &f64| self.bounds.contains(&number.log10());
        let ticks = |factors: &[f64]| -> Vec<f64> {
            let numbers = powers
                .clone()
                .flat_map(|power| factors.iter().map(move |factor| factor * 10f64.powi(power)));
            numbers.filter(within).collect()
        };
        let fine = ticks(&[1.0, 2.0, 5.0]);
        if fine.len() <= LABELS { fine } else { ticks(&[1.0]) }
    }
}

impl Ranged for Scale {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, number: &f64, limit: (i32, i32)) -> i32 {
        let position = if self.logarithmic { number.log10() } else { *number };
        RangedCoordf64::from(self.bounds.clone()).map(&position, limit)
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        if self.logarithmic {
            self.logarithmic_ticks()
        } else {
            RangedCoordf64::from(self.bounds.clone()).key_points(hint)
        }
    }

    fn range(&self) -> Range<f64> {
        let number = |position: f64| if self.logarithmic { 10f64.powf(position) } else { position };
        number(self.bounds.start)..number(self.bounds.end)
    }
}

impl ValueFormatter<f64> for Scale {
    fn format_ext(&self, number: &f64) -> String {
        let spacing = (self.bounds.end - self.bounds.start) / LABELS as f64;
        label(*number, if self.logarithmic { *number } else { spacing })
    }
}

/// Formats a number with enough digits to distinguish values that differ by `step`.
pub(super) fn label(number: f64, step: f64) -> String {
    let decimals = (-step.abs().log10().floor()).clamp(0.0, 12.0) as usize;
    let text = format!("{number:.decimals$}");
    // Avoids "-0.00".
    let is_zero = text.chars().all(|letter| matches!(letter, '-' | '0' | '.'));
    if is_zero { text.trim_start_matches('-').to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use plotters::coord::ranged1d::BoldPoints;

    use super::*;

    fn labels(axis: Axis<'_>, numbers: [f64; 2]) -> Vec<String> {
        let scale = Scale::new(axis, numbers.into_iter());
        let points = scale.key_points(BoldPoints(LABELS));
        points.iter().map(|number| scale.format_ext(number)).collect()
    }

    #[test]
    fn tick_labels_have_as_many_digits_as_needed() {
        let linear = |numbers| labels(Axis::linear("WER"), numbers);
        assert_eq!(linear([0.0, 0.15]), ["0.00", "0.05", "0.10", "0.15"]);
        assert_eq!(linear([-18.0, 1.0]), ["-15", "-10", "-5", "0"]);
        assert_eq!(linear([-0.1, 0.1]), ["-0.10", "-0.05", "0.00", "0.05", "0.10"]);
    }

    #[test]
    fn logarithmic_axes_have_round_numbers() {
        let logarithmic = |numbers| labels(Axis::logarithmic("keys"), numbers);
        assert_eq!(logarithmic([1.0, 16.0]), ["1", "2", "5", "10"]);
        assert_eq!(logarithmic([0.15, 1.0]), ["0.2", "0.5", "1"]);
        assert_eq!(logarithmic([100.0, 1e6]), ["100", "1000", "10000", "100000", "1000000"]);
    }

    #[test]
    fn equal_ratios_have_equal_distances_on_a_logarithmic_axis() {
        let scale = Scale::new(Axis::logarithmic("keys"), [1.0, 100.0].into_iter());
        let [low, middle, high] = [1.0, 10.0, 100.0].map(|number| scale.map(&number, (0, 1000)));
        assert!((middle - low - (high - middle)).abs() <= 1 && low > 0 && high < 1000);
    }
}
