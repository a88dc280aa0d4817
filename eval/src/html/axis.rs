//! An axis with round tick values.

use super::numbers::fixed;
use crate::metric::Range;

/// The middle of a label, moved from `x` so that no edge of a plot of this width cuts the label off.
pub(super) fn inside(x: f64, label: &str, letter_width: f64, width: f64) -> f64 {
    let half = 0.5 * letter_width * label.chars().count() as f64;
    x.min(width - half).max(half)
}

/// A linear axis from the first to the last tick.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Axis {
    low: f64,
    step: f64,
    steps: usize,
    decimals: usize,
}

impl Axis {
    /// An axis over all values between −1e12 and 1e12, with about `steps` steps of 1, 2 or 5 times
    /// a power of ten. `None` if there are no such values.
    pub(super) fn over(values: impl IntoIterator<Item = f64>, steps: usize) -> Option<Self> {
        let in_range = values.into_iter().filter(|value| value.abs() < 1e12);
        let (low, high) = in_range
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| {
                (low.min(value), high.max(value))
            });
        if low > high {
            return None;
        }
        // A single value gets space on both sides.
        let margin = if low == high { (0.1 * low.abs()).max(1e-3) } else { 0.0 };
        let (low, high) = (low - margin, high + margin);
        // A smaller span would vanish in floating-point rounding.
        let span = (high - low).max(high.abs().max(low.abs()) * 1e-6).max(1e-9);
        let raw_step = span / steps.max(1) as f64;
        let power = raw_step.log10().floor();
        let unit = 10f64.powf(power);
        // Tolerance for rounding, so that a quarter of 1.1 − 0.9 does not exceed 0.05.
        let (step, power) = match raw_step / unit - 1e-9 {
            ratio if ratio <= 1.0 => (unit, power),
            ratio if ratio <= 2.0 => (2.0 * unit, power),
            ratio if ratio <= 5.0 => (5.0 * unit, power),
            _ => (10.0 * unit, power + 1.0),
        };
        // Tolerance for rounding, so that 0.3 does not exceed three steps of 0.1.
        let first = (low / step + 1e-6).floor();
        let last = (high / step - 1e-6).ceil().max(first + 1.0);
        Some(Self {
            low: first * step,
            step,
            steps: (last - first) as usize,
            decimals: (-power).clamp(0.0, 12.0) as usize,
        })
    }

    /// Removes the ticks beyond a metric's range, except those that a value beyond the range needs.
    pub(super) fn within(self, range: Range, values: impl IntoIterator<Item = f64>) -> Self {
        let (mut low, mut high) = (range.low, range.high);
        for value in values.into_iter().filter(|value| value.is_finite()) {
            (low, high) = (low.min(value), high.max(value));
        }
        let tolerance = 1e-6 * self.step;
        let mut axis = self;
        // The axis goes from the last tick that is not above `low` to the first that is not below
        // `high`.
        while axis.steps > 1 && axis.low + axis.step <= low + tolerance {
            (axis.low, axis.steps) = (axis.low + axis.step, axis.steps - 1);
        }
        while axis.steps > 1 && axis.high() - axis.step >= high - tolerance {
            axis.steps -= 1;
        }
        axis
    }

    pub(super) fn low(&self) -> f64 {
        self.low
    }

    pub(super) fn high(&self) -> f64 {
        self.low + self.steps as f64 * self.step
    }

    /// The position of a value between the ends, from 0 to 1.
    pub(super) fn position(&self, value: f64) -> f64 {
        ((value - self.low) / (self.high() - self.low)).clamp(0.0, 1.0)
    }

    /// The ticks: position from 0 to 1, and label.
    pub(super) fn ticks(&self) -> impl Iterator<Item = (f64, String)> + '_ {
        (0..=self.steps).map(|tick| {
            let value = self.low + tick as f64 * self.step;
            (tick as f64 / self.steps as f64, fixed(value, self.decimals))
        })
    }

    /// The lower and upper ends of bins: each interval between ticks has `bins_per_step` bins.
    pub(super) fn bins(&self, bins_per_step: usize) -> Vec<(f64, f64)> {
        let width = self.step / bins_per_step as f64;
        let end = |bin: usize| self.low + bin as f64 * width;
        (0..self.steps * bins_per_step).map(|bin| (end(bin), end(bin + 1))).collect()
    }

    /// The label of a value, with enough decimals for the ends of bins.
    pub(super) fn label(&self, value: f64) -> String {
        fixed(value, self.decimals + 2)
    }

    pub(super) fn steps(&self) -> usize {
        self.steps
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_stay_inside_of_the_plot() {
        let at = |x| inside(x, "0.0005", 7.0, 100.0);
        assert_eq!([at(16.0), at(50.0), at(84.0)], [21.0, 50.0, 79.0]);
    }

    #[test]
    fn ticks_are_round() {
        let labels = |values: &[f64], steps| -> Vec<String> {
            let axis = Axis::over(values.iter().copied(), steps).unwrap();
            axis.ticks().map(|(_, label)| label).collect()
        };
        assert_eq!(labels(&[0.0, 0.3], 3), ["0.0", "0.1", "0.2", "0.3"]);
        assert_eq!(labels(&[3.0, 87.0], 5), ["0", "20", "40", "60", "80", "100"]);
        assert_eq!(labels(&[-0.4, 0.7], 4), ["−0.5", "0.0", "0.5", "1.0"]);
        assert_eq!(labels(&[1.0, 1.0], 4), ["0.90", "0.95", "1.00", "1.05", "1.10"]);
        assert!(labels(&[0.25], 4).len() >= 2);
        assert!(labels(&[0.0, 0.0], 4).len() >= 2);
        assert!(labels(&[1e11, 1e11 + 1.0], 4).len() < 12);
        let axis = |values: &[f64], low, high| -> Vec<String> {
            let axis = Axis::over(values.iter().copied(), 4).unwrap();
            let within = axis.within(Range::new(low, high), values.iter().copied());
            within.ticks().map(|(_, label)| label).collect()
        };
        assert_eq!(axis(&[1.0], 0.0, 1.0), ["0.90", "0.95", "1.00"]);
        assert_eq!(axis(&[0.0], 0.0, 1.0), ["0.0000", "0.0005", "0.0010"]);
        assert_eq!(axis(&[-1.0], -1.0, 1.0), ["−1.00", "−0.95", "−0.90"]);
        // An error rate can exceed 1.
        assert_eq!(axis(&[0.5, 1.3], 0.0, 1.0), ["0.4", "0.6", "0.8", "1.0", "1.2", "1.4"]);
        assert_eq!(Axis::over([f64::NAN, f64::INFINITY], 4), None);
    }
}
