//! Formats values and counts on a page.

use crate::result::{Interval, MIN_UNITS};

/// Non-breaking separator between groups of three digits.
const THIN_SPACE: char = '\u{202f}';
const MINUS: &str = "\u{2212}";

/// Formats a value with four decimals, or with fewer for large values; a dash for NaN.
pub(super) fn format_value(value: f64) -> String {
    fixed(value, decimals([value]))
}

/// The common number of decimals for several values: four, or fewer if a value is large.
pub(super) fn decimals(values: impl IntoIterator<Item = f64>) -> usize {
    match values.into_iter().map(f64::abs).fold(0.0, f64::max) {
        largest if largest < 10.0 => 4,
        largest if largest <= 100.0 => 2,
        largest if largest < 1000.0 => 1,
        _ => 0,
    }
}

/// Formats a number with the given decimals and grouped digits.
pub(super) fn fixed(value: f64, decimals: usize) -> String {
    if value.is_nan() {
        return "–".to_owned();
    }
    if value.is_infinite() || value.abs() >= 1e15 {
        return format!("{value:.3e}").replace('-', MINUS);
    }
    let digits = format!("{:.decimals$}", value.abs());
    let (integer_part, fraction) = digits.split_at(digits.find('.').unwrap_or(digits.len()));
    let is_zero = digits.bytes().all(|digit| matches!(digit, b'0' | b'.'));
    let sign = if value < 0.0 && !is_zero { MINUS } else { "" };
    format!("{sign}{}{fraction}", grouped(integer_part))
}

/// Formats a count with grouped digits.
pub(super) fn count(count: u64) -> String {
    grouped(&count.to_string())
}

/// Formats a `usize` count.
pub(super) fn size(items: usize) -> String {
    grouped(&items.to_string())
}

/// Formats a ratio in per cent.
pub(super) fn percent(part: f64, whole: f64) -> String {
    let share = 100.0 * part / whole;
    format!("{}{THIN_SPACE}%", fixed(share, if share.abs() < 10.0 { 2 } else { 1 }))
}

/// Formats an interval as `[low, high]`, with a star if there are too few sampling units for a
/// reliable interval.
pub(super) fn limits(interval: &Interval, decimals: usize) -> String {
    let decimals = interval.decimals(decimals);
    let star = if interval.units < MIN_UNITS { "*" } else { "" };
    format!("[{}, {}]{star}", fixed(interval.low, decimals), fixed(interval.high, decimals))
}

fn grouped(digits: &str) -> String {
    let mut out = String::with_capacity(digits.len() + digits.len() / 3 * 3);
    for (index, digit) in digits.chars().enumerate() {
        // Four digits stay ungrouped.
        if index > 0 && digits.len() > 4 && (digits.len() - index).is_multiple_of(3) {
            out.push(THIN_SPACE);
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_values_have_fewer_decimals_and_grouped_digits() {
        for (value, expected) in [
            (0.054_321, "0.0543"),
            (-0.5, "−0.5000"),
            (-0.000_01, "0.0000"),
            (54.321, "54.32"),
            (154.321, "154.3"),
            (54_321.0, "54\u{202f}321"),
            (f64::NAN, "–"),
            (f64::NEG_INFINITY, "−inf"),
        ] {
            assert_eq!(format_value(value), expected);
        }
        assert_eq!(count(1_234_567), "1\u{202f}234\u{202f}567");
        assert_eq!(count(1234), "1234");
        assert_eq!(percent(1.0, 16.0), "6.25\u{202f}%");
    }
}
