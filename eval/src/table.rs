//! Plain text tables with aligned columns, and the format of numbers in tables.

use std::fmt;

use crate::result::{Interval, MIN_UNITS};

/// Alignment of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Align {
    /// For words.
    Left,
    /// For numbers.
    Right,
}

/// A text table. Each column is as wide as its longest cell; columns are two spaces apart.
#[derive(Debug)]
pub(crate) struct TextTable {
    align: Vec<Align>,
    rows: Vec<Vec<String>>,
}

impl TextTable {
    /// A table with the given headings and no rows.
    pub(crate) fn new(columns: &[(&str, Align)]) -> Self {
        let headings = columns.iter().map(|&(heading, _)| heading.to_owned()).collect();
        Self { align: columns.iter().map(|&(_, align)| align).collect(), rows: vec![headings] }
    }

    /// Adds a row with one cell per column.
    pub(crate) fn push(&mut self, cells: Vec<String>) {
        debug_assert_eq!(cells.len(), self.align.len());
        self.rows.push(cells);
    }
}

impl fmt::Display for TextTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = |column: usize| {
            let lengths = self.rows.iter().map(|row| row[column].chars().count());
            lengths.max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.align.len()).map(width).collect();
        for row in &self.rows {
            let cells: Vec<String> = row
                .iter()
                .zip(&widths)
                .zip(&self.align)
                .map(|((cell, &width), align)| {
                    // `format!` panics for a width above 65,535.
                    let padding = " ".repeat(width - cell.chars().count());
                    match align {
                        Align::Left => format!("{cell}{padding}"),
                        Align::Right => format!("{padding}{cell}"),
                    }
                })
                .collect();
            writeln!(f, "{}", cells.join("  ").trim_end())?;
        }
        Ok(())
    }
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
        let mut table = TextTable::new(&[("name", Align::Left), ("n", Align::Right)]);
        table.push(vec!["é".to_owned(), "10".to_owned()]);
        table.push(vec!["longer".to_owned(), "5".to_owned()]);
        assert_eq!(table.to_string(), "name     n\né       10\nlonger   5\n");
    }

    #[test]
    fn a_cell_may_have_any_width() {
        let mut table = TextTable::new(&[("a", Align::Left), ("b", Align::Right)]);
        table.push(vec!["x".repeat(100_000), "y".repeat(70_000)]);
        assert_eq!(table.to_string().lines().next().unwrap().len(), 170_002);
    }
}
