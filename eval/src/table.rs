//! Plain text tables with aligned columns, and the format of numbers in tables.

use std::fmt;

use crate::result::{Interval, MIN_UNITS};

/// A text table. Each column is as wide as its longest cell; columns are two spaces apart.
#[derive(Debug)]
pub(crate) struct TextTable {
    /// For each column, whether it holds numbers, which are aligned to the right.
    numeric: Vec<bool>,
    rows: Vec<Vec<String>>,
}

impl TextTable {
    /// A table with the given headings and no rows. `alignment` has a letter for each column: `l`
    /// for words, `r` for numbers.
    pub(crate) fn new(alignment: &str, headings: &[&str]) -> Self {
        debug_assert_eq!(alignment.len(), headings.len());
        let headings = headings.iter().map(|heading| (*heading).to_owned()).collect();
        Self {
            numeric: alignment.chars().map(|letter| letter == 'r').collect(),
            rows: vec![headings],
        }
    }

    /// Adds a row with one cell per column.
    pub(crate) fn push(&mut self, cells: Vec<String>) {
        debug_assert_eq!(cells.len(), self.numeric.len());
        self.rows.push(cells);
    }
}

impl fmt::Display for TextTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = |column: usize| {
            let lengths = self.rows.iter().map(|row| row[column].chars().count());
            lengths.max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.numeric.len()).map(width).collect();
        for row in &self.rows {
            let cells: Vec<String> = row
                .iter()
                .zip(&widths)
                .zip(&self.numeric)
                .map(|((cell, &width), numeric)| {
                    // `format!` panics for a width above 65,535.
                    let padding = " ".repeat(width - cell.chars().count());
                    if *numeric { format!("{padding}{cell}") } else { format!("{cell}{padding}") }
                })
                .collect();
            writeln!(f, "{}", cells.join("  ").trim_end())?;
        }
        Ok(())
    }
}

/// A value with as many decimals as [`limits`], so that it does not look like a value outside of its
/// interval; a dash for NaN.
pub(crate) fn number_in(value: f64, interval: Option<&Interval>) -> String {
    fixed(value, interval.map_or(4, |interval| interval.decimals(4)))
}

/// A value with four decimals; a dash for NaN.
pub(crate) fn number(value: f64) -> String {
    fixed(value, 4)
}

fn fixed(value: f64, decimals: usize) -> String {
    if value.is_nan() { "–".to_owned() } else { format!("{value:.decimals$}") }
}

/// Formats an interval as `[low, high]`, with a star if it has too few sampling units. Empty for
/// `None`.
pub(crate) fn limits(interval: Option<&Interval>) -> String {
    interval.map_or_else(String::new, |interval| {
        let star = if interval.units < MIN_UNITS { "*" } else { "" };
        let decimals = interval.decimals(4);
        format!("[{}, {}]{star}", fixed(interval.low, decimals), fixed(interval.high, decimals))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_by_characters() {
        let mut table = TextTable::new("lr", &["name", "n"]);
        table.push(vec!["é".to_owned(), "10".to_owned()]);
        table.push(vec!["longer".to_owned(), "5".to_owned()]);
        assert_eq!(table.to_string(), "name     n\né       10\nlonger   5\n");
    }

    #[test]
    fn a_cell_may_have_any_width() {
        let mut table = TextTable::new("lr", &["a", "b"]);
        table.push(vec!["x".repeat(100_000), "y".repeat(70_000)]);
        assert_eq!(table.to_string().lines().next().unwrap().len(), 170_002);
    }
}
